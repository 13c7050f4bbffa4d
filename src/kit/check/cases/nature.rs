//! Capabilities that depend on the kind of file system: it can be measured, and it stores labels.

use crate::check::case::{How, Scene};
use crate::check::evidence::{Played, Stopped, skip};
use crate::check::in_time::within;
use crate::check::staging::put;
use crate::check::subject::Subject;
use rustix::fs::{XattrFlags, getxattr, setxattr, statvfs};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::time::Duration;

/// Limit for a measurement: kubelet measures all volumes of a node in turn, each minute.
const QUICK: Duration = Duration::from_secs(1);

/// Extended attribute with the label of SELinux.
const LABEL: &str = "security.selinux";

pub(in crate::check) const SCENES: &[Scene] = &[
    ("metrics::statfs_does_not_block", How::Played(statfs_does_not_block)),
    ("labels::relabel", How::Played(relabel)),
];

fn statfs_does_not_block(subject: &mut Subject<'_>) -> Played {
    if !subject.facts.supports_metrics {
        return skip("kubelet does not measure it (supportsMetrics is false)");
    }
    let volume = subject.volume()?;
    let before = subject.inside.processes()?;
    let answer = subject.bring_up(&volume)?;
    let after = subject.inside.processes()?;
    let servers = after.iter().filter(|process| !before.contains(process));
    let servers: Vec<_> = servers.filter_map(|(pid, _)| Pid::from_raw(*pid)).collect();
    let tell = |signal| {
        for server in &servers {
            let _ = kill_process(*server, signal);
        }
    };
    tell(Signal::STOP);
    let target = volume.target()?.as_path().to_owned();
    let measured = within(QUICK, move || statvfs(target).map(drop))?;
    tell(Signal::CONT);
    match measured {
        Some(Ok(())) => subject.take_down(&volume),
        Some(Err(errno)) => Err(answer.fails(format!("supportsMetrics is true, and statfs says: {errno}"))),
        None => {
            let what =
                if servers.is_empty() { "" } else { " while the process that serves the mount is stopped" };
            Err(answer.fails(format!("supportsMetrics is true, and statfs takes longer than a second{what}")))
        }
    }
}

fn relabel(subject: &mut Subject<'_>) -> Played {
    if !subject.facts.selinux_relabel || !subject.facts.writable {
        let why = "nothing is relabelled (selinuxRelabel is false, or nothing can be written)";
        return skip(why);
    }
    let volume = subject.volume()?;
    let answer = subject.bring_up(&volume)?;
    let file = volume.target()?.as_path().join("check-label");
    put(&file, "x")?;
    let mut label = [0; 256];
    // An active SELinux accepts only a label that it knows.
    let set = match getxattr(&file, LABEL, &mut label) {
        Ok(length) => setxattr(&file, LABEL, &label[..length], XattrFlags::empty()),
        Err(_) => setxattr(&file, LABEL, b"system_u:object_r:container_file_t:s0\0", XattrFlags::empty()),
    };
    fs::remove_file(&file)?;
    if set == Err(Errno::NOTSUP) {
        return Err(answer
            .fails(format!("selinuxRelabel is true, and {} stores no labels", subject.facts.file_system)));
    }
    subject.take_down(&volume)?;
    // Setting a label is not permitted in a user namespace.
    set.map_err(|errno| Stopped::Skipped(format!("a label cannot be set here: {errno}")))
}
