//! Supervision of a worker that may never return.
//!
//! A mount of a dead server blocks in the kernel, where no signal handler runs; only another
//! process can still answer kubelet. So the work is done in a fork. The process that kubelet knows
//! waits for the fork's reply and passes SIGTERM on. When time is up it kills the worker, ends the
//! processes that the worker's commands left running, and detaches what the worker may have left at
//! the target.
//!
//! The worker ends with this process (`PR_SET_PDEATHSIG`, SIGTERM): it stops at the next step and
//! rolls back.

use super::redacted;
use crate::executor::{self, Left, Worker};
use crate::hints::to_failure;
use flexvol_linux::proc::process::Ended;
use flexvol_linux::proc::{process, signal};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::{Call, Reply, TargetPath, Verb};
use std::cell::RefCell;
use std::time::Duration;

/// Time after the deadline in which the worker may roll back and reply before it is killed. With
/// the 110 s of a mount it stays below the 123 s after which kubelet stops waiting.
const GRACE: Duration = Duration::from_secs(10);

/// Limit for the cleanup after a killed worker.
const CLEAN_UP: Duration = Duration::from_secs(2);

/// Returns the time that an unmount reserves at the end of `allowed`; zero for other verbs. The
/// supervisor stops waiting for the worker this much before `allowed`, and the worker's deadline is
/// twice this much before `allowed`. An unmount has nothing to roll back, and even a target that is
/// freed without the worker is answered in time.
pub(super) fn margin(verb: Verb, allowed: Duration) -> Duration {
    match verb {
        Verb::Unmount | Verb::UnmountDevice => (CLEAN_UP * 2).min(allowed / 8),
        _ => Duration::ZERO,
    }
}

fn patience(verb: Verb, allowed: Duration) -> Duration {
    match margin(verb, allowed) {
        Duration::ZERO => allowed.saturating_add(GRACE),
        margin => allowed.saturating_sub(margin),
    }
}

/// Runs `work` in a fork and returns its reply, or a reply of our own: for an unmount within
/// `allowed`, otherwise with a grace period. `driver` and `directory` (`vendor~driver`) are the
/// driver's names; `storage` names what the call waits for, if that is known. The call is not
/// borrowed during `work`, which may forget the call's secrets.
pub(super) fn supervise(
    call: &RefCell<Call>,
    (driver, directory): (&str, Option<&str>),
    allowed: Duration,
    storage: impl FnOnce() -> Option<String>,
    work: impl FnOnce() -> Reply,
) -> Reply {
    let before = target(&call.borrow()).and_then(executor::mount_at);
    let verb = call.borrow().verb();
    let ended = run(work, patience(verb, allowed));
    let call = &*call.borrow();
    let (failure, worker) = match ended {
        Ok(Ended::Replied(line)) => match Reply::from_line(&line) {
            Some(reply) => return reply,
            None => (broken("replied half"), Worker::Gone),
        },
        // The worker does not report this itself and cannot roll back any more. The cleanup is the
        // same as after a killed worker.
        Ok(Ended::Panicked(text)) => {
            (Failure::new(Code::Internal, redacted(call, &super::bug(&text))), Worker::Gone)
        }
        Ok(Ended::Died(how)) => (broken(&how), Worker::Gone),
        Ok(Ended::Stuck(None)) => (late(allowed, storage()), Worker::Gone),
        Ok(Ended::Stuck(Some(pid))) => (
            late(allowed, storage()).with_residue(format!("process {pid}, until the kernel lets it go")),
            Worker::Stuck,
        ),
        // The work has not begun.
        Err(error) => return to_failure(error).into(),
    };
    // This is the first step: a command that still runs could mount something.
    process::end_children();
    // Not our volume: it must stay mounted, whatever happened to the worker.
    let refused = target(call)
        .is_some_and(|target| unmounts(call) && !executor::is_volume_of(driver, directory, target));
    if refused { failure.into() } else { after(call, before, worker, failure) }
}

fn run(work: impl FnOnce() -> Reply, allowed: Duration) -> anyhow::Result<Ended> {
    // The worker inherits the handlers, and the flag of a signal that arrived earlier.
    signal::install()?;
    if signal::interrupted() {
        let text = "told to stop before the work began: kubelet tries again";
        return Err(Failure::new(Code::Timeout, text).into());
    }
    Ok(process::Worker::start(|| work().to_line())?.wait(allowed))
}

