//! The file systems of a sandbox, put together in its own mount namespace.
//!
//! ```text
//! /dir of the machine ──bind, read-only──▶ n/low ─┐
//!                       tmpfs ──────────▶ n/up ──┴─ overlay ──▶ /dir of the sandbox
//! ```
//!
//! The tmpfs covers a directory of the machine in our namespace until the new root is complete, and then hangs
//! on a descriptor only.

use super::{Isolation, Network, Terms};
use crate::sys::mount_table::{self, Entry};
use crate::sys::{raw, root};
use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{self as fs, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::mount::{
    MountAttrFlags, MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive,
    mount_change, mount_remount, unmount,
};
use std::collections::BTreeSet;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

/// What is made anew, or taken as a whole, whatever is mounted below.
const OWN: &[&str] = &["/proc", "/sys", "/dev", "/run", "/var/run"];

/// File systems that show the kernel, and keep nothing that could be copied.
const KERNEL: &[&str] = &[
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nfsd",
    "nsfs",
    "pstore",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// A file system that was made for the sandbox, for what is written.
#[derive(Debug)]
pub(super) struct Layer {
    /// Where it is seen.
    pub(super) target: PathBuf,
    /// Where what is written goes.
    pub(super) upper: OwnedFd,
    /// What it is written over: the machine's, read-only. `None` if there is nothing.
    pub(super) lower: Option<OwnedFd>,
    /// Whether it began empty on request.
    pub(super) empty: bool,
}

/// What [`make`] made.
#[derive(Debug, Default)]
pub(super) struct World {
    /// Those above after those below them.
    pub(super) layers: Vec<Layer>,
    /// The `st_dev` of what files in it have.
    pub(super) devices: BTreeSet<u64>,
}

/// Makes this process root of a user namespace of its own.
pub(super) fn become_root_of_our_own() -> Result<()> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    unshare(CloneFlags::CLONE_NEWUSER).context("make a user namespace")?;
    for (file, text) in [
        ("/proc/self/setgroups", "deny".to_owned()),
        ("/proc/self/uid_map", format!("0 {user} 1")),
        ("/proc/self/gid_map", format!("0 {group} 1")),
    ] {
        let written = fs::open(file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|fd| rustix::io::write(fd, text.as_bytes()));
        written.with_context(|| format!("write {file}"))?;
    }
    Ok(())
}

/// Gives this process namespaces and a `/` as the terms say. After an error it is good for nothing.
pub(super) fn make(terms: &Terms) -> Result<World> {
    separate(terms.network)?;
    let exposed = opened(&terms.exposed)?;
    let others = others(terms)?;
    let mut maker = Maker::new(terms.isolation)?;
    maker.enter_root()?;
    maker.add_own()?;
    for (entry, machine) in &others {
        maker.add(entry, machine).with_context(|| format!("show {}", entry.target.display()))?;
    }
    for (path, machine) in &exposed {
        expose(path, machine).with_context(|| format!("show {}", path.display()))?;
    }
    for path in &terms.empty {
        maker.add_empty(path).with_context(|| format!("make {} empty", path.display()))?;
    }
    maker.finish()
}

fn separate(network: Network) -> Result<()> {
    let mut namespaces = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    if network == Network::Loopback {
        namespaces |= CloneFlags::CLONE_NEWNET;
    }
    unshare(namespaces).context("make namespaces")?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .context("make the mount namespace private")?;
    if network == Network::Loopback {
        let socket = UnixDatagram::unbound().context("make a socket")?;
        raw::set_loopback_up(socket.as_fd()).context("bring lo up")?;
    }
    Ok(())
}

fn opened(paths: &[PathBuf]) -> Result<Vec<(&PathBuf, OwnedFd)>> {
    let mut opened = Vec::new();
    for path in paths {
        opened.push((path, open_path(path).with_context(|| format!("open {}", path.display()))?));
    }
    Ok(opened)
}

fn open_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

fn through(fd: &impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}

/// The mounts of the machine that are seen and that the sandbox has to show, each opened.
fn others(terms: &Terms) -> Result<Vec<(Entry, OwnedFd)>> {
    let covered = |entry: &Entry| {
        OWN.iter()
            .map(Path::new)
            .chain(terms.empty.iter().map(PathBuf::as_path))
            .any(|own| entry.target.starts_with(own))
    };
    let mut found = Vec::new();
    for entry in mount_table::read()? {
        if entry.target == Path::new("/") || covered(&entry) {
            continue;
        }
        // What is below another mount, or may not be looked at, is not seen.
        if let Ok(fd) = open_path(&entry.target)
            && root::mount_id(&fd)? == entry.id
        {
            found.push((entry, fd));
        }
    }
    found.sort_by_key(|(entry, _)| entry.target.components().count());
    Ok(found)
}

/// A directory that can be covered for a moment: it is in the root's own file system, and so are its own.
fn scratch() -> Result<PathBuf> {
    let table = mount_table::read()?;
    let free = |path: &Path| !table.iter().any(|entry| entry.target.starts_with(path));
    let mut names: Vec<_> = std::fs::read_dir("/")?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    names.sort_unstable();
    let is_directory = |path: &Path| path.symlink_metadata().is_ok_and(|data| data.is_dir());
    names.into_iter().find(|path| is_directory(path) && free(path)).context("find a directory without mounts")
}

struct Maker {
    /// The root of the machine.
    machine: OwnedFd,
    /// That of the tmpfs for what is written.
    base: OwnedFd,
    layers: Vec<Layer>,
    isolation: Isolation,
}

impl Maker {
    /// The machine's root is still ours.
    fn new(isolation: Isolation) -> Result<Self> {
        let path = scratch()?;
        mount("sandbox", &path, "tmpfs", MountFlags::empty(), Some(c"mode=755"))
            .with_context(|| format!("mount a tmpfs on {}", path.display()))?;
        let base =
            fs::openat(CWD, &path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(Self { machine: open_path(Path::new("/"))?, base, layers: Vec::new(), isolation })
    }

    /// From here on `/` is the sandbox's. The machine's is still mounted, above it, where no path leads.
    fn enter_root(&mut self) -> Result<()> {
        let machine = self.machine.try_clone()?;
        let new = through(&self.base).join("root");
        make_directory(&new, 0o755)?;
        self.overlay(&machine, &new, Path::new("/")).context("mount an overlay of /")?;
        // A mount, not the directory below it, is what pivot_root takes.
        rustix::process::chdir(&new)?;
        rustix::process::pivot_root(".", ".").context("exchange the root")?;
        mount("proc", "/proc", "proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, None)
            .context("mount a new /proc")
    }

    /// The machine's devices, and what belongs to one boot and is empty after it.
    fn add_own(&mut self) -> Result<()> {
        for (path, read_only) in [("/sys", false), ("/dev", true)] {
            let machine =
                fs::openat(&self.machine, &path[1..], OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            let Ok(machine) = machine else { continue };
            mount_bind_recursive(through(&machine), path).with_context(|| format!("show {path}"))?;
            if read_only {
                make_read_only(Path::new(path)).with_context(|| format!("make {path} read-only"))?;
            }
        }
        for (path, mode) in [("/dev/shm", 0o1777), ("/run", 0o755), ("/var/run", 0o755)] {
            if Path::new(path).symlink_metadata().is_ok_and(|data| data.is_dir()) {
                self.fresh(Path::new(path), mode, false).with_context(|| format!("make {path} empty"))?;
            }
        }
        Ok(())
    }

    /// What else is mounted on the machine.
    fn add(&mut self, entry: &Entry, machine: &OwnedFd) -> Result<()> {
        let target = &entry.target;
        if entry.file_system == "proc" {
            return Ok(mount("proc", target, "proc", MountFlags::NOSUID, None)?);
        }
        if KERNEL.contains(&entry.file_system.as_str()) {
            return Ok(mount_bind(through(machine), target)?);
        }
        let is_directory = FileType::from_raw_mode(fs::fstat(machine)?.st_mode) == FileType::Directory;
        let writable = is_directory && !entry.read_only;
        if writable && self.overlay(machine, target, target).is_ok() {
            return Ok(());
        }
        mount_bind(through(machine), target)?;
        make_read_only(target)
    }

    fn add_empty(&mut self, path: &Path) -> Result<()> {
        make_directory(path, 0o755)?;
        self.fresh(path, 0o755, true)?;
        Ok(mount_change(path, MountPropagationFlags::SHARED)?)
    }

    fn fresh(&mut self, target: &Path, mode: u32, empty: bool) -> Result<()> {
        let data = CString::new(format!("mode={mode:o}"))?;
        // What a driver has made below kubelet's directory may be a device.
        let flags = if empty { MountFlags::empty() } else { MountFlags::NOSUID | MountFlags::NODEV };
        mount("tmpfs", target, "tmpfs", flags, Some(&*data))?;
        let upper = open_directory(target)?;
        self.layers.push(Layer { target: target.to_owned(), upper, lower: None, empty });
        Ok(())
    }

    /// `place` is where it is mounted now, `target` where it will be seen.
    fn overlay(&mut self, machine: &OwnedFd, place: &Path, target: &Path) -> Result<()> {
        let own = through(&self.base).join(self.layers.len().to_string());
        let [low, up, work] = ["low", "up", "work"].map(|name| own.join(name));
        for path in [&low, &up, &work] {
            make_directory(path, 0o755)?;
        }
        mount_bind(through(machine), &low)?;
        make_read_only(&low)?;
        let root = fs::fstat(machine)?;
        take_after(&up, &root)?;
        self.mount_overlay(place, &low, &up, &work)?;
        let (upper, lower) = (open_directory(&up)?, Some(open_directory(&low)?));
        self.layers.push(Layer { target: target.to_owned(), upper, lower, empty: false });
        Ok(())
    }

    /// What a kernel or a distribution has switched on would make the upper layer harder to read.
    fn mount_overlay(&self, place: &Path, low: &Path, up: &Path, work: &Path) -> Result<()> {
        let user = if self.isolation == Isolation::User { ",userxattr" } else { "" };
        let plain =
            format!("lowerdir={},upperdir={},workdir={}{user}", low.display(), up.display(), work.display());
        let exact = format!("{plain},index=off,metacopy=off,redirect_dir=off,xino=off");
        let try_with = |data: &str| {
            let data = CString::new(data).map_err(|_| Errno::INVAL)?;
            mount("overlay", place, "overlay", MountFlags::empty(), Some(&*data))
        };
        Ok(try_with(&exact).or_else(|_| try_with(&plain))?)
    }

    fn finish(self) -> Result<World> {
        rustix::process::fchdir(&self.machine)?;
        unmount(".", UnmountFlags::DETACH).context("let go of the machine's root")?;
        rustix::process::chdir("/").context("enter the new root")?;
        let mut devices = BTreeSet::new();
        for layer in &self.layers {
            devices.extend(devices_of(layer)?);
        }
        Ok(World { layers: self.layers, devices })
    }
}

/// An overlay gives its directories, the files written to it and those of the machine a device each.
fn devices_of(layer: &Layer) -> Result<Vec<u64>> {
    let mut devices = vec![fs::fstat(&layer.upper)?.st_dev];
    let Some(lower) = &layer.lower else { return Ok(devices) };
    devices.push(fs::stat(&layer.target)?.st_dev);
    let probe = layer.target.join(format!(".sandbox.{}", fastrand::u64(..)));
    if let Ok(file) =
        fs::open(&probe, OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR)
    {
        devices.push(fs::fstat(&file)?.st_dev);
        fs::unlink(&probe).context("remove a probe")?;
    }
    let _ = lower;
    Ok(devices)
}

fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// With those above it; one that is there is as good.
fn make_directory(path: &Path, mode: u32) -> Result<()> {
    let done = std::fs::DirBuilder::new().recursive(true).mode(mode).create(path);
    done.with_context(|| format!("make {}", path.display()))
}

/// Gives a directory mode and owner of another.
fn take_after(path: &Path, other: &Stat) -> Result<()> {
    std::os::unix::fs::chown(path, Some(other.st_uid), Some(other.st_gid))?;
    let mode = std::fs::Permissions::from_mode(other.st_mode & 0o7777);
    Ok(std::fs::set_permissions(path, mode)?)
}

fn expose(path: &Path, machine: &OwnedFd) -> Result<()> {
    let is_directory = FileType::from_raw_mode(fs::fstat(machine)?.st_mode) == FileType::Directory;
    if is_directory {
        make_directory(path, 0o755)?;
    } else if !path.exists() {
        make_directory(path.parent().unwrap_or(path), 0o755)?;
        fs::open(path, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR)?;
    }
    mount_bind_recursive(through(machine), path)?;
    make_read_only(path)
}

/// The mount on top at a path, and those below it.
fn make_read_only(path: &Path) -> Result<()> {
    let change = raw::MountAttributes {
        set: u64::from(MountAttrFlags::MOUNT_ATTR_RDONLY.bits()),
        clear: 0,
        propagation: 0,
        user_namespace: 0,
    };
    match raw::set_mount_attributes(open_path(path)?.as_fd(), true, &change) {
        Err(Errno::NOSYS) => make_each_read_only(path),
        changed => Ok(changed?),
    }
}

/// Before Linux 5.12 each has to be told, with all the flags it has.
fn make_each_read_only(path: &Path) -> Result<()> {
    let path = std::fs::canonicalize(path)?;
    for entry in mount_table::below(&path)? {
        let flags = fs::statvfs(&entry.target)?.f_flag;
        let kept = [
            (fs::StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
            (fs::StatVfsMountFlags::NODEV, MountFlags::NODEV),
            (fs::StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
            (fs::StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
            (fs::StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
            (fs::StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
        ];
        let kept = kept.into_iter().filter(|(has, _)| flags.contains(*has)).map(|(_, flag)| flag);
        let flags = kept.fold(MountFlags::BIND | MountFlags::RDONLY, |all, flag| all | flag);
        mount_remount(&entry.target, flags, c"")?;
    }
    Ok(())
}
