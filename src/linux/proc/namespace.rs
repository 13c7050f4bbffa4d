//! A mount table of one's own.

use crate::proc::process;
use crate::raw;
use anyhow::{Context as _, Result};
use flexvol_protocol::failure::{Code, Failure};
use nix::sched::{CloneFlags, setns, unshare};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_change, unmount};
use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the way back is tried: the kernel may be out of memory for a moment.
const WAY_BACK: Duration = Duration::from_secs(2);

/// Gives this process and what it starts a mount table of their own: nothing they mount is seen
/// outside, and the kernel unmounts it all when the last of them is gone.
///
/// Fails with `Denied` without the right to do so.
pub fn enter() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| match errno {
        nix::Error::EPERM => anyhow::Error::from(not_allowed()),
        errno => anyhow::Error::from(errno).context("make a mount namespace"),
    })?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .context("make the mount namespace private")
}

/// Does something where no mount is seen by anybody else: what is not handed on is gone afterwards.
///
/// Only for a process with one thread, whose working directory is then `/`.
pub fn privately<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let ours = fs::File::open("/proc/self/ns/mnt").context("open /proc/self/ns/mnt: is /proc mounted?")?;
    // Who may not return must not go.
    setns(&ours, CloneFlags::CLONE_NEWNS).map_err(|errno| match errno {
        nix::Error::EPERM => anyhow::Error::from(not_allowed_back()),
        errno => anyhow::Error::from(errno).context("enter the mount namespace"),
    })?;
    // Also who failed halfway is elsewhere by now.
    let done = enter().and_then(|()| work());
    return_to(&ours);
    done
}

/// Whoever cannot return must end: it would undo, and look whether it is done, where no one else
/// is. Its supervisor cleans up after it.
fn return_to(ours: &fs::File) {
    let start = Instant::now();
    while setns(ours, CloneFlags::CLONE_NEWNS).is_err() {
        if start.elapsed() > WAY_BACK {
            raw::end();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What programs need that are about to run; the kernel's own file systems are among it.
const SYSTEM: [&str; 9] = ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/dev", "/proc", "/sys"];

/// And these, without what is mounted below them: systemd listens in the second.
const EXACTLY: [&str; 2] = ["/", "/run"];

/// Does something in a mount table that has nothing but the node's system and the mounts that lead
/// to `kept`: what is started there and stays holds no volume, and sees none that is mounted later.
///
/// Only for a process with one thread, whose working directory is then `/`.
pub fn secluded<T>(kept: &[&Path], work: impl FnOnce() -> Result<T>) -> Result<T> {
    privately(|| {
        let is_needed = |target: &Path| {
            EXACTLY.iter().any(|place| target == Path::new(place))
                || SYSTEM.iter().any(|directory| target.starts_with(directory))
                || kept.iter().any(|place| place.starts_with(target))
        };
        let mounts = crate::mount::mount_table::read()?;
        for mount in mounts.iter().rev().filter(|mount| !is_needed(&mount.target)) {
            // What hangs on another that is gone by now is gone, too.
            let _ = unmount(&mount.target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        work()
    })
}

/// Covers a directory, in a namespace of our own, with memory; its root. The mount table has the
/// name for its source. Without a size it is the kernel's default.
pub fn cover(name: &str, directory: &Path, size: Option<u64>) -> Result<OwnedFd> {
    let limit = size.map(|size| format!(",size={size}")).unwrap_or_default();
    let data = CString::new(format!("mode=700{limit}"))?;
    mount(name, directory, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(&*data))
        .with_context(|| format!("mount a tmpfs on {}", directory.display()))?;
    Ok(fs::File::open(directory)?.into())
}

fn not_allowed() -> Failure {
    let text = "this needs a mount namespace, which only root may make: run it with sudo (in a container: a privileged one)";
    Failure::new(Code::Denied, text)
}

fn not_allowed_back() -> Failure {
    let text = "this needs a mount table of its own for a moment, and CAP_SYS_ADMIN and CAP_SYS_CHROOT for that: give kubelet both";
    Failure::new(Code::Denied, text)
}

/// Covers /run, in the namespace of [`enter`], with an empty one of its own: what is left there
/// then is known.
pub fn cover_run() -> Result<()> {
    match mount("tmpfs", "/run", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=755,size=16m"))
    {
        // A node without /run has nothing to be covered.
        Err(Errno::NOENT) => Ok(()),
        mounted => mounted.context("mount an empty /run"),
    }
}

/// The other processes that share our mount table, as `1234 (name)`. After [`enter`] all of them
/// are our descendants.
pub fn companions() -> Result<Vec<String>> {
    let namespace = |process: PathBuf| fs::read_link(process.join("ns/mnt"));
    let ours = namespace("/proc/self".into()).context("read /proc/self/ns/mnt: is /proc mounted?")?;
    let own = std::process::id().to_string();
    let is_other = |name: &String| *name != own && name.bytes().all(|byte| byte.is_ascii_digit());
    let names = fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names
        .filter(is_other)
        .filter(|name| namespace(PathBuf::from("/proc").join(name)).is_ok_and(|theirs| theirs == ours))
        .map(|name| {
            let called = name.parse().ok().and_then(process::name).unwrap_or_default();
            format!("{name} ({called})")
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_started_us_is_a_companion_and_we_are_not() {
        let numbers = |name: &String| name.split(' ').next().and_then(|number| number.parse().ok());
        let found: Vec<u32> = companions().unwrap().iter().filter_map(numbers).collect();
        assert!(found.contains(&std::os::unix::process::parent_id()), "{found:?}");
        assert!(!found.contains(&std::process::id()));
    }
}
