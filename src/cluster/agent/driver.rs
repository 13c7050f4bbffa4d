//! Process of a driver that the agent executes, to stop it or to identify it afterwards.

use flexvol_kubelet::Observer;
use flexvol_linux::proc::child::Pid;
use rustix::process::{Signal, kill_process};
use std::io;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Process of one execution.
#[derive(Debug, Default)]
pub(super) struct Driver(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    pid: Option<Pid>,
    /// Process group that the driver leads. It is kept after the driver has ended.
    group: i32,
    told: bool,
}

impl Driver {
    /// Asks the driver to end.
    pub(super) fn stop(&self) {
        let mut state = self.state();
        // The PID cannot be another process's: the driver is reaped after `pid` is cleared.
        if let (Some(pid), false) = (state.pid, std::mem::replace(&mut state.told, true)) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }

    /// Returns the PID if the driver has not ended. After the execution, it was abandoned.
    pub(super) fn pid(&self) -> Option<i32> {
        self.state().pid.map(Pid::as_raw_pid)
    }

    /// Returns the process group of the driver; `None` if it was never started.
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
