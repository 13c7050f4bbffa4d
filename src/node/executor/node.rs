//! The world of a real node: what each step means in system calls.

use super::files::Content;
use super::record::{self, Record};
use super::store::lost::Lost;
use super::{TargetState, World, ceph, checkout, daemon, disk, image, network, run, staged, store, unmount};
use anyhow::{Context, Result};
use flexvol_linux::deadline::Deadline;
use flexvol_linux::lock::{Hold, SharedLock};
use flexvol_linux::mount::{self, BindMount, NewMount, Parameter, Way};
use flexvol_linux::mount_table::{self, Entry};
use flexvol_linux::place::{Look, Mounted, Place};
use flexvol_linux::{loop_device, openat_beneath, process};
use flexvol_model::installed::Installed;
use flexvol_model::plan::{Goal, MountFrom, Ownership, Propagation, Source, Step, View};
use flexvol_model::policy::Allowed;
use flexvol_model::settings::Settings;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::mount_options::MountFlags;
use flexvol_protocol::{Access, Fields, TargetPath};
use rustix::fs::{FileType, OFlags};
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long undoing may take, after whatever the call itself took.
const UNDO_TIME: Duration = Duration::from_secs(8);

/// Directories that are made above the one a volume asks for.
const ABOVE: Ownership = Ownership { mode: 0o755, uid: 0, gid: 0 };

/// One call's view of the node, and what its steps hand to each other.
pub struct Node<'a> {
    pub(super) driver: &'a str,
    pub(super) directory: Option<&'a str>,
    pub(super) settings: &'a Settings,
    pub(super) deadline: Deadline,
    asked: Option<String>,
    pub(super) disk: disk::DeviceContext,
    pub(super) reached: Option<network::Reached>,
    pub(super) fields: Fields,
    pub(super) mount_id: Option<u64>,
    unique_mount_id: Option<u64>,
    sources: Option<SharedLock>,
}

/// How a performed step is taken back.
#[derive(Debug)]
pub enum Undo {
    /// Remove the target that was made.
    RemoveTarget(TargetPath),
    /// Make the target a directory again.
    RestoreTarget(TargetPath),
    /// Remove directories that were made, innermost last.
    RemoveDirectories(PathBuf, Vec<PathBuf>),
    /// Remove the image file that was made, and the directories above it that were.
    RemoveImage(PathBuf, Vec<PathBuf>),
    /// Let go of the loop device.
    ReleaseDevice,
    /// Take the device away that was brought for the target.
    DetachStore(TargetPath),
    /// Unmount what was mounted.
    Unmount(TargetPath),
    /// Unmount, end who serves it, and remove its files.
    EndDaemon(TargetPath),
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemoveTarget(target) | Self::RestoreTarget(target) => write!(f, "{target}"),
            Self::RemoveDirectories(root, made) => {
                let outermost = made.first().map_or(Path::new(""), PathBuf::as_path);
                write!(f, "{}", root.join(outermost).display())
            }
            Self::RemoveImage(file, _) => write!(f, "{}", file.display()),
            Self::ReleaseDevice => f.write_str("a loop device"),
            Self::DetachStore(target) => write!(f, "the device for {target}"),
            Self::Unmount(target) | Self::EndDaemon(target) => write!(f, "a mount at {target}"),
        }
    }
}

impl<'a> Node<'a> {
    /// A view for one call. `asked` is the digest that would be recorded, to tell a repetition from a
    /// contradiction.
    pub fn new(installed: &'a Installed, deadline: Deadline, asked: Option<String>) -> Self {
        Self {
            driver: installed.driver.name(),
            directory: installed.directory.as_deref(),
            settings: &installed.settings,
            deadline,
            asked,
            disk: disk::DeviceContext::default(),
            reached: None,
            fields: Fields::default(),
            mount_id: None,
            unique_mount_id: None,
            sources: None,
        }
    }

    /// The mount this call made: its id and, where the kernel has one, the id that is never used again.
    pub fn mount_ids(&self) -> Option<(u64, Option<u64>)> {
        Some((self.mount_id?, self.unique_mount_id))
    }

    /// What the reply says besides Success.
    pub fn into_fields(self) -> Fields {
        self.fields
    }

    fn prepare_target(&self, target: &TargetPath) -> Result<Option<Undo>> {
        let place = open_place(target)?;
        match place.look()? {
            Look::Missing => {}
            Look::Plain(FileType::Directory) => {
                return self.refuse_used_directory(target, &place).map(|()| None);
            }
            // What a killed bind of a file left: an empty file where the directory was.
            Look::Plain(FileType::RegularFile) if self.is_ours(target) => place.remove_file_if_empty()?,
            Look::Mount(_) if store::is_dead_at(&place, target)? => unmount::take_off(&place)?,
            look => {
                return Err(denied(format!(
                    "{target} is no directory to mount on but {look}: remove what is there"
                )));
            }
        }
        Ok(place.make_directory()?.then(|| Undo::RemoveTarget(target.clone())))
    }

