//! Pipe from which kubelet reads the reply, out of reach of all other code and programs.

use crate::proc::limits;
use crate::proc::process::end_on_panic;
use crate::raw;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, MemfdFlags, Mode, OFlags, memfd_create, openat};
use rustix::io::{Errno, fcntl_getfd, write};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limit for the wait for a reader that does not read.
const READER_WAIT: Duration = Duration::from_secs(10);

/// Way to reply to kubelet.
/// There is one per process, and [`send`](Self::send) consumes it: exactly one reply.
#[derive(Debug)]
pub struct ReplyPipe {
    /// `None` if fd 1 was closed: then nothing reads a reply, but the work is still done.
    pipe: Option<Arc<OwnedFd>>,
}

impl ReplyPipe {
    /// Moves fd 1 to a close-on-exec descriptor, turns 0, 1 and 2 into /dev/null and closes all
    /// others.
    ///
    /// Must be the first action of a driver: nothing may be opened, written or started before.
    ///
    /// If there is no descriptor for this, it writes the line of `no_room` and ends this process.
    pub fn take(no_room: impl FnOnce() -> String) -> Self {
        let pipe = raw::take_stdout().or_else(|| take_with_room(no_room)).map(Arc::new);
        if let Some(null) = nowhere() {
            // The target numbers are open or free, so these calls cannot fail.
            let _ = dup2_stdin(&null).and_then(|()| dup2_stdout(&null)).and_then(|()| dup2_stderr(&null));
        }
        Self { pipe }
    }

    /// Makes a panic send a reply, too: a `line` made of its text and place. kubelet must get
    /// neither a backtrace nor an empty reply. The process ends with it.
    pub fn reply_on_panic(&self, line: fn(&str) -> String) {
        self.pipe.iter().cloned().for_each(|pipe| end_on_panic(pipe, line));
    }

    /// Writes the reply. A closed pipe is not an error. The wait for a full pipe is limited,
    /// because it has no reader.
    pub fn send(self, line: &str) {
        let Some(pipe) = self.pipe else { return };
        let (mut rest, end) = (line.as_bytes(), Instant::now() + READER_WAIT);
        while !rest.is_empty() && is_writable(&*pipe, end) {
            match write(&pipe, rest) {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) => return,
            }
        }
    }
}

/// Reports whether there is room to write before `end`, also if the process was asked to stop.
///
/// poll(2) guarantees room for `PIPE_BUF` bytes, 4096. The line of a failure is not longer, so its
/// single write does not block. A longer line, with a name or device that a command printed, can
/// block on a pipe that is nearly full: kubelet's pipe is new and empty.
pub fn is_writable(pipe: impl AsFd, end: Instant) -> bool {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&pipe, PollFlags::OUT)], Some(&timeout)) {
            Err(Errno::INTR) if !left.is_zero() => {}
            Ok(ready) => return ready > 0,
            Err(Errno::INTR) => return false,
            // poll(2) fails without memory: most likely there is room, and a reply that is not
            // tried is lost for certain.
            Err(_) => return true,
        }
    }
}

/// Moves fd 1 after raising the limit of descriptors. If there is still no descriptor, the process
/// ends: with the line if it can be written, else with a status for the missing reply.
fn take_with_room(no_room: impl FnOnce() -> String) -> Option<OwnedFd> {
    if fcntl_getfd(stdout()).is_err() {
        return None;
    }
    limits::lift();
    raw::take_stdout().or_else(|| {
        let line = no_room();
        raw::end_with(i32::from(write(stdout(), line.as_bytes()) != Ok(line.len())))
    })
}

/// Opens /dev/null, or a file in memory if there is none (an empty chroot).
fn nowhere() -> Option<OwnedFd> {
    openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .or_else(|_| memfd_create("nowhere", MemfdFlags::CLOEXEC))
        .ok()
}
