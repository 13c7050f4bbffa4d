//! Obstacles for a driver on a node: directories that are full or read-only, other names of the
//! host and of directories.

use super::{Inside, Isolation, read_only};
use anyhow::{Context as _, Result, ensure};
use flexvol_protocol::ordered::filled;
use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind_recursive, unmount};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

/// Mounts that cover directories of a sandbox, until dropped.
#[derive(Debug, Default)]
pub struct Trouble {
    covered: Vec<PathBuf>,
}

impl Drop for Trouble {
    fn drop(&mut self) {
        for path in self.covered.iter().rev() {
            // It may be in use; it disappears with the sandbox at the latest.
            let _ = unmount(path, UnmountFlags::DETACH);
        }
    }
}

impl Inside {
    /// Covers directories with file systems that have no room for a byte or another file. Their
    /// former content is hidden, except for `kept`, a directory in one of them.
    pub fn fill_up(&self, directories: &[&str], kept: &Path) -> Result<Trouble> {
        let mut trouble = self.no_trouble()?;
        let kept = kept.canonicalize().with_context(|| format!("find {}", kept.display()))?;
        for directory in real(directories) {
            let inner = kept.starts_with(&directory).then(|| open(&kept)).transpose()?;
            let data = Some(c"size=64k,nr_inodes=64,mode=1777");
            mount("full", &directory, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, data)
                .with_context(|| format!("cover {}", directory.display()))?;
            trouble.covered.push(directory.clone());
            if let Some(inner) = inner {
                fs::create_dir_all(&kept).with_context(|| format!("make {}", kept.display()))?;
                trouble.bind(&inner, &kept)?;
            }
            fill(&directory).with_context(|| format!("fill {}", directory.display()))?;
        }
        Ok(trouble)
    }

    /// Makes directories read-only.
    pub fn write_protect(&self, directories: &[&str]) -> Result<Trouble> {
        let mut trouble = self.no_trouble()?;
        for directory in real(directories) {
            trouble.bind(&open(&directory)?, &directory)?;
            read_only::make(&directory).with_context(|| format!("make {} read-only", directory.display()))?;
        }
        Ok(trouble)
    }

    /// Shows a directory at another existing directory, too.
    pub fn show(&self, directory: &Path, at: &Path) -> Result<Trouble> {
        let mut trouble = self.no_trouble()?;
        trouble.bind(&open(directory)?, at)?;
        Ok(trouble)
    }

    /// Renames the host, until the end of the sandbox.
    pub fn rename_host(&self, name: &str) -> Result<()> {
        self.no_trouble()?;
        nix::unistd::sethostname(name).context("rename the host")
    }

    /// Fails without isolation, because the obstacles would affect the machine.
    fn no_trouble(&self) -> Result<Trouble> {
        ensure!(self.isolation != Isolation::None, "needs namespaces of its own");
        Ok(Trouble::default())
    }
}

impl Trouble {
    fn bind(&mut self, what: &OwnedFd, at: &Path) -> Result<()> {
        mount_bind_recursive(format!("/proc/self/fd/{}", what.as_raw_fd()), at)
            .with_context(|| format!("bind to {}", at.display()))?;
        self.covered.push(at.to_owned());
        Ok(())
    }
}

/// Returns the directories that exist, each once.
fn real(directories: &[&str]) -> BTreeSet<PathBuf> {
    let real = directories.iter().filter_map(|path| Path::new(path).canonicalize().ok());
    filled(real.filter(|path| path.is_dir()))
}

fn open(directory: &Path) -> Result<OwnedFd> {
    openat(CWD, directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .with_context(|| format!("open {}", directory.display()))
}

/// Fills a file system. Blocks come first, because each file takes one of the inodes.
fn fill(directory: &Path) -> io::Result<()> {
    until_full(|| {
        let mut file = File::options().create(true).append(true).open(directory.join("full"))?;
        file.write_all(&[0; 4096])
    })?;
    let mut number = 0;
    until_full(|| {
        number += 1;
        File::create(directory.join(format!("full.{number}"))).map(drop)
    })
}

fn until_full(mut step: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match step() {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(Errno::NOSPC.raw_os_error()) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
