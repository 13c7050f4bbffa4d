//! Duty of process 1: orphans become its children, and stay zombies until it reaps them.

use anyhow::{Context, Result};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use std::os::fd::{AsFd, BorrowedFd};

/// Reports when children have ended, and reaps them.
///
/// SIGCHLD stays blocked as long as the process lives.
/// Children that the standard library starts begin without any blocked signal.
#[derive(Debug)]
pub struct Reaper {
    ended: SignalFd,
}

impl Reaper {
    /// Starts to watch for ended children. Called once, after
    /// [`signal::install`](crate::proc::signal::install), which unblocks all signals.
    pub fn new() -> Result<Self> {
        let mask = SigSet::from(Signal::SIGCHLD);
        mask.thread_block().context("block SIGCHLD")?;
        let ended = SignalFd::with_flags(&mask, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
        Ok(Self { ended: ended.context("listen for children that end")? })
    }

    /// Reaps every child that has ended. Returns their number.
    ///
    /// Never while other code waits for a child of its own: it would not find it any more.
    pub fn reap(&self) -> usize {
        self.reap_each(|_, _| {})
    }

    /// Does the same, and reports each child: its PID, and its exit status in the form of a shell.
    pub fn reap_each(&self, mut gone: impl FnMut(i32, i32)) -> usize {
        // One signal can stand for many children, so it is only a wake-up.
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
    /// Returns a descriptor that is readable when there is a child to reap.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ended.as_fd()
    }
}
