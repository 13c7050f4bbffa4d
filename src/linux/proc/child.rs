//! Child process of this one: whether it has ended, its output, and signals to its group.

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

/// Makes a pipe that a program inherits only if it is given to it: reading end and writing end.
pub fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// Reduces a pipe to the smallest size that the kernel allows: a page.
pub fn make_smallest(pipe: BorrowedFd<'_>) -> io::Result<()> {
    // The kernel rounds up.
    fcntl_setpipe_size(pipe, 1)?;
    Ok(())
}

/// Makes [`read_now`] on this pipe return without waiting.
pub fn do_not_wait(pipe: BorrowedFd<'_>) -> io::Result<()> {
    Ok(fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?)
}

/// Reads the available bytes; `None` if there are none now, and 0 at the end.
pub fn read_now(pipe: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<usize>> {
    match rustix::io::read(pipe, buffer) {
        Ok(length) => Ok(Some(length)),
        Err(Errno::AGAIN | Errno::INTR) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Waits until one of these can be read, a signal arrives, or the timeout ends.
pub fn wait_for<'a>(fds: impl Iterator<Item = &'a OwnedFd>, timeout: Duration) -> io::Result<()> {
    let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let timeout = Timespec::try_from(timeout).map_err(io::Error::other)?;
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns a descriptor that is readable once the process has ended; `None` on a kernel without
/// `pidfd_open` (Linux 5.3).
pub fn end_of(pid: Pid) -> Option<OwnedFd> {
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// Reports whether a child has ended.
/// It is not reaped: until then its group's number is not reused.
pub fn has_ended(pid: Pid) -> io::Result<bool> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
    // Stops of a traced child are reported as well.
    let ended = |status: WaitIdStatus| status.exited() || status.killed() || status.dumped();
    Ok(waitid(WaitId::Pid(pid), options)?.is_some_and(ended))
}

/// Sends a signal to a whole group. It is no error if no process is left.
pub fn signal_group(leader: Pid, signal: Signal) {
    let _ = kill_process_group(leader, signal);
}
