//! What the node remembers of a device that was brought to it: a small file in /run, gone with the node's next
//! boot as the device is.
//!
//! It is written before anything is attached, so that whoever comes after a crash knows whose the device is, and
//! it names the targets that the device is there for: the last of them takes it away. A device that was there
//! before us has a file, too, and is never taken away. If the file is lost, the device stays.

use super::opener::Opener;
use crate::executor::record::{self, STATE};
use crate::plan::Store;
use crate::protocol::TargetPath;
use crate::sys::deadline::Deadline;
use crate::sys::files;
use crate::sys::lock::Lock;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// No record is larger, however many pods share the device.
const LARGEST: usize = 1 << 20;

/// A store's name for files, control groups and device mapper: equal for equal stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::executor) struct Id(String);

impl Id {
    pub(super) fn of(store: &Store) -> Self {
        Self(record::file_name(Path::new(&store.name())))
    }

    /// The one that has this name.
    pub(super) fn named(name: &str) -> Self {
        Self(name.to_owned())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Keeps every other call on the same device out.
    pub(super) fn lock(&self, deadline: &Deadline) -> Result<Lock> {
        record::prepare()?;
        let lock = Lock::acquire(record::locks().join(format!("{LOCK}{}", self.0)), deadline)?;
        let _ = std::fs::remove_file(self.draft());
        Ok(lock)
    }

    fn path(&self) -> PathBuf {
        directory().join(&self.0)
    }

    /// Where the record is written before it is put in place: a name that the next call clears away.
    fn draft(&self) -> PathBuf {
        directory().join(format!(".{}", self.0))
    }
}

/// What the names of stores' locks begin with.
const LOCK: &str = "store-";

/// Clears away what calls left that were killed before they had a record: their locks, which nobody holds.
pub(super) fn tidy() {
    for id in locked() {
        let _ = id.lock(&Deadline::after(Duration::ZERO));
    }
}

/// The stores that a call has locked, or had when it was killed.
pub(super) fn locked() -> impl Iterator<Item = Id> {
    record::locks_of(LOCK).map(Id)
}

/// A device of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Holding {
    /// Where it comes from.
    pub(super) store: Store,
    /// Its node, once there is one.
    pub(super) device: Option<PathBuf>,
    /// Whether it is encrypted, and the layer that decrypts it ours to close.
    pub(super) encrypted: bool,
    /// Whether it is ours to take away.
    pub(super) ours: bool,
    /// Whom it is there for.
    pub(super) targets: BTreeSet<PathBuf>,
    /// Until when an mkfs can run that nobody has seen end, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) formatting: Option<u64>,
    /// Whose credentials its server has let in, if it wants any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) opener: Option<Box<Opener>>,
}

impl Holding {
    pub(super) fn new(store: &Store) -> Self {
        Self {
            store: store.clone(),
            device: None,
            encrypted: false,
            ours: false,
            targets: BTreeSet::new(),
            formatting: None,
            opener: None,
        }
    }

    pub(super) fn id(&self) -> Id {
        Id::of(&self.store)
    }

    /// That of this store, if there is one that can be read.
    pub(super) fn read(id: &Id) -> Option<Self> {
        let text = files::read_small(&id.path(), LARGEST).ok()??;
        serde_json::from_str(&text).ok().filter(|holding: &Self| holding.id() == *id)
    }

    /// Those that are there for a target.
    pub(super) fn of(target: &TargetPath) -> Result<Vec<Self>> {
        let mut all = Self::all()?;
        all.retain(|holding| holding.targets.contains(target.as_path()));
        Ok(all)
    }

    /// Every one that can be read.
    pub(super) fn all() -> Result<Vec<Self>> {
        let names = match std::fs::read_dir(directory()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            names => names?,
        };
        let read = |name: std::io::Result<std::fs::DirEntry>| {
            let name = name.ok()?.file_name().into_string().ok()?;
            (!name.starts_with('.')).then(|| Self::read(&Id(name)))?
        };
        Ok(names.filter_map(read).collect())
    }

    pub(super) fn write(&self) -> Result<()> {
        let (id, directory) = (self.id(), directory());
        files::make_private(&directory)?;
        let put = || {
            let mut draft =
                File::options().write(true).create(true).truncate(true).mode(0o600).open(id.draft())?;
            draft.write_all(serde_json::to_string(self)?.as_bytes())?;
            std::fs::rename(id.draft(), id.path())
        };
        put().with_context(|| format!("write {}", id.path().display())).inspect_err(|_| {
            let _ = std::fs::remove_file(id.draft());
        })
    }

    /// Forgets it.
    pub(super) fn remove(&self) -> Result<()> {
        match std::fs::remove_file(self.id().path()) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }
}

fn directory() -> PathBuf {
    Path::new(STATE).join("stores")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::DiskImage;
    use crate::sys::namespace;

    #[test]
    fn a_record_that_cannot_be_written_leaves_no_draft() {
        if namespace::enter().and_then(|()| namespace::cover_run()).is_err() {
            return println!("SKIP a_record_that_cannot_be_written: needs root for a mount namespace");
        }
        let holding = Holding::new(&Store::Qcow2(DiskImage { file: "/a.qcow2".into(), size: None }));
        let id = holding.id();
        holding.write().unwrap();
        holding.remove().unwrap();
        // Nothing is renamed over a directory.
        std::fs::create_dir(id.path()).unwrap();
        let error = holding.write().unwrap_err().to_string();
        assert!(error.contains(id.as_str()), "{error}");
        assert!(!id.draft().exists());
    }
}
