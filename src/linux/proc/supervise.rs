//! A running helper: one thread feeds, reads and watches it, and kills it if necessary, in one
//! poll(2) loop.

use crate::proc::deadline::Deadline;
use crate::raw;
use anyhow::{Context, Result};
use flexvol_protocol::failure::Failure;
use flexvol_protocol::secret::{Redactor, Secret};
use nix::sys::signal::SigHandler;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::{Errno, FdFlags, fcntl_setfd, read, write};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, getppid, kill_process_group, pidfd_open,
    set_parent_process_death_signal, waitid,
};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

/// Limit for the end of a helper's output that is kept, in bytes.
const OUTPUT_LIMIT: usize = 4096;

/// Limit for the beginning of an answer that is kept, in bytes.
const ANSWER_LIMIT: usize = 64 << 10;

/// Time from SIGTERM to SIGKILL, and from there until a process stuck in the kernel is given up.
const GRACE: Duration = Duration::from_secs(2);

/// Time in which the children of a helper may still write once it has ended.
const DRAIN: Duration = Duration::from_millis(200);

/// Interval for checking the deadline and the signal flag: a signal just before poll(2) would not
/// interrupt it.
const TICK: Duration = Duration::from_millis(100);

/// The same interval if the kernel cannot report the end of a process (`pidfd_open`, Linux 5.3).
const BLIND_TICK: Duration = Duration::from_millis(10);

/// Makes `command` start like a fresh process, except for `kept`, and get the signal `last` when
/// this process ends.
pub(crate) fn prepare(command: &mut Command, kept: Vec<OwnedFd>, bounds: Bounds, last: Signal) {
    let parent = getpid();
    raw::before_exec(command, move || {
        confine(&bounds)?;
        in_child(parent, &kept, last)
    });
}

/// Prepares a daemon, which outlives this process: it gets a session of its own, and enters the
/// control groups whose `cgroup.procs` are given.
///
/// If the caller ends before the daemon is in the groups, the daemon does not start: a cleanup may
/// have checked the groups already.
pub(crate) fn prepare_daemon(
    command: &mut Command,
    kept: Vec<OwnedFd>,
    bounds: Bounds,
    groups: Vec<OwnedFd>,
) {
    let parent = getpid();
    raw::before_exec(command, move || {
        for group in &groups {
            write(group, b"0")?;
        }
        if getppid() != Some(parent) {
            return Err(Errno::SRCH.into());
        }
        rustix::process::setsid()?;
        confine(&bounds)?;
        start_fresh(&kept)
    });
}

/// Restrictions of a helper.
pub(crate) struct Bounds {
    /// Root directory: the helper sees only this directory, and no network.
    pub(crate) root: Option<OwnedFd>,
    /// Landlock rules: the helper can open only what they grant.
    pub(crate) rules: Option<OwnedFd>,
}

/// Applies the restrictions to this process.
fn confine(bounds: &Bounds) -> io::Result<()> {
    if let Some(root) = &bounds.root {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET)?;
        rustix::process::fchdir(root)?;
        rustix::process::chroot(".")?;
        rustix::process::chdir("/")?;
    }
    bounds.rules.as_ref().map_or(Ok(()), |rules| raw::landlock::restrict(rules.as_fd()))
}

/// Runs between fork and exec: system calls only, see [`raw::before_exec`].
fn in_child(parent: Pid, kept: &[OwnedFd], last: Signal) -> io::Result<()> {
    start_fresh(kept)?;
    if last != Signal::KILL {
        // Nothing reads its output once we are gone: a last message must not end it with SIGPIPE.
        raw::set_disposition(nix::sys::signal::Signal::SIGPIPE, SigHandler::SigIgn)?;
    }
    set_parent_process_death_signal(Some(last))?;
    // If the parent died before that call, the signal never comes.
    if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
}

/// Resets signals and open files to those of a fresh process, except for `kept`.
fn start_fresh(kept: &[OwnedFd]) -> io::Result<()> {
    for signal in nix::sys::signal::Signal::iterator() {
        // SIGKILL and SIGSTOP cannot be changed, and have the default already.
        let _ = raw::set_disposition(signal, SigHandler::SigDfl);
    }
    raw::close_on_exec_from(3);
    for fd in kept {
        fcntl_setfd(fd, FdFlags::empty())?;
    }
    Ok(())
}

/// A started helper. If it is dropped before the helper ended, the whole process group is killed.
pub(crate) struct Running {
    child: Child,
    pid: Pid,
    ended: Option<OwnedFd>,
    output: Option<OwnedFd>,
    answer: Option<OwnedFd>,
    input: Option<OwnedFd>,
    secret: Option<Secret>,
    written: usize,
    tail: Tail,
    answered: Vec<u8>,
    masked: Redactor,
    reaped: bool,
}

/// Stage in ending a helper.
enum Stage {
    Running,
    Asked(Failure, Instant),
    Killed(Failure, Instant),
}

