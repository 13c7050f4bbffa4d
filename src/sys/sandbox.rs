//! A process that can change nothing: first of a new PID namespace, with a mount table, a network and a copy of
//! the machine's files of its own.
//!
//! `/` is an overlay whose upper layer is a tmpfs, and so is every other file system of the machine that can be
//! written to: what is written anywhere goes to memory, is found again by [`Inside::changed`], and is gone with
//! the last process of the namespace. `/run` is empty, /proc is the namespace's own, /dev is the machine's,
//! read-only. Nothing here is ever removed by hand: what is removed by hand below a mount may be the machine's.

use anyhow::{Result, bail};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What a process in a sandbox reaches of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// A loopback device of its own.
    Loopback,
    /// What the machine reaches.
    Machine,
}

/// How much a sandbox keeps apart, by what this process may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Everything: root.
    Full,
    /// The same, as root of a user namespace: no devices can be mounted.
    User,
    /// A process group and a temporary directory. Nothing can be mounted.
    None,
}

/// How a sandbox is made.
#[derive(Clone, Debug)]
pub struct Terms {
    /// See [`Isolation::possible`].
    pub isolation: Isolation,
    /// See [`Network`].
    pub network: Network,
    /// Directories and files of the machine that shall be seen although they are below /run, read-only.
    pub exposed: Vec<PathBuf>,
    /// Directories that shall be empty file systems of their own in the sandbox, with shared propagation.
    pub empty: Vec<PathBuf>,
}

/// A process in a sandbox, from outside. Dropped, all of it is killed.
#[derive(Debug)]
pub struct Sandbox {
    line: OwnedFd,
}

/// How the work ended.
#[derive(Debug)]
pub enum Ended {
    /// With these words.
    Said(Vec<u8>),
    /// Without; how, for a message.
    Died(String),
}

/// A sandbox, from inside.
#[derive(Debug)]
pub struct Inside {
    isolation: Isolation,
}

impl Isolation {
    /// The most that this process may.
    pub fn possible() -> Self {
        Self::None
    }
}

impl Sandbox {
    /// Starts `work` in a new sandbox; it ends with what that returns.
    ///
    /// Only for a process with one thread.
    pub fn start(_terms: &Terms, _work: impl FnOnce(&Inside) -> Vec<u8>) -> Result<Self> {
        bail!("not yet")
    }

    /// Readable when there is something to [`read`](Self::read).
    pub fn fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.line)
    }

    /// Reads what is there; `Some` once the work has ended. Does not wait.
    pub fn read(&mut self) -> Result<Option<Ended>> {
        bail!("not yet")
    }

    /// Kills everything in it and waits for that, but not for ever.
    pub fn end(self, _patience: Duration) {}
}

impl Inside {
    /// How much is kept apart.
    pub fn isolation(&self) -> Isolation {
        self.isolation
    }

    /// Every file, directory and link that was made, changed or removed since the sandbox began, whatever the
    /// file system; not what is in the directories that began [empty](Terms::empty).
    pub fn changed(&self) -> Result<Vec<PathBuf>> {
        bail!("not yet")
    }

    /// Every process of the sandbox but this one that is not a zombie waiting for this one, as
    /// `(pid, command line)`.
    pub fn processes(&self) -> Result<Vec<(i32, String)>> {
        bail!("not yet")
    }

    /// Every mount made since the sandbox began.
    pub fn mounts(&self) -> Result<Vec<super::mount_table::Entry>> {
        bail!("not yet")
    }

    /// Every loop device over a file of the sandbox, and every device mapper and network block device that is new.
    pub fn devices(&self) -> Result<Vec<PathBuf>> {
        bail!("not yet")
    }

    /// Where a file that was changed in the sandbox is found although something is mounted above it.
    pub fn beneath(&self, _path: &Path) -> Option<PathBuf> {
        None
    }
}
