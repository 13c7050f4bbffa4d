//! Mount calls: a mount becomes visible in one step, complete, or not at all.
//!
//! With the mount API of Linux 5.2 (and `mount_setattr(2)` of 5.12), a mount is created detached,
//! gets all its flags and is then moved onto the target. Until then only a descriptor holds it: a
//! killed process leaves no mount behind. Every option is a separate argument, so a comma cannot
//! add another one. Older kernels use mount(2) on the opened target. There, before 5.12, a bind
//! mount is visible for a moment before it has its flags, as with every mount(8).

mod classic;

use crate::mount::place::{Look, Place};
use crate::proc::process;
use crate::raw;
use anyhow::{Context, Result};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::mount_options::Propagation;
use flexvol_protocol::mount_options::{Atime, FsOption, MountFlags};
use flexvol_protocol::secret::Secret;
use rustix::fs::{AtFlags, Mode, OFlags, StatVfsMountFlags, StatxFlags, fstatvfs, openat, statx};
use rustix::io::Errno;
use rustix::mount::{
    self as api, FsMountFlags, FsOpenFlags, MountAttrFlags, MountPropagationFlags, MoveMountFlags,
    OpenTreeFlags, UnmountFlags,
};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

/// Limit for one string of fsconfig(2), in bytes.
const LONGEST_STRING: usize = 255;

/// Kernel interface that is used to mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// The mount API of Linux 5.2, 5.12 for binds.
    Detached,
    /// mount(2).
    Classic,
}

/// A new file system to be mounted.
#[derive(Clone, Copy, Debug)]
pub struct NewMount<'a> {
    /// The kernel's name of the type.
    pub file_system: &'a str,
    /// Device path or name.
    pub source: &'a str,
    /// Per-mount flags.
    pub flags: MountFlags,
    /// True if the superblock is read-only too: the device is, or the type cannot be written.
    pub superblock_read_only: bool,
    /// The type's own options.
    pub options: &'a [Parameter<'a>],
}

/// An option as the kernel gets it.
#[derive(Clone, Copy, Debug)]
pub struct Parameter<'a> {
    /// Its name.
    pub key: &'a str,
    /// Its value.
    pub value: Value<'a>,
}

/// The value of an option.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// No value.
    None,
    /// Plain text.
    Text(&'a str),
    /// Value that must not be shown.
    Secret(&'a Secret),
}

impl Value<'_> {
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::None => None,
            Self::Text(text) => Some(text.as_bytes()),
            Self::Secret(secret) => Some(secret.expose()),
        }
    }
}

impl<'a> From<&'a FsOption> for Parameter<'a> {
    fn from(option: &'a FsOption) -> Self {
        Self { key: &option.key, value: option.value.as_deref().map_or(Value::None, Value::Text) }
    }
}

/// A file or directory of the node to be bind-mounted elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct BindMount<'a> {
    /// Opened with `O_PATH`.
    pub source: BorrowedFd<'a>,
    /// True if the mounts below the source are included.
    pub recursive: bool,
    /// Per-mount flags.
    pub flags: MountFlags,
    /// Propagation of later mounts.
    pub propagation: Propagation,
    /// True if the new mount may be writable although the source's mount alone is read-only.
    pub lift: bool,
}

/// Mounts a file system on `place` and returns the new mount's id.
pub fn mount(new: &NewMount<'_>, place: &Place, way: Way) -> Result<u64> {
    let what = || format!("mount {} on {}", new.file_system, place.path().display());
    match way {
        Way::Classic => classic::mount(new, place).with_context(what).and_then(|()| id_at(place)),
        Way::Detached if has_long_value(new) => mount(new, place, Way::Classic),
        Way::Detached => match create(new) {
            Err(error) if is_unknown_call(&error) => mount(new, place, Way::Classic),
            created => attach(&created.with_context(what)?, place).with_context(what),
        },
    }
}

/// Moves a [detached] mount onto its place and returns its id.
pub fn put(detached: &OwnedFd, place: &Place) -> Result<u64> {
    attach(detached, place).with_context(|| format!("mount on {}", place.path().display()))
}

