//! Waiting for a worker that may never come back.
//!
//! A mount of a dead server sits in the kernel where no signal handler runs; only another process can still answer kubelet. So
//! the work is done in a fork, and the process kubelet knows waits for its reply, passes on what it is told (SIGTERM), and when
//! time is up kills the worker, ends what its commands left running and detaches what it may have left at the target.
//!
//! The worker ends with this process (`PR_SET_PDEATHSIG`, SIGTERM): it stops at the next step and undoes what it did.

use crate::executor;
use crate::failure::{Code, Failure};
use crate::protocol::{Call, Reply, TargetPath, Verb};
use crate::sys::process::{Ended, Worker};
use crate::sys::{process, signal};
use std::time::Duration;

/// After the deadline the worker has this long to undo and reply before it is killed. With the 110 s of a mount it stays
/// below the 123 s after which kubelet stops waiting.
const GRACE: Duration = Duration::from_secs(10);

/// How long cleaning up after a killed worker may take.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// Runs `work` in a fork and brings back its reply, or one of our own within `allowed` and a grace. `directory` is the
/// driver's, `vendor~driver`.
pub(super) fn supervise(
    call: &Call,
    directory: Option<&str>,
    allowed: Duration,
    work: impl FnOnce() -> Reply,
) -> Reply {
    let before = target(call).and_then(executor::mount_at);
    let after = |failure| after(call, directory, before, failure);
    match run(work, allowed.saturating_add(GRACE)) {
        Ok(Ended::Replied(line)) => Reply::from_line(&line).unwrap_or_else(|| after(broken("replied half"))),
        Ok(Ended::Died(how)) => after(broken(&how)),
        Ok(Ended::Stuck(pid)) => after(stuck(allowed, pid)),
        Err(error) => Failure::from(error).into(),
    }
}

fn run(work: impl FnOnce() -> Reply, allowed: Duration) -> anyhow::Result<Ended> {
    signal::install()?;
    Ok(Worker::start(|| work().to_line())?.wait(allowed))
}

fn stuck(allowed: Duration, pid: Option<u32>) -> Failure {
    let text =
        format!("no end after {} s: the server or disk behind the volume does not answer", allowed.as_secs());
    let failure = Failure::new(Code::Timeout, text);
    match pid {
        Some(pid) => failure.with_residue(format!("process {pid}, until the kernel lets it go")),
        None => failure,
    }
}

fn broken(how: &str) -> Failure {
    Failure::new(Code::Internal, format!("the driver's worker {how}: kubelet tries again"))
}

/// Takes off what a worker may have left at the target: what was mounted there `before` is a living volume and stays. An
/// unmount that got nowhere is thereby done, unless the target is nobody's to unmount.
fn after(call: &Call, directory: Option<&str>, before: Option<u64>, failure: Failure) -> Reply {
    // First of all: a command that lives on could still mount.
    process::end_children();
    match (call, target(call)) {
        (Call::Unmount { .. } | Call::UnmountDevice { .. }, Some(target))
            if executor::is_volume_of(directory, target) && detached(target, None) =>
        {
            Reply::success()
        }
        (Call::Mount { .. } | Call::MountDevice { .. }, Some(target)) if !detached(target, before) => {
            failure.with_residue(format!("a mount at {target}")).into()
        }
        _ => failure.into(),
    }
}

/// The target of the verbs that mount and unmount; `expandfs` changes nothing there.
fn target(call: &Call) -> Option<&TargetPath> {
    call.target().filter(|_| call.verb() != Verb::ExpandFs)
}

/// In another worker, because this, too, can hang.
fn detached(target: &TargetPath, but: Option<u64>) -> bool {
    let detach = || match executor::detach(target, but) {
        Ok(()) => Reply::success(),
        Err(error) => Failure::from(error).into(),
    };
    let ended = Worker::start(|| detach().to_line()).map(|worker| worker.wait(CLEAN_UP));
    matches!(ended, Ok(Ended::Replied(line)) if matches!(Reply::from_line(&line), Some(Reply::Success(_))))
}
