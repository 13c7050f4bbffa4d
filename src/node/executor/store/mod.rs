//! The steps of block devices that come to the node from elsewhere: attach one, decrypt it, grow
//! it, detach it.
//!
//! * A device is attached once for all targets that need it, and detached with the last of them:
//!   [`AttachmentRecord`].
//! * One that was attached before us is used and stays.
//! * One that is in use by others on this node is refused: two who write to one device destroy it.
//!   Whether another node uses it, the kinds ask that can ([`Backend::attach`]).
//! * One lock for each device: attaching, formatting and detaching exclude each other.

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

/// How long a device that was just unmounted may be busy: the kernel ends a file system after the
/// call returned.
const LETTING_GO: Duration = Duration::from_secs(5);

/// How long undoing half of an attachment may take, after whatever the call itself took.
const UNDO_TIME: Duration = Duration::from_secs(8);

/// How long a disk may take to be there after its node is: the kernel makes that first.
const COMING: Duration = Duration::from_secs(3);

/// How long storage may be asked what it knows of itself.
const ASKING: Duration = Duration::from_secs(10);

/// How often a device is looked at that comes or goes.
pub(super) const TICK: Duration = Duration::from_millis(20);

/// What a kind of store does on this node.
pub(super) trait Backend {
    /// The device that shows the store now, whoever attached it.
    fn find(&self, at: &Site<'_>) -> Result<Option<Found>>;

    /// Fails if the device that was found is another one's that has the same name; `known` is whose
    /// it is by its record.
    fn recognize(&self, _at: &Site<'_>, _known: Option<&Store>) -> Result<()> {
        Ok(())
    }

    /// The device that a record names, as long as it is this store's. A number that goes with its
    /// user is another's soon.
    fn hold(&self, _at: &Site<'_>, device: &Path) -> Option<Found> {
        Some(Found { path: device.to_owned(), held: None })
    }

    /// Whether what is found without a record is ours to detach: most bear our name.
    fn is_ours(&self, _at: &Site<'_>) -> Result<bool> {
        Ok(true)
    }

    /// Whether no other node can have it: then it is attached for writing though only a reader has
    /// come, so that a writer can come later. What a reader has seen of any other is old once
    /// another node has written to it: who wrote by that would destroy the file system.
    fn is_of_node(&self, _at: &Site<'_>) -> Result<bool> {
        Ok(false)
    }

    /// Attaches it, after clearing away what a killed call left. Fails if another node uses it,
    /// where that can be told; a failure leaves nothing.
    fn attach(&self, at: &Site<'_>, with: &With<'_>) -> Result<Found>;

    /// Uses a device that was there before: fails where [`attach`](Self::attach) would, and notes
    /// what it would note.
    fn adopt(&self, _at: &Site<'_>, _with: &With<'_>) -> Result<()> {
        Ok(())
    }

    /// The same as [`detach`](Self::detach) for one that was there before, and stays.
    fn release(&self, _at: &Site<'_>) -> Result<()> {
        Ok(())
    }

    /// Detaches what [`attach`](Self::attach) attached, also half of it. What is not there is
    /// detached.
    fn detach(&self, at: &Site<'_>, device: Option<&Path>) -> Result<()>;

    /// Makes the store at least so large, and the node see it. One that grows elsewhere is only
    /// looked at again.
    fn grow(&self, at: &Site<'_>, device: &Path, size: u64) -> Result<()>;

    /// Where the device that was just attached reads as zero, as far as its storage says so and in
    /// a share of the time.
    fn zeros(&self, _at: &Site<'_>, _with: &With<'_>) -> Zeros {
        Zeros::default()
    }

    /// Whether it was made by us and never written to since: blank without a proof.
    fn is_fresh(&self, _at: &Site<'_>) -> Result<bool> {
        Ok(false)
    }

    /// From now on there is something on it.
    fn is_written(&self, _at: &Site<'_>) -> Result<()> {
        Ok(())
    }
}

/// The kinds of store whose daemons outlive a call that was killed, and can be found without a
/// record.
const SERVED: &[&dyn Served] = &[&qcow2::Daemons];

/// What a kind of store does that has a daemon for each device.
trait Served: Sync {
    /// The driver whose volumes these are.
    fn driver(&self) -> &'static str;

    /// Whether a daemon runs that has lost its record: looked for among all processes, which takes
    /// a while.
    fn has_orphans(&self) -> bool;

    /// Ends those.
    fn end_orphans(&self, tools: Tools<'_>);
}

fn served_by(driver: &str) -> impl Iterator<Item = &'static dyn Served> {
    SERVED.iter().copied().filter(move |kind| kind.driver() == driver)
}

/// Where and for how long a backend works.
pub(super) struct Site<'a> {
    pub(super) id: &'a Id,
    pub(super) deadline: &'a Deadline,
    pub(super) runner: &'a dyn Runner,
}

impl<'a> Site<'a> {
    fn of(id: &'a Id, tools: Tools<'a>) -> Self {
        Self { id, deadline: tools.deadline, runner: tools.runner }
    }

    /// The helper programs.
    fn tools(&self) -> Tools<'_> {
        Tools { runner: self.runner, deadline: self.deadline }
    }

    /// So long may be asked what only saves time.
    fn share(&self) -> Deadline {
        Deadline::after(ASKING.min(self.deadline.remaining() / 4))
    }
}

/// What an attachment has besides the store.
pub(super) struct With<'a> {
    pub(super) credentials: &'a BTreeMap<&'static str, Secret>,
    pub(super) read_only: bool,
    /// Whether it is for who only reads, and makes nothing.
    pub(super) reader: bool,
    pub(super) policy: &'a Policy,
}

