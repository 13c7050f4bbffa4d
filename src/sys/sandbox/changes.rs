//! What was written in a sandbox, read from the upper layers of its file systems.

use super::world::Layer;
use anyhow::{Context as _, Result};
use rustix::fs::{self, AtFlags, Dir, FileType, Mode, OFlags, Stat};
use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

/// The marks of a directory that does not show what is below it, as root and as root of a user namespace.
const OPAQUE: [&str; 2] = ["trusted.overlay.opaque", "user.overlay.opaque"];

/// Everything that differs in one file system, as it is seen in the sandbox.
pub(super) fn of(layer: &Layer) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let lower = layer.lower.as_ref().map(|lower| lower.as_fd());
    compare(layer.upper.as_fd(), lower, &layer.target, &mut found)
        .with_context(|| format!("look at what was written to {}", layer.target.display()))?;
    Ok(found)
}

/// `lower` is what the directory was, if it was one.
fn compare(
    upper: BorrowedFd<'_>,
    lower: Option<BorrowedFd<'_>>,
    path: &Path,
    found: &mut Vec<PathBuf>,
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
        if !before.is_some_and(|before| is_same(&now, &before)) {
            found.push(path.clone());
        }
        if is_directory(&now) {
            let directory = open(upper, name)?;
            let shown = before.filter(|before| is_directory(before) && !is_opaque(&directory));
            let below = shown.and_then(|_| open(lower?, name).ok());
            compare(directory.as_fd(), below.as_ref().map(|below| below.as_fd()), &path, found)?;
        }
    }
    Ok(())
}

/// A directory is only what it is itself: it is copied up when something in it changes. A file is copied up
/// when it is opened for writing, with its time.
fn is_same(now: &Stat, before: &Stat) -> bool {
    let attributes = |stat: &Stat| (stat.st_mode, stat.st_uid, stat.st_gid);
    let content = |stat: &Stat| (stat.st_size, stat.st_mtime, stat.st_mtime_nsec, stat.st_rdev);
    attributes(now) == attributes(before) && (is_directory(now) || content(now) == content(before))
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
