//! Builds the file systems of a sandbox, in its own mount namespace.
//!
//! ```text
//! /dir of the machine ──bind, read-only──▶ n/low ─┐
//!                       tmpfs ──────────▶ n/up ──┴─ overlay ──▶ /dir of the sandbox
//! ```
//!
//! The tmpfs covers a directory of the machine, in our namespace, until the new root is complete;
//! then only descriptors keep it.

use super::{Isolation, read_only};
use anyhow::{Context as _, Result};
use flexvol_linux::mount::mount_table::{self, Entry};
use rustix::fs::{self, AtFlags, CWD, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_bind_recursive, mount_change,
    unmount,
};
use std::collections::{BTreeSet, VecDeque};
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// Directories that are created for the sandbox or taken as a whole, whatever is mounted below.
pub(super) const OWN: &[&str] = &["/proc", "/sys", "/dev", "/run", "/var/run"];

/// File system that was made for the sandbox, for writes.
#[derive(Debug)]
pub(super) struct Layer {
    /// Path in the sandbox.
    pub(super) target: PathBuf,
    /// Directory that receives the writes.
    pub(super) upper: OwnedFd,
    /// Read-only directory of the machine below the writes, if there is one.
    pub(super) lower: Option<OwnedFd>,
    /// True if it began empty on request.
    pub(super) empty: bool,
}

/// Result of a [`Maker`].
#[derive(Debug, Default)]
pub(super) struct World {
    /// Layers; each one comes after the layer that its path is in.
    pub(super) layers: Vec<Layer>,
    /// Values of `st_dev` for the files in them.
    pub(super) devices: BTreeSet<u64>,
}

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

/// Source of the tmpfs for writes, as it appears in mount tables.
pub(super) const SOURCE: &str = "sandbox";

/// Limit for directories that are searched for one file: its device is that of all files.
const SEARCHED: usize = 64;

/// Root that is being built.
pub(super) struct Maker {
    /// Root of the machine.
    machine: OwnedFd,
    /// Directory of the machine that is covered meanwhile, and its content.
    scratch: (PathBuf, OwnedFd),
    /// Root of the tmpfs for writes.
    base: OwnedFd,
    layers: Vec<Layer>,
    isolation: Isolation,
}

impl Maker {
    /// Begins a new root; requires the machine's root and a mount namespace of its own.
    pub(super) fn new(isolation: Isolation) -> Result<Self> {
        let path = scratch()?;
        let covered = open_path(&path)?;
        mount(SOURCE, &path, "tmpfs", MountFlags::empty(), Some(c"mode=755"))
            .with_context(|| format!("mount a tmpfs on {}", path.display()))?;
        let (machine, base) = (open_path(Path::new("/"))?, open_directory(&path)?);
        std::fs::create_dir(through(&base).join("root"))?;
        Ok(Self { machine, scratch: (path, covered), base, layers: Vec::new(), isolation })
    }

