//! Search for a store's device on this node, and for a mount that shows it.

use super::attachment_record::{AttachmentRecord, Id};
use super::{Attached, Found, backend, luks};
use crate::executor::context::Context;
use crate::executor::disk::Guard;
use anyhow::Result;
use flexvol_linux::block::block_device::number_of;
use flexvol_linux::mount::mount_table::{self, Entry};
use flexvol_model::plan::{Attachment, Source, Store};
use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::{Code, Failure};
use std::path::Path;

impl Context<'_> {
    /// Returns true for read-only access. A file system that is mounted already is read-only in all
    /// its mounts, or only in those that say so.
    pub(super) fn access(&self, top: Option<&Path>, attachment: &Attachment) -> Result<bool> {
        let number = top.map_or(0, |top| number_of(top.as_os_str()));
        let is_of = |entry: &Entry| number != 0 && number_of(&entry.source) == number;
        let mounted = if self.disk.in_use { mount_table::read()?.into_iter().find(is_of) } else { None };
        match mounted {
            Some(entry) if entry.superblock_read_only && !attachment.read_only => {
                let (store, at) = (&attachment.store, entry.target.display());
                let text = format!(
                    "{store} is mounted read-only for another pod, at {at}, and other nodes may have written to it since: end that pod first, kubelet tries again"
                );
                Err(Failure::new(Code::Busy, text).into())
            }
            Some(entry) => Ok(entry.superblock_read_only),
            None => Ok(attachment.read_only),
        }
    }

    /// Uses the device that is mounted at the target; searches for it, and never attaches it.
    pub(super) fn use_store(&mut self, target: &TargetPath, store: &Store) -> Result<()> {
        let id = self.lock_store(store)?;
        let missing = || {
            let text = format!("{store} is not on this node: mount it before {target} grows");
            Failure::new(Code::NotFound, text)
        };
        let found = self.find_store(&id, store)?.ok_or_else(missing)?;
        let record = AttachmentRecord::read(&id).unwrap_or_else(|| AttachmentRecord::new(&id, store));
        self.disk.in_use = true;
        let found =
            if luks::is_open(&id) { Found { path: luks::path(&id), held: found.held } } else { found };
        self.disk.device = Some(Box::new(Attached::open(record, found, false)?));
        self.expect_staged(target, &Source::Store(store.clone()))
    }

    /// Locks the store. Returns its name, which no other call can change from now on.
    pub(super) fn lock_store(&mut self, store: &Store) -> Result<Id> {
        self.disk.lock = Some(Guard::Store(Id::lock(store, &self.deadline)?));
        self.name_of(store)
    }

    /// Returns the name of a store. Even without a record, a device that an older version attached
    /// keeps its old name.
    fn name_of(&self, store: &Store) -> Result<Id> {
        let id = Id::of(store);
        let Some(old) = id.old().filter(|_| AttachmentRecord::read(&id).is_none()) else { return Ok(id) };
        let at_old = |store: &Store| Ok::<_, anyhow::Error>(backend(store).find(&self.site(&old))?.is_some());
        let is_named = matches!(store, Store::Qcow2(_) | Store::Rbd(_) | Store::Nbd(_)) && at_old(store)?;
        Ok(if is_named || luks::is_open(&old) { old } else { id })
    }

    /// Returns the store's device, if it is on this node. Fails if the device belongs to another
    /// store with the same name.
    pub(super) fn find_store(&self, id: &Id, store: &Store) -> Result<Option<Found>> {
        let found = backend(store).find(&self.site(id))?;
        if found.is_some() {
            let known = AttachmentRecord::read(id).map(|record| record.store);
            if let Some(known) = known.as_ref().filter(|known| known.name() != store.name()) {
                let text = format!("the node has {known} under the name of {store}: unmount that first");
                return Err(Failure::new(Code::Conflict, text).into());
            }
            backend(store).recognize(&self.site(id), known.as_ref())?;
        }
        Ok(found)
    }

    /// Reports whether the store's device is on this node.
    pub(in crate::executor) fn is_here(&self, store: &Store) -> Result<bool> {
        Ok(self.find_store(&self.name_of(store)?, store)?.is_some())
    }

    /// Reports whether a mount shows a store, whatever name its device has now.
    pub(in crate::executor) fn shows_store(&self, entry: &Entry, store: &Store) -> Result<bool> {
        let id = self.name_of(store)?;
        let mounted = number_of(&entry.source);
        if mounted == 0 {
            return Ok(false);
        }
        let found = self.find_store(&id, store)?;
        let top = if luks::is_open(&id) { Some(luks::path(&id)) } else { found.map(|found| found.path) };
        Ok(top.is_some_and(|top| number_of(top.as_os_str()) == mounted))
    }
}
