//! Network: names, connections, sockets of daemons, netlink.

pub mod daemon_socket;
pub(crate) mod dns;
pub(crate) mod generic_netlink;
pub mod network;