    /// Returns the path of something in the new root, as long as the root is not entered.
    pub(super) fn place(&self, path: &Path) -> PathBuf {
        through(&self.base).join("root").join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Reports whether the machine's content at this path is hidden meanwhile.
    pub(super) fn covers(&self, path: &Path) -> bool {
        path == self.scratch.0
    }

    /// Opens the machine's content at this path.
    pub(super) fn open(&self, path: &Path) -> Result<OwnedFd> {
        if self.covers(path) {
            return Ok(self.scratch.1.try_clone()?);
        }
        Ok(open_path(path)?)
    }

    /// Lays the machine's root, so that it can be written to.
    pub(super) fn lay_root(&mut self) -> Result<()> {
        let root = Path::new("/");
        let machine = self.machine.try_clone()?;
        self.overlay(&machine, &self.place(root), root).context("mount an overlay of /")
    }

    /// Makes `/` the root of the sandbox. The machine's root is still mounted above it, where no
    /// path leads.
    pub(super) fn enter(&self) -> Result<()> {
        rustix::process::chdir(self.place(Path::new("/")))?;
        rustix::process::pivot_root(".", ".").context("exchange the root")?;
        mount_proc(Path::new("/proc")).context("mount a new /proc")
    }

    /// Adds the machine's devices, and directories that are empty after a boot.
    pub(super) fn add_own(&mut self, makes_nodes: bool) -> Result<()> {
        for (name, read_only) in [("sys", false), ("dev", !makes_nodes)] {
            let path = Path::new("/").join(name);
            let machine = fs::openat(&self.machine, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            let Ok(machine) = machine else { continue };
            mount_bind_recursive(through(&machine), &path).with_context(|| format!("show /{name}"))?;
            if read_only {
                read_only::make(&path).with_context(|| format!("make /{name} read-only"))?;
            }
        }
        for (path, mode) in [("/dev/shm", 0o1777), ("/run", 0o755), ("/var/run", 0o755)] {
            let path = Path::new(path);
            if path.symlink_metadata().is_ok_and(|data| data.is_dir()) {
                self.fresh(path, path, mode, false).with_context(|| format!("cover {}", path.display()))?;
            }
        }
        // Every boot creates it, and /var/lock leads there.
        if let Ok(stat) = fs::statat(&self.machine, "run/lock", AtFlags::SYMLINK_NOFOLLOW) {
            make_directory(Path::new("/run/lock"), 0o755)?;
            self.take_after(Path::new("/run/lock"), &stat)?;
        }
        Ok(())
    }

    /// Adds a mount of the machine.
    pub(super) fn add(&mut self, entry: &Entry, machine: &OwnedFd) -> Result<()> {
        let target = &entry.target;
        let kind = FileType::from_raw_mode(fs::fstat(machine)?.st_mode);
        match entry.file_system.as_str() {
            "proc" => mount_proc(target),
            kernel if KERNEL.contains(&kernel) => Ok(mount_bind_recursive(through(machine), target)?),
            _ if kind == FileType::Directory && !entry.read_only => {
                self.add_writable(machine, target, target)
            }
            _ => show(machine, target),
        }
    }

    /// Adds a directory for writes; where no overlay is possible, it is read-only.
    pub(super) fn add_writable(&mut self, machine: &OwnedFd, place: &Path, target: &Path) -> Result<()> {
        self.overlay(machine, place, target).or_else(|_| show(machine, place))
    }

    pub(super) fn add_empty(&mut self, path: &Path) -> Result<()> {
        make_directory(path, 0o755)?;
        self.fresh(path, path, 0o755, true)?;
        Ok(mount_change(path, MountPropagationFlags::SHARED)?)
    }

    /// Mounts an empty file system. It is mounted twice: mounts in it must not appear in the layer.
    pub(super) fn fresh(&mut self, place: &Path, target: &Path, mode: u32, empty: bool) -> Result<()> {
        let up = self.own().join("up");
        make_directory(&up, 0o755)?;
        // A driver may create devices below kubelet's directory.
        let flags = if empty { MountFlags::empty() } else { MountFlags::NOSUID | MountFlags::NODEV };
        let data = CString::new(format!("mode={mode:o}"))?;
        mount("tmpfs", &up, "tmpfs", flags, Some(&*data))?;
        mount_bind(&up, place)?;
        let upper = open_directory(&up)?;
        self.layers.push(Layer { target: target.to_owned(), upper, lower: None, empty });
        Ok(())
    }

    /// Mounts an overlay. `place` is its path now, `target` its path in the sandbox.
    fn overlay(&mut self, machine: &OwnedFd, place: &Path, target: &Path) -> Result<()> {
        let [low, up, work] = ["low", "up", "work"].map(|name| self.own().join(name));
        for path in [&low, &up, &work] {
            make_directory(path, 0o755)?;
        }
        mount_bind(through(machine), &low)?;
        read_only::make(&low)?;
        self.take_after(&up, &fs::fstat(machine)?)?;
        self.mount_overlay(place, [&low, &up, &work])?;
        let (upper, lower) = (open_directory(&up)?, Some(open_directory(&low)?));
        self.layers.push(Layer { target: target.to_owned(), upper, lower, empty: false });
        Ok(())
    }

    /// Returns the directory of the next layer.
    fn own(&self) -> PathBuf {
        through(&self.base).join(self.layers.len().to_string())
    }

    /// Mounts an overlay. It switches off features of the kernel or the distribution that would
    /// make the upper layer harder to read.
    fn mount_overlay(&self, place: &Path, [low, up, work]: [&Path; 3]) -> Result<()> {
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

    /// Gives a directory the mode and the owner of another one.
    pub(super) fn take_after(&self, path: &Path, other: &Stat) -> Result<()> {
        let owned = std::os::unix::fs::chown(path, Some(other.st_uid), Some(other.st_gid));
        // A user namespace has no other owners.
        if self.isolation != Isolation::User {
            owned?;
        }
        Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(other.st_mode & 0o7777))?)
    }

    /// Releases the machine's root, and returns the result.
    pub(super) fn finish(self) -> Result<World> {
        rustix::process::fchdir(&self.machine)?;
        unmount(".", UnmountFlags::DETACH).context("release the machine's root")?;
        rustix::process::chdir("/").context("enter the new root")?;
        let mut devices = BTreeSet::new();
        for layer in &self.layers {
            devices.insert(fs::fstat(&layer.upper)?.st_dev);
            if layer.lower.is_some() {
                devices.extend(devices_of_overlay(&layer.target)?);
            }
        }
        Ok(World { layers: self.layers, devices })
    }
}

/// Returns a directory that can be covered for a moment: it is in the root's own file system, with
/// all its content.
fn scratch() -> Result<PathBuf> {
    let table = mount_table::read()?;
    let is_free = |path: &Path| !table.iter().any(|entry| entry.target.starts_with(path));
    let is_directory = |path: &Path| path.symlink_metadata().is_ok_and(|data| data.is_dir());
    let names = std::fs::read_dir("/")?.filter_map(|entry| Some(entry.ok()?.path()));
    let free = names.filter(|path| is_directory(path) && is_free(path)).min();
    free.context("find a directory in / without mounts")
}

/// Returns the devices of an overlay: it has one each for its directories, for files written to it
/// and for files of the machine.
fn devices_of_overlay(target: &Path) -> Result<Vec<u64>> {
    let mut devices = vec![fs::stat(target)?.st_dev];
    let probe = target.join(format!(".sandbox.{:x}", fastrand::u64(..)));
    if make_file(&probe).is_ok() {
        devices.push(fs::stat(&probe)?.st_dev);
        fs::unlink(&probe).context("remove a probe")?;
    }
    devices.extend(device_of_files(target));
    Ok(devices)
}

/// Returns the device of the first entry that is not a directory.
fn device_of_files(target: &Path) -> Option<u64> {
    let own = target.metadata().ok()?.dev();
    let mut directories = VecDeque::from([target.to_owned()]);
    for _ in 0..SEARCHED {
        for entry in std::fs::read_dir(directories.pop_front()?).into_iter().flatten().flatten() {
            let Ok(data) = entry.metadata() else { continue };
            if !data.is_dir() {
                return Some(data.dev());
            }
            // Do not enter mounts.
            directories.extend((data.dev() == own).then(|| entry.path()));
        }
    }
    None
}

/// Returns a path to an open file, whatever its name.
fn through(fd: &impl AsFd) -> PathBuf {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd()).into()
}