/// Function that fills a new file system before it becomes visible. It gets the root directory.
pub type Fill<'a> = dyn Fn(BorrowedFd<'_>) -> Result<()> + 'a;

/// Mounts a file system that is filled first and made read-only only afterwards.
/// Returns the new mount's id. On a kernel before 5.2, the file system is visible at `place` while
/// it is being filled.
pub fn mount_filled(new: &NewMount<'_>, fill: &Fill<'_>, place: &Place, way: Way) -> Result<u64> {
    let writable = NewMount { flags: MountFlags { read_only: false, ..new.flags }, ..*new };
    let what = || format!("mount {} on {}", new.file_system, place.path().display());
    if way == Way::Classic {
        classic::mount(&writable, place).with_context(what)?;
        let filled = open_mount(place)
            .and_then(|root| fill(root.as_fd()))
            .and_then(|()| classic::reflag(place, new.flags));
        filled.inspect_err(|_| drop(unmount(place, true)))?;
        return id_at(place);
    }
    let root = match create(&writable) {
        Err(error) if is_unknown_call(&error) => return mount_filled(new, fill, place, Way::Classic),
        created => created.with_context(what)?,
    };
    fill(root.as_fd())?;
    let sealed = !new.flags.read_only || seal(&root).with_context(what)?;
    let id = attach(&root, place).with_context(what)?;
    if !sealed {
        classic::reflag(place, new.flags).inspect_err(|_| drop(unmount(place, true)))?;
    }
    Ok(id)
}

/// Makes a detached mount read-only.
/// Returns false before Linux 5.12, which can change only a mount that is already in its place.
fn seal(root: &OwnedFd) -> rustix::io::Result<bool> {
    let set = u64::from(MountAttrFlags::MOUNT_ATTR_RDONLY.bits());
    let change = raw::MountAttributes { set, clear: 0, propagation: 0, user_namespace: 0 };
    match raw::set_mount_attributes(root.as_fd(), false, &change) {
        Err(Errno::NOSYS) => Ok(false),
        sealed => sealed.map(|()| true),
    }
}

/// Opens the root of the mount on top at a place.
fn open_mount(place: &Place) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(place.parent(), place.name(), flags, Mode::empty())?)
}

/// Mounts a file system detached.
/// Needs Linux 5.2. The mount is invisible and disappears when its descriptor is closed.
pub fn detached(new: &NewMount<'_>) -> Result<OwnedFd> {
    let what = || format!("make a file system of type {}", new.file_system);
    create(new).with_context(what).map_err(|error| too_old(error, "5.2"))
}

fn too_old(error: anyhow::Error, needed: &str) -> anyhow::Error {
    let text = format!("this kernel cannot: it needs Linux {needed}");
    if is_unknown_call(&error) { Failure::new(Code::ToolMissing, text).into() } else { error }
}

/// Reports whether a value exceeds the 255 bytes of fsconfig(2). mount(2) takes a page of bytes.
fn has_long_value(new: &NewMount<'_>) -> bool {
    let values = new.options.iter().filter_map(|option| option.value.bytes());
    values.chain([new.source.as_bytes()]).any(|value| value.len() > LONGEST_STRING)
}

/// Bind-mounts the source on `place` and returns the new mount's id.
pub fn bind(bind: &BindMount<'_>, place: &Place, way: Way) -> Result<u64> {
    let what = || format!("bind to {}", place.path().display());
    refuse_read_only_source(bind)?;
    match way {
        Way::Classic => classic::bind(bind, place).with_context(what).and_then(|()| id_at(place)),
        Way::Detached => match clone(bind) {
            Err(error) if is_unknown_call(&error) => self::bind(bind, place, Way::Classic),
            cloned => attach(&cloned.with_context(what)?, place).with_context(what),
        },
    }
}

/// Clones the source as a detached mount, for [`put`].
/// Needs Linux 5.12. The mount disappears when its descriptor is closed.
pub fn tree(bind: &BindMount<'_>) -> Result<OwnedFd> {
    clone(bind).context("show a directory elsewhere").map_err(|error| too_old(error, "5.12"))
}

