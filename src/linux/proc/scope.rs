//! Control group of one daemon: all processes that it has started are found and ended there, also
//! if their parents are gone.
//!
//! With systemd, it is a scope of systemd, because no other program may make groups there.
//! Otherwise it is a directory of our own. It is not below kubelet's group, so that a restart of
//! kubelet ends no daemon. Control groups of version 1 work, too; there a second group limits the
//! memory. On a node without control groups a daemon has no scope, and without a memory controller
//! it has no limit.

use anyhow::{Context, Result};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Memory controller of version 1.
const MEMORY: &str = "/sys/fs/cgroup/memory";

/// Places of control groups: version 2, version 2 beside version 1, systemd's own of version 1, and
/// the memory controller of version 1.
const ROOTS: [&str; 4] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd", MEMORY];

/// Parent group of systemd's scopes.
const SYSTEMD: &str = "system.slice";

/// Our own group, and the prefix of our scopes.
const OWN: &str = "flexvol";

/// Limit for the end of killed processes; those that are stuck in the kernel longer are left.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Pause between two checks.
const TICK: Duration = Duration::from_millis(5);

/// Age at which an empty group is a leftover: no call takes so long from making one to entering it.
const OLD: Duration = Duration::from_mins(1);

/// Limit for attempts to make a group: another call may remove it while it is still empty.
const ATTEMPTS: usize = 5;

/// The group of one daemon, which may not exist.
#[derive(Debug)]
pub struct Scope {
    name: String,
    memory: Option<u64>,
}

/// Way for a process to enter a scope.
#[derive(Debug)]
pub(crate) enum Entrance {
    /// Start through this command.
    Through(Vec<String>),
    /// Write of its PID to each of these files; none without control groups.
    Groups(Vec<OwnedFd>),
}

impl Scope {
    /// Returns the scope of this name, which consists of letters, digits, `-` and `_`.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), memory: None }
    }

    /// Limits the memory of all its processes, in bytes: they are killed before they exceed it, if
    /// the node supports that.
    #[must_use]
    pub fn limited(self, bytes: u64) -> Self {
        Self { memory: Some(bytes), ..self }
    }

    /// Reports whether the scope exists, with or without processes.
    pub fn is_left(&self) -> bool {
        self.directories().next().is_some()
    }

    /// Reports whether no process is in the scope, or the scope does not exist.
    pub fn is_empty(&self) -> bool {
        self.directories().all(|directory| members(&directory).is_empty())
    }

    /// Reports whether a process is in the scope: only root of the node can have put it there.
    pub fn holds(&self, pid: i32) -> bool {
        self.directories().any(|directory| members(&directory).contains(&pid))
    }

    /// Lets the processes finish for `patience`, kills the rest, and removes the scope.
    /// Processes that cannot be killed now stay in it.
    pub fn end(&self, patience: Duration) {
        self.wait(patience);
        let start = Instant::now();
        while !self.is_empty() && start.elapsed() < LAST_WAIT {
            self.directories().for_each(|directory| kill(&directory));
            std::thread::sleep(TICK);
        }
        // A group whose threads are still ending is busy although it has no process.
        let start = Instant::now();
        while self.is_empty() && !self.remove() && start.elapsed() < LAST_WAIT {
            std::thread::sleep(TICK);
        }
    }

    /// Removes our own groups. Returns true if none is left. systemd removes its own.
    fn remove(&self) -> bool {
        let ours = self.directories().filter(|directory| is_ours(directory));
        ours.fold(true, |all, directory| {
            let removed = std::fs::remove_dir(&directory).or_else(unless_missing).is_ok();
            // The last scope removes the directory that all of them share.
            let _ = directory.parent().map(std::fs::remove_dir);
            all && removed
        })
    }

    fn wait(&self, patience: Duration) {
        let start = Instant::now();
        while start.elapsed() < patience && !self.is_empty() {
            std::thread::sleep(TICK);
        }
    }

    /// Prepares the scope and returns the way into it.
    pub(crate) fn enter(&self) -> Result<Entrance> {
        if Path::new("/run/systemd/system").is_dir() {
            let words = ["systemd-run", "--scope", "--quiet", "--collect"].map(str::to_owned);
            let memory = self.memory.map(|bytes| format!("--property=MemoryMax={bytes}"));
            let unit = ["--unit".to_owned(), self.unit(), "--".to_owned()];
            return Ok(Entrance::Through(words.into_iter().chain(memory).chain(unit).collect()));
        }
        let Some(root) = root()? else { return Ok(Entrance::Groups(Vec::new())) };
        sweep(&root.join(OWN));
        let directory = root.join(OWN).join(&self.name);
        match make(&directory) {
            // A container may have the right to read control groups, but not to make any.
            Err(error) if is_forbidden(&error) => Ok(Entrance::Groups(Vec::new())),
            made => {
                let group = made.with_context(|| format!("make {}", directory.display()))?;
                let memory = self
                    .memory
                    .and_then(|bytes| limit(root, &directory, bytes).err().and(self.second(bytes)));
                Ok(Entrance::Groups(std::iter::once(group).chain(memory).collect()))
            }
        }
    }

    /// Makes the group of version 1 that limits memory.
    /// Without it, the daemon is started nevertheless.
    fn second(&self, bytes: u64) -> Option<OwnedFd> {
        let root = Path::new(MEMORY);
        if !root.join("cgroup.procs").exists() {
            return None;
        }
        sweep(&root.join(OWN));
        let directory = root.join(OWN).join(&self.name);
        let group = make(&directory).ok()?;
        write(&directory.join("memory.limit_in_bytes"), &bytes.to_string()).ok()?;
        Some(group)
    }

    fn unit(&self) -> String {
        format!("{OWN}-{}.scope", self.name)
    }

    /// Returns the existing directories of the scope.
    fn directories(&self) -> impl Iterator<Item = PathBuf> + '_ {
        // Not only if there are control groups: that check may fail for a moment.
        ROOTS
            .iter()
            .map(Path::new)
            .flat_map(|root| [root.join(OWN).join(&self.name), root.join(SYSTEMD).join(self.unit())])
            // A directory that cannot be checked may exist.
            .filter(|directory| directory.try_exists().unwrap_or(true))
    }
}

