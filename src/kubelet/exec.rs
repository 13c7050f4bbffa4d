//! One execution of a driver: one pipe for both outputs, read until every process that holds it has closed
//! it.

use crate::sys::signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_open, waitid,
};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// `PATH` of a service under systemd, as kubelet has it.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// From SIGTERM to SIGKILL, and from there to giving up on a process that sits in the kernel.
const GRACE: Duration = Duration::from_secs(2);

/// How often to look where the kernel cannot tell of the end of a process (`pidfd_open`, Linux 5.3).
const BLIND_TICK: Duration = Duration::from_millis(10);

/// How long a signal that comes just before we wait for the driver goes unseen.
const SIGNAL_TICK: Duration = Duration::from_millis(100);

/// The longest wait the kernel is asked for: it takes no number that is too large.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// How a driver is executed.
#[derive(Clone, Debug)]
pub struct Terms {
    /// What the program is told that it is called, in place of its path: for one that is not yet where kubelet
    /// will find it.
    pub name: Option<OsString>,
    /// All of it: kubelet hands its own on unchanged.
    pub environment: Vec<(OsString, OsString)>,
    /// How long to wait. Kubelet itself waits for ever, but gives the pod up for the moment after 123 s.
    pub patience: Duration,
    /// How many bytes to read. Kubelet reads on until its memory is full.
    pub output_limit: usize,
    /// Whether the driver is killed when this process is told to stop. Off, it is heard out.
    pub heeds_signals: bool,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            name: None,
            environment: vec![("PATH".into(), PATH.into())],
            patience: Duration::from_secs(123),
            output_limit: 4 << 20,
            heeds_signals: false,
        }
    }
}

/// What one execution looked like from outside.
#[derive(Clone, Debug)]
pub struct Run {
    /// How the process ended.
    pub end: End,
    /// When it ended, counted from the start; `None` if it had to be stopped.
    pub exited: Option<Duration>,
    /// When the last holder of the pipe closed it; `None` if reading was given up.
    pub closed: Option<Duration>,
    /// The whole time, a stop included.
    pub took: Duration,
    /// Standard output and error as they were interleaved. Raw: a careless driver repeats secrets in it.
    pub output: Vec<u8>,
    /// Why it was stopped, if it was.
    pub stopped: Option<Stop>,
}

impl Run {
    /// Of a driver that was not executed.
    pub fn nothing() -> Self {
        let end = End::NotStarted("not executed".to_owned());
        Self { end, exited: None, closed: None, took: Duration::ZERO, output: Vec::new(), stopped: None }
    }
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// With this exit status.
    Exited(i32),
    /// By this signal.
    Signaled(i32),
    /// It never started, or could not be watched: the system's reason.
    NotStarted(String),
    /// Not even by SIGKILL: it sits in the kernel, on dead storage.
    Immortal,
}

/// Why an execution was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Kubelet would still be waiting.
    Patience,
    /// The output passed the limit.
    OutputLimit,
    /// This process was told to stop.
    Told,
}

impl fmt::Display for End {
    /// In the words of Go's `os/exec`, which kubelet shows.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exited(code) => write!(f, "exit status {code}"),
            Self::Signaled(signal) => write!(f, "signal: {signal}"),
            Self::NotStarted(reason) => write!(f, "not started: {reason}"),
            Self::Immortal => f.write_str("not ended by SIGKILL"),
        }
    }
}

impl From<ExitStatus> for End {
    fn from(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exited(code),
            (None, signal) => Self::Signaled(signal.unwrap_or_default()),
        }
    }
}