/// Restricts a mount that another program made, to what `flags` grant.
/// Sets read-only, nosuid, nodev and noexec on the mount on top at `place` and on those inside it.
/// No such flag is cleared. Access times stay as they are.
pub fn restrict(place: &Place, flags: MountFlags, way: Way) -> Result<()> {
    let what = || format!("make {} {flags}", place.path().display());
    match way {
        Way::Classic => classic::restrict(place, flags).with_context(what),
        Way::Detached => match restrict_all(place, flags) {
            Err(error) if is_unknown_call(&error) => restrict(place, flags, Way::Classic),
            restricted => restricted.with_context(what),
        },
    }
}

fn restrict_all(place: &Place, flags: MountFlags) -> Result<()> {
    let (mount, _) = classic::target(place)?;
    let set = attributes(flags)
        .difference(MountAttrFlags::MOUNT_ATTR__ATIME | MountAttrFlags::MOUNT_ATTR_NODIRATIME);
    let change =
        raw::MountAttributes { set: u64::from(set.bits()), clear: 0, propagation: 0, user_namespace: 0 };
    Ok(raw::set_mount_attributes(mount.as_fd(), true, &change)?)
}

/// Unmounts the mount on top at `place`, without following a symlink.
/// `detach` is umount(8)'s `--lazy`.
pub fn unmount(place: &Place, detach: bool) -> std::io::Result<()> {
    // Not sys-mount: its NOFOLLOW has the number of O_NOFOLLOW, which umount2(2) refuses.
    let lazily = if detach { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    Ok(api::unmount(place.through_parent(), UnmountFlags::NOFOLLOW | lazily)?)
}

/// Aborts the pending requests of the mount on top at `place`, whose program does not answer.
/// SIGKILL does not end the waiting processes while that program lives. Returns true if the mount
/// is unmounted as well, because it is not in use.
pub fn abort(place: &Place) -> bool {
    api::unmount(place.through_parent(), UnmountFlags::NOFOLLOW | UnmountFlags::FORCE).is_ok()
}

/// Returns the id of the mount on top of the target, which proves that it is the one just made.
/// If the mount cannot be inspected, it is unmounted: the caller would not know of a mount to undo.
fn id_at(place: &Place) -> Result<u64> {
    mount_on(place).inspect_err(|_| drop(unmount(place, true)))
}

fn mount_on(place: &Place) -> Result<u64> {
    match place.look()? {
        Look::Mount(mounted) => Ok(mounted.id),
        look => Err(Failure::new(
            Code::Internal,
            format!("{} is not a mount although the kernel said so ({look:?})", place.path().display()),
        )
        .into()),
    }
}

fn create(new: &NewMount<'_>) -> Result<OwnedFd> {
    let context = api::fsopen(new.file_system, FsOpenFlags::FSOPEN_CLOEXEC).map_err(|errno| match errno {
        Errno::NODEV => missing_file_system(new.file_system),
        errno => process::refused(errno),
    })?;
    configure(&context, new).map_err(|errno| explain(errno, &context, new))?;
    Ok(api::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes(new.flags))?)
}

fn configure(context: &OwnedFd, new: &NewMount<'_>) -> rustix::io::Result<()> {
    api::fsconfig_set_string(context, "source", new.source)?;
    if new.superblock_read_only {
        api::fsconfig_set_flag(context, "ro")?;
    }
    for option in new.options {
        match option.value.bytes() {
            Some(value) => api::fsconfig_set_string(context, option.key, value)?,
            None => api::fsconfig_set_flag(context, option.key)?,
        }
    }
    api::fsconfig_create(context)
}

/// Adds the kernel's message from the context (`e ext4: bad option`): it says more than the errno.
fn explain(errno: Errno, context: &OwnedFd, new: &NewMount<'_>) -> anyhow::Error {
    let mut words = Vec::new();
    let mut buffer = [0; 512];
    while let Ok(length @ 1..) = rustix::io::read(context, &mut buffer) {
        let line = String::from_utf8_lossy(&buffer[..length]);
        words.push(line.trim_start_matches(['e', 'w', 'i']).trim().to_owned());
    }
    let hint = match errno {
        Errno::INVAL if new.options.is_empty() => "the device holds no such file system",
        Errno::INVAL => "an option does not suit this kernel or the file system",
        Errno::BUSY => "the device is in use in another way",
        _ => "",
    };
    words.extend((words.is_empty() && !hint.is_empty()).then(|| hint.to_owned()));
    let error = anyhow::Error::new(errno);
    if words.is_empty() { error } else { error.context(words.join("; ")) }
}

