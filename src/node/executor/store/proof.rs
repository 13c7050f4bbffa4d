//! Proof that a device is blank, over as many calls as it takes.
//!
//! One call does not have enough time to read a terabyte. A call notes in /run how much it has read
//! and found to be zero, and the next call continues there. Between the calls the device is not
//! held. This is safe because only this volume's pods write to it, and they have no mount of it
//! before it is formatted. As far as this can be checked, it is not taken for granted:
//!
//! * A note is valid for the same store, size and hardware identity (an LVM or SCSI identifier, an
//!   RBD image), the same boot, and for a quarter of an hour: kubelet tries again every two
//!   minutes.
//! * It becomes invalid once this node has written to the same instance of the device.
//! * Before the device is formatted, signatures and samples are read again, at the places that
//!   every format or mount writes to.
//!
//! A note is removed with the unmount of the volume that it was made for. A note that is lost, torn
//! or too old only costs time.

use super::{Attached, Disk};
use anyhow::Result;
use flexvol_linux::block::blank::{Scope, prove_device_blank};
use flexvol_linux::block::block_device::{self, Identity};
use flexvol_linux::fs::{files, listing};
use flexvol_linux::proc::clock;
use flexvol_linux::proc::helper::Tools;
use flexvol_model::paths;
use flexvol_protocol::TargetPath;
use std::path::{Path, PathBuf};

/// Validity of a note, in seconds.
const VALID: u64 = 15 * 60;

/// Size limit for a note, in bytes.
const LARGEST: usize = 64 * 1024;

/// Fails unless the device is blank. Reads every byte, unless samples are enough.
pub(super) fn prove_blank(disk: &Attached, sampled: bool, tools: Tools<'_>) -> Result<()> {
    let identity = block_device::identity(disk.fd())?;
    let path = path_of(disk);
    let scope = if sampled { Scope::Samples } else { Scope::From(read(&path, &identity, clock::seconds())) };
    let mut zeros = disk.zeros.clone();
    if let Some(end) = block_device::end_of_mapped(disk.fd(), tools) {
        zeros.add(end..u64::MAX);
    }
    let targets: Vec<_> = disk.record.targets.iter().map(|target| target.to_string_lossy()).collect();
    let note = |at| write(&path, &identity, at, &targets.join("\n"));
    let proven = prove_device_blank(disk.fd(), scope, &zeros, &note, tools.deadline);
    // A device with data needs no further proof.
    if proven.as_ref().is_err_and(|error| !block_device::is_late(error)) {
        forget(disk);
    }
    proven
}

/// Removes the note: the device is about to be written to, or is not blank.
pub(super) fn forget(disk: &Attached) {
    let _ = files::forget(&path_of(disk));
}

/// Removes the notes for a target that is not requested any more, and all outdated notes.
pub(super) fn give_up(target: &TargetPath) {
    for path in given_up(target) {
        let _ = files::forget(&path);
    }
}

/// Reports whether there are such notes.
pub(super) fn is_left(target: &TargetPath) -> bool {
    given_up(target).next().is_some()
}

fn given_up(target: &TargetPath) -> impl Iterator<Item = PathBuf> {
    let names = listing::names(&directory()).unwrap_or_default().into_iter();
    names.map(|name| directory().join(name)).filter(|path| {
        let text = files::read_small(path, LARGEST).ok().flatten().unwrap_or_default();
        let since: u64 = text.split(' ').next().and_then(|since| since.parse().ok()).unwrap_or(0);
        let is_its = text.lines().skip(1).any(|line| Path::new(line) == target.as_path());
        is_its || clock::seconds().saturating_sub(since) > VALID
    })
}

fn directory() -> PathBuf {
    paths::run(paths::BLANK)
}

/// Returns the path of the note. The device below encryption and the one above it have separate
/// notes.
fn path_of(disk: &Attached) -> PathBuf {
    let layer = if disk.record.encrypted { ".decrypted" } else { "" };
    directory().join(format!("{}{layer}", disk.record.id().as_str()))
}

/// Writes the note. If this fails, the next call begins again.
fn write(path: &Path, of: &Identity, at: u64, targets: &str) {
    let text = format!("{} {at} {}:{} {}\n{targets}", clock::seconds(), of.instance, of.written, of.storage);
    let directory = path.parent().unwrap_or(path);
    let _ = files::make_private(directory).and_then(|()| files::replace(path, text.as_bytes()));
}

/// Returns the position that earlier calls have reached.
fn read(path: &Path, of: &Identity, now: u64) -> u64 {
    let note = || {
        let text = files::read_small(path, LARGEST).ok()??;
        let mut words = text.lines().next()?.splitn(4, ' ');
        let (noted, at, instance, storage) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let age = now.checked_sub(noted.parse().ok()?)?;
        let (instance, written) = instance.split_once(':')?;
        let is_written = instance == of.instance && written != of.written;
        (age <= VALID && storage == of.storage && !is_written).then(|| at.parse().ok())?
    };
    note().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(storage: &str, instance: &str, written: &str) -> Identity {
        let [storage, instance, written] = [storage, instance, written].map(str::to_owned);
        Identity { storage, instance, written }
    }

    #[test]
    fn a_note_counts_for_one_device_and_a_while() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("blank/a");
        let (now, noted) = (clock::seconds(), device("b 1 2", "7", "100"));
        assert_eq!(read(&path, &noted, now), 0);
        write(&path, &noted, 77, "/a\n/b c");
        assert_eq!(read(&path, &noted, now), 77);
        assert_eq!(read(&path, &noted, now + VALID), 77);
        assert_eq!(read(&path, &device("b 1 2", "8", "500"), now), 77, "brought again");
        assert_eq!(read(&path, &device("b 1 2", "7", "108"), now), 0, "written");
        assert_eq!(read(&path, &device("b 1 3", "7", "100"), now), 0, "another device");
        assert_eq!(read(&path, &noted, now + VALID + 60), 0, "too old");
        assert_eq!(read(&path, &noted, now - 60), 0, "of the future");
        for torn in ["", "1", "1 2", "x 77 7:100 b 1 2", "9 7 7:100 b", &format!("{now} x 7:100 b 1 2")] {
            files::replace(&path, torn.as_bytes()).unwrap();
            assert_eq!(read(&path, &noted, now), 0, "{torn:?}");
        }
    }
}
