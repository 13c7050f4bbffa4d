//! Executions of a file: fanotify(7), Linux 5.0, with `CAP_SYS_ADMIN`.
//!
//! The kernel reports the process, also after the file was renamed.
//! A process in a PID namespace that is not below ours has no PID here.

use crate::proc::signal;
use anyhow::{Context as _, Result};
use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::Duration;

/// Watch for executions of files, from its start on.
#[derive(Debug)]
pub struct ExecWatch(Fanotify);

impl ExecWatch {
    /// Watches a file.
    /// `None` if the kernel does not support this, or if this process is not permitted.
    pub fn of(file: &Path) -> Option<Self> {
        Self::of_any(&[file])
    }

    /// Watches several files.
    pub fn of_any(files: &[&Path]) -> Option<Self> {
        let flags = InitFlags::FAN_CLASS_NOTIF | InitFlags::FAN_CLOEXEC | InitFlags::FAN_NONBLOCK;
        let fanotify = Fanotify::init(flags, EventFFlags::O_RDONLY | EventFFlags::O_CLOEXEC).ok()?;
        let mark = MarkFlags::FAN_MARK_ADD;
        for file in files {
            fanotify.mark(mark, MaskFlags::FAN_OPEN_EXEC, rustix::fs::CWD, Some(*file)).ok()?;
        }
        Some(Self(fanotify))
    }

    /// Returns the PIDs of the processes that have executed a file since the last call.
    /// Waits for the first one at most `patience`.
    pub fn wait(&self, patience: Duration) -> Result<Vec<i32>> {
        if !signal::wait_readable(self.0.as_fd(), Some(patience)).context("wait for an execution")? {
            return Ok(Vec::new());
        }
        match self.0.read_events() {
            Ok(events) => Ok(events.iter().map(nix::sys::fanotify::FanotifyEvent::pid).collect()),
            Err(nix::Error::EAGAIN | nix::Error::EINTR) => Ok(Vec::new()),
            Err(errno) => Err(errno).context("read who executed the file"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a file is executed")]

    use super::*;
    use std::process::Command;

    #[test]
    fn the_process_is_told_whatever_the_file_is_called_by_then() {
        let dir = tempfile::tempdir().unwrap();
        let (old, new) = (dir.path().join("old"), dir.path().join("new"));
        // Another process writes the file: other threads of this one fork, and their copies of a
        // descriptor for writing would make it busy.
        assert!(Command::new("cp").args(["/bin/sh".as_ref(), old.as_os_str()]).status().unwrap().success());
        let Some(executions) = ExecWatch::of(&old) else {
            return println!("SKIP executions: fanotify needs CAP_SYS_ADMIN and Linux 5.0");
        };
        assert_eq!(executions.wait(Duration::ZERO).unwrap(), [0_i32; 0]);
        std::fs::rename(&old, &new).unwrap();
        let mut child = Command::new(&new).args(["-c", "exit 0"]).spawn().unwrap();
        let told = executions.wait(crate::pace::deadline(30)).unwrap();
        child.wait().unwrap();
        assert_eq!(told, [child.id().cast_signed()]);
    }
}
