//! Record of an attached device: a small file in /run, which disappears with the node's next boot,
//! as the device does.
//!
//! It is written before anything is attached, so that the call after a crash knows the owner of the
//! device. It names the targets that the device is attached for: the device is detached with the
//! last of them. A device that was attached before us has a record, too, and is never detached. If
//! the record is lost, the device itself tells its owner ([`lost`](super::lost)).

use super::credential_fingerprint::CredentialFingerprint;
use crate::executor::record;
use anyhow::Result;
use flexvol_linux::fs::lock::Lock;
use flexvol_linux::fs::{files, listing};
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::paths;
use flexvol_model::plan::Store;
use flexvol_protocol::TargetPath;
use flexvol_protocol::text::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Size limit for a record, in bytes, however many pods share the device.
const LARGEST: usize = 1 << 20;

/// Name of a store for files, control groups and device mapper: equal for equal stores, and
/// different for all others.
///
/// Tenants choose the text that it is made of, so it contains a collision-resistant digest.
#[derive(Clone, Debug, Default)]
pub(in crate::executor) struct Id {
    name: String,
    /// Name of the same store in older versions.
    old: Option<String>,
}

impl PartialEq for Id {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Id {}

impl Id {
    /// Returns the name of a store. A store that an older version attached keeps its old name until
    /// it is detached, because its device and all that belongs to it have that name.
    pub(super) fn of(store: &Store) -> Self {
        let id = Self::new(store);
        let is_of = |record: AttachmentRecord| record.store.name() == store.name();
        let old = id.old().filter(|old| AttachmentRecord::read(old).is_some_and(is_of));
        old.unwrap_or(id)
    }

    fn new(store: &Store) -> Self {
        let text = store.name();
        let digest = hex(&Sha256::digest(&text)[..DIGEST]);
        let name = format!("{}-{digest}", record::plain(Path::new(&text), READABLE));
        Self { name, old: Some(record::file_name(Path::new(&text))) }
    }

    /// Returns the id with this name.
    pub(super) fn named(name: &str) -> Self {
        Self { name: name.to_owned(), old: None }
    }

    /// Returns the id of the same store in an older version.
    pub(super) fn old(&self) -> Option<Self> {
        self.old.as_deref().map(Self::named)
    }

    pub(super) fn as_str(&self) -> &str {
        &self.name
    }

    /// Locks a store: keeps out every other call for the same device, whatever name the store has.
    pub(super) fn lock(store: &Store, deadline: &Deadline) -> Result<Lock> {
        let id = Self::new(store);
        let lock = id.lock_name(deadline)?;
        if let Some(old) = id.old() {
            // A call of an older version may have been running when the driver was upgraded.
            if old.lock_path().exists() {
                drop(old.lock_name(deadline)?);
            }
            files::forget_draft(&old.path());
        }
        files::forget_draft(&id.path());
        Ok(lock)
    }

    /// Does the same for a store of which only the name is known.
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

/// Limit for the readable part of a store's name in its [`Id`], in characters.
const READABLE: usize = 32;

/// Length of the digest, in bytes of SHA-256: enough to prevent collisions, and no more, because a
/// socket in a directory of this name has a path of at most 107 bytes.
const DIGEST: usize = 20;

/// Prefix for the names of stores' locks.
const LOCK: &str = "store-";

/// Removes leftovers of calls that were killed before they had a record: stale locks, and drafts of
/// records.
pub(super) fn remove_stale_locks() {
    for id in locked() {
        let Ok(lock) = id.lock_name(&Deadline::after(Duration::ZERO)) else { continue };
        files::forget_draft(&id.path());
        // The lock's file disappears with its last holder.
        drop(lock);
    }
}

/// Returns the stores that a call has locked, or had locked when it was killed.
pub(super) fn locked() -> impl Iterator<Item = Id> {
    record::locks_of(LOCK).map(|name| Id::named(&name))
}

/// Record of a device on the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AttachmentRecord {
    /// Name of the store here, and of the record's file.
    #[serde(skip)]
    pub(super) id: Id,
    /// Store that the device comes from.
    pub(super) store: Store,
    /// Path of the device's node, once there is one.
    pub(super) device: Option<PathBuf>,
    /// True if the device is encrypted, and we have to close the layer that decrypts it.
    pub(super) encrypted: bool,
    /// True if we have to detach the device.
    pub(super) ours: bool,
    /// Targets that the device is attached for.
    pub(super) targets: BTreeSet<PathBuf>,
    /// Latest time at which an mkfs without a confirmed end can run, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) formatting: Option<u64>,
    /// PID and start time of the daemon that shows the device, for a node without control groups.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) daemon: Option<(i32, u64)>,
    /// Fingerprint of the credentials that its server has accepted, if it requires any.
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

    /// Reads the record of this store, if there is one that can be read.
    pub(super) fn read(id: &Id) -> Option<Self> {
        let text = files::read_small(&id.path(), LARGEST).ok()??;
        let record: Self = serde_json::from_str(&text).ok()?;
        let new = Id::new(&record.store);
        let id = [new.old(), Some(new)].into_iter().flatten().find(|of_store| of_store == id)?;
        Some(Self { id, ..record })
    }

    /// Returns the records that name a target.
    pub(super) fn of(target: &TargetPath) -> Result<Vec<Self>> {
        let mut all = Self::all()?;
        all.retain(|record| record.targets.contains(target.as_path()));
        Ok(all)
    }

    /// Returns all records that can be read.
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

    /// Removes the record.
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
        // A rename over a directory fails.
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
