//! Mount namespaces of our own.

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

/// Limit for retrying the return: the kernel may be out of memory for a moment.
const WAY_BACK: Duration = Duration::from_secs(2);

/// Gives this process and its children a mount namespace of their own: their mounts are invisible
/// outside, and the kernel unmounts all of them when the last of these processes is gone.
///
/// Fails with `Denied` without the permission to do so.
pub fn enter() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).map_err(|errno| match errno {
        nix::Error::EPERM => anyhow::Error::from(not_allowed()),
        errno => anyhow::Error::from(errno).context("make a mount namespace"),
    })?;
    mount_change("/", MountPropagationFlags::REC | MountPropagationFlags::PRIVATE)
        .context("make the mount namespace private")
}

/// Runs `work` where no other process sees its mounts: those that are not passed on disappear.
///
/// Only for a process with one thread. Its working directory is `/` afterwards.
pub fn privately<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let ours = fs::File::open("/proc/self/ns/mnt").context("open /proc/self/ns/mnt: is /proc mounted?")?;
    // Without the permission to return, the namespace must not be left.
    setns(&ours, CloneFlags::CLONE_NEWNS).map_err(|errno| match errno {
        nix::Error::EPERM => anyhow::Error::from(not_allowed_back()),
        errno => anyhow::Error::from(errno).context("enter the mount namespace"),
    })?;
    // Also after a failure halfway: the process is in the other namespace by then.
    let done = enter().and_then(|()| work());
    return_to(&ours);
    done
}

/// Returns to our namespace, or ends the process: it would otherwise roll back, and check the
/// result, in a namespace that no other process sees. Its supervisor cleans up.
fn return_to(ours: &fs::File) {
    let start = Instant::now();
    while setns(ours, CloneFlags::CLONE_NEWNS).is_err() {
        if start.elapsed() > WAY_BACK {
            raw::end();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Directories that new programs need, including the kernel's own file systems.
const SYSTEM: [&str; 9] = ["/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/dev", "/proc", "/sys"];

/// Needed mounts without the ones below them: systemd listens in the second one.
const EXACTLY: [&str; 2] = ["/", "/run"];

/// Runs `work` in a mount namespace that has only the node's system and the mounts that lead to
/// `kept`. A process that is started there and stays holds no volume, and sees no later volume.
///
/// Only for a process with one thread. Its working directory is `/` afterwards.
pub fn secluded<T>(kept: &[&Path], work: impl FnOnce() -> Result<T>) -> Result<T> {
    privately(|| {
        let is_needed = |target: &Path| {
            EXACTLY.iter().any(|place| target == Path::new(place))
                || SYSTEM.iter().any(|directory| target.starts_with(directory))
                || kept.iter().any(|place| place.starts_with(target))
        };
        let mounts = crate::mount::mount_table::read()?;
        for mount in mounts.iter().rev().filter(|mount| !is_needed(&mount.target)) {
            // A mount inside another one that is gone by now is gone, too.
            let _ = unmount(&mount.target, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        work()
    })
}

/// Covers a directory with a tmpfs, in a namespace of our own, and returns its root.
/// `name` is the source in the mount table. Without `size`, the kernel's default applies.
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

/// Covers /run, in the namespace of [`enter`], with an empty tmpfs, so that all files that are left
/// there are known.
pub fn cover_run() -> Result<()> {
    match mount("tmpfs", "/run", "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, Some(c"mode=755,size=16m"))
    {
        // A node without /run has nothing to cover.
        Err(Errno::NOENT) => Ok(()),
        mounted => mounted.context("mount an empty /run"),
    }
}

/// Returns the other processes that share our mount namespace, as `1234 (name)`.
/// After [`enter`], all of them are our descendants.
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
