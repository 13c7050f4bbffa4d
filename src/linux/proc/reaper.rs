//! The duty of process 1: whoever loses its parent is given to it, and stays a zombie until it is
//! asked for.

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use std::os::fd::{AsFd, BorrowedFd};

/// Says when children have ended, and takes them away.
///
/// SIGCHLD stays blocked as long as the process lives. Children that are started through the
/// standard library begin without any blocked signal.
#[derive(Debug)]
pub struct Reaper {
    ended: SignalFd,
}

impl Reaper {
    /// Called once, after [`signal::install`](crate::proc::signal::install), which unblocks
    /// everything.
    pub fn new() -> Result<Self> {
        let mask = SigSet::from(Signal::SIGCHLD);
        mask.thread_block().context("block SIGCHLD")?;
        let ended = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
        Ok(Self { ended: ended.context("listen for children that end")? })
    }

    /// Takes away every child that has ended; how many.
    ///
    /// Never while something waits for a child of its own: it would not find it any more.
    pub fn reap(&self) -> usize {
        self.reap_each(|_, _| {})
    }

    /// The same, and tells of each: its number, and what a shell would say that it has exited with.
    pub fn reap_each(&self, mut gone: impl FnMut(i32, i32)) -> usize {
        // One signal can stand for many children, so it only wakes.
        while matches!(self.ended.read_signal(), Ok(Some(_))) {}
        let mut count = 0;
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, code)) => gone(pid.as_raw(), code),
                Ok(WaitStatus::Signaled(pid, signal, _)) => gone(pid.as_raw(), 128 + signal as i32),
                Ok(WaitStatus::StillAlive) | Err(_) => return count,
                Ok(_) => {}
            }
            count += 1;
        }
    }
}

impl AsFd for Reaper {
    /// Readable when there is something to reap.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}
