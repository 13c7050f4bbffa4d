//! Surroundings of the volume of a case: mounts of no driver, programs without a network or with a
//! mount table of their own.

use super::{Inside, Isolation};
use anyhow::{Context as _, Result, ensure};
use flexvol_linux::mount::mount_table::{self, Entry};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, unmount,
};
use std::fs::{self, File};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Builder;

/// Source of a mounted file system that belongs to no driver.
pub const NOBODYS: &str = "of-nobody";

/// Mount table of this thread.
const TABLE: &str = "/proc/thread-self/mountinfo";

/// Limit for mounts that are removed from one place.
const MOST_LAYERS: usize = 64;

impl Inside {
    /// Mounts an empty file system from [`NOBODYS`] on an existing directory.
    pub fn mount_nobodys(&self, at: &Path, file_system: &str) -> Result<()> {
        self.own_table()?;
        mount(NOBODYS, at, file_system, MountFlags::NOSUID | MountFlags::NODEV, None)
            .with_context(|| format!("mount on {}", at.display()))
    }

    /// Shows a directory or file at another place, or once more at its own place.
    pub fn bind(&self, what: &Path, at: &Path) -> Result<()> {
        self.own_table()?;
        mount_bind(what, at).with_context(|| format!("show {} at {}", what.display(), at.display()))
    }

    /// Unmounts everything at exactly this place, even if it is in use.
    pub fn take_off(&self, at: &Path) -> Result<()> {
        self.own_table()?;
        for _ in 0..MOST_LAYERS {
            if mount_table::at(at)?.is_none() {
                return Ok(());
            }
            unmount(at, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW)
                .with_context(|| format!("take off {}", at.display()))?;
        }
        anyhow::bail!("{} is mounted again and again", at.display())
    }

    /// Runs `work`; programs that this thread starts meanwhile have no network at all.
    pub fn without_network<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        self.own_table()?;
        let ours = File::open("/proc/thread-self/ns/net").context("open /proc/thread-self/ns/net")?;
        unshare(CloneFlags::CLONE_NEWNET).context("leave the network")?;
        let done = work();
        setns(ours, CloneFlags::CLONE_NEWNET).context("return to the network")?;
        Ok(done)
    }

    /// Creates a neighbour. Its mount table begins as ours is now, and receives later mounts as
    /// that of a container does.
    pub fn neighbour(&self) -> Result<Neighbour> {
        self.own_table()?;
        let (ask, questions) = channel();
        let (answers, told) = channel();
        let live = move || {
            let settled = settle();
            let failed = settled.is_err();
            if answers.send(settled.map(|()| Vec::new())).is_ok() && !failed {
                questions.iter().take_while(|()| answers.send(table()).is_ok()).for_each(drop);
            }
        };
        Builder::new().spawn(live).context("start a thread")?;
        let neighbour = Neighbour { ask, told };
        neighbour.heard().context("make a mount namespace")?;
        Ok(neighbour)
    }

    /// Fails without isolation, because the changes would affect the machine.
    fn own_table(&self) -> Result<()> {
        ensure!(self.isolation != Isolation::None, "needs namespaces of its own");
        Ok(())
    }
}

/// Thread with a mount table of its own, until dropped.
#[derive(Debug)]
pub struct Neighbour {
    ask: Sender<()>,
    told: Receiver<Result<Vec<Entry>>>,
}

impl Neighbour {
    /// Returns the mounts that the neighbour sees at exactly this place.
    pub fn sees(&self, at: &Path) -> Result<Vec<Entry>> {
        self.ask.send(()).context("ask a neighbour")?;
        Ok(self.heard()?.into_iter().filter(|entry| entry.target == at).collect())
    }

    fn heard(&self) -> Result<Vec<Entry>> {
        self.told.recv().context("hear a neighbour")?
    }
}

fn settle() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    Ok(mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::DOWNSTREAM)?)
}

fn table() -> Result<Vec<Entry>> {
    Ok(mount_table::parse_all(&fs::read(TABLE).with_context(|| format!("read {TABLE}"))?))
}
