//! A program that a mount pod runs beside what drivers ask for: a daemon that their programs need.
//! It gets the signals of process 1, and the pod ends when it does, as it would without process 1.

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsString;
use std::process::Command;

/// Started once, and never again: its container is.
#[derive(Debug)]
pub struct MainChild {
    pid: Pid,
    code: Option<u8>,
}

impl MainChild {
    /// Starts it, with this process's streams; nothing where there is none.
    #[expect(clippy::disallowed_methods, reason = "it is the container's own, for as long as that runs")]
    pub fn start(words: &[OsString]) -> Result<Option<Self>> {
        let Some((program, args)) = words.split_first() else { return Ok(None) };
        let child = Command::new(program).args(args).spawn();
        let child = child.with_context(|| format!("start {}", program.display()))?;
        Ok(Some(Self { pid: Pid::from_child(&child), code: None }))
    }

    /// A child has ended: it, or another one.
    pub fn ended(&mut self, pid: i32, code: i32) {
        if pid == self.pid.as_raw_nonzero().get() {
            self.code = Some(u8::try_from(code).unwrap_or(u8::MAX));
        }
    }

    /// What it has exited with, or a shell would say of it.
    pub fn code(&self) -> Option<u8> {
        self.code
    }

    /// Gives it a signal, unless it has ended: its number may be another's.
    pub fn tell(&self, signal: i32) {
        if let (None, Some(signal)) = (self.code, Signal::from_named_raw(signal)) {
            let _ = kill_process(self.pid, signal);
        }
    }
}
