//! Memory of other processes that we read: their arguments and their environment.
//!
//! The kernel reads it under a lock of that process. A process that unmaps a file of a dead mount
//! may hold the lock forever, and the reader then hangs in the kernel, too. So a fork reads. A fork
//! that hangs is killed, and another one continues with the next process.

use crate::proc::process;
use crate::raw;
use anyhow::{Context, Result};
use nix::unistd::Pid;
use rustix::fs::{Mode, OFlags, openat};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Limit for the wait for the first missing answer.
/// Each further wait is half as long, so that many silent processes cost little more than one.
const FIRST_ANSWER_WAIT: Duration = Duration::from_secs(1);

/// Lower limit for this wait.
const LEAST: Duration = Duration::from_millis(20);

/// Reads one file of the processes of one /proc.
pub(crate) struct Reader {
    table: OwnedFd,
    name: &'static str,
    limit: u64,
    fork: Option<(Pid, UnixStream)>,
    patience: Duration,
    /// Processes that did not answer. They are not asked again.
    silent: Vec<u32>,
}

impl Reader {
    /// Starts a reader for the file `name` in `table`, at most `limit` bytes of it.
    ///
    /// Only for a process with one thread: it forks.
    pub(crate) fn start(table: OwnedFd, name: &'static str, limit: u64) -> Result<Self> {
        let mut reader =
            Self { table, name, limit, fork: None, patience: FIRST_ANSWER_WAIT, silent: Vec::new() };
        reader.fork = Some(reader.fork()?);
        Ok(reader)
    }

    /// Reads the file of a process.
    /// Empty if the PID is unused, access is denied, or no answer comes.
    pub(crate) fn read(&mut self, pid: u32) -> Vec<u8> {
        if self.silent.contains(&pid) {
            return Vec::new();
        }
        if self.fork.is_none() {
            self.fork = self.fork().ok();
        }
        let Some((_, channel)) = &self.fork else { return Vec::new() };
        if let Ok(bytes) = asked(channel, pid, self.patience) {
            return bytes;
        }
        self.end();
        self.silent.push(pid);
        self.patience = (self.patience / 2).max(LEAST);
        Vec::new()
    }

    fn fork(&self) -> Result<(Pid, UnixStream)> {
        let (ours, its) = UnixStream::pair().context("make a socket")?;
        let parent = getpid();
        if let Some(pid) = raw::fork().context("start a reader")? {
            return Ok((pid, ours));
        }
        // A fork that cannot be killed must not hold any descriptor, not even the lock of the call.
        raw::close_all_but([its.as_fd(), self.table.as_fd()]);
        // Only SIGKILL ends a process that hangs.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        if getppid() == Some(parent) {
            // Runs until the last request was answered.
            while self.answer(&its).is_ok() {}
        }
        raw::end()
    }

    /// Answers one request, in the fork.
    fn answer(&self, mut channel: &UnixStream) -> std::io::Result<()> {
        let mut pid = [0; 4];
        channel.read_exact(&mut pid)?;
        let path = format!("{}/{}", u32::from_ne_bytes(pid), self.name);
        let bytes = read_at(self.table.as_fd(), &path, self.limit).unwrap_or_default();
        channel.write_all(&bytes.len().to_ne_bytes())?;
        channel.write_all(&bytes)
    }

    fn end(&mut self) {
        if let Some((pid, _)) = self.fork.take() {
            process::kill_and_reap(pid);
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end();
    }
}

fn asked(mut channel: &UnixStream, pid: u32, patience: Duration) -> std::io::Result<Vec<u8>> {
    channel.set_read_timeout(Some(patience))?;
    channel.write_all(&pid.to_ne_bytes())?;
    let mut length = [0; size_of::<usize>()];
    channel.read_exact(&mut length)?;
    let mut bytes = vec![0; usize::from_ne_bytes(length)];
    channel.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Reads at most `limit` bytes of a file; `None` if it cannot be read.
pub(crate) fn read_at(directory: BorrowedFd<'_>, name: &str, limit: u64) -> Option<Vec<u8>> {
    let fd = openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = Vec::new();
    File::from(fd).take(limit).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a file of nobody's volume")]
mod tests {
    use super::*;

    #[test]
    fn reads_what_is_there_and_goes_on_behind_what_is_not() {
        let mut reader = Reader::start(File::open("/proc").unwrap().into(), "cmdline", 1 << 20).unwrap();
        let own = std::fs::read("/proc/self/cmdline").unwrap();
        assert_eq!(reader.read(std::process::id()), own);
        assert!(reader.read(u32::MAX).is_empty());
        // A fork that hangs is ended like this: it gets no request any more.
        reader.end();
        assert_eq!(reader.read(std::process::id()), own);
        assert!(reader.silent.is_empty());
    }

    #[test]
    fn who_does_not_answer_is_passed_over_once_and_for_all() {
        let dir = tempfile::tempdir().unwrap();
        for pid in ["1", "2"] {
            std::fs::create_dir(dir.path().join(pid)).unwrap();
        }
        nix::unistd::mkfifo(&dir.path().join("1/environ"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::fs::write(dir.path().join("2/environ"), "ab").unwrap();
        let mut reader = Reader::start(File::open(dir.path()).unwrap().into(), "environ", 1).unwrap();
        let start = std::time::Instant::now();
        assert!(reader.read(1).is_empty() && start.elapsed() >= FIRST_ANSWER_WAIT);
        assert_eq!(reader.read(2), b"a");
        // With a wait for each read, this would take a hundred seconds.
        assert!((0..100).all(|_| reader.read(1).is_empty()));
        assert!(start.elapsed() < crate::pace::deadline(20));
    }
}
