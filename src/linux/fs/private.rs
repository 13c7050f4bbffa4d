//! Directory in memory that only root can enter, for files that a daemon must be able to reread.
//!
//! /run is in memory on a node. Where it is not, a small file system in memory is mounted on the
//! directory. Its content never reaches a disk of the node.

use crate::fs::directory::Directory;
use crate::mount::place::{Look, Place};
use crate::mount::{self, NewMount, Parameter, Value, Way};
use anyhow::{Context, Result};
use flexvol_protocol::TargetPath;
use flexvol_protocol::mount_options::MountFlags;
use rustix::fs::statfs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Size limit of a directory that is a file system of its own.
const SIZE: &str = "4m";

/// Types of file systems in memory, as in statfs(2): tmpfs and ramfs.
const IN_MEMORY: [u32; 2] = [0x0102_1994, 0x8584_58f6];

/// A private directory, whether it exists or not.
#[derive(Debug)]
pub struct Private {
    path: PathBuf,
}

impl Private {
    /// Returns the directory at this absolute path. Only root may have access to its parent.
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Returns the path of a file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Reports whether the directory exists.
    pub fn is_left(&self) -> bool {
        self.path.symlink_metadata().is_ok()
    }

    /// Makes the directory, empty.
    pub fn make(&self) -> Result<()> {
        self.made(false)
    }

    /// Makes the directory with a size limit, for a daemon that writes into it for years.
    pub fn make_limited(&self) -> Result<()> {
        self.made(true)
    }

    fn made(&self, limited: bool) -> Result<()> {
        self.remove()?;
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        crate::fs::files::make_private(parent)?;
        crate::fs::directory::make_private(&self.path)?;
        if !limited && in_memory(parent)? {
            return Ok(());
        }
        let options = [("size", SIZE), ("nr_inodes", "256"), ("mode", "700")]
            .map(|(key, value)| Parameter { key, value: Value::Text(value) });
        let new = NewMount {
            file_system: "tmpfs",
            source: "flexvol",
            flags: MountFlags { exec: false, ..MountFlags::DEFAULT },
            superblock_read_only: false,
            options: &options,
        };
        mount::mount(&new, &self.place()?, Way::Detached).map(drop)
    }

    /// Writes a new file into it, with mode 0600.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let directory = Directory::open(&self.path)?.context("a private directory is gone")?;
        let mut file = directory.create(name, 0o600)?;
        file.write_all(bytes).with_context(|| format!("write {}", self.file(name).display()))
    }

    /// Removes the directory with its content. Succeeds if it does not exist.
    pub fn remove(&self) -> Result<()> {
        if !self.is_left() {
            return Ok(());
        }
        let place = self.place()?;
        while matches!(place.look()?, Look::Mount(_) | Look::Dead(_)) {
            mount::unmount(&place, true).with_context(|| format!("unmount {}", self.path.display()))?;
        }
        let parent = self.path.parent().unwrap_or(Path::new("/"));
        let name = self.path.file_name().unwrap_or_default();
        match Directory::open(parent)? {
            Some(parent) => parent.remove_tree(name),
            None => Ok(()),
        }
    }

    fn place(&self) -> Result<Place> {
        let target = TargetPath::parse(self.path.as_os_str())?;
        Place::open(&target)?.with_context(|| format!("{} has no parent", self.path.display()))
    }
}

fn in_memory(path: &Path) -> Result<bool> {
    let kind = statfs(path).with_context(|| format!("look at {}", path.display()))?.f_type;
    Ok(u32::try_from(kind).is_ok_and(|kind| IN_MEMORY.contains(&kind)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn it_is_in_memory_closed_and_gone_without_a_trace() {
        if crate::proc::namespace::enter().is_err() {
            return println!("SKIP it_is_in_memory_closed_and_gone_without_a_trace: needs a mount namespace");
        }
        for parent in [tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap()] {
            let private = Private::at(parent.path().join("daemons/v"));
            private.make().unwrap();
            private.write("key", b"hunter2").unwrap();
            assert!(private.write("key", b"again").is_err());
            assert!(in_memory(&private.file("key")).unwrap());
            let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
            assert_eq!((mode(&private.path), mode(&private.file("key"))), (0o700, 0o600));
            // Leftovers of a killed call are no obstacle.
            private.make_limited().unwrap();
            private.write("log", b"").unwrap();
            let mut log = std::fs::File::options().write(true).open(private.file("log")).unwrap();
            let full = log.write_all(&vec![0; 5 << 20]).unwrap_err();
            assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
            assert!(!private.file("key").exists());
            private.remove().unwrap();
            private.remove().unwrap();
            assert!(!private.is_left());
            assert_eq!(parent.path().join("daemons").read_dir().unwrap().count(), 0);
        }
    }
}