    /// kubelet's directories are taken as they are; any other must be empty, so that nobody hides /etc by a
    /// slip.
    fn refuse_used_directory(&self, target: &TargetPath, place: &Place) -> Result<()> {
        if self.is_ours(target) || place.entries()?.is_empty() {
            return Ok(());
        }
        Err(denied(format!(
            "{target} is neither a volume directory of this driver nor empty: name another directory"
        )))
    }

    /// The lock keeps every bind of this root out until the call has succeeded or removed the directory
    /// again: another pod that showed it in between would be left with a directory that has no name.
    fn make_directory(&mut self, path: &Path, owner: Ownership) -> Result<Option<Undo>> {
        let Allowed { root, below } = self.settings.policy.bind_source(path)?;
        self.lock_sources(&root, Hold::Alone)?;
        let made = openat_beneath::make_directories(
            openat_beneath::open_root(&root)?.as_fd(),
            &below,
            ABOVE,
            owner,
        )?;
        Ok((!made.is_empty()).then_some(Undo::RemoveDirectories(root, made)))
    }

    /// Held until the call ends. Not on the root itself: a tenant to whom it is shown could hold that for ever.
    fn lock_sources(&mut self, root: &Path, hold: Hold) -> Result<()> {
        if self.sources.is_none() {
            let path = record::root_lock_path(mount::identity(openat_beneath::open_root(root)?.as_fd())?);
            let doing = "waiting for another bind to make its source";
            self.sources = Some(SharedLock::acquire(path, hold, &self.deadline, doing)?);
        }
        Ok(())
    }

    fn mount_from(
        &mut self,
        target: &TargetPath,
        (file_system, from): (Option<&str>, &MountFrom),
        flags: MountFlags,
        options: &[Parameter<'_>],
    ) -> Result<Option<Undo>> {
        match from {
            MountFrom::Name(source) => {
                let file_system = file_system.unwrap_or(source);
                self.mount(
                    target,
                    &NewMount { file_system, source, flags, superblock_read_only: false, options },
                )
            }
            MountFrom::AttachedDevice => self.mount_device(target, file_system, flags, options),
        }
    }

    pub(super) fn mount(&mut self, target: &TargetPath, new: &NewMount<'_>) -> Result<Option<Undo>> {
        self.mount_id = Some(mount::mount(new, &open_place(target)?, Way::Detached)?);
        Ok(Some(Undo::Unmount(target.clone())))
    }

    fn bind(&mut self, target: &TargetPath, source: &Path, bind: &Binding) -> Result<Option<Undo>> {
        self.lock_sources(&self.settings.policy.bind_source(source)?.root, Hold::Together)?;
        let (fd, kind) = self.open_source(source)?;
        let place = open_place(target)?;
        if kind == FileType::RegularFile {
            place.turn_into_file()?;
        }
        let what = BindMount {
            source: fd.as_fd(),
            recursive: bind.recursive,
            flags: bind.flags,
            propagation: bind.propagation,
            lift: false,
        };
        let made =
            mount::bind(&what, &place, Way::Detached).with_context(|| format!("show {}", source.display()));
        if made.is_err() && kind == FileType::RegularFile {
            restore_directory(&place)?;
        }
        self.mount_id = Some(made?);
        Ok(Some(match kind {
            FileType::RegularFile => Undo::RestoreTarget(target.clone()),
            _ => Undo::Unmount(target.clone()),
        }))
    }

    pub(super) fn open_source(&self, source: &Path) -> Result<(OwnedFd, FileType)> {
        let Allowed { root, below } = self.settings.policy.bind_source(source)?;
        let fd = openat_beneath::open(openat_beneath::open_root(&root)?.as_fd(), &below, OFlags::PATH)
            .with_context(|| format!("source {}", source.display()))?;
        match FileType::from_raw_mode(rustix::fs::fstat(&fd)?.st_mode) {
            kind @ (FileType::Directory | FileType::RegularFile) => Ok((fd, kind)),
            _ => Err(denied(format!("{} is neither a directory nor a file", source.display()))),
        }
    }

    /// How a mount that is already at the target stands to the one that is wanted.
    fn compare(&self, target: &TargetPath, mounted: Mounted, view: &View) -> Result<TargetState> {
        let Some(entry) = mount_table::by_id(mounted.id)? else {
            return Ok(TargetState::Conflict(format!(
                "{target} is being mounted by somebody else: try again"
            )));
        };
        if !self.shows(target, &entry, mounted, view)? {
            if matches!(view.source, Source::Store(_)) && store::is_dead_at(&open_place(target)?, target)? {
                return Ok(TargetState::Open);
            }
            return Ok(TargetState::Conflict(format!(
                "{}, but {} is asked for: unmount it first",
                shown(target, &entry),
                wanted(view)
            )));
        }
        let read_only = view.access == Access::ReadOnly;
        if entry.read_only != read_only {
            let other = if read_only { "read-write" } else { "read-only" };
            return Ok(TargetState::Conflict(format!("{} {other}: unmount it first", shown(target, &entry))));
        }
        let record = Record::read(target).filter(|record| record.mount_id == mounted.id);
        match (record, &self.asked) {
            (Some(record), Some(asked)) if record.asked != *asked => Ok(TargetState::Conflict(format!(
                "{} with other options than now: unmount it first",
                shown(target, &entry)
            ))),
            _ => Ok(TargetState::Reached),
        }
    }

    fn shows(&self, target: &TargetPath, entry: &Entry, mounted: Mounted, view: &View) -> Result<bool> {
        if view.file_system.as_ref().is_some_and(|kinds| !kinds.include(&entry.file_system)) {
            return Ok(false);
        }
        match &view.source {
            Source::Any => Ok(true),
            Source::Clone { directory, .. } => {
                checkout::is_shown(target, directory.as_deref(), entry, mounted)
            }
            Source::Name(name) => Ok(entry.source == name.as_str()),
            Source::Share { source, servers } => {
                Ok(servers.iter().any(|server| entry.source == source.with(server).as_str()))
            }
            Source::Node(path) => Ok(mount::identity(self.open_source(path)?.0.as_fd())? == mounted.root),
            Source::Image(file) => {
                let backing = loop_device::backing_of(image::device_number(&entry.source))?;
                Ok(backing.is_some_and(|backing| image::is_file(&backing, file, self.settings)))
            }
            Source::Store(store) => self.shows_store(entry, store),
            Source::Identity(name) => Ok(staged::is_named(target, mounted, name)),
        }
    }
}

/// How a bind is made.
struct Binding {
    recursive: bool,
    flags: MountFlags,
    propagation: Propagation,
}

impl World for Node<'_> {
    type Undo = Undo;

