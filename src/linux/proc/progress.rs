//! Second process that observes the first one at work, for users: which program was started, and
//! how much it has read and written.
//!
//! It belongs to the command line. The working process, which kubelet uses too, contains no part of
//! it, not even a thread: workers are forks.

use crate::proc::process;
use crate::raw;
use anyhow::{Context, Result};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::pipe::{PipeFlags, pipe_with};
use std::fs;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::{Duration, Instant};

/// Pause between two looks.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 250_000_000 };

/// Observer that runs until it is dropped, or this process ends.
#[derive(Debug)]
pub struct ProgressWatch {
    pid: Pid,
    /// Writing end of the fork's pipe. Closing it ends the fork.
    told: Option<OwnedFd>,
}

impl ProgressWatch {
    /// Forks. The fork calls `look` four times a second with the time since its start, and finally
    /// with `None`. Only standard input, output and error stay open in it.
    ///
    /// Only for a process with one thread: the fork has only the calling one.
    pub fn start(mut look: impl FnMut(Option<Duration>)) -> Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).context("make a pipe")?;
        let parent = rustix::process::getpid();
        if let Some(pid) = raw::fork().context("start a watch of the progress")? {
            return Ok(Self { pid, told: Some(writer) });
        }
        raw::close_all_but([reader.as_fd()]);
        process::end_with(parent);
        let start = Instant::now();
        // A signal is meant for the working process; the pipe closes when that process ends.
        while matches!(
            poll(&mut [PollFd::new(&reader, PollFlags::IN)], Some(&PAUSE)),
            Ok(0) | Err(rustix::io::Errno::INTR)
        ) {
            look(Some(start.elapsed()));
        }
        look(None);
        raw::end()
    }
}

impl Drop for ProgressWatch {
    fn drop(&mut self) {
        drop(self.told.take());
        let _ = waitpid(self.pid, None);
    }
}

/// Work of a process so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtWork {
    /// Name of its program.
    pub name: String,
    /// Bytes read from a disk.
    pub read: u64,
    /// Bytes written to a disk.
    pub written: u64,
}

/// Returns the youngest descendant of a process: the one that works now.
/// Ignores this process and its descendants. Returns `None` without a descendant or /proc.
pub fn youngest_of(ancestor: u32) -> Option<AtWork> {
    let us = std::process::id();
    let below = process::all().filter(|pid| descends(*pid, ancestor, us));
    let youngest = below.max_by_key(|pid| (process::started(*pid), *pid))?;
    let name = process::name(youngest)?;
    let io = fs::read_to_string(format!("/proc/{youngest}/io")).unwrap_or_default();
    let bytes = |key: &str| io.lines().find_map(|line| line.strip_prefix(key)?.trim().parse().ok());
    Some(AtWork {
        name,
        read: bytes("read_bytes:").unwrap_or(0),
        written: bytes("write_bytes:").unwrap_or(0),
    })
}

/// Reports whether a process descends from `ancestor`, and not through `not_by`.
fn descends(pid: i32, ancestor: u32, not_by: u32) -> bool {
    let parents =
        std::iter::successors(u32::try_from(pid).ok(), |pid| process::parent_of(i32::try_from(*pid).ok()?));
    // A PID may be reused during the walk, so the chain is limited: no real one is longer.
    let mut above = parents.take(64).take_while(|pid| *pid != 0 && *pid != not_by);
    above.any(|pid| pid == ancestor) && u32::try_from(pid) != Ok(ancestor)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests start programs and write files")]
mod tests {
    use super::*;
    use crate::pace::slow_seconds;
    use std::process::{Command, Stdio};

    #[test]
    fn the_youngest_descendant_is_named() {
        let mut parent = Command::new("sh")
            .args(["-c", "sleep 60 & read line; kill $!"])
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = parent.id();
        let named = |wanted: Option<&str>| {
            (0..slow_seconds(3000)).any(|_| {
                std::thread::sleep(Duration::from_millis(10));
                youngest_of(pid).map(|at_work| at_work.name).as_deref() == wanted
            })
        };
        assert!(named(Some("sleep")));
        drop(parent.stdin.take());
        assert!(named(None));
        parent.wait().unwrap();
    }

    #[test]
    fn it_ends_when_it_is_dropped() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_owned();
        let watch = ProgressWatch::start(|after| {
            let _ = fs::write(&path, if after.is_some() { "looks" } else { "ended" });
        });
        let read = || fs::read_to_string(file.path()).unwrap();
        assert!((0..slow_seconds(3000)).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            read() == "looks"
        }));
        drop(watch.unwrap());
        assert_eq!(read(), "ended");
    }
}
