//! The network.

pub(crate) mod generic_netlink;
pub mod network;