impl Running {
    /// Takes over the process, the reading ends of its output and of its answer, if any, and the
    /// writing end of its input, if any. Secrets in `masked` never appear in its output.
    pub(crate) fn new(
        child: Child,
        (output, answer): (OwnedFd, Option<OwnedFd>),
        feed: Option<(OwnedFd, Secret)>,
        masked: Redactor,
    ) -> Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("process id")?;
        let (input, secret) = feed.unzip();
        let ended = pidfd_open(pid, PidfdFlags::empty()).ok();
        let running = Self {
            child,
            pid,
            ended,
            output: Some(output),
            answer,
            input,
            secret,
            written: 0,
            tail: Tail::new(masked.longest()),
            answered: Vec::new(),
            masked,
            reaped: false,
        };
        for fd in running.output.iter().chain(&running.answer).chain(&running.input) {
            fcntl_setfl(fd, fcntl_getfl(fd)? | OFlags::NONBLOCK)?;
        }
        Ok(running)
    }

    /// Waits until the process has ended.
    /// Returns its status, or the `Timeout` for which it was ended.
    pub(crate) fn supervise(
        &mut self,
        deadline: &Deadline,
        name: &str,
        daemon: bool,
    ) -> Result<Result<ExitStatus, Failure>> {
        let mut stage = Stage::Running;
        while !self.has_ended()? {
            stage = self.press(stage, deadline, name);
            if let Stage::Killed(failure, since) = &stage
                && since.elapsed() > GRACE
            {
                // It is stuck in the kernel, on dead storage: init reaps it after our end.
                self.reaped = true;
                return Ok(Err(failure.clone().with_residue(format!("process {} of {name}", self.pid))));
            }
            self.turn(deadline.remaining().clamp(Duration::from_millis(1), TICK))?;
        }
        self.drain()?;
        let status = self.finish(daemon && matches!(stage, Stage::Running))?;
        Ok(match stage {
            Stage::Running => Ok(status),
            Stage::Asked(failure, _) | Stage::Killed(failure, _) => Err(failure),
        })
    }

    /// Returns the end of its output, with secrets masked.
    pub(crate) fn output(&self) -> String {
        self.tail.text(&self.masked)
    }

    /// Returns the beginning of its answer, with secrets masked.
    pub(crate) fn answer(&self) -> String {
        self.masked.clean(&String::from_utf8_lossy(&self.answered))
    }

    /// Returns the next stage if it is due.
    fn press(&self, stage: Stage, deadline: &Deadline, name: &str) -> Stage {
        match stage {
            Stage::Running => match deadline.check(&format!("running {name}")) {
                Ok(()) => Stage::Running,
                Err(failure) => {
                    self.signal(Signal::TERM);
                    Stage::Asked(failure, Instant::now())
                }
            },
            Stage::Asked(failure, since) if since.elapsed() >= GRACE => {
                self.signal(Signal::KILL);
                Stage::Killed(failure, Instant::now())
            }
            stage => stage,
        }
    }

    /// Sends a signal to the whole group.
    /// Only while the process is not reaped: until then its PID cannot be reused.
    fn signal(&self, signal: Signal) {
        // An error means that no process is left, which is fine.
        let _ = kill_process_group(self.pid, signal);
    }

    /// Reports whether the process has ended, without reaping it.
    fn has_ended(&self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        Ok(waitid(WaitId::Pid(self.pid), options)?.is_some())
    }

    /// Reads what is left in the pipes. Does not wait for a child that keeps them open.
    fn drain(&mut self) -> io::Result<()> {
        self.input = None;
        self.ended = None;
        let start = Instant::now();
        while (self.output.is_some() || self.answer.is_some()) && start.elapsed() < DRAIN {
            self.turn(DRAIN.saturating_sub(start.elapsed()))?;
        }
        Ok(())
    }

    /// Reaps the process. Kills what it left in its process group, unless that is a wanted daemon.
    fn finish(&mut self, daemon: bool) -> io::Result<ExitStatus> {
        let succeeded = matches!(waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?,
            Some(status) if status.exit_status() == Some(0));
        if !daemon || !succeeded {
            self.signal(Signal::KILL);
        }
        let status = self.child.wait()?;
        self.reaped = true;
        Ok(status)
    }

    /// Waits for an event, at most for `wait`, then reads and writes what is possible.
    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        let ended = self.ended.iter().map(|fd| PollFd::new(fd, PollFlags::IN));
        let output = self.output.iter().chain(&self.answer).map(|fd| PollFd::new(fd, PollFlags::IN));
        let input = self.input.iter().map(|fd| PollFd::new(fd, PollFlags::OUT));
        let mut fds: Vec<_> = ended.chain(output).chain(input).collect();
        let wait = if self.ended.is_some() { wait } else { wait.min(BLIND_TICK) };
        let timeout = Timespec::try_from(wait).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        self.read_some();
        self.write_some();
        Ok(())
    }

    fn read_some(&mut self) {
        let (tail, answered) = (&mut self.tail, &mut self.answered);
        read_from(&mut self.output, |bytes| tail.push(bytes));
        read_from(&mut self.answer, |bytes| {
            answered.extend_from_slice(&bytes[..bytes.len().min(ANSWER_LIMIT - answered.len())]);
        });
    }

    /// Writes as much as possible now. A helper that does not read its input is no error (`EPIPE`).
    fn write_some(&mut self) {
        let (Some(input), Some(secret)) = (&self.input, &self.secret) else { return };
        let rest = &secret.expose()[self.written..];
        match write(input.as_fd(), rest) {
            Ok(count) if count < rest.len() => self.written += count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            _ => self.input = None,
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.reaped {
            self.signal(Signal::KILL);
            let _ = self.child.try_wait();
        }
    }
}

