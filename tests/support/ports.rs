//! TCP ports for servers of tests.

use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::TcpSocket;

/// A port on loopback that nobody else has, and that only a server gets which may use an address
/// again: nearly every server may. The socket that is left open keeps it until this process ends,
/// also while the server is down: the kernel gives it to no connection and to no other test.
pub(crate) fn reserved_port() -> SocketAddr {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    // Afterwards: so that one that is reserved is not reserved twice.
    socket.set_reuseaddr(true).unwrap();
    let address = socket.local_addr().unwrap();
    std::mem::forget(socket);
    address
}
