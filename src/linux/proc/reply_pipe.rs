//! The pipe kubelet reads the answer from, taken out of everybody else's reach.

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

/// How long a reader that does not read is waited for.
const READER_WAIT: Duration = Duration::from_secs(10);

/// The way back to kubelet. There is one per process, and [`send`](Self::send) consumes it: exactly
/// one reply.
#[derive(Debug)]
pub struct ReplyPipe {
    /// `None` if fd 1 was closed: then no one wants an answer, and the work is done all the same.
    pipe: Option<Arc<OwnedFd>>,
}

impl ReplyPipe {
    /// Moves fd 1 to a close-on-exec descriptor, turns 0, 1 and 2 into /dev/null and closes all
    /// others.
    ///
    /// The first thing a driver does: before it nothing may be opened, written or started.
    ///
    /// Where not even that is possible, `no_room` is the line that says so, and this process ends.
    pub fn take(no_room: impl FnOnce() -> String) -> Self {
        let pipe = raw::take_stdout().or_else(|| take_with_room(no_room)).map(Arc::new);
        if let Some(null) = nowhere() {
            // Into numbers that are open or free: neither can fail.
            let _ = dup2_stdin(&null).and_then(|()| dup2_stdout(&null)).and_then(|()| dup2_stderr(&null));
        }
        Self { pipe }
    }

    /// From now on a panic is a reply, too: a `line` made of its text and place. kubelet must see
    /// neither a backtrace nor nothing. The process ends with it.
    pub fn reply_on_panic(&self, line: fn(&str) -> String) {
        self.pipe.iter().cloned().for_each(|pipe| end_on_panic(pipe, line));
    }

    /// Writes the reply. A closed pipe is no error, and a full one is waited for only so long:
    /// no one reads it.
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

/// Whether there is room to write before `end`, also for a process that was told to stop.
///
/// poll(2) promises room for `PIPE_BUF` bytes, 4096. A failure's line is bounded by that, so its
/// one write does not block. A longer one, of a name or device that a command printed, can block on
/// a pipe that is nearly full: kubelet's is new and empty.
pub fn is_writable(pipe: impl AsFd, end: Instant) -> bool {
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs().cast_signed(), tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&pipe, PollFlags::OUT)], Some(&timeout)) {
            Err(Errno::INTR) if !left.is_zero() => {}
            Ok(ready) => return ready > 0,
            Err(Errno::INTR) => return false,
            // That cannot be told (no memory): most likely there is room, and a reply that is not
            // tried is surely lost.
            Err(_) => return true,
        }
    }
}

/// The same where no further descriptor was allowed. If none is to be had, this is the end: with an
/// answer if it can be written, else with a status that says that there is none.
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

/// /dev/null, or where there is none (an empty chroot) a file in memory.
fn nowhere() -> Option<OwnedFd> {
    openat(CWD, "/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .or_else(|_| memfd_create("nowhere", MemfdFlags::CLOEXEC))
        .ok()
}
