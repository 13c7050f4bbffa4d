//! Program that a mount pod runs beside the programs of drivers: a daemon that those programs need.
//! It gets the signals of process 1. When it ends, the pod ends, as it would without process 1.

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::process::Command;

/// Main child. It is started once; only its container is started again.
#[derive(Debug)]
pub struct MainChild {
    pid: Pid,
    code: Option<u8>,
}

impl MainChild {
    /// Starts it, with this process's streams; `None` if no program is given.
    #[expect(clippy::disallowed_methods, reason = "it is the container's own, for as long as that runs")]
    pub fn start(words: &[OsString]) -> Result<Option<Self>> {
        let Some((program, args)) = words.split_first() else { return Ok(None) };
        let child = Command::new(program).args(args).spawn();
        let child = child.with_context(|| format!("start {}", program.display()))?;
        Ok(Some(Self { pid: Pid::from_child(&child), code: None }))
    }

    /// Takes note of a child that has ended; only the main child counts.
    pub fn ended(&mut self, pid: i32, code: i32) {
        if pid == self.pid.as_raw_nonzero().get() {
            self.code = Some(u8::try_from(code).unwrap_or(u8::MAX));
        }
    }

    /// Returns its exit code, after a signal in a shell's form.
    pub fn code(&self) -> Option<u8> {
        self.code
    }

    /// Sends it a signal, unless it has ended: its pid may belong to another process by then.
    pub fn tell(&self, signal: i32) {
        if let (None, Some(signal)) = (self.code, Signal::from_named_raw(signal)) {
            let _ = kill_process(self.pid, signal);
        }
    }
}
