//! What an mkfs has left on a device that failed, was killed at its deadline, or with the worker that ran it: the next call
//! finds it, and must neither refuse it for ever nor format what somebody has put there since.
//!
//! The device was proven blank before, so all that is on it once mkfs has ended is of that mkfs. A digest of it is
//! noted, by the places that the proof of blankness looks at, and only what still has that digest is formatted again:
//! that is as good a proof as the first. The note is in /run, and goes with the node's next boot; then, as without a
//! note, the device holds data.
//!
//! No note is written while mkfs may still run.

use super::holding::{Holding, Id};
use super::open_device;
use crate::executor::record::STATE;
use crate::sys::blank::digest_of_device;
use crate::sys::clock;
use crate::sys::deadline::Deadline;
use crate::sys::files;
use crate::sys::signature;
use crate::sys::window::Window;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd};
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
    write(id, &digest)
}

fn write(id: &Id, note: &[u8]) -> Result<()> {
    files::make_private(&directory())?;
    let path = directory().join(id.as_str());
    let write = || {
        let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
        file.write_all(note)
    };
    write().with_context(|| format!("write {}", path.display())).inspect_err(|_| {
        let _ = forget(id);
    })
}

/// Whether an mkfs began there that nobody saw end. That counts only as long as nothing but that mkfs can have happened:
/// another node may have the device by then. What has a signature was finished.
pub(super) fn is_begun(until: Option<u64>, device: BorrowedFd<'_>) -> Result<bool> {
    Ok(until.is_some_and(|until| clock::seconds() <= until)
        && signature::identify(device, &Window::default())?.is_none())
}

/// Notes what such an mkfs has left on a device that goes, and its record with it. The caller has its lock, so mkfs has
/// ended. Who served the device may have ended, too: then that it was begun, and until when that counts.
pub(super) fn note_before_it_goes(holding: &Holding, device: &Path) -> Result<()> {
    let Some(until) = holding.formatting else { return Ok(()) };
    let id = holding.id();
    // Whoever saw it end has noted what it left.
    if directory().join(id.as_str()).try_exists()? {
        return Ok(());
    }
    let noted = open_device(device, true)
        .and_then(|(fd, _)| if is_begun(Some(until), fd.as_fd())? { note(&id, fd.as_fd()) } else { Ok(()) });
    noted.or_else(|_| write(&id, &until.to_le_bytes()))
}

/// Whether the device holds what was noted, and nothing else. A note that is true no more is removed.
pub(super) fn is_all(id: &Id, device: BorrowedFd<'_>, deadline: &Deadline) -> Result<bool> {
    let noted = match std::fs::read(directory().join(id.as_str())) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        noted => noted.context("read what mkfs has left")?,
    };
    let is_all = match <[u8; 8]>::try_from(&*noted) {
        Ok(until) => is_begun(Some(u64::from_le_bytes(until)), device)?,
        Err(_) => digest_of_device(device, deadline)? == *noted,
    };
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