/// Returns the first place with control groups.
fn root() -> Result<Option<&'static Path>> {
    for root in ROOTS.map(Path::new) {
        let sign = root.join("cgroup.procs");
        match sign.try_exists() {
            Ok(false) => {}
            Err(error) if is_forbidden(&error) => {}
            there => return there.map(|_| Some(root)).with_context(|| format!("look at {}", sign.display())),
        }
    }
    Ok(None)
}

/// Limits the memory of a group of version 2. The groups above have to pass on their controllers.
fn limit(root: &Path, directory: &Path, bytes: u64) -> std::io::Result<()> {
    for above in [root.to_owned(), root.join(OWN)] {
        write(&above.join("cgroup.subtree_control"), "+memory")?;
    }
    write(&directory.join("memory.max"), &bytes.to_string())
}

/// Writes a text to a file of the kernel.
fn write(file: &Path, text: &str) -> std::io::Result<()> {
    let file = rustix::fs::open(file, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::write(file, text.as_bytes()).map(drop).map_err(Into::into)
}

fn unless_missing(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn is_ours(directory: &Path) -> bool {
    directory.parent().is_some_and(|parent| parent.ends_with(OWN))
}

fn make(directory: &Path) -> std::io::Result<OwnedFd> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let opened = std::fs::create_dir_all(directory).and_then(|()| {
            let flags = OFlags::WRONLY | OFlags::CLOEXEC;
            Ok(rustix::fs::open(directory.join("cgroup.procs"), flags, Mode::empty())?)
        });
        match opened {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && attempts < ATTEMPTS => {}
            opened => {
                return opened.inspect_err(|_| {
                    // The group has no process.
                    let _ = std::fs::remove_dir(directory);
                });
            }
        }
    }
}

fn is_forbidden(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem, Unsupported};
    matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | Unsupported)
}

/// Removes groups of daemons that were killed together with all processes that could have unmounted
/// them, as in a sandbox. A group with processes cannot be removed, and one that gets some soon is
/// still young.
fn sweep(own: &Path) {
    let groups = std::fs::read_dir(own).into_iter().flatten().flatten().map(|entry| entry.path());
    for group in groups.filter(|path| path.is_dir()) {
        let made = group.metadata().and_then(|group| group.modified());
        if made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > OLD)) {
            let _ = std::fs::remove_dir(group);
        }
    }
}

/// Returns the processes in a group.
/// A process of another PID namespace is listed as 0, and cannot be identified.
fn members(directory: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Kills all processes at once if the kernel can (Linux 5.14), else one by one: to be repeated.
fn kill(directory: &Path) {
    let at_once = rustix::fs::open(directory.join("cgroup.kill"), OFlags::WRONLY, Mode::empty())
        .and_then(|file| rustix::io::write(file, b"1"));
    if at_once.is_err() {
        for pid in members(directory).into_iter().filter(|pid| *pid > 0).filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::namespace;

    /// A process that could not see the lack of control groups has made the directory.
    #[test]
    fn a_group_where_there_are_no_groups_is_found_and_removed() {
        let place = Path::new(ROOTS[0]);
        if namespace::enter().and_then(|()| namespace::cover("none", place, None)).is_err() {
            return println!("SKIP a_group_where_there_are_no_groups: needs root for a mount namespace");
        }
        let (scope, made) = (Scope::named("left"), place.join(OWN).join("left"));
        assert!(!scope.is_left());
        std::fs::create_dir_all(&made).unwrap();
        assert!(scope.is_left() && scope.is_empty());
        scope.end(Duration::ZERO);
        assert!(!scope.is_left() && !made.exists() && !place.join(OWN).exists());
    }
}
