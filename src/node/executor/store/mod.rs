//! Steps of block devices that come to the node from elsewhere: attach, decrypt, grow and detach
//! one.
//!
//! * A device is attached once for all targets that need it, and detached with the last of them:
//!   [`AttachmentRecord`].
//! * A device that was attached before us is used, and stays attached.
//! * A device that others on this node use is refused: two writers destroy a device. Kinds of store
//!   that can tell also check whether another node uses it ([`Backend::attach`]).
//! * Each device has one lock: attaching, formatting and detaching exclude each other.

mod admission;
mod attached;
mod attachment_record;
mod credential_fingerprint;
mod decrypt;
mod find;
mod growth;
mod iscsi;
pub(super) mod lost;
mod luks;
mod lvm;
mod nbd;
mod proof;
mod qcow2;
mod qemu;
mod rbd;
mod unfinished;
mod unstage;

use super::context::Context;
use super::disk::{DeviceContext, Disk};
use super::undo::Undo;
use super::unmount;
use crate::hints::after_rollback;
use anyhow::{Context as _, Result, bail};
pub(super) use attached::Attached;
use attachment_record::{AttachmentRecord, Id};
use flexvol_linux::block::block_device::number_of;
use flexvol_linux::block::block_status::Zeros;
use flexvol_linux::block::loop_device::LoopDevice;
use flexvol_linux::errno::Errno;
use flexvol_linux::fs::opened::{self, OFlags};
use flexvol_linux::mount::mount_table::{self, Entry};
use flexvol_linux::mount::place::{Look, Place};
use flexvol_linux::mount::users;
use flexvol_linux::proc::clock;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::{Runner, Tools};
use flexvol_model::plan::{Attachment, Store, StoreStep};
use flexvol_model::policy::Policy;
use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::secret::Secret;
use flexvol_protocol::volume_dir::VolumeDir;
use lost::top;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limit for a device to be busy after its unmount: the kernel ends a file system after the call
/// returned.
const LETTING_GO: Duration = Duration::from_secs(5);

/// Limit for the rollback of half an attachment, in addition to the time that the call itself took.
const UNDO_TIME: Duration = Duration::from_secs(8);

/// Limit for a disk to appear after its device node: the kernel makes the node first.
const COMING: Duration = Duration::from_secs(3);

/// Limit for storage to tell what it knows of itself.
const ASKING: Duration = Duration::from_secs(10);