/// Reads at most one mebibyte: a helper that writes without end must not delay its deadline.
fn read_from(pipe: &mut Option<OwnedFd>, mut take: impl FnMut(&[u8])) {
    let mut buffer = [0; 1 << 14];
    for _ in 0..64 {
        let Some(fd) = pipe else { return };
        match read(fd, &mut buffer) {
            Ok(count) if count > 0 => take(&buffer[..count]),
            Err(Errno::AGAIN | Errno::INTR) => return,
            _ => *pipe = None,
        }
    }
}

/// The end of a stream.
struct Tail {
    bytes: Vec<u8>,
    total: usize,
    slack: usize,
}

impl Tail {
    /// Creates a tail. `slack` is the length of the longest form of a secret in bytes. The kept
    /// bytes may begin in the middle of a secret, which cannot be recognised then. So this much
    /// more is kept before the text that is shown.
    fn new(slack: usize) -> Self {
        Self { bytes: Vec::new(), total: 0, slack }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(bytes.len());
        self.bytes.extend_from_slice(bytes);
        let limit = OUTPUT_LIMIT + self.slack;
        if self.bytes.len() > 2 * limit {
            self.bytes.drain(..self.bytes.len() - limit);
        }
    }

    fn text(&self, masked: &Redactor) -> String {
        let kept = &self.bytes[self.bytes.len().saturating_sub(OUTPUT_LIMIT + self.slack)..];
        let text = masked.clean(&String::from_utf8_lossy(kept));
        let broken = if kept.len() < self.total { self.slack } else { 0 };
        let start = broken.max(text.len().saturating_sub(OUTPUT_LIMIT)).min(text.len());
        text_from(&text, start).to_owned()
    }
}

/// Returns the text from the first character that begins at `start` or later.
pub(crate) fn text_from(text: &str, start: usize) -> &str {
    (start..text.len()).find_map(|at| text.get(at..)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::deadline;
    use crate::proc::helper::Invocation;

    #[test]
    fn the_tail_is_bounded() {
        let mut tail = Tail::new(0);
        for _ in 0..1000 {
            tail.push("0123456789ä".as_bytes());
        }
        let text = tail.text(&Redactor::default());
        assert!(text.len() <= OUTPUT_LIMIT && text.ends_with("0123456789ä") && !text.contains('\u{fffd}'));
        assert!(tail.bytes.len() <= 2 * OUTPUT_LIMIT);
    }

    #[test]
    fn no_half_of_a_secret_is_shown() {
        let secret = Secret::new(b"0123456789abcdef".to_vec());
        for padding in 0..64 {
            let masked = Redactor::new([&secret]);
            let mut tail = Tail::new(masked.longest());
            tail.push(&b"0123456789abcdef".repeat(1000));
            tail.push(&vec![b'.'; padding]);
            let text = tail.text(&masked);
            assert!(!text.contains(|c: char| c.is_ascii_alphanumeric()), "{text}");
        }
    }

    /// Variable that marks this process as the one to be killed. Its value is the PID file.
    const VICTIM: &str = "FLEXVOL_TEST_VICTIM";

    #[test]
    fn a_helper_dies_with_us() {
        if let Some(file) = std::env::var_os(VICTIM) {
            let script = format!("echo $$ >{}; exec sleep 600", file.display());
            let _ = Invocation::of("sh").args(["-c", &script]).run(&Deadline::after(Duration::MAX));
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("pid");
        let this = Invocation::at(&std::env::current_exe().unwrap()).env(VICTIM, &file);
        let this = this.args(["--exact", "proc::supervise::tests::a_helper_dies_with_us"]);
        assert!(this.run(&Deadline::after(deadline(3))).is_err());
        let pid = std::fs::read_to_string(&file).unwrap();
        let path = format!("/proc/{}/stat", pid.trim());
        let start = Instant::now();
        while std::fs::read_to_string(&path).is_ok_and(|stat| !stat.contains(") Z")) {
            assert!(start.elapsed() < deadline(20), "helper {pid} survived");
            std::thread::sleep(BLIND_TICK);
        }
    }
}
