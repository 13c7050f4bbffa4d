//! Proof that kubelet itself has called a driver that was just installed.
//!
//! Two facts prove it. First, a kubelet watches the plugin directory: /proc/PID/fdinfo has its
//! inotify watches, with the inode of what they watch. If there is no such watch, it is the wrong
//! directory. Second, a child of that kubelet executed the new file: the kernel reports each
//! execution (fanotify), from before the file became visible. kubelet reacts late: it checks for
//! changes when it next works on a pod with volumes.

use super::install::Report;
use super::refusal::{Reason, Refusal};
use anyhow::{Context as _, Result};
use flexvol_kubelet::locate;
use flexvol_linux::fs::directory::{self, Directory};
use flexvol_linux::fs::inotify::{Inotify, Interest};
use flexvol_linux::fs::{files, listing};
use flexvol_linux::proc::exec_watch::ExecWatch;
use flexvol_linux::proc::process;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Number of times that we execute a driver ourselves after it became visible.
const OWN_RUNS: usize = 1;

/// Observer of all executions of a new driver. It is made before the driver becomes visible.
#[derive(Debug)]
pub struct Witness(Option<ExecWatch>);

impl Witness {
    /// Marks the hidden executable. If the kernel does not report executions of a file, [`prove`]
    /// accepts a weaker proof.
    pub fn of(hidden: &Path) -> Self {
        Self(ExecWatch::of(hidden))
    }
}

/// Waits until kubelet calls the driver, and returns the proof as text. Fails with a [`Refusal`] if
/// kubelet does not call it in time, or if no kubelet watches the directory. Without a witness
/// nothing was changed, and kubelet has nothing to call.
pub fn prove(report: &Report, witness: Option<Witness>, patience: Duration) -> Result<String> {
    let plugins = Directory::open(&report.directory)?.context("the plugin directory is gone")?;
    let kubelets: Vec<u32> = locate::kubelets()?.into_iter().map(|kubelet| kubelet.pid).collect();
    let watching: Vec<_> =
        kubelets.iter().copied().filter(|pid| watches(*pid, plugins.identity().ok())).collect();
    let Some(kubelet) = watching.first() else { return Err(not_watched(report, &kubelets).into()) };
    let called = match witness {
        None => return Ok(format!("kubelet (pid {kubelet}) watches the directory, and nothing was changed")),
        Some(Witness(Some(executions))) => executed(&executions, &kubelets, patience)?,
        Some(Witness(None)) => opened(&program(report), patience)?,
    };
    called.ok_or_else(|| not_called(report, *kubelet).into())
}

fn program(report: &Report) -> PathBuf {
    report.directory.join(report.name.directory()).join(report.name.executable())
}

/// Reports whether a process has an inotify watch on a directory. On a file system without a device
/// of its own, stat may show another device than fdinfo: there the inode alone decides.
fn watches(pid: u32, identity: Option<(u64, u64)>) -> bool {
    let Some((device, inode)) = identity else { return false };
    let all = PathBuf::from(format!("/proc/{pid}/fdinfo"));
    let names = listing::names(&all).unwrap_or_default().into_iter();
    let mut texts = names.filter_map(|name| files::read_text(&all.join(name)).ok());
    texts.any(|text| text.lines().any(|line| is_watch_on(line, device, inode)))
}

/// Reports whether a line of fdinfo is an inotify watch on this inode (`proc_pid_fdinfo(5)`).
fn is_watch_on(line: &str, device: u64, inode: u64) -> bool {
    let Some(fields) = line.strip_prefix("inotify ") else { return false };
    let field = |name: &str| {
        let value = fields.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix(':'))?;
        u64::from_str_radix(value, 16).ok()
    };
    let (major, minor) = directory::device_numbers(device);
    // The kernel's own encoding of a device: 20 bits of minor below the major (linux/kdev_t.h).
    let own = u64::from(major) << 20 | u64::from(minor);
    field("ino") == Some(inode) && (major == 0 || field("sdev") == Some(own))
}

/// Waits until a child of a kubelet executes the driver. A process that ends before it can be
/// inspected counts if it was not our own.
fn executed(executions: &ExecWatch, kubelets: &[u32], patience: Duration) -> Result<Option<String>> {
    let (start, mut unknown) = (Instant::now(), 0);
    loop {
        let left = patience.saturating_sub(start.elapsed());
        for pid in executions.wait(left)? {
            match process::parent_of(pid) {
                Some(parent) if kubelets.contains(&parent) => {
                    return Ok(Some(format!("kubelet (pid {parent}) executed it (pid {pid})")));
                }
                Some(_) => {}
                None => unknown += 1,
            }
        }
        if unknown > OWN_RUNS {
            let text = "a process executed it that was gone before it could be looked at";
            return Ok(Some(format!("{text}, and kubelet watches the directory")));
        }
        if left.is_zero() {
            return Ok(None);
        }
    }
}

/// Waits until any process opens the executable: weaker than a proof, as the text says.
fn opened(program: &Path, patience: Duration) -> Result<Option<String>> {
    let mut inotify = Inotify::new()?;
    inotify.watch(program, Interest::OPENED)?;
    let was_opened = inotify.wait(Some(patience))? && !inotify.read()?.is_empty();
    let text = "a process opened it (which one the kernel tells only with CAP_SYS_ADMIN), and kubelet watches the directory";
    Ok(was_opened.then(|| text.to_owned()))
}

fn not_watched(report: &Report, kubelets: &[u32]) -> Refusal {
    let (name, directory) = (&report.name, report.directory.display());
    let text = match kubelets {
        [] => format!(
            "{name} is in {directory}, but no kubelet can be seen: start it, or in a container share the node's processes (hostPID)"
        ),
        [first, ..] => format!(
            "{name} is in {directory}, but kubelet (pid {first}) does not watch it: flexvol locate says which directory it reads"
        ),
    };
    Refusal::new(Reason::NotCalled, text)
}

fn not_called(report: &Report, kubelet: u32) -> Refusal {
    let text = format!(
        "{} is in {}, which kubelet (pid {kubelet}) watches, but it has not called it in time: it does when it next works on a pod with volumes, so start one",
        report.name,
        report.directory.display(),
    );
    Refusal::new(Reason::NotCalled, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::makedev;

    #[test]
    fn a_watch_is_known_by_its_inode_and_device() {
        let line = "inotify wd:2 ino:1a2b sdev:800011 mask:fc6 ignored_mask:0 fhandle-bytes:8";
        assert!(is_watch_on(line, makedev(8, 17), 0x1a2b));
        assert!(!is_watch_on(line, makedev(8, 18), 0x1a2b) && !is_watch_on(line, makedev(8, 17), 0x1a2c));
        // btrfs and similar file systems.
        assert!(is_watch_on(line, makedev(0, 44), 0x1a2b));
        assert!(!is_watch_on("tfd: 5 ino:1a2b sdev:800011", makedev(8, 17), 0x1a2b));
    }

    #[test]
    fn this_process_is_seen_to_watch() {
        let dir = tempfile::tempdir().unwrap();
        let opened = Directory::open(dir.path()).unwrap().unwrap();
        let identity = opened.identity().ok();
        let pid = std::process::id();
        let inotify = Inotify::new().unwrap();
        assert!(!watches(pid, identity));
        inotify.watch(dir.path(), Interest::ENTRIES).unwrap();
        assert!(watches(pid, identity));
    }

    #[test]
    fn parents_are_told() {
        assert_eq!(
            process::parent_of(std::process::id().cast_signed()),
            Some(std::os::unix::process::parent_id())
        );
        assert_eq!(process::parent_of(0), None);
    }
}