/// Pause between two looks at a device that appears or disappears.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// Operations of one kind of store on this node.
pub(super) trait Backend {
    /// Returns the device that shows the store now, even if others attached it.
    fn find(&self, at: &Site<'_>) -> Result<Option<Found>>;

    /// Fails if the device that was found belongs to another store with the same name; `known` is
    /// its store according to the record.
    fn recognize(&self, _at: &Site<'_>, _known: Option<&Store>) -> Result<()> {
        Ok(())
    }

    /// Returns the device that a record names, as long as it is this store's. A device number that
    /// is freed with its last user soon belongs to another device.
    fn hold(&self, _at: &Site<'_>, device: &Path) -> Option<Found> {
        Some(Found { path: device.to_owned(), held: None })
    }

    /// Reports whether a device found without a record is ours to detach: most have our name.
    fn is_ours(&self, _at: &Site<'_>) -> Result<bool> {
        Ok(true)
    }

    /// Reports whether no other node can have the store. Then it is attached for writing even if
    /// only a reader asks, so that a writer can come later. In all other cases another node may
    /// write to it. What a reader has seen is then outdated, and a write that relies on it would
    /// destroy the file system.
    fn is_of_node(&self, _at: &Site<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Attaches the store, after removing what a killed call left. Fails if another node uses it,
    /// where that can be told; a failure leaves nothing behind.
    fn attach(&self, at: &Site<'_>, with: &With<'_>) -> Result<Found>;

    /// Uses a device that was attached before us: fails where [`attach`](Self::attach) would, and
    /// notes what it would note.
    fn adopt(&self, _at: &Site<'_>, _with: &With<'_>) -> Result<()> {
        Ok(())
    }

    /// Does the same as [`detach`](Self::detach) for a device that was attached before us, and
    /// stays.
    fn release(&self, _at: &Site<'_>) -> Result<()> {
        Ok(())
    }

    /// Detaches what [`attach`](Self::attach) attached, even half of it. A missing device counts as
    /// detached.
    fn detach(&self, at: &Site<'_>, device: Option<&Path>) -> Result<()>;

    /// Makes the store at least this large, and shows the new size to the node. A store that grows
    /// elsewhere is only checked again.
    fn grow(&self, at: &Site<'_>, device: &Path, size: u64) -> Result<()>;

    /// Returns the parts of the device that was just attached that read as zero, as far as its
    /// storage tells them within a share of the time.
    fn zeros(&self, _at: &Site<'_>, _with: &With<'_>) -> Zeros {
        Zeros::default()
    }

    /// Reports whether we made the store and it was never written to: it is blank without a proof.
    fn is_fresh(&self, _at: &Site<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Notes that the store is written to from now on.
    fn is_written(&self, _at: &Site<'_>) -> Result<()> {
        Ok(())
    }
}

/// Kinds of store whose daemons outlive a killed call, and can be found without a record.
const SERVED: &[&dyn Served] = &[&qcow2::Daemons];

/// Operations of a kind of store that has a daemon for each device.
trait Served: Sync {
    /// Returns the driver of these volumes.
    fn driver(&self) -> &'static str;

    /// Reports whether a daemon runs that has lost its record. Searches all processes, which takes
    /// a while.
    fn has_orphans(&self) -> bool;

    /// Ends such daemons.
    fn end_orphans(&self, tools: Tools<'_>);
}

fn served_by(driver: &str) -> impl Iterator<Item = &'static dyn Served> {
    SERVED.iter().copied().filter(move |kind| kind.driver() == driver)
}

/// Store that a backend works on, with the deadline and the runner for it.
pub(super) struct Site<'a> {
    pub(super) id: &'a Id,
    pub(super) deadline: &'a Deadline,
    pub(super) runner: &'a dyn Runner,
}

impl<'a> Site<'a> {
    fn of(id: &'a Id, tools: Tools<'a>) -> Self {
        Self { id, deadline: tools.deadline, runner: tools.runner }
    }

    /// Returns the helper programs.
    fn tools(&self) -> Tools<'_> {
        Tools { runner: self.runner, deadline: self.deadline }
    }

    /// Returns the deadline for requests that only save time.
    fn share(&self) -> Deadline {
        Deadline::after(ASKING.min(self.deadline.remaining() / 4))
    }
}

/// Properties of an attachment besides the store.
pub(super) struct With<'a> {
    pub(super) credentials: &'a BTreeMap<&'static str, Secret>,
    pub(super) read_only: bool,
    /// True for a call that only reads, and makes nothing.
    pub(super) reader: bool,
    pub(super) policy: &'a Policy,
}

/// Device on the node.
#[derive(Debug)]
pub(super) struct Found {
    /// Path of its device node.
    pub(super) path: PathBuf,
    /// Held until it is mounted, for a device that disappears when nothing holds it.
    pub(super) held: Option<LoopDevice>,
}

fn backend(store: &Store) -> &dyn Backend {
    match store {
        Store::Qcow2(image) => image,
        Store::Rbd(image) => &**image,
        Store::Lvm(volume) => volume,
        Store::Nbd(nbd) => nbd,
        Store::Iscsi(unit) => unit,
    }
}

impl Context<'_> {
    fn site<'b>(&'b self, id: &'b Id) -> Site<'b> {
        Site::of(id, self.tools())
    }

    pub(super) fn perform_on_store(&mut self, step: &StoreStep) -> Result<Option<Undo>> {
        match step {
            StoreStep::Attach { target, attachment } => self.attach_store(target, attachment),
            StoreStep::Find { target, store } => self.use_store(target, store).map(|()| None),
            StoreStep::Decrypt(encryption) => self.decrypt(encryption).map(|()| None),
            StoreStep::Grow { size } => self.grow_store(*size).map(|()| None),
            StoreStep::Detach { target } => unstage::detach(self, target).map(|()| None),
            StoreStep::Unstage { staged } => unstage::unstage(self, staged).map(|()| None),
        }
    }

    fn attach_store(&mut self, target: &TargetPath, attachment: &Attachment) -> Result<Option<Undo>> {
        let id = self.lock_store(&attachment.store)?;
        let found = self.find_store(&id, &attachment.store)?;
        let known = lost::known(self, &id, &attachment.store, found.as_ref())?;
        let is_ours = found.is_none() || known.as_ref().is_some_and(|known| known.ours);
        let known = known.unwrap_or_else(|| AttachmentRecord::new(&id, &attachment.store));
        let top = top(&id, &known);
        let current =
            AttachmentRecord { ours: is_ours, ..known.without_stale_targets(target, top.as_deref()) };
        self.disk.in_use = current.targets.iter().any(|other| other != target.as_path());
        let (found, mut record) = self.admitted(found, current, target, attachment)?;
        let reader = self.access(top.as_deref(), attachment)?;
        let read_only = reader && !backend(&attachment.store).is_of_node(&self.site(&id))?;
        let attachment = Attachment { read_only, ..attachment.clone() };
        record.targets.insert(target.as_path().to_owned());
        if found.is_none() && unfinished::is_as_noted(&attachment.store, &id)? {
            record.formatting = Some(clock::seconds() + self.longest_formatting().as_secs());
        }
        record.write()?;
        match self.brought(found, record, &attachment, reader) {
            Ok(attached) => {
                self.disk.device = Some(Box::new(attached));
                Ok(Some(Undo::DetachStore(target.clone())))
            }
            Err(error) => {
                self.disk = DeviceContext::default();
                let undone = sweep(target, self.tools().until(&Deadline::for_undo(UNDO_TIME)));
                Err(after_rollback(error, undone, "a device"))
            }
        }
    }

    fn brought(
        &self,
        found: Option<Found>,
        mut record: AttachmentRecord,
        attachment: &Attachment,
        reader: bool,
    ) -> Result<Attached> {
        let id = record.id();
        let (at, backend) = (self.site(&id), backend(&attachment.store));
        let with = With {
            credentials: &attachment.credentials,
            read_only: attachment.read_only,
            reader,
            policy: &self.settings.policy,
        };
        let found = match found {
            Some(found) => backend.adopt(&at, &with).map(|()| found),
            None => backend.attach(&at, &with),
        };
        let found = found.with_context(|| format!("attach {}", attachment.store))?;
        record.device = Some(found.path.clone());
        record.daemon = AttachmentRecord::read(&id).and_then(|known| known.daemon);
        record.write()?;
        if !self.disk.in_use && !luks::is_open(&id) {
            refuse_other_users(&found.path, self.directory, &self.deadline)?;
        }
        let attached = Attached::open(record, found, attachment.read_only)?;
        let zeros =
            if attached.is_to_be_proven(reader)? { backend.zeros(&at, &with) } else { Zeros::default() };
        Ok(Attached { fresh: backend.is_fresh(&at)?, zeros, ..attached })
    }
}

impl AttachmentRecord {
    /// Removes the targets that no longer show the device, except the calling one.
    fn without_stale_targets(mut self, target: &TargetPath, top: Option<&Path>) -> Self {
        self.targets.retain(|other| other == target.as_path() || is_mounted_from(other, top));
        self
    }
}

fn no_store() -> anyhow::Error {
    anyhow::anyhow!("no store is attached: the plan lacks a step")
}

/// Reports whether a device is attached for a target, or something is left of a call that was
/// killed before it had one.
pub(super) fn is_left(context: &Context<'_>, target: &TargetPath) -> Result<bool> {
    let lost = attachment_record::locked().next().is_some()
        || served_by(context.driver).any(<dyn Served>::has_orphans)
        || proof::is_left(target);
    let attaches = context.settings.attach == Some(true);
    Ok(lost || !AttachmentRecord::of(target)?.is_empty() || (!attaches && unstage::is_left(target)?))
}

/// Reports whether the mount at a target is on a device that we attached for it and that has died
/// since. Such a mount is useless, and kubelet, which asks for it again, would never unmount it.
pub(super) fn is_dead_at(place: &Place, target: &TargetPath) -> Result<bool> {
    Ok(!AttachmentRecord::of(target)?.is_empty() && unmount::has_dead_device(place))
}

/// Performs the step that detaches a target's device, and its undo.
pub(super) fn detach(context: &Context<'_>, target: &TargetPath) -> Result<()> {
    sweep(target, context.tools())?;
    served_by(context.driver).for_each(|kind| kind.end_orphans(context.tools()));
    Ok(())
}

/// Does the same when nothing is mounted at the target, and no other call is carried out.
pub(super) fn sweep(target: &TargetPath, tools: Tools<'_>) -> Result<()> {
    for record in AttachmentRecord::of(target)? {
        let id = record.id();
        let _lock = Id::lock(&record.store, tools.deadline)?;
        if let Some(record) = AttachmentRecord::read(&id) {
            let (at, store) = (Site::of(&id, tools), record.store.to_string());
            let_go(&at, record, target).with_context(|| format!("take {store} away"))?;
        }
    }
    attachment_record::remove_stale_locks();
    Ok(())
}

/// Detaches a target's device, if no other target uses it. The target stays in the record until the
/// device is gone, so that a call that is killed halfway is repeated.
fn let_go(at: &Site<'_>, mut record: AttachmentRecord, target: &TargetPath) -> Result<()> {
    let top = top(at.id, &record);
    let is_other = |other: &PathBuf| other != target.as_path() && is_mounted_from(other, top.as_deref());
    let others = record.targets.iter().any(is_other);
    if others {
        record.targets.remove(target.as_path());
        return record.write();
    }
    if record.encrypted {
        wait_until_free(&luks::path(at.id), at.deadline)?;
        luks::close(at.id, at.tools())?;
    }
    let mut is_known = false;
    if let Some(found) = record.device.as_ref().and_then(|device| backend(&record.store).hold(at, device)) {
        if record.ours {
            wait_until_free(&found.path, at.deadline)?;
        }
        is_known = unfinished::note_before_it_goes(&record, &found.path).is_ok();
    }
    if record.ours {
        backend(&record.store).detach(at, record.device.as_deref())?;
    } else {
        backend(&record.store).release(at)?;
    }
    if !is_known {
        // If this fails, the remains of a killed mkfs are refused.
        let _ = unfinished::note_file(&record);
    }
    record.remove()
}

/// Waits until the device is free: a device that is still mounted somewhere must not disappear.
fn wait_until_free(device: &Path, deadline: &Deadline) -> Result<()> {
    let patience = Deadline::after(LETTING_GO.min(deadline.remaining()));
    while is_claimed(device)? {
        if patience.expired() {
            let text =
                format!("{} is in use{}: end it, kubelet tries again", device.display(), users::of(device));
            bail!(Failure::new(Code::Busy, text));
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Reports whether the device is mounted anywhere, in any namespace, or another device lies on it:
/// open(2), `O_EXCL`.
fn is_claimed(device: &Path) -> Result<bool> {
    match opened::is_claimed(device) {
        // The last three errors are those of a device whose server is gone: it can be detached.
        Err(
            Errno::NOENT
            | Errno::NXIO
            | Errno::NODEV
            | Errno::NOMEDIUM
            | Errno::IO
            | Errno::NOTCONN
            | Errno::STALE,
        ) => Ok(false),
        claimed => claimed.with_context(|| format!("look at {}", device.display())),
    }
}

/// Refuses a device that others use. It may be mounted only as volumes of this driver: then their
/// record was lost. A device that is in use and not mounted may have a file system that is just
/// ending: that of the previous pod.
fn refuse_other_users(device: &Path, directory: Option<&str>, deadline: &Deadline) -> Result<()> {
    let number = number_of(device.as_os_str());
    let is_of = |entry: &Entry| number_of(&entry.source) == number;
    let is_ours = |entry: &Entry| {
        TargetPath::parse(entry.target.as_os_str())
            .is_ok_and(|target| VolumeDir::of(&target).belongs_to(directory))
    };
    let patience = Deadline::after(LETTING_GO.min(deadline.remaining()));
    while is_claimed(device)? {
        let mounts: Vec<_> = mount_table::read()?.into_iter().filter(is_of).collect();
        let foreign = mounts.iter().find(|entry| !is_ours(entry));
        if foreign.is_some() || (mounts.is_empty() && patience.expired()) {
            let at =
                foreign.map_or(String::new(), |entry| format!(", mounted at {}", entry.target.display()));
            let text = format!(
                "{} is in use by others on this node{at}: end that, or name another device",
                device.display()
            );
            return Err(Failure::new(Code::Busy, text).into());
        }
        if !mounts.is_empty() {
            return Ok(());
        }
        std::thread::sleep(TICK);
    }
    Ok(())
}

/// Reports whether the mount at a place comes from this device.
fn is_mounted_from(place: &Path, device: Option<&Path>) -> bool {
    let Some(device) = device else { return false };
    let mounted = || -> Result<bool> {
        let target = TargetPath::parse(place.as_os_str())?;
        let Some(place) = Place::open(&target)? else { return Ok(false) };
        let Look::Mount(mounted) = place.look()? else { return Ok(false) };
        let entry = mount_table::by_id(mounted.id)?;
        let number = number_of(device.as_os_str());
        Ok(entry.is_some_and(|entry| number != 0 && number_of(&entry.source) == number))
    };
    mounted().unwrap_or(false)
}

/// Opens the device for writing, unless that is not requested or not possible.
fn open_device(path: &Path, read_only: bool) -> Result<(OwnedFd, bool)> {
    let what = || format!("open {}", path.display());
    if !read_only {
        match open_in_time(path, OFlags::RDWR) {
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) => {}
            fd => return Ok((fd.with_context(what)?, false)),
        }
    }
    Ok((open_in_time(path, OFlags::RDONLY).with_context(what)?, true))
}

fn open_in_time(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let patience = Deadline::after(COMING);
    loop {
        match opened::open(path, flags | OFlags::NONBLOCK) {
            Err(Errno::NXIO) if !patience.expired() => std::thread::sleep(TICK),
            fd => return fd,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opening a socket fails as for the node of a disk that the kernel has not added yet.
    #[test]
    fn a_disk_that_comes_after_its_node_is_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let [node, disk] = ["node", "disk"].map(|name| directory.path().join(name));
        let _socket = std::os::unix::net::UnixListener::bind(&node).unwrap();
        std::fs::File::create(&disk).unwrap();
        assert_eq!(opened::open(&node, OFlags::RDWR).unwrap_err(), Errno::NXIO);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(5 * TICK);
                std::fs::rename(&disk, &node).unwrap();
            });
            assert!(!open_device(&node, false).unwrap().1);
        });
    }
}
