//! Operating system layer: all requests that go to the kernel.
//!
//! The code here only carries out requests. It knows nothing of drivers, verbs, plans or pods.
//! Errors are [`anyhow::Error`] with the action as context. Where a caller has to branch, the chain
//! holds a [`Failure`](flexvol_protocol::failure::Failure) or one of the types of [`errno`].
//!
//! | module | content |
//! |---|---|
//! | [`block`] | block devices: loop, nbd, rbd, iSCSI, partitions, content detection, mkfs |
//! | [`fs`] | files and directories: opened without following links, replaced atomically, locked, watched |
//! | [`mount`](mod@mount) | mounts: made in one step, listed, checked for an answer |
//! | [`net`] | names, addresses, connections, netlink |
//! | [`proc`] | processes: this one, helpers, daemons, namespaces, limits, time |
//! | [`raw`] | system calls that no crate offers in a safe form: all `unsafe` code |

pub mod block;
pub mod errno;
pub mod fs;
pub mod mount;
pub mod net;
pub mod proc;
pub mod raw;

#[cfg(test)]
#[path = "../../tests/support/pace.rs"]
mod pace;
#[cfg(test)]
#[path = "../../tests/support/wording.rs"]
mod wording;
