//! A driver that runs: watched, read, and stopped if it does not end.

use super::{End, Reader, Run, Stop, Terms};
use flexvol_linux::proc::signal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open, waitid,
};
use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::time::{Duration, Instant};

/// From SIGTERM to SIGKILL, and from there to giving up on a process that sits in the kernel.
const GRACE: Duration = Duration::from_secs(2);

/// How often to look where the kernel cannot tell of the end of a process (`pidfd_open`, Linux
/// 5.3).
const BLIND_TICK: Duration = Duration::from_millis(10);

/// How long a signal that comes just before we wait for the driver goes unseen.
const SIGNAL_TICK: Duration = Duration::from_millis(100);

/// The longest wait the kernel is asked for: it takes no number that is too large.
const LONGEST_WAIT: Duration = Duration::from_hours(1);

/// How much a slow reader takes at once.
const SIP: usize = 64;

pub(super) struct Running<'a> {
    terms: &'a Terms,
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
    unheard: bool,
}

impl<'a> Running<'a> {
    pub(super) fn new(
        mut child: Child,
        pipe: Option<OwnedFd>,
        start: Instant,
        terms: &'a Terms,
    ) -> io::Result<Self> {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::Other)?;
        if let Some(pipe) = &pipe {
            fcntl_setfl(pipe, fcntl_getfl(pipe)? | OFlags::NONBLOCK)?;
        }
        let ended = pidfd_open(pid, PidfdFlags::empty()).ok();
        if let Some(observer) = &terms.observer
            && let Err(error) = observer.started(pid, start)
        {
            let _ = kill_process_group(pid, Signal::KILL);
            let _ = child.wait();
            return Err(error);
        }
        Ok(Self {
            terms,
            child,
            pid,
            start,
            ended,
            exited: None,
            unheard: pipe.is_none(),
            pipe,
            closed: None,
            output: Vec::new(),
        })
    }

    /// To the end of the process and of its output, or to the end of our patience.
    pub(super) fn watch(mut self) -> io::Result<Run> {
        let terms = self.terms;
        let stopped = loop {
            let over = self.is_over()?;
            let due = self.observe().unwrap_or(LONGEST_WAIT);
            let left = self.left();
            match () {
                () if over => break None,
                () if self.output.len() > terms.output_limit => break Some(Stop::OutputLimit),
                () if left.is_zero() => break Some(Stop::Patience),
                () if terms.heeds_signals && signal::interrupted() => break Some(Stop::Told),
                () if terms.heeds_signals => self.turn(left.min(due).min(SIGNAL_TICK))?,
                () => self.turn(left.min(due))?,
            }
        };
        let (exited, closed) = (self.exited, self.closed);
        match stopped {
            None => {}
            // Whoever holds the output is no part of the call any more.
            Some(Stop::Patience) if exited.is_some() && terms.linger.is_some() => {}
            Some(Stop::Told) => self.stop(&[Signal::KILL])?,
            Some(_) => self.stop(&[Signal::TERM, Signal::KILL])?,
        }
        if let Some(observer) = &terms.observer {
            observer.ended(self.exited.is_some())?;
        }
        let end = if self.exited.is_some() { self.child.wait()?.into() } else { End::Immortal };
        let took = self.start.elapsed();
        let Self { unheard, output, .. } = self;
        Ok(Run { end, exited, closed, took, output, stopped, unheard })
    }

    /// How long to wait yet.
    fn left(&self) -> Duration {
        let limit = match (self.exited, self.terms.linger) {
            (Some(exited), Some(linger)) => self.terms.patience.min(exited + linger),
            _ => self.terms.patience,
        };
        limit.saturating_sub(self.start.elapsed())
    }

    /// Has the observer do what is due; when it wants to be called again.
    fn observe(&self) -> Option<Duration> {
        let observer = self.terms.observer.as_ref().filter(|_| self.exited.is_none())?;
        let now = self.start.elapsed();
        observer.running(now).map(|due| due.saturating_sub(now))
    }

    /// Notes the end of the process, without reaping it: until then its group's number is nobody
    /// else's.
    fn is_over(&mut self) -> io::Result<bool> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        // Of one that is traced, stops are told as well.
        let ended = |status: WaitIdStatus| status.exited() || status.killed() || status.dumped();
        if self.exited.is_none() && waitid(WaitId::Pid(self.pid), options)?.is_some_and(ended) {
            self.exited = Some(self.start.elapsed());
            self.ended = None;
        }
        Ok(self.exited.is_some() && self.pipe.is_none())
    }

    /// Waits for something to happen, then reads what is there.
    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        let wait = self.until_next(wait);
        let pipe = self.pipe.iter().filter(|_| self.pause().is_none());
        let mut fds: Vec<_> =
            self.ended.iter().chain(pipe).map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec::try_from(wait).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => self.read(),
            Err(errno) => Err(errno.into()),
        }
    }

    /// No longer than to the next thing to do.
    fn until_next(&self, wait: Duration) -> Duration {
        let blind = (self.exited.is_none() && self.ended.is_none()).then_some(BLIND_TICK);
        // Whoever is more patient waits again.
        self.pause().into_iter().chain(blind).chain([wait, LONGEST_WAIT]).min().unwrap_or(wait)
    }

    /// Of a slow reader.
    fn pause(&self) -> Option<Duration> {
        match self.terms.reader {
            Reader::Slow { pause } if self.exited.is_none() => Some(pause),
            _ => None,
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let mut buffer = [0; 1 << 13];
        let length = if self.pause().is_some() { SIP } else { buffer.len() };
        let Some(pipe) = &self.pipe else { return Ok(()) };
        match rustix::io::read(pipe, &mut buffer[..length]) {
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

    /// Ends the whole group: mostly a request, then force. What left the group is out of reach, but
    /// no longer waited for.
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