fn missing_file_system(name: &str) -> anyhow::Error {
    let text =
        format!("this kernel has no {name}: load the module (modprobe {name}) or use another file system");
    Failure::new(Code::ToolMissing, text).into()
}

fn clone(bind: &BindMount<'_>) -> Result<OwnedFd> {
    let recursive = if bind.recursive { OpenTreeFlags::AT_RECURSIVE } else { OpenTreeFlags::empty() };
    let flags =
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = api::open_tree(bind.source, "", flags | recursive).map_err(process::refused)?;
    let lifted = MountAttrFlags::MOUNT_ATTR_RDONLY.bits() * u32::from(bind.lift);
    let change = raw::MountAttributes {
        set: u64::from(attributes(bind.flags).bits()),
        clear: u64::from(MountAttrFlags::MOUNT_ATTR__ATIME.bits() | lifted),
        propagation: u64::from(propagation(bind.propagation).bits()),
        user_namespace: 0,
    };
    raw::set_mount_attributes(tree.as_fd(), bind.recursive, &change)?;
    Ok(tree)
}

fn propagation(kind: Propagation) -> MountPropagationFlags {
    match kind {
        Propagation::Private => MountPropagationFlags::PRIVATE,
        Propagation::HostToContainer => MountPropagationFlags::DOWNSTREAM,
        Propagation::Bidirectional => MountPropagationFlags::SHARED,
    }
}

fn attributes(flags: MountFlags) -> MountAttrFlags {
    let atime = match flags.atime {
        Atime::Relative => MountAttrFlags::MOUNT_ATTR_RELATIME,
        Atime::Never => MountAttrFlags::MOUNT_ATTR_NOATIME,
        Atime::Strict => MountAttrFlags::MOUNT_ATTR_STRICTATIME,
    };
    let wanted = [
        (flags.read_only, MountAttrFlags::MOUNT_ATTR_RDONLY),
        (!flags.suid, MountAttrFlags::MOUNT_ATTR_NOSUID),
        (!flags.dev, MountAttrFlags::MOUNT_ATTR_NODEV),
        (!flags.exec, MountAttrFlags::MOUNT_ATTR_NOEXEC),
        (!flags.diratime, MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    ];
    wanted.into_iter().filter_map(|(set, flag)| set.then_some(flag)).fold(atime, MountAttrFlags::union)
}

/// Moves the detached mount onto the name in the parent, without following a symlink there. Returns
/// the mount's id. A mount that is now elsewhere, because of a rename just now, is unmounted there.
fn attach(detached: &OwnedFd, place: &Place) -> Result<u64> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    api::move_mount(detached, "", place.parent(), place.name(), flags)
        .context("put the mount in its place")?;
    mount_on(place).inspect_err(|_| {
        let _ = api::unmount(fd_path(detached.as_fd()), UnmountFlags::DETACH);
    })
}

/// Refuses a writable mount of a read-only source: a mount cannot be more writable than its source.
fn refuse_read_only_source(bind: &BindMount<'_>) -> Result<()> {
    let is_allowed = bind.flags.read_only || bind.lift;
    if !is_allowed && fstatvfs(bind.source).is_ok_and(|stat| stat.f_flag.contains(StatVfsMountFlags::RDONLY))
    {
        let text = "the source is mounted read-only: set readOnly: true on the volume, or remount the source";
        return Err(Failure::new(Code::Denied, text).into());
    }
    Ok(())
}

fn is_unknown_call(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Errno>() == Some(&Errno::NOSYS)
}

fn fd_path(fd: BorrowedFd<'_>) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_raw_fd()).into()
}

/// Returns device and inode behind a descriptor, without asking any server.
pub fn identity(fd: BorrowedFd<'_>) -> Result<(u64, u64)> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = statx(fd, "", flags, StatxFlags::TYPE | StatxFlags::INO)?;
    Ok((rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_ino))
}