    fn look(&mut self, goal: &Goal) -> Result<TargetState> {
        match goal {
            Goal::Performed => Ok(TargetState::Open),
            Goal::Mounted { target, view } => {
                self.refuse_another_s(target)?;
                match Place::open(target)?.map(|place| place.look()).transpose()? {
                    Some(Look::Mount(mounted)) => self.compare(target, mounted, view),
                    Some(Look::Dead(errno)) => Ok(TargetState::Conflict(format!(
                        "{target} is a dead mount ({errno}): unmount it first"
                    ))),
                    _ => Ok(TargetState::Open),
                }
            }
            Goal::Ended { target } if daemon::is_left(target) || store::is_left(self, target)? => {
                Ok(TargetState::Open)
            }
            Goal::Unmounted { target } | Goal::Ended { target } => unmount::standing(target),
        }
    }

    fn perform(&mut self, step: &Step) -> Result<Option<Undo>> {
        // A worker whose supervisor is gone must not mount or unmount behind the back of kubelet's next call.
        self.deadline.check_signals("carrying out the call")?;
        match step {
            Step::PrepareTarget { target } => self.prepare_target(target),
            Step::MakeDirectory { path, owner } => self.make_directory(path, *owner),
            Step::ExpectMount { path } => image::expect_mount(path).map(|()| None),
            Step::CreateImage { file, size, allocation } => self.create_image(file, *size, *allocation),
            Step::AttachLoop { file, region, direct_io, read_only } => {
                self.attach_loop(file, *region, *direct_io, *read_only).map(|()| Some(Undo::ReleaseDevice))
            }
            Step::Store(step) => self.perform_on_store(step),
            Step::Answer { device } => {
                self.fields.device = Some(device.clone());
                Ok(None)
            }
            Step::ExpectStaged { staged, source } => self.expect_staged(staged, source).map(|()| None),
            Step::ShowStaged { target, staged, flags } => self.show_staged(target, staged, *flags),
            Step::Format { file_system, options } => self.format(*file_system, options).map(|()| None),
            Step::CheckFileSystem { file_system } => self.check_file_system(*file_system).map(|()| None),
            Step::Mount { target, file_system, from, flags, options } => {
                let options: Vec<_> = options.iter().map(Parameter::from).collect();
                self.mount_from(target, (file_system.as_deref(), from), *flags, &options)
            }
            Step::Reach(reach) => self.reach(reach).map(|()| None),
            Step::MakeDirectoryOnShare { share, missing } => {
                self.make_unless_mountable(share, missing).map(|()| None)
            }
            Step::ReachCluster(cluster) => {
                self.reached = Some(ceph::reach(cluster, &self.settings.policy, &self.deadline)?);
                Ok(None)
            }
            Step::MountShare { target, share, missing, otherwise } => {
                self.mount_share(target, share, missing.as_deref(), otherwise.as_deref())
            }
            Step::MountOverlay { target, overlay } => self.mount_overlay(target, overlay),
            Step::MountFiles { target, source, options, flags, files, owner } => {
                self.mount_files(target, (source, options, *flags), &Content { files, owner: *owner })
            }
            Step::Bind { target, source, recursive, flags, propagation } => {
                let binding = Binding { recursive: *recursive, flags: *flags, propagation: *propagation };
                self.bind(target, source, &binding)
            }
            Step::Run(run) => run::run(self, run),
            Step::Checkout(checkout) => checkout::checkout(self, checkout),
            Step::Serve(daemon) => daemon::serve(self, daemon),
            Step::EndDaemon { target, patience, traces } => {
                let patience = Duration::from_secs((*patience).into());
                daemon::unmount(self, target, patience, traces).map(|()| None)
            }
            Step::Unmount { target } => {
                let lost = Lost::at(self.driver, target)?;
                unmount::unmount(self, target)?;
                lost.map_or(Ok(()), |lost| lost.let_go(&self.deadline)).map(|()| None)
            }
            Step::GrowImage { size, allocation } => self.grow_image(*size, *allocation).map(|()| None),
            Step::GrowFileSystem { target } => self.grow_file_system(target).map(|()| None),
        }
    }

