//! View of a sandbox: namespaces, and a `/` in which nothing of the machine can be changed.

use super::maker::{self, Maker, OWN, World, open_path};
use super::{Isolation, Network, Terms, pieces};
use anyhow::{Context as _, Result};
use flexvol_linux::fs::root;
use flexvol_linux::mount::mount_table::{self, Entry};
use flexvol_linux::proc::process::{Ended, Worker};
use flexvol_linux::raw;
use flexvol_protocol::ordered::sort;
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{self, Mode, OFlags};
use rustix::mount::{MountPropagationFlags, mount_change};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limit for the answer of a server. Its files are not shown without an answer.
const SERVER: Duration = Duration::from_secs(2);

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

/// Gives this process namespaces and a `/` according to the terms. After an error the process is of
/// no use.
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

/// Opens the paths, and resolves symlinks that may lead to something missing in the sandbox.
fn resolved(paths: &[PathBuf]) -> Result<Vec<(PathBuf, OwnedFd)>> {
    let mut resolved = Vec::new();
    for path in paths {
        let fd = open_path(path).with_context(|| format!("open {}", path.display()))?;
        resolved.push((std::fs::canonicalize(path)?, fd));
    }
    Ok(resolved)
}

/// Returns the directory with the addresses of name servers, if it is below /run: without it there
/// is no network.
fn resolver() -> Option<(PathBuf, OwnedFd)> {
    let file = std::fs::canonicalize("/etc/resolv.conf").ok()?;
    let directory = file.parent().filter(|directory| directory.starts_with("/run/"))?;
    Some((directory.to_owned(), open_path(directory).ok()?))
}

/// Returns the visible mounts of the machine that the sandbox has to show, each opened.
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
        // A mount that another one covers, or that may not be looked at, is not visible.
        if let Ok(fd) = open_path(&entry.target)
            && root::mount_id(&fd)? == entry.id
        {
            found.push((entry, fd));
        }
    }
    sort(&mut found, |(entry, _)| entry.target.components().count());
    Ok(found)
}

/// Reports whether a mount depends on a server that may be gone.
fn is_remote(entry: &Entry) -> bool {
    let kinds = ["9p", "afs", "beegfs", "ceph", "cifs", "fuse.", "gfs", "lustre", "ncp", "nfs", "smb"];
    kinds.iter().any(|kind| entry.file_system.starts_with(kind)) && entry.file_system != "nfsd"
}

/// Reports whether a server answers. A worker asks it: a request to a lost server may hang.
fn answers(path: &Path) -> bool {
    let ask = || {
        let _ = fs::statvfs(path);
        "\n".to_owned()
    };
    matches!(Worker::start(ask).map(|worker| worker.wait(SERVER)), Ok(Ended::Replied(_)))
}
