//! Finds what was written in a sandbox, in the upper layers of its file systems.

use super::maker::Layer;
use anyhow::{Context as _, Result};
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use std::collections::BTreeMap;
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// Marks of a directory that hides the lower layer, as root and as root of a user namespace.
const OPAQUE: [&str; 2] = ["trusted.overlay.opaque", "user.overlay.opaque"];

/// Properties that show whether a file is still the same. For a directory these are only its own
/// properties, not its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mark {
    mode: u32,
    owner: (u32, u32),
    content: Option<(i64, i64, i64, u64)>,
}

/// Returns everything that differs in one file system, by its path in the sandbox.
pub(super) fn of(layer: &Layer) -> Result<BTreeMap<PathBuf, Mark>> {
    let mut found = BTreeMap::new();
    let lower = layer.lower.as_ref().map(|lower| lower.as_fd());
    compare(layer.upper.as_fd(), lower, &layer.target, &mut found)
        .with_context(|| format!("look at what was written to {}", layer.target.display()))?;
    Ok(found)
}

/// Compares a directory with `lower`, the former directory; `None` if it was not a directory.
fn compare(
    upper: BorrowedFd<'_>,
    lower: Option<BorrowedFd<'_>>,
    path: &Path,
    found: &mut BTreeMap<PathBuf, Mark>,
) -> rustix::io::Result<()> {
    for entry in Dir::read_from(upper)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let path = path.join(OsStr::from_bytes(name.to_bytes()));
        let now = fs::statat(upper, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let before = lower.and_then(|lower| fs::statat(lower, name, AtFlags::SYMLINK_NOFOLLOW).ok());
        let shown = before.filter(|before| is_directory(&now) == is_directory(before));
        let directory = if is_directory(&now) { Some(open(upper, name)?) } else { None };
        // An opaque directory shows nothing of its former content.
        let shown = shown.filter(|_| !directory.as_ref().is_some_and(is_opaque));
        if shown.map(Mark::of) != Some(Mark::of(now)) {
            found.insert(path.clone(), Mark::of(now));
        }
        if let Some(directory) = directory {
            let below = shown.and_then(|_| open(lower?, name).ok());
            compare(directory.as_fd(), below.as_ref().map(|below| below.as_fd()), &path, found)?;
        }
    }
    Ok(())
}

impl Mark {
    /// Returns the mark of a file. A directory is copied up when something in it changes; a file,
    /// with its time, when it is opened for writing.
    fn of(stat: Stat) -> Self {
        let content = (stat.st_size, stat.st_mtime, stat.st_mtime_nsec.cast_signed(), stat.st_rdev);
        Self {
            mode: stat.st_mode,
            owner: (stat.st_uid, stat.st_gid),
            content: (!is_directory(&stat)).then_some(content),
        }
    }
}

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn is_opaque(directory: &OwnedFd) -> bool {
    let mut value = [0; 1];
    OPAQUE.iter().any(|name| fs::fgetxattr(directory, *name, &mut value) == Ok(1) && value == *b"y")
}

fn open(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(parent, name, flags, Mode::empty())
}