    /// By the id of the mount that was made, which costs the same on a node with ten thousand mounts; a mount
    /// that somebody else's command made has to be recognised in the mount table.
    fn confirm(&mut self, goal: &Goal) -> Result<()> {
        let Goal::Mounted { target, .. } = goal else { return Ok(()) };
        let place = open_place(target)?;
        self.unique_mount_id = place.unique_mount_id();
        match (place.look()?, self.mount_id) {
            (Look::Mount(mounted), Some(id)) if mounted.id == id => Ok(()),
            (Look::Mount(mounted), None) => match self.look(goal)? {
                TargetState::Reached => {
                    self.mount_id = Some(mounted.id);
                    Ok(())
                }
                TargetState::Conflict(by) => Err(Failure::new(Code::Conflict, by).into()),
                TargetState::Open => Err(nothing_mounted(target)),
            },
            _ => Err(nothing_mounted(target)),
        }
    }

    /// What a command left running could mount again what is undone, or hold it.
    fn begin_undo(&mut self) {
        process::end_children();
        self.deadline = Deadline::for_undo(UNDO_TIME);
    }

    fn undo(&mut self, undo: &Undo) -> Result<()> {
        match undo {
            Undo::RemoveTarget(target) => open_place(target)?.remove_directory(),
            Undo::RestoreTarget(target) => {
                unmount::take_off(&open_place(target)?)?;
                restore_directory(&open_place(target)?)
            }
            Undo::Unmount(target) => unmount::take_off(&open_place(target)?),
            Undo::EndDaemon(target) => daemon::take_back(target),
            Undo::RemoveDirectories(root, made) => {
                openat_beneath::remove_directories(openat_beneath::open_root(root)?.as_fd(), made)
            }
            Undo::RemoveImage(file, made) => self.remove_image(file, made),
            Undo::ReleaseDevice => {
                self.disk.release();
                Ok(())
            }
            Undo::DetachStore(target) => {
                self.disk = disk::DeviceContext::default();
                store::detach(self, target)
            }
        }
    }
}

pub(super) fn open_place(target: &TargetPath) -> Result<Place> {
    Place::open(target)?.ok_or_else(|| {
        let parent = target.as_path().parent().unwrap_or(Path::new("/")).display();
        Failure::new(Code::NotFound, format!("{parent} does not exist: kubelet makes it before it calls"))
            .into()
    })
}

fn restore_directory(place: &Place) -> Result<()> {
    place.remove_file()?;
    place.make_directory().map(drop)
}

pub(super) fn denied(message: String) -> anyhow::Error {
    Failure::new(Code::Denied, message).into()
}

fn nothing_mounted(target: &TargetPath) -> anyhow::Error {
    Failure::new(Code::Internal, format!("nothing is mounted at {target} although every step succeeded"))
        .into()
}

fn shown(target: &TargetPath, entry: &Entry) -> String {
    let below =
        if entry.root == Path::new("/") { String::new() } else { format!(" {}", entry.root.display()) };
    format!("{target} already shows {} from {}{below}", entry.file_system, entry.source.to_string_lossy())
}

fn wanted(view: &View) -> String {
    let from = view.source.to_string();
    view.file_system.as_ref().map_or(from.clone(), |name| format!("{name} from {from}"))
}
