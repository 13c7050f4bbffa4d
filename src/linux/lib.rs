//! The ground: what is asked of the operating system.
//!
//! Everything here is told what to do and knows nothing of drivers, verbs, plans or pods. Errors
//! are [`anyhow::Error`] with the action as context; where a caller has to branch, there is a
//! [`Failure`](flexvol_protocol::failure::Failure) or one of the facts of [`errno`] in the chain.
//!
//! | shelf | what is on it |
//! |---|---|
//! | [`block`] | block devices: loop, nbd, rbd, iSCSI, partitions, what is on a disk, making file systems |
//! | [`fs`] | files and directories: opened without following links, replaced atomically, locked, watched |
//! | [`mount`](mod@mount) | mounts: made in one step, listed, asked whether they answer |
//! | [`net`] | names, addresses, connections, netlink |
//! | [`proc`] | processes: this one, helpers, daemons, namespaces, limits, time |
//! | [`raw`] | system calls that no crate offers in a safe form: all `unsafe` there is |

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
