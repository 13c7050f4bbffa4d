//! The process of a driver that is executed here, for who wants to stop it, or to know which it
//! was.

use flexvol_kubelet::Observer;
use flexvol_linux::proc::child::Pid;
use rustix::process::{Signal, kill_process};
use std::io;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One execution.
#[derive(Debug, Default)]
pub(super) struct Driver(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pid: Option<Pid>,
    /// The leader of its group, also when it has ended.
    group: i32,
    told: bool,
}

impl Driver {
    /// Asks it to end.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        // Its number is not another's: it is reaped once it is not known here any more.
        if let (Some(pid), false) = (state.pid, std::mem::replace(&mut state.told, true)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Its number, as long as it has not ended; then it was abandoned.
    pub(super) fn pid(&self) -> Option<i32> {
        self.state().pid.map(Pid::as_raw_pid)
    }

    /// The group of what it has started; nothing if it never was.
    pub(super) fn group(&self) -> Option<i32> {
        Some(self.state().group).filter(|group| *group > 0)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Driver {
    fn prepare(&self, _: &mut Command) -> io::Result<()> {
        Ok(())
    }

    fn started(&self, driver: Pid, _: Instant) -> io::Result<()> {
        let mut state = self.state();
        (state.pid, state.group) = (Some(driver), driver.as_raw_pid());
        if state.told {
            let _ = kill_process(driver, Signal::TERM);
        }
        Ok(())
    }

    fn running(&self, _: Duration) -> Option<Duration> {
        None
    }

    fn ended(&self, exited: bool) -> io::Result<()> {
        if exited {
            self.state().pid = None;
        }
        Ok(())
    }
}
