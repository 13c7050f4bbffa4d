//! A process that this one has started: whether it has ended, what it prints, and its end by force.

pub use rustix::process::{Pid, Signal};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};
use rustix::process::{
    PidfdFlags, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open, waitid,
};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

/// A pipe that no program inherits unless it is given to it: the reading end and the writing one.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// Lets a pipe hold no more than the kernel must: a page.
pub fn make_smallest(pipe: BorrowedFd<'_>) -> io::Result<()> {
    // Rounded up.
    fcntl_setpipe_size(pipe, 1)?;
    Ok(())
}

/// From now on [`read_now`] does not wait.
pub fn do_not_wait(pipe: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?)
}

/// What there is to read; `None` if there is nothing now, and 0 at the end.
pub fn read_now(pipe: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match rustix::io::read(pipe, buffer) {
        Ok(length) => Ok(Some(length)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits until one of these can be read, a signal comes, or so long.
pub fn wait_for<'a>(fds: impl Iterator<Item = &'a OwnedFd>, timeout: Duration) -> io::Result<()> {
    let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Readable once the process has ended; `None` where the kernel has no such thing (`pidfd_open`,
/// Linux 5.3).
pub fn end_of(pid: Pid) -> Option<OwnedFd> {
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Whether a child has ended. It is not reaped: until then its group's number is not used again.
pub fn has_ended(pid: Pid) -> io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    // Of one that is traced, stops are told as well.
    let ended = |status: WaitIdStatus| status.exited() || status.killed() || status.dumped();
    Ok(waitid(WaitId::Pid(pid), options)?.is_some_and(ended))
}

/// Sends a signal to a whole group. If no process is left, that is as good.
pub fn signal_group(leader: Pid, signal: Signal) {
    let _ = kill_process_group(leader, signal);
}
