//! Remains of an mkfs that failed, or was killed at its deadline or together with its worker. The
//! next call finds them on the device: it must neither refuse the device forever nor format what
//! others have put there since.
//!
//! The device was proven blank before, so once mkfs has ended, everything on the device comes from
//! it. A digest of that is noted, of everything up to 1 GiB and of samples of a larger device. Only
//! content that still has this digest is formatted again: every format or mount elsewhere changes
//! it. The note is in /run, and disappears with the node's next boot. After that, as without a
//! note, the device counts as one that holds data.
//!
//! No note is written while mkfs may still run. If a daemon shows a file of the node as the device,
//! the device disappears with a killed call before it can be examined. Then the file is noted, by
//! its inode and the time of its last change.

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

/// Limit for examining a device after its call's deadline: it was just read, and little of it is
/// not zero.
const AFTER_DEADLINE: Duration = Duration::from_secs(3);

/// Length of a digest, in bytes; no other note has this length.
const DIGEST: usize = 32;

fn directory() -> PathBuf {
    paths::run(paths::UNFINISHED)
}

/// Notes the present content of the device. The caller has its lock, and knows that mkfs has ended.
pub(super) fn note(id: &Id, device: BorrowedFd<'_>) -> Result<()> {
    // Writes that never reach the device are missing the next time.
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

/// Reports whether an mkfs began there, and its end was not seen. This counts only until the latest
/// time at which it can have run: after that, another node may have the device. A device with a
/// signature was finished.
pub(super) fn is_begun(until: Option<u64>, device: BorrowedFd<'_>) -> Result<bool> {
    Ok(until.is_some_and(|until| clock::seconds() <= until)
        && signature::identify(device, &Window::default())?.is_none())
}

/// Notes the remains of such an mkfs on a device that is about to disappear, together with its
/// record. The caller has its lock, so mkfs has ended.
pub(super) fn note_before_it_goes(record: &AttachmentRecord, device: &Path) -> Result<()> {
    let id = record.id();
    // A call that saw the end has noted the remains.
    if record.formatting.is_none() || read(&id)?.is_some_and(|noted| noted.len() == DIGEST) {
        return Ok(());
    }
    let (fd, _) = open_device(device, true)?;
    settle(fd.as_fd())?;
    if is_begun(record.formatting, fd.as_fd())? { note_settled(&id, fd.as_fd()) } else { Ok(()) }
}

/// Does the same after a device has disappeared, together with the daemon that showed a file of the
/// node as it. Notes the file, unless it was changed later than that mkfs can have run.
pub(super) fn note_file(record: &AttachmentRecord) -> Result<()> {
    match (record.formatting, stamp_of(&record.store)) {
        (Some(until), Some((changed, stamp))) if changed <= until => write(&record.id(), stamp.as_bytes()),
        _ => Ok(()),
    }
}

/// Reports whether the file that is about to be shown is as noted: then an mkfs began there, its
/// end was not seen, and nothing has happened since. Removes a note that is no longer true.
pub(super) fn is_as_noted(store: &Store, id: &Id) -> Result<bool> {
    let Some(noted) = read(id)?.filter(|noted| noted.len() != DIGEST) else { return Ok(false) };
    let is_same = stamp_of(store).is_some_and(|(_, stamp)| stamp.as_bytes() == noted);
    if !is_same {
        forget(id)?;
    }
    Ok(is_same)
}

/// Returns the time of the last change to the file behind a device, in seconds since 1970, which
/// cannot be set back, and a text that no other state of any file has. `None` if the device does
/// not come from a file of the node.
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

/// Reports whether the device holds exactly what was noted. Removes a note that is no longer true.
pub(super) fn is_all(id: &Id, device: BorrowedFd<'_>, deadline: &Deadline) -> Result<bool> {
    let Some(noted) = read(id)? else { return Ok(false) };
    let is_all = digest_of_device(device, deadline)? == *noted;
    if !is_all {
        forget(id)?;
    }
    Ok(is_all)
}

/// Removes the note of a store.
pub(super) fn forget(id: &Id) -> Result<()> {
    Ok(files::forget(&directory().join(id.as_str()))?)
}