/// Executes `program` as kubelet does, but in a process group of its own, so that all of it can be stopped.
pub(super) fn run(program: &Path, arguments: &[OsString], terms: &Terms) -> Run {
    let start = Instant::now();
    let watched = spawn(program, arguments, terms)
        .and_then(|(child, pipe)| Running::new(child, pipe, start))
        .and_then(|running| running.watch(terms));
    watched.unwrap_or_else(|error| Run {
        end: End::NotStarted(error.to_string()),
        exited: None,
        closed: None,
        took: start.elapsed(),
        output: Vec::new(),
        stopped: None,
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "a foreign driver is executed as kubelet would, not as a helper"
)]
fn spawn(program: &Path, arguments: &[OsString], terms: &Terms) -> io::Result<(Child, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    let mut command = Command::new(program);
    if let Some(name) = &terms.name {
        command.arg0(name);
    }
    command.args(arguments).env_clear().envs(terms.environment.iter().map(|(name, value)| (name, value)));
    command.current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(writer.try_clone()?).stderr(writer);
    // The command holds our copies of the pipe's writing end until it is dropped, on return.
    Ok((command.spawn()?, reader))
}

struct Running {
    child: Child,
    pid: Pid,
    start: Instant,
    /// Until it has ended.
    ended: Option<OwnedFd>,
    exited: Option<Duration>,
    /// Until it is closed.
    pipe: Option<OwnedFd>,
    closed: Option<Duration>,
    output: Vec<u8>,
}

impl Running {
    fn new(child: Child, pipe: OwnedFd, start: Instant) -> io::Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::Other)?;
        fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
        let ended = pidfd_open(pid, PidfdFlags::empty()).ok();
        let (exited, closed, output) = (None, None, Vec::new());
        Ok(Self { child, pid, start, ended, exited, pipe: Some(pipe), closed, output })
    }

    /// To the end of the process and of its output, or to the end of our patience.
    fn watch(mut self, terms: &Terms) -> io::Result<Run> {
        let stopped = loop {
            let left = terms.patience.saturating_sub(self.start.elapsed());
            match () {
                () if self.is_over()? => break None,
                () if self.output.len() > terms.output_limit => break Some(Stop::OutputLimit),
                () if left.is_zero() => break Some(Stop::Patience),
                () if terms.heeds_signals && signal::interrupted() => break Some(Stop::Told),
                () if terms.heeds_signals => self.turn(left.min(SIGNAL_TICK))?,
                () => self.turn(left)?,
            }
        };
        let (exited, closed) = (self.exited, self.closed);
        match stopped {
            None => {}
            Some(Stop::Told) => self.stop(&[Signal::KILL])?,
            Some(_) => self.stop(&[Signal::TERM, Signal::KILL])?,
        }
        let end = if self.exited.is_some() { self.child.wait()?.into() } else { End::Immortal };
        Ok(Run { end, exited, closed, took: self.start.elapsed(), output: self.output, stopped })
    }

    /// Notes the end of the process, without reaping it: until then its group's number is nobody else's.
    fn is_over(&mut self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        if self.exited.is_none() && waitid(WaitId::Pid(self.pid), options)?.is_some() {
            self.exited = Some(self.start.elapsed());
            self.ended = None;
        }
        Ok(self.exited.is_some() && self.pipe.is_none())
    }

    /// Waits for something to happen, then reads what is there.
    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        let blind = self.exited.is_none() && self.ended.is_none();
        let wait = if blind { wait.min(BLIND_TICK) } else { wait };
        let mut fds: Vec<_> =
            self.ended.iter().chain(&self.pipe).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        // Whoever is this patient waits again.
        let timeout = Timespec::try_from(wait.min(LONGEST_WAIT)).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => self.read(),
            Err(errno) => Err(errno.into()),
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 1 << 13];
        let Some(pipe) = &self.pipe else { return Ok(()) };
        match rustix::io::read(pipe, &mut buffer) {
            Ok(0) => {
                self.pipe = None;
                self.closed = Some(self.start.elapsed());
            }
            Ok(length) => self.output.extend_from_slice(&buffer[..length]),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(())
    }

    /// Ends the whole group: mostly a request, then force. What left the group is out of reach, but no longer
    /// waited for.
    fn stop(&mut self, signals: &[Signal]) -> io::Result<()> {
        let limit = self.output.len();
        for signal in signals {
            // Nobody left to get it is as good.
            let _ = kill_process_group(self.pid, *signal);
            let since = Instant::now();
            while !self.is_over()? && since.elapsed() < GRACE {
                self.turn(GRACE.saturating_sub(since.elapsed()))?;
                self.output.truncate(limit);
            }
        }
        Ok(())
    }
}