fn open_directory(path: &Path) -> rustix::io::Result<OwnedFd> {
    fs::openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Creates a directory and its parents; an existing directory is not an error.
pub(super) fn make_directory(path: &Path, mode: u32) -> Result<()> {
    let done = std::fs::DirBuilder::new().recursive(true).mode(mode).create(path);
    done.with_context(|| format!("make {}", path.display()))
}

/// Creates a file that something is mounted on.
pub(super) fn make_file(path: &Path) -> rustix::io::Result<()> {
    fs::open(path, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR).map(drop)
}

/// Shows one file or directory of the machine, and nothing around it.
pub(super) fn expose(path: &Path, machine: &OwnedFd) -> Result<()> {
    if FileType::from_raw_mode(fs::fstat(machine)?.st_mode) == FileType::Directory {
        make_directory(path, 0o755)?;
    } else if !path.exists() {
        make_directory(path.parent().unwrap_or(path), 0o755)?;
        make_file(path)?;
    }
    show(machine, path)
}

/// Shows a file or directory with all mounts in it, read-only.
pub(super) fn show(machine: &OwnedFd, place: &Path) -> Result<()> {
    mount_bind_recursive(through(machine), place)?;
    read_only::make(place)
}

fn mount_proc(target: &Path) -> Result<()> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    Ok(mount("proc", target, "proc", flags, None)?)
}

pub(super) fn open_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}