/// A device of the node.
#[derive(Debug)]
pub(super) struct Found {
    /// Its node.
    pub(super) path: PathBuf,
    /// Held until it is mounted, for a device that goes when no one holds it.
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
    /// Without the targets that show the device no more, but for the one that asks.
    fn without_stale_targets(mut self, target: &TargetPath, top: Option<&Path>) -> Self {
        self.targets.retain(|other| other == target.as_path() || is_mounted_from(other, top));
        self
    }
}

fn no_store() -> anyhow::Error {
    anyhow::anyhow!("no store is attached: the plan lacks a step")
}

/// Whether a device is there for a target, or something of a call that was killed before it had
/// one.
pub(super) fn is_left(context: &Context<'_>, target: &TargetPath) -> Result<bool> {
    let lost = attachment_record::locked().next().is_some()
        || served_by(context.driver).any(<dyn Served>::has_orphans)
        || proof::is_left(target);
    let attaches = context.settings.attach == Some(true);
    Ok(lost || !AttachmentRecord::of(target)?.is_empty() || (!attaches && unstage::is_left(target)?))
}

/// Whether what is mounted at a target is of a device that we brought for it and that has died
/// since: no one can use it, and kubelet, which asks for it again, would never unmount it.
pub(super) fn is_dead_at(place: &Place, target: &TargetPath) -> Result<bool> {
    Ok(!AttachmentRecord::of(target)?.is_empty() && unmount::has_dead_device(place))
}

/// The step that takes a target's device away, and its undo.
pub(super) fn detach(context: &Context<'_>, target: &TargetPath) -> Result<()> {
    sweep(target, context.tools())?;
    served_by(context.driver).for_each(|kind| kind.end_orphans(context.tools()));
    Ok(())
}

/// The same for when nothing is mounted at the target, and no other call is carried out.
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

/// The target stays in the record until the device is gone: a call that is killed on the way is
/// repeated.
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
        // Without it, what a killed mkfs has left is refused.
        let _ = unfinished::note_file(&record);
    }
    record.remove()
}

/// What the kernel still has mounted somewhere must not lose its device.
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

/// Whether it is mounted anywhere, in whatever namespace, or another device lies on it: open(2),
/// `O_EXCL`.
fn is_claimed(device: &Path) -> Result<bool> {
    match opened::is_claimed(device) {
        // The last three of one whose server is gone: it can be detached.
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

/// Mounted it may be only as volumes of this driver: then the record of them was lost. One that is
/// nowhere mounted and still in use may be a file system on its end: the pod before has just been
/// unmounted.
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

/// Whether what is mounted at a place comes from this device.
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

/// For writing unless that is not wanted or cannot be.
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

    /// A socket is as little a device as the node of a disk that the kernel has not added yet.
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
