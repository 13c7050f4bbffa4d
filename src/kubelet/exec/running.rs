//! Running driver: watched, read, and stopped if it does not end.

use super::{End, LONGEST_WAIT, Reader, Run, Stop, Terms};
use flexvol_linux::proc::child::{self, Pid, Signal};
use flexvol_linux::proc::signal;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

/// Grace period from SIGTERM to SIGKILL, and from SIGKILL to giving up on a process stuck in the
/// kernel.
const GRACE: Duration = Duration::from_secs(2);

/// Pause between two checks on a kernel that cannot report the end of a process (`pidfd_open`,
/// Linux 5.3).
const BLIND_TICK: Duration = Duration::from_millis(10);

/// Longest delay before a signal is seen that arrives just before we wait for the driver.
const SIGNAL_TICK: Duration = Duration::from_millis(100);

/// Size of one read, in bytes.
const GULP: usize = 1 << 13;

/// Size of one read of a slow reader, in bytes.
const SIP: usize = 64;

pub(super) struct Running<'a> {
    terms: &'a Terms,
    process: Child,
    pid: Pid,
    start: Instant,
    /// Becomes readable when the process ends; `None` once it has ended.
    ended: Option<OwnedFd>,
    exited: Option<Duration>,
    /// Reading end of the output; `None` once it is closed.
    pipe: Option<OwnedFd>,
    closed: Option<Duration>,
    output: Vec<u8>,
    unheard: bool,
}

impl<'a> Running<'a> {
    pub(super) fn new(
        mut process: Child,
        pipe: Option<OwnedFd>,
        start: Instant,
        terms: &'a Terms,
    ) -> io::Result<Self> {
        let pid = i32::try_from(process.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::Other)?;
        if let Some(pipe) = &pipe {
            child::do_not_wait(pipe.as_fd())?;
        }
        let ended = child::end_of(pid);
        if let Some(observer) = &terms.observer
            && let Err(error) = observer.started(pid, start)
        {
            child::signal_group(pid, Signal::KILL);
            let _ = process.wait();
            return Err(error);
        }
        Ok(Self {
            terms,
            process,
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

    /// Waits at most `wait` for something to happen. Returns the [`Run`] once process and output
    /// have ended or the driver had to be stopped; do not call it again after that.
    pub(super) fn advance(&mut self, wait: Duration) -> io::Result<Option<Run>> {
        let terms = self.terms;
        let over = self.is_over()?;
        let due = self.observe().unwrap_or(LONGEST_WAIT);
        let left = self.left();
        let tick = if terms.heeds_signals { SIGNAL_TICK } else { LONGEST_WAIT };
        let stopped = match () {
            () if over => None,
            () if self.output.len() > terms.output_limit => Some(Stop::OutputLimit),
            () if left.is_zero() => Some(Stop::Patience),
            () if terms.heeds_signals && signal::interrupted() => Some(Stop::Told),
            () => {
                self.turn(left.min(due).min(tick).min(wait))?;
                return Ok(None);
            }
        };
        self.end(stopped).map(Some)
    }

    fn end(&mut self, stopped: Option<Stop>) -> io::Result<Run> {
        let (terms, exited, closed) = (self.terms, self.exited, self.closed);
        match stopped {
            None => {}
            // The process that still holds the output is no longer part of the call.
            Some(Stop::Patience) if exited.is_some() && terms.linger.is_some() => {}
            Some(Stop::Told) => self.stop(&[Signal::KILL])?,
            Some(_) => self.stop(&[Signal::TERM, Signal::KILL])?,
        }
        if let Some(observer) = &terms.observer {
            observer.ended(self.exited.is_some())?;
        }
        let end = if self.exited.is_some() { self.process.wait()?.into() } else { End::Immortal };
        let (took, output) = (self.start.elapsed(), std::mem::take(&mut self.output));
        Ok(Run { end, exited, closed, took, output, stopped, unheard: self.unheard })
    }

    /// Returns the time left to wait.
    fn left(&self) -> Duration {
        let limit = match (self.exited, self.terms.linger) {
            (Some(exited), Some(linger)) => self.terms.patience.min(exited + linger),
            _ => self.terms.patience,
        };
        limit.saturating_sub(self.start.elapsed())
    }

    /// Calls the observer; returns the time until it wants to be called again.
    fn observe(&self) -> Option<Duration> {
        let observer = self.terms.observer.as_ref().filter(|_| self.exited.is_none())?;
        let now = self.start.elapsed();
        observer.running(now).map(|due| due.saturating_sub(now))
    }

    /// Records the end of the process, without reaping it.
    fn is_over(&mut self) -> io::Result<bool> {
        if self.exited.is_none() && child::has_ended(self.pid)? {
            self.exited = Some(self.start.elapsed());
            self.ended = None;
        }
        Ok(self.exited.is_some() && self.pipe.is_none())
    }

    /// Waits for something to happen, then reads the available output.
    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        let wait = self.until_next(wait);
        let pipe = self.pipe.iter().filter(|_| self.pause().is_none());
        child::wait_for(self.ended.iter().chain(pipe), wait)?;
        self.read()
    }

    /// Shortens the wait so that it ends when the next thing is due.
    fn until_next(&self, wait: Duration) -> Duration {
        let blind = (self.exited.is_none() && self.ended.is_none()).then_some(BLIND_TICK);
        // Longer waits are split: the caller waits again.
        self.pause().into_iter().chain(blind).chain([wait, LONGEST_WAIT]).min().unwrap_or(wait)
    }

    /// Returns the pause between two reads, for a slow reader.
    fn pause(&self) -> Option<Duration> {
        match self.terms.reader {
            Reader::Slow { pause } if self.exited.is_none() => Some(pause),
            _ => None,
        }
    }

    fn read(&mut self) -> io::Result<()> {
        let Some(pipe) = &self.pipe else { return Ok(()) };
        // Not on the stack, where it takes room of every driver that is waited for.
        let mut buffer = vec![0; if self.pause().is_some() { SIP } else { GULP }];
        match child::read_now(pipe.as_fd(), &mut buffer)? {
            Some(0) => {
                self.pipe = None;
                self.closed = Some(self.start.elapsed());
            }
            Some(length) => self.output.extend_from_slice(&buffer[..length]),
            None => {}
        }
        Ok(())
    }

    /// Ends the whole process group: usually SIGTERM first, then SIGKILL. Processes that left the
    /// group are out of reach, but they are no longer waited for.
    fn stop(&mut self, signals: &[Signal]) -> io::Result<()> {
        let limit = self.output.len();
        for signal in signals {
            child::signal_group(self.pid, *signal);
            let since = Instant::now();
            while !self.is_over()? && since.elapsed() < GRACE {
                self.turn(GRACE.saturating_sub(since.elapsed()))?;
                self.output.truncate(limit);
            }
        }
        Ok(())
    }
}
