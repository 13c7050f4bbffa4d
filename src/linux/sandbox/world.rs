//! What a sandbox sees: namespaces, and a `/` in which nothing of the machine's can be changed.

use super::maker::{self, Maker};
use super::{Isolation, Network, Terms, pieces};
use crate::mount_table::{self, Entry};
use crate::process::{Ended, Worker};
use crate::{raw, root};
use anyhow::{Context as _, Result};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{self, CWD, Mode, OFlags};
use rustix::mount::{MountPropagationFlags, mount_change};
use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What is made anew, or taken as a whole, whatever is mounted below.
pub(super) const OWN: &[&str] = &["/proc", "/sys", "/dev", "/run", "/var/run"];

/// How long a server may take to answer. What it has is not shown otherwise.
const SERVER: Duration = Duration::from_millis(500);

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
    /// The `st_dev` of what is in them.
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
    let mut exposed = resolved(&terms.exposed)?;
    if terms.network == Network::Machine {
        exposed.extend(resolver());
    }
    let others = others(terms)?;
    let mut maker = Maker::new(terms.isolation)?;
    match terms.isolation {
        Isolation::User => pieces::lay(&mut maker, &terms.empty)?,
        Isolation::Full | Isolation::None => maker.lay_root()?,
    }
    maker.enter()?;
    maker.add_own(terms.makes_nodes)?;
    for (entry, machine) in &others {
        maker.add(entry, machine).with_context(|| format!("show {}", entry.target.display()))?;
    }
    for path in &terms.empty {
        maker.add_empty(path).with_context(|| format!("make {} empty", path.display()))?;
    }
    for (path, machine) in &exposed {
        maker::expose(path, machine).with_context(|| format!("show {}", path.display()))?;
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

/// Opened, and without the symlinks that may lead to what is not there in the sandbox.
fn resolved(paths: &[PathBuf]) -> Result<Vec<(PathBuf, OwnedFd)>> {
    let mut resolved = Vec::new();
    for path in paths {
        let fd = open_path(path).with_context(|| format!("open {}", path.display()))?;
        resolved.push((std::fs::canonicalize(path)?, fd));
    }
    Ok(resolved)
}

/// Where the addresses of name servers are, if that is below /run: without it there is no network.
fn resolver() -> Option<(PathBuf, OwnedFd)> {
    let file = std::fs::canonicalize("/etc/resolv.conf").ok()?;
    let directory = file.parent().filter(|directory| directory.starts_with("/run/"))?;
    Some((directory.to_owned(), open_path(directory).ok()?))
}

pub(super) fn open_path(path: &Path) -> rustix::io::Result<OwnedFd> {
    fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
}

/// The mounts of the machine that are seen and that the sandbox has to show, each opened.
fn others(terms: &Terms) -> Result<Vec<(Entry, OwnedFd)>> {
    let covers: Vec<_> = OWN.iter().map(Path::new).chain(terms.empty.iter().map(PathBuf::as_path)).collect();
    let is_covered = |path: &Path| covers.iter().any(|cover| path.starts_with(cover));
    let mut found = Vec::new();
    for entry in mount_table::read()? {
        if entry.target == Path::new("/") || is_covered(&entry.target) {
            continue;
        }
        if is_remote(&entry) && !answers(&entry.target) {
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

/// Whether there is a server behind it that may be gone.
fn is_remote(entry: &Entry) -> bool {
    let kinds = ["9p", "afs", "beegfs", "ceph", "cifs", "fuse.", "gfs", "lustre", "ncp", "nfs", "smb"];
    kinds.iter().any(|kind| entry.file_system.starts_with(kind)) && entry.file_system != "nfsd"
}

/// Whoever asks a server that is gone may hang.
fn answers(path: &Path) -> bool {
    let ask = || {
        let _ = fs::statvfs(path);
        "\n".to_owned()
    };
    matches!(Worker::start(ask).map(|worker| worker.wait(SERVER)), Ok(Ended::Replied(_)))
}
