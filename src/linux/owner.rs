//! Whose a file is.

use super::directory::Entry;
use anyhow::{Context as _, Result};
use rustix::fs::{self, Gid, Mode, Uid};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;

/// Gives an open file or directory the owner, group and permissions of another. Where the owner cannot be had,
/// nothing that runs in the owner's name is made: it would run in ours.
pub fn give(fd: BorrowedFd<'_>, like: Entry) -> Result<()> {
    let (owner, group) = (Uid::from_raw(like.owner), Gid::from_raw(like.group));
    let mode = match fs::fchown(fd, Some(owner), Some(group)) {
        Ok(()) => like.mode,
        Err(Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP) => like.mode & 0o1777,
        Err(errno) => return Err(errno).context("set the owner"),
    };
    fs::fchmod(fd, Mode::from_raw_mode(mode)).context("set the permissions")
}
