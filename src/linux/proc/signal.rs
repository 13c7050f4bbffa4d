//! Requests to stop this process.
//!
//! When kubelet stops, its whole cgroup gets SIGTERM; an admin sends SIGINT.
//! Both mean: roll back and reply now. The flag here is the crate's only global state, because a
//! signal handler cannot reach anything else.

use crate::raw;
use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::libc::c_int;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal};
use nix::sys::time::TimeSpec;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

/// Number of the last signal; 0 for none.
static INTERRUPTED: AtomicI32 = AtomicI32::new(0);

/// Signals that mean stop.
const STOPPING: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP];

/// Installs the handlers. Called once at the start of the process, before the node is changed.
///
/// From then on, SIGTERM, SIGINT and SIGHUP set the flag and interrupt blocking calls with `EINTR`
/// (no `SA_RESTART`). SIGPIPE is ignored, because the reply may have no reader; SIGXFSZ is ignored,
/// too. No signal is blocked, whatever was inherited.
pub fn install() -> Result<()> {
    for signal in STOPPING {
        raw::set_disposition(signal, SigHandler::Handler(interrupt))
            .with_context(|| format!("handle {signal}"))?;
    }
    raw::set_disposition(Signal::SIGPIPE, SigHandler::SigIgn).context("ignore SIGPIPE")?;
    // A file size limit is an error of the write (EFBIG). It must not end a worker that has
    // mounted.
    raw::set_disposition(Signal::SIGXFSZ, SigHandler::SigIgn).context("ignore SIGXFSZ")?;
    SigSet::all().thread_unblock().context("unblock signals")
}

/// Undoes [`install`] in a fork that continues on its own; SIGPIPE stays ignored.
pub fn forget() {
    for signal in STOPPING {
        let _ = raw::set_disposition(signal, SigHandler::SigDfl);
    }
    let _ = SigSet::all().thread_unblock();
}

/// Clears the flag, so that another signal counts again.
/// For the remaining work of a process that was asked to stop.
pub fn heeded() {
    INTERRUPTED.store(0, Ordering::Relaxed);
}

/// Reports whether one of the signals came since [`install`] or [`heeded`].
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed) != 0
}

/// Returns the number of the last signal.
pub fn which() -> i32 {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// Waits until there is something to read, the timeout ends (`None`: no timeout), or the process is
/// asked to stop, before or during the wait. Returns true if there is something to read.
pub fn wait_readable(fd: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool> {
    wait_any(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout)
}

/// Does the same for several descriptors. Returns true if any of them can be read.
pub fn wait_any_readable<const N: usize>(
    fds: [BorrowedFd<'_>; N],
    timeout: Option<Duration>,
) -> Result<bool> {
    wait_any(&mut fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)), timeout)
}

/// Does the same for any number of descriptors.
pub fn wait_each_readable(fds: &[BorrowedFd<'_>], timeout: Option<Duration>) -> Result<bool> {
    let mut fds: Vec<_> = fds.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
    wait_any(&mut fds, timeout)
}

fn wait_any(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<bool> {
    // Blocked except during the wait: a signal between the check of the flag and the wait would be
    // missed.
    let mask = SigSet::from_iter(STOPPING).thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let ready = if interrupted() { Ok(0) } else { poll_with(fds, timeout, mask) };
    mask.thread_set_mask()?;
    match ready {
        Ok(count) => Ok(count > 0),
        Err(Errno::EINTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

fn poll_with(fds: &mut [PollFd<'_>], timeout: Option<Duration>, mask: SigSet) -> nix::Result<i32> {
    /// Limit for a timeout: the kernel refuses a time that its clock cannot hold.
    const LONGEST: Duration = Duration::from_secs(1 << 30);
    let timeout = timeout.map(|timeout| TimeSpec::from_duration(timeout.min(LONGEST)));
    ppoll(fds, timeout, Some(mask))
}

extern "C" fn interrupt(signal: c_int) {
    INTERRUPTED.store(signal, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::deadline::Deadline;
    use crate::proc::helper::Invocation;
    use crate::wording::wording_of;
    use flexvol_protocol::failure::Code;
    use nix::sys::signal::raise;
    use std::time::{Duration, Instant};

    /// Variable that marks a process for this test alone: the test binary again, with only this
    /// test. The flag stays set for the whole process.
    const ALONE: &str = "FLEXVOL_TEST_ALONE";

    #[test]
    fn a_signal_ends_what_heeds_the_deadline() {
        if std::env::var_os(ALONE).is_none() {
            return again("proc::signal::tests::a_signal_ends_what_heeds_the_deadline");
        }
        install().unwrap();
        let deadline = Deadline::after(Duration::from_mins(1));
        assert!(deadline.check("resting").is_ok());
        raise(Signal::SIGTERM).unwrap();
        assert_eq!(deadline.check("resting").unwrap_err().message(), wording_of("told-to-stop", ["resting"]));
        assert!(Deadline::for_undo(Duration::from_mins(1)).check("resting").is_ok());
        let start = Instant::now();
        let error = Invocation::of("sleep").args(["600"]).run(&deadline).unwrap_err();
        assert_eq!(crate::errno::to_failure(error).code(), Code::Timeout);
        assert!(start.elapsed() < crate::pace::deadline(20));
    }

    fn again(test: &str) {
        let this = std::env::current_exe().unwrap();
        let outcome = Invocation::at(&this)
            .args(["--exact", test])
            .env(ALONE, "1")
            .run(&Deadline::after(Duration::from_mins(1)))
            .unwrap();
        assert!(outcome.success() && outcome.output.contains("1 passed"), "{}", outcome.output);
    }
}
