//! What an mkfs has left on a device that failed, or was killed at its deadline: the next call finds it, and must
//! neither refuse it for ever nor format what somebody has put there since.
//!
//! The device was proven blank before, so all that is on it once mkfs has ended is of that mkfs. A digest of it is
//! noted, by the places that the proof of blankness looks at, and only what still has that digest is formatted again:
//! that is as good a proof as the first. The note is in /run, and goes with the node's next boot; then, as without a
//! note, the device holds data.
//!
//! No note is written while mkfs may still run, nor of one that nobody saw end.

use super::holding::Id;
use crate::executor::record::STATE;
use crate::sys::blank::digest_of_device;
use crate::sys::deadline::Deadline;
use crate::sys::files;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long may be looked at a device after its call's deadline: it was just read, and little of it is not zero.
const AFTER_DEADLINE: Duration = Duration::from_secs(3);

fn directory() -> PathBuf {
    Path::new(STATE).join("unfinished")
}

/// Notes what is on the device now. The caller has its lock, and knows that mkfs has ended.
pub(super) fn note(id: &Id, device: BorrowedFd<'_>) -> Result<()> {
    // What never reaches the device is not there the next time.
    rustix::fs::fsync(device).context("write what mkfs has left to the device")?;
    let digest = digest_of_device(device, &Deadline::for_undo(AFTER_DEADLINE))?;
    files::make_private(&directory())?;
    let path = directory().join(id.as_str());
    let write = || {
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(&digest)
    };
    write().with_context(|| format!("write {}", path.display()))
}

/// Whether the device holds what was noted, and nothing else. A note that is true no more is removed.
pub(super) fn is_all(id: &Id, device: BorrowedFd<'_>, deadline: &Deadline) -> Result<bool> {
    let noted = match std::fs::read(directory().join(id.as_str())) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        noted => noted.context("read what mkfs has left")?,
    };
    let is_all = digest_of_device(device, deadline)? == *noted;
    if !is_all {
        forget(id)?;
    }
    Ok(is_all)
}

/// It is nobody's any more.
pub(super) fn forget(id: &Id) -> Result<()> {
    match std::fs::remove_file(directory().join(id.as_str())) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}