fn late(allowed: Duration, storage: Option<String>) -> Failure {
    let seconds = allowed.as_secs();
    let storage = storage.map_or_else(String::new, |storage| format!(", {storage},"));
    let text =
        format!("no end after {seconds} s: the server or disk behind the volume{storage} does not answer");
    Failure::new(Code::Timeout, text)
}

fn broken(how: &str) -> Failure {
    Failure::new(Code::Internal, format!("the driver's worker {how}: kubelet tries again"))
}

/// Unmounts what a worker may have left at the target. This also completes an unmount whose worker
/// failed.
fn after(call: &Call, before: Option<u64>, worker: Worker, failure: Failure) -> Reply {
    let cleaned = |target: &TargetPath, left| carried_out(|| executor::clean_up(target, left, worker));
    match (call, target(call)) {
        (_, Some(target)) if unmounts(call) && cleaned(target, Left::All) => Reply::success(),
        (Call::Mount { .. } | Call::MountDevice { .. }, Some(target))
            if !cleaned(target, Left::Since(before)) =>
        {
            failure.with_residue(format!("a mount at {target}")).into()
        }
        _ => failure.into(),
    }
}

fn unmounts(call: &Call) -> bool {
    matches!(call, Call::Unmount { .. } | Call::UnmountDevice { .. })
}

/// Returns the target of the verbs that mount and unmount; `expandfs` changes nothing there.
fn target(call: &Call) -> Option<&TargetPath> {
    call.target().filter(|_| call.verb() != Verb::ExpandFs)
}

/// Runs `work` in another worker, because it can hang, too. Reports whether it succeeded.
fn carried_out(work: impl FnOnce() -> anyhow::Result<()>) -> bool {
    let reply = || work().map_or_else(|error| to_failure(error).into(), |()| Reply::success());
    let ended = process::Worker::start(|| reply().to_line()).map(|worker| worker.wait(CLEAN_UP));
    matches!(ended, Ok(Ended::Replied(line)) if matches!(Reply::from_line(&line), Some(Reply::Success(_))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording_of;
    use flexvol_linux::proc::namespace;
    use std::ffi::OsString;

    #[test]
    fn an_unmount_is_answered_within_its_time() {
        if executor::record::prepare().is_err() {
            return println!("SKIP an_unmount_is_answered_within_its_time: needs root for its lock");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pods/1/volumes/example~nfs/v").into_os_string();
        let call = Call::parse(Verb::Unmount, &[path]).unwrap();
        let (allowed, start) = (Duration::from_secs(12), std::time::Instant::now());
        let hangs = || std::thread::sleep(Duration::from_mins(1));
        let names = ("nfs", Some("example~nfs"));
        let reply = supervise(
            &RefCell::new(call),
            names,
            allowed,
            || None,
            || {
                hangs();
                Reply::success()
            },
        );
        assert!(matches!(reply, Reply::Success(_)), "{reply:?}");
        assert!(start.elapsed() <= crate::pace::deadline(12), "{:?}", start.elapsed());
        assert_eq!(patience(Verb::Unmount, Duration::from_mins(1)), Duration::from_secs(56));
        assert_eq!(patience(Verb::Mount, Duration::from_secs(110)), Duration::from_mins(2));
    }

    /// Runs in a thread of its own, because the mount namespace belongs to the thread.
    #[test]
    fn a_panic_is_cleaned_up_after() {
        if namespace::enter().and_then(|()| namespace::cover_run()).is_err() {
            return println!("SKIP a_panic_is_cleaned_up_after: needs root for a mount namespace");
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("v");
        std::fs::create_dir(&path).unwrap();
        let arguments = [path.clone().into_os_string(), OsString::from("{}")];
        let call = Call::parse(Verb::Mount, &arguments).unwrap();
        executor::record::prepare().unwrap();
        let work = || {
            sys_mount::Mount::builder().fstype("tmpfs").mount("x", &path).unwrap();
            panic!("boom")
        };
        let Reply::Failure(message) =
            supervise(&RefCell::new(call.clone()), ("tmpfs", None), crate::pace::deadline(20), || None, work)
        else {
            panic!()
        };
        assert!(message.starts_with(wording_of("our-bug", ["boom at "])), "{message}");
        assert_eq!(executor::mount_at(target(&call).unwrap()), None, "{message}");
    }
}
