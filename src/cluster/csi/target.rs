//! Directories of volumes: looked at, made and removed, never mounted.
//!
//! Kubernetes makes everything above a target: a symlink there is an attack. The target itself is
//! ours to make and to remove.

use super::capability::invalid;
use super::codes::of_error;
use anyhow::{Context as _, Result};
use flexvol_linux::mount::mount_table::{self, Entry};
use flexvol_linux::mount::place::{Look, Place};
use flexvol_protocol::TargetPath;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, StatVfs, fstatvfs, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use tonic::Status;

/// Mode of a volume's directory, as kubelet makes it.
const MODE: Mode = Mode::RWXU.union(Mode::RGRP).union(Mode::XGRP);

/// State of a target, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nothing.
    Missing,
    /// A directory on which nothing is mounted.
    Directory,
    /// A mount that answers.
    Mounted,
    /// A mount that does not answer.
    Dead(Errno),
}

/// Looks at a target. Fails if it is neither a directory nor a mount: then it is not ours.
pub fn look(target: &TargetPath) -> Result<Standing, Status> {
    let found = Place::open(target).and_then(|place| place.map_or(Ok(Look::Missing), |place| place.look()));
    match found.map_err(|error| of_error(&error))? {
        Look::Missing => Ok(Standing::Missing),
        Look::Plain(FileType::Directory) => Ok(Standing::Directory),
        Look::Plain(FileType::Symlink) => Err(invalid(&format!("{target} is a symlink"))),
        Look::Plain(_) => Err(invalid(&format!("{target} is not a directory"))),
        Look::Mount(_) => Ok(Standing::Mounted),
        Look::Dead(errno) => Ok(Standing::Dead(errno)),
    }
}

/// Reports whether the mount there can be written.
pub fn is_writable(target: &TargetPath) -> Result<bool, Status> {
    let entry = entry(target).map_err(|error| of_error(&error))?;
    Ok(entry.is_some_and(|entry| !entry.read_only && !entry.superblock_read_only))
}

/// Reports whether a program serves the mount there. A look does not show that such a program has
/// ended, because the kernel has the root in its cache.
pub fn is_served(target: &TargetPath) -> Result<bool, Status> {
    let entry = entry(target).map_err(|error| of_error(&error))?;
    Ok(entry.is_some_and(|entry| entry.is_served()))
}

fn entry(target: &TargetPath) -> Result<Option<Entry>> {
    let Some(place) = Place::open(target)? else { return Ok(None) };
    mount_table::at(&place.resolved()?)
}

/// Makes the directory, but not those above it. Returns true if it was missing.
pub fn make(target: &TargetPath) -> Result<bool> {
    let what = || format!("make {target}");
    let place = Place::open(target)?.with_context(|| format!("the directory above {target} is missing"))?;
    match mkdirat(place.parent(), place.name(), MODE) {
        Err(Errno::EXIST) => Ok(false),
        made => made.map(|()| true).with_context(what),
    }
}

/// Removes the directory, which must be empty. Succeeds if it is missing.
pub fn remove(target: &TargetPath) -> Result<()> {
    let Some(place) = Place::open(target)? else { return Ok(()) };
    match unlinkat(place.parent(), place.name(), AtFlags::REMOVEDIR) {
        Err(Errno::NOENT) => Ok(()),
        removed => removed.with_context(|| format!("remove {target}")),
    }
}

/// Reports whether the directory is empty.
pub fn is_empty(target: &TargetPath) -> Result<bool> {
    let mut entries = Dir::new(open(target, OFlags::RDONLY)?)?;
    let is_other = |entry: rustix::io::Result<rustix::fs::DirEntry>| {
        entry.map_or(true, |entry| !matches!(entry.file_name().to_bytes(), b"." | b".."))
    };
    Ok(!entries.any(is_other))
}

/// Returns the use of the file system. Hangs as long as its server does not answer.
pub fn usage(target: &TargetPath) -> Result<StatVfs> {
    fstatvfs(open(target, OFlags::PATH)?).with_context(|| format!("ask how full {target} is"))
}

fn open(target: &TargetPath, how: OFlags) -> Result<rustix::fd::OwnedFd> {
    let place = Place::open(target)?.with_context(|| format!("the directory above {target} is missing"))?;
    let flags = how | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(place.parent(), place.name(), flags, Mode::empty()).with_context(|| format!("open {target}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use tonic::Code;

    fn target(path: &Path) -> TargetPath {
        TargetPath::parse(path.as_os_str()).unwrap()
    }

    #[test]
    fn a_directory_is_made_and_removed() {
        let root = tempfile::tempdir().unwrap();
        let it = target(&root.path().join("a"));
        assert_eq!(look(&it).unwrap(), Standing::Missing);
        assert!(make(&it).unwrap() && !make(&it).unwrap());
        assert_eq!((look(&it).unwrap(), is_empty(&it).unwrap()), (Standing::Directory, true));
        std::fs::File::create(it.as_path().join("file")).unwrap();
        assert!(!is_empty(&it).unwrap() && remove(&it).is_err());
        std::fs::remove_file(it.as_path().join("file")).unwrap();
        remove(&it).unwrap();
        remove(&it).unwrap();
        assert!(make(&target(&root.path().join("none/a"))).is_err());
        assert_eq!(look(&target(&root.path().join("none/a"))).unwrap(), Standing::Missing);
    }

    #[test]
    fn what_is_no_directory_is_not_touched() {
        let root = tempfile::tempdir().unwrap();
        let pods = root.path().join("pods/1/volumes/kubernetes.io~csi");
        std::fs::create_dir_all(&pods).unwrap();
        std::fs::File::create(pods.join("file")).unwrap();
        std::os::unix::fs::symlink("/etc", pods.join("link")).unwrap();
        for name in ["file", "link", "link/mount"] {
            let status = look(&target(&pods.join(name))).unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{name}");
        }
        assert!(make(&target(&pods.join("link/mount"))).is_err());
    }
}
