//! What an mkfs has left on a device that failed, was killed at its deadline, or with the worker
//! that ran it: the next call finds it, and must neither refuse it for ever nor format what
//! someone has put there since.
//!
//! The device was proven blank before, so all that is on it once mkfs has ended is of that mkfs. A
//! digest of it is noted, of all of it up to 1 GiB and of samples of a larger one, and only what
//! still has that digest is formatted again: whoever formats or mounts the device elsewhere changes
//! it. The note is in /run, and goes with the node's next boot; then, as without a note, the device
//! holds data.
//!
//! No note is written while mkfs may still run. A device that is a file of the node, shown by a
//! daemon, is gone with that before anybody can look at it when the call is killed; then the file
//! is noted, by its inode and the time of its last change.

use super::attachment_record::{AttachmentRecord, Id};
use super::open_device;
use anyhow::{Context as _, Result};
use flexvol_linux::block::blank::{digest_of_device, settle};
use flexvol_linux::block::signature;
use flexvol_linux::block::window::Window;
use flexvol_linux::fs::files::{self, Stamp};
use flexvol_linux::proc::clock;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::paths;
use flexvol_model::plan::{Nbd, NbdServer, Store};
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long may be looked at a device after its call's deadline: it was just read, and little of it
/// is not zero.
const AFTER_DEADLINE: Duration = Duration::from_secs(3);

/// No other note is so long.
const DIGEST: usize = 32;

fn directory() -> PathBuf {
    paths::run(paths::UNFINISHED)
}

/// Notes what is on the device now. The caller has its lock, and knows that mkfs has ended.
pub(super) fn note(id: &Id, device: BorrowedFd<'_>) -> Result<()> {
    // What never reaches the device is not there the next time.
    settle(device)?;
    note_settled(id, device)
}

fn note_settled(id: &Id, device: BorrowedFd<'_>) -> Result<()> {
    let digest = digest_of_device(device, &Deadline::for_undo(AFTER_DEADLINE))?;
    write(id, &digest)
}

fn write(id: &Id, note: &[u8]) -> Result<()> {
    files::make_private(&directory())?;
    files::replace(&directory().join(id.as_str()), note).inspect_err(|_| {
        let _ = forget(id);
    })
}

/// Whether an mkfs began there that no one saw end. That counts only as long as nothing but that
/// mkfs can have happened: another node may have the device by then. What has a signature was
/// finished.
pub(super) fn is_begun(until: Option<u64>, device: BorrowedFd<'_>) -> Result<bool> {
    Ok(until.is_some_and(|until| clock::seconds() <= until)
        && signature::identify(device, &Window::default())?.is_none())
}

/// Notes what such an mkfs has left on a device that goes, and its record with it. The caller has
/// its lock, so mkfs has ended.
pub(super) fn note_before_it_goes(record: &AttachmentRecord, device: &Path) -> Result<()> {
    let id = record.id();
    // Whoever saw it end has noted what it left.
    if record.formatting.is_none() || read(&id)?.is_some_and(|noted| noted.len() == DIGEST) {
        return Ok(());
    }
    let (fd, _) = open_device(device, true)?;
    settle(fd.as_fd())?;
    if is_begun(record.formatting, fd.as_fd())? { note_settled(&id, fd.as_fd()) } else { Ok(()) }
}

/// The same once the device has gone before it could be looked at, with the daemon that showed a
/// file of the node as it: the file, unless it was changed when that mkfs can have run no more.
pub(super) fn note_file(record: &AttachmentRecord) -> Result<()> {
    match (record.formatting, stamp_of(&record.store)) {
        (Some(until), Some((changed, stamp))) if changed <= until => write(&record.id(), stamp.as_bytes()),
        _ => Ok(()),
    }
}

/// Whether the file that is about to be shown is as it was noted: then an mkfs began there that
/// no one saw end, and nothing has happened since. A note that is true no more is removed.
pub(super) fn is_as_noted(store: &Store, id: &Id) -> Result<bool> {
    let Some(noted) = read(id)?.filter(|noted| noted.len() != DIGEST) else { return Ok(false) };
    let is_same = stamp_of(store).is_some_and(|(_, stamp)| stamp.as_bytes() == noted);
    if !is_same {
        forget(id)?;
    }
    Ok(is_same)
}

/// When the file behind a device was last changed, which no one can set back, in seconds since
/// 1970; and what no other state of any file has. `None` where there is no file of the node behind
/// it.
fn stamp_of(store: &Store) -> Option<(u64, String)> {
    let (Store::Qcow2(image) | Store::Nbd(Nbd { from: NbdServer::Image { image, .. }, .. })) = store else {
        return None;
    };
    let Stamp { device, inode, size, changed: (changed, further) } = Stamp::of(&image.file).ok()?;
    let stamp = format!("file {device}:{inode} of {size}, {changed}.{further:09}");
    Some((u64::try_from(changed).ok()?, stamp))
}

fn read(id: &Id) -> Result<Option<Vec<u8>>> {
    let path = directory().join(id.as_str());
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        _ => Ok(Some(files::beginning(&path, 4096).context("read what is noted of an mkfs")?)),
    }
}

/// Whether the device holds what was noted, and nothing else. A note that is true no more is
/// removed.
pub(super) fn is_all(id: &Id, device: BorrowedFd<'_>, deadline: &Deadline) -> Result<bool> {
    let Some(noted) = read(id)? else { return Ok(false) };
    let is_all = digest_of_device(device, deadline)? == *noted;
    if !is_all {
        forget(id)?;
    }
    Ok(is_all)
}

/// It belongs to no pod any more.
pub(super) fn forget(id: &Id) -> Result<()> {
    Ok(files::forget(&directory().join(id.as_str()))?)
}
