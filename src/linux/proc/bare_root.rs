//! Root directory that contains only the node's programs and their libraries: for a program that
//! reads tenant data and would open any file that is named there. The program sees no network, and
//! only those files, devices and processes of the node that are shown to it.

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::mount::{MountFlags, mount_bind, mount_remount};
use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Names in `/` of programs and their libraries: directories, or links to directories.
pub(super) const SYSTEM: [&str; 8] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "nix", "gnu"];

/// Files for finding libraries, and for asking systemd for a scope.
const FILES: [&str; 3] = ["etc/ld.so.cache", "run/systemd/private", "run/dbus/system_bus_socket"];

/// Memory limit, in bytes: enough for names.
const ROOM: u64 = 1 << 20;

/// Directory that becomes the root. It exists as long as the mount namespace that it was made in.
#[derive(Debug)]
pub struct BareRoot {
    path: PathBuf,
}

impl BareRoot {
    /// Makes the root on top of a directory, which is covered.
    /// Only in a mount namespace that no other process sees.
    pub fn make(name: &str, directory: &Path) -> Result<Self> {
        crate::proc::namespace::cover(name, directory, Some(ROOM))?;
        let root = Self { path: directory.to_owned() };
        for name in SYSTEM {
            root.system(name)?;
        }
        for name in FILES {
            let file = Path::new("/").join(name);
            if file.try_exists().unwrap_or(false) {
                let file = open(&file)?;
                root.show(Path::new(name), &file, true)?;
            }
        }
        // qemu checks there whether the kernel has the locks that it needs, and otherwise works
        // without them.
        root.device("null")?;
        Ok(root)
    }

    fn system(&self, name: &str) -> Result<()> {
        let place = Path::new("/").join(name);
        match place.symlink_metadata() {
            Err(_) => Ok(()),
            Ok(stat) if stat.is_symlink() => {
                symlink(fs::read_link(&place)?, self.path.join(name)).with_context(|| format!("link {name}"))
            }
            Ok(_) => self.show(Path::new(name), &open(&place)?, true),
        }
    }

    /// Returns the path of a place in it, as seen from outside.
    pub fn at(&self, place: &Path) -> PathBuf {
        self.path.join(place.strip_prefix("/").unwrap_or(place))
    }

    /// Shows a file or a directory of the node in it, without the mounts below.
    /// `source` must have been opened in this mount namespace.
    pub fn show(&self, place: &Path, source: &OwnedFd, read_only: bool) -> Result<()> {
        let at = self.at(place);
        let what = || format!("show {}", place.display());
        fs::create_dir_all(at.parent().unwrap_or(&self.path)).with_context(what)?;
        match FileType::from_raw_mode(fstat(source)?.st_mode) {
            FileType::Directory => fs::create_dir_all(&at).with_context(what)?,
            _ => drop(File::create_new(&at).with_context(what)?),
        }
        mount_bind(format!("/proc/self/fd/{}", source.as_raw_fd()), &at).with_context(what)?;
        let flags = MountFlags::BIND | MountFlags::NOSUID;
        let flags = if read_only { flags | MountFlags::RDONLY } else { flags };
        mount_remount(&at, flags, "").with_context(what)
    }

    /// Makes a directory in it.
    pub fn directory(&self, place: &Path) -> Result<()> {
        fs::create_dir_all(self.at(place)).with_context(|| format!("make {}", place.display()))
    }

    /// Shows a device of the node in it.
    pub fn device(&self, name: &str) -> Result<()> {
        let place = Path::new("dev").join(name);
        let device = Path::new("/").join(&place);
        self.show(&place, &open(&device)?, false)
    }

    /// Opens the root for [`Invocation::within`](crate::proc::invocation::Invocation::within).
    pub fn open(&self) -> Result<OwnedFd> {
        open(&self.path)
    }
}

fn open(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).with_context(|| format!("open {}", path.display()))
}

/// Returns the current path of an open file.
pub fn path_of(file: &OwnedFd) -> Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).context("look where a file is")
}

/// Opens a file again that was opened in another mount namespace, by the path that it had there.
pub fn again(opened: &OwnedFd, path: &Path) -> Result<OwnedFd> {
    let here = open(path)?;
    let number = |fd: &OwnedFd| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    ensure!(number(&here)? == number(opened)?, "{} was replaced meanwhile: try again", path.display());
    Ok(here)
}
