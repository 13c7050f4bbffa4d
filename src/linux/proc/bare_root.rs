//! A root directory with nothing in it but the node's programs and their libraries: for a program
//! that reads what a tenant has written, and would open whatever that names. It sees no file, no
//! device and no process of the node but those that are shown to it, and no network.

use anyhow::{Context as _, Result, ensure};
use rustix::fs::{FileType, Mode, OFlags, fstat};
use rustix::mount::{MountFlags, mount_bind, mount_remount};
use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// What programs are made of, by its name in `/`: directories, or links to some.
pub(super) const SYSTEM: [&str; 8] = ["usr", "bin", "sbin", "lib", "lib32", "lib64", "nix", "gnu"];

/// Where libraries are, and where systemd is asked for a scope.
const FILES: [&str; 3] = ["etc/ld.so.cache", "run/systemd/private", "run/dbus/system_bus_socket"];

/// How much memory: for names.
const ROOM: u64 = 1 << 20;

/// The directory that is to be the root. It lasts as long as the mount table that it was made in.
#[derive(Debug)]
pub struct BareRoot {
    path: PathBuf,
}

impl BareRoot {
    /// Makes it in place of a directory, which is covered: only in a mount table that no one else
    /// sees.
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
        // qemu tries there whether the kernel has the locks that it needs, and goes without if it
        // has not.
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

    /// Where something in it is, seen from outside.
    pub fn at(&self, place: &Path) -> PathBuf {
        self.path.join(place.strip_prefix("/").unwrap_or(place))
    }

    /// Shows a file or a directory of the node in it, which was opened in this mount table; without
    /// what is mounted below.
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

    /// Shows a device of the node's in it.
    pub fn device(&self, name: &str) -> Result<()> {
        let place = Path::new("dev").join(name);
        let device = Path::new("/").join(&place);
        self.show(&place, &open(&device)?, false)
    }

    /// For [`Invocation::within`](crate::proc::invocation::Invocation::within).
    pub fn open(&self) -> Result<OwnedFd> {
        open(&self.path)
    }
}

fn open(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty()).with_context(|| format!("open {}", path.display()))
}

/// The path that an open file has now.
pub fn path_of(file: &OwnedFd) -> Result<PathBuf> {
    fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).context("look where a file is")
}

/// A file that was opened in another mount table, opened in this one by the path that it had there.
pub fn again(opened: &OwnedFd, path: &Path) -> Result<OwnedFd> {
    let here = open(path)?;
    let number = |fd: &OwnedFd| fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    ensure!(number(&here)? == number(opened)?, "{} was replaced meanwhile: try again", path.display());
    Ok(here)
}
