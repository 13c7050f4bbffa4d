//! A driver that runs: watched, read, and stopped if it does not end.

use super::{End, LONGEST_WAIT, Reader, Run, Stop, Terms};
use flexvol_linux::proc::child::{self, Pid, Signal};
use flexvol_linux::proc::signal;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Child;
use std::time::{Duration, Instant};

/// From SIGTERM to SIGKILL, and from there to giving up on a process that sits in the kernel.
const GRACE: Duration = Duration::from_secs(2);

/// How often to look where the kernel cannot tell of the end of a process (`pidfd_open`, Linux
/// 5.3).
const BLIND_TICK: Duration = Duration::from_millis(10);

/// How long a signal that comes just before we wait for the driver goes unseen.
const SIGNAL_TICK: Duration = Duration::from_millis(100);

/// How much a slow reader takes at once.
const SIP: usize = 64;

pub(super) struct Running<'a> {
    terms: &'a Terms,
    process: Child,
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

    /// Waits for so long at most until something happens. All of it, once the process and its
    /// output have ended, or our patience: then it is not called again.
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
            // Whoever holds the output is no part of the call any more.
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

    /// Notes the end of the process, without reaping it.
    fn is_over(&mut self) -> io::Result<bool> {
        if self.exited.is_none() && child::has_ended(self.pid)? {
            self.exited = Some(self.start.elapsed());
            self.ended = None;
        }
        Ok(self.exited.is_some() && self.pipe.is_none())
    }

    /// Waits for something to happen, then reads what is there.
    fn turn(&mut self, wait: Duration) -> io::Result<()> {
        let wait = self.until_next(wait);
        let pipe = self.pipe.iter().filter(|_| self.pause().is_none());
        child::wait_for(self.ended.iter().chain(pipe), wait)?;
        self.read()
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
        match child::read_now(pipe.as_fd(), &mut buffer[..length])? {
            Some(0) => {
                self.pipe = None;
                self.closed = Some(self.start.elapsed());
            }
            Some(length) => self.output.extend_from_slice(&buffer[..length]),
            None => {}
        }
        Ok(())
    }

    /// Ends the whole group: mostly a request, then force. What left the group is out of reach, but
    /// no longer waited for.
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
