//! The network.

pub mod daemon_socket;
pub(crate) mod dns;
pub(crate) mod generic_netlink;
pub mod network;
