//! Nodes that are short of a resource.

use super::ordeal::{Demand, endure, needs_sandbox};
use crate::check::evidence::{Played, Stopped};
use crate::check::subject::Subject;
use flexvol_kubelet::End;
use flexvol_protocol::Call;
use std::path::Path;

/// Limit for open files: any program can start, and a shell can move its own descriptors away.
const FILES: u64 = 16;

/// Directories where drivers write their own files, and not the volume's.
const SCRATCH: &[&str] = &["/tmp", "/run", "/var/log", "/var/tmp"];

/// Directories that a distribution has read-only, or that become so with a failing disk.
const ROOT: &[&str] = &["/tmp", "/run", "/var/log", "/var/tmp", "/etc", "/usr"];

pub(super) fn files(subject: &mut Subject<'_>) -> Played {
    endure(subject, "with 16 open files at most", Demand::Answers, |subject| {
        subject.terms.limits.files = Some(FILES);
        Ok(())
    })
}

pub(super) fn processes(subject: &mut Subject<'_>) -> Played {
    subject.excused = true;
    subject.terms.limits.alone = true;
    let answer = subject.call(&Call::Init);
    subject.terms.limits.alone = false;
    if let End::NotStarted(why) = answer.run.end {
        return Err(Stopped::Skipped(format!("the kernel lets nobody be refused a process: {why}")));
    }
    endure(subject, "on a node without a free process", Demand::Answers, |subject| {
        subject.terms.limits.alone = true;
        Ok(())
    })
}

pub(super) fn full_disk(subject: &mut Subject<'_>) -> Played {
    needs_sandbox(subject)?;
    endure(subject, "with /tmp, /run and /var/log full", Demand::Answers, |subject| {
        let own = subject.given.driver.parent().unwrap_or(Path::new("/"));
        Ok(subject.inside.fill_up(SCRATCH, own)?)
    })
}

pub(super) fn read_only(subject: &mut Subject<'_>) -> Played {
    needs_sandbox(subject)?;
    endure(subject, "with /tmp, /run, /var/log and /etc read-only", Demand::Answers, |subject| {
        Ok(subject.inside.write_protect(ROOT)?)
    })
}
