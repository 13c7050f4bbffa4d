//! The record of an attached device: a small file in /run, gone with the node's next boot as the
//! device is.
//!
//! It is written before anything is attached, so that the call after a crash knows whose the device
//! is, and it names the targets that the device is attached for: it is detached with the last of
//! them. A device that was attached before us has a record, too, and is never detached. If it is
//! lost, the device itself says whose it is ([`lost`](super::lost)).

use super::credential_fingerprint::CredentialFingerprint;
use crate::executor::record;
use anyhow::Result;
use flexvol_linux::fs::lock::Lock;
use flexvol_linux::fs::{files, listing};
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::paths;
use flexvol_model::plan::Store;
use flexvol_protocol::TargetPath;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// No record is larger, however many pods share the device.
const LARGEST: usize = 1 << 20;

/// A store's name for files, control groups and device mapper: equal for equal stores, and for no
/// others.
///
/// Tenants choose what it is made of, so it has a digest that no one finds two texts for.
#[derive(Clone, Debug, Default)]
pub(in crate::executor) struct Id {
    name: String,
    /// What older versions called the same store.
    old: Option<String>,
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Id {}

impl Id {
    /// A store that an older version attached has the name which that gave it until it is detached:
    /// so have its device and all that belongs to it.
    pub(super) fn of(store: &Store) -> Self {
        let id = Self::new(store);
        let is_of = |record: AttachmentRecord| record.store.name() == store.name();
        let old = id.old().filter(|old| AttachmentRecord::read(old).is_some_and(is_of));
        old.unwrap_or(id)
    }

    fn new(store: &Store) -> Self {
        let text = store.name();
        let mut name = record::plain(Path::new(&text), READABLE);
        name.push('-');
        for byte in Sha256::digest(&text).into_iter().take(DIGEST) {
            let _ = write!(name, "{byte:02x}");
        }
        Self { name, old: Some(record::file_name(Path::new(&text))) }
    }

    /// The one that has this name.
    pub(super) fn named(name: &str) -> Self {
        Self { name: name.to_owned(), old: None }
    }

    /// The same store's of an older version.
    pub(super) fn old(&self) -> Option<Self> {
        self.old.as_deref().map(Self::named)
    }

    pub(super) fn as_str(&self) -> &str {
        &self.name
    }

    /// Keeps every other call on the same device out, whatever the store is called.
    pub(super) fn lock(store: &Store, deadline: &Deadline) -> Result<Lock> {
        let id = Self::new(store);
        let lock = id.lock_name(deadline)?;
        if let Some(old) = id.old() {
            // A call of an older version may have been under way when the driver was upgraded.
            if old.lock_path().exists() {
                drop(old.lock_name(deadline)?);
            }
            files::forget_draft(&old.path());
        }
        files::forget_draft(&id.path());
        Ok(lock)
    }

    /// The same of a store that only its name is known of.
    pub(super) fn lock_name(&self, deadline: &Deadline) -> Result<Lock> {
        record::prepare()?;
        Lock::acquire(self.lock_path(), deadline)
    }

    fn lock_path(&self) -> PathBuf {
        record::locks().join(format!("{LOCK}{}", self.name))
    }

    fn path(&self) -> PathBuf {
        directory().join(&self.name)
    }
}

/// How much of a store's name can be read in its [`Id`].
const READABLE: usize = 32;

/// How many bytes of SHA-256 its digest has: as many as keep two texts from having the same, and no
/// more, because a socket in a directory of this name has a path of at most 107 bytes.
const DIGEST: usize = 20;

/// What the names of stores' locks begin with.
const LOCK: &str = "store-";

/// Removes what calls left that were killed before they had a record: stale locks, and drafts of
/// records.
pub(super) fn remove_stale_locks() {
    for id in locked() {
        let Ok(lock) = id.lock_name(&Deadline::after(Duration::ZERO)) else { continue };
        files::forget_draft(&id.path());
        // Its file goes with the last who holds it.
        drop(lock);
    }
}

/// The stores that a call has locked, or had when it was killed.
pub(super) fn locked() -> impl Iterator<Item = Id> {
    record::locks_of(LOCK).map(|name| Id::named(&name))
}

/// A device of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AttachmentRecord {
    /// What the store is called here; the name of this file.
    #[serde(skip)]
    pub(super) id: Id,
    /// Where it comes from.
    pub(super) store: Store,
    /// Its node, once there is one.
    pub(super) device: Option<PathBuf>,
    /// Whether it is encrypted, and the layer that decrypts it ours to close.
    pub(super) encrypted: bool,
    /// Whether it is ours to detach.
    pub(super) ours: bool,
    /// Whom it is there for.
    pub(super) targets: BTreeSet<PathBuf>,
    /// Until when an mkfs can run that no one has seen end, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) formatting: Option<u64>,
    /// The number of the daemon that shows it, and when that was started, for a node without
    /// control groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) daemon: Option<(i32, u64)>,
    /// Whose credentials its server has let in, if it wants any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) opener: Option<Box<CredentialFingerprint>>,
}

impl AttachmentRecord {
    pub(super) fn new(id: &Id, store: &Store) -> Self {
        Self {
            id: id.clone(),
            store: store.clone(),
            device: None,
            encrypted: false,
            ours: false,
            targets: BTreeSet::new(),
            formatting: None,
            daemon: None,
            opener: None,
        }
    }

    pub(super) fn id(&self) -> Id {
        self.id.clone()
    }

    /// That of this store, if there is one that can be read.
    pub(super) fn read(id: &Id) -> Option<Self> {
        let text = files::read_small(&id.path(), LARGEST).ok()??;
        let record: Self = serde_json::from_str(&text).ok()?;
        let new = Id::new(&record.store);
        let id = [new.old(), Some(new)].into_iter().flatten().find(|of_store| of_store == id)?;
        Some(Self { id, ..record })
    }

    /// Those that are there for a target.
    pub(super) fn of(target: &TargetPath) -> Result<Vec<Self>> {
        let mut all = Self::all()?;
        all.retain(|record| record.targets.contains(target.as_path()));
        Ok(all)
    }

    /// Every one that can be read.
    pub(super) fn all() -> Result<Vec<Self>> {
        let read = |name: OsString| {
            let name = name.into_string().ok()?;
            (!name.starts_with('.')).then(|| Self::read(&Id::named(&name)))?
        };
        Ok(listing::names(&directory())?.into_iter().filter_map(read).collect())
    }

    pub(super) fn write(&self) -> Result<()> {
        files::make_private(&directory())?;
        files::replace(&self.id.path(), &serde_json::to_vec(self)?)
    }

    /// Forgets it.
    pub(super) fn remove(&self) -> Result<()> {
        Ok(files::forget(&self.id.path())?)
    }
}

fn directory() -> PathBuf {
    paths::run(paths::ATTACHMENTS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_linux::proc::namespace;
    use flexvol_model::plan::DiskImage;

    #[test]
    fn a_record_that_cannot_be_written_leaves_no_draft() {
        if namespace::enter().and_then(|()| namespace::cover_run()).is_err() {
            return println!("SKIP a_record_that_cannot_be_written: needs root for a mount namespace");
        }
        let store = Store::Qcow2(DiskImage { file: "/a.qcow2".into(), size: None });
        let id = Id::of(&store);
        let record = AttachmentRecord::new(&id, &store);
        record.write().unwrap();
        record.remove().unwrap();
        // Nothing is renamed over a directory.
        std::fs::create_dir(id.path()).unwrap();
        let error = record.write().unwrap_err().to_string();
        assert!(error.contains(id.as_str()), "{error}");
        assert!(!files::draft_of(&id.path()).exists());
    }

    fn image(file: &str) -> Store {
        Store::Qcow2(DiskImage { file: file.into(), size: None })
    }

    #[test]
    fn a_name_has_a_digest_that_nobody_finds_two_texts_for() {
        let id = Id::new(&image("/srv/images/web server.qcow2"));
        assert_eq!(id.as_str(), "web_server_qcow2-c0ff304888de82d4a8bd079a70800ea3948f9ef8");
        let long = Id::new(&image(&"x".repeat(300)));
        let socket = paths::run(paths::IMAGE_DAEMONS).join(long.as_str()).join("control");
        assert!(socket.as_os_str().len() <= 107, "{}", socket.display());
    }

    #[test]
    fn what_an_older_version_attached_keeps_its_name_until_it_goes() {
        if namespace::enter().and_then(|()| namespace::cover_run()).is_err() {
            return println!("SKIP what_an_older_version_attached: needs root for a mount namespace");
        }
        let store = image("/srv/a.qcow2");
        let new = Id::of(&store);
        let old = new.old().unwrap();
        AttachmentRecord::new(&old, &store).write().unwrap();
        assert_eq!((Id::of(&store), AttachmentRecord::read(&new)), (old.clone(), None));
        let record = AttachmentRecord::read(&old).unwrap();
        assert_eq!((record.id(), AttachmentRecord::all().unwrap()), (old, vec![record.clone()]));
        record.remove().unwrap();
        assert_eq!(Id::of(&store), new);
    }

    #[test]
    fn a_record_under_another_store_s_name_says_nothing() {
        if namespace::enter().and_then(|()| namespace::cover_run()).is_err() {
            return println!("SKIP a_record_under_another_store_s_name: needs root for a mount namespace");
        }
        let [one, other] = ["/srv/a.qcow2", "/srv/b.qcow2"].map(image);
        for id in [Id::new(&one), Id::new(&one).old().unwrap()] {
            AttachmentRecord::new(&id, &other).write().unwrap();
            assert_eq!((AttachmentRecord::read(&id), Id::of(&one)), (None, Id::new(&one)));
        }
        assert!(AttachmentRecord::all().unwrap().is_empty());
    }
}
