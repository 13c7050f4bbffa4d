//! Sandboxes that run at the same time.

use super::transcript::Transcript;
use crate::check::case::Case;
use crate::check::facts::Facts;
use crate::check::given::Given;
use crate::check::in_time::{Deadline, Pace};
use crate::sandbox::{Ended, Inside, Sandbox, Terms};
use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// Deadline for the processes of a sandbox to disappear after they are killed.
const LAST_WAIT: Duration = Duration::from_secs(5);

/// Time that a case may take in addition to its calls.
const CASE: Duration = Duration::from_mins(1);

/// Pause between two checks for sandboxes that are late.
const TICK: Duration = Duration::from_millis(200);

/// Limit for the number of tries while the machine is too busy.
pub(super) const TRIES: usize = 3;

/// Cases that wait, and cases that are being played.
pub(super) struct Crew<'a> {
    given: &'a Given,
    facts: &'a Facts,
    terms: &'a Terms,
    /// Waiting cases, each with the number of times it was played. Those that were played come
    /// last, and alone: the other cases may be what keeps the machine busy.
    waiting: VecDeque<(&'static Case, usize)>,
    playing: Vec<Player>,
}

struct Player {
    case: &'static Case,
    tried: usize,
    sandbox: Sandbox,
    end: Deadline,
}

/// Returns the time limit of a case.
pub(super) fn limit(given: &Given) -> Duration {
    CASE + given.patience * 4
}

/// Does something in a sandbox while no other sandbox runs.
pub(super) fn alone(terms: &Terms, work: impl FnOnce(&Inside) -> Vec<u8>, limit: Duration) -> Result<Ended> {
    let mut sandbox = Sandbox::start(terms, work)?;
    let mut end = Deadline::new(limit);
    let ended = loop {
        wait(&mut [PollFd::new(&sandbox.fd(), PollFlags::IN)])?;
        match sandbox.read()? {
            Some(ended) => break ended,
            None if end.is_over() => {
                break Ended::Died(format!("did not end within {} s", limit.as_secs()));
            }
            None => {}
        }
    };
    sandbox.end(LAST_WAIT);
    Ok(ended)
}

impl<'a> Crew<'a> {
    pub(super) fn new(given: &'a Given, facts: &'a Facts, terms: &'a Terms) -> Self {
        Self { given, facts, terms, waiting: VecDeque::new(), playing: Vec::new() }
    }

    pub(super) fn enlist(&mut self, case: &'static Case) {
        self.waiting.push_back((case, 0));
    }

    /// Plays all cases. Calls `done` for each case as it ends.
    pub(super) fn work(&mut self, done: &mut dyn FnMut(&'static Case, Transcript)) -> Result<()> {
        loop {
            while let Some((case, tried)) = self.waiting.front().copied()
                && self.playing.len() < if tried == 0 { self.given.jobs.max(1) } else { 1 }
            {
                self.waiting.pop_front();
                self.begin(case, tried)?;
            }
            if self.playing.is_empty() {
                return Ok(());
            }
            let fds: Vec<_> = self.playing.iter().map(|player| player.sandbox.fd()).collect();
            let mut polled: Vec<_> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
            wait(&mut polled)?;
            self.collect(done)?;
        }
    }

    fn begin(&mut self, case: &'static Case, tried: usize) -> Result<()> {
        let (given, facts) = (self.given, self.facts);
        // The forked process inherits this measurement.
        Pace::recent();
        let play = |inside: &Inside| {
            serde_json::to_vec(&Transcript::play(case, given, facts, inside)).unwrap_or_default()
        };
        let sandbox = Sandbox::start(self.terms, play).context("make a sandbox")?;
        self.playing.push(Player { case, tried, sandbox, end: Deadline::new(limit(given)) });
        Ok(())
    }

    fn collect(&mut self, done: &mut dyn FnMut(&'static Case, Transcript)) -> Result<()> {
        let mut index = 0;
        while index < self.playing.len() {
            let player = &mut self.playing[index];
            let transcript = match player.sandbox.read()? {
                Some(Ended::Said(text)) => serde_json::from_slice(&text)
                    .unwrap_or_else(|error| Transcript::broken(error.to_string())),
                Some(Ended::Died(how)) => Transcript::broken(how),
                None if player.end.is_over() => {
                    Transcript::broken(format!("did not end within {} s", limit(self.given).as_secs()))
                }
                None => {
                    index += 1;
                    continue;
                }
            };
            let player = self.playing.swap_remove(index);
            player.sandbox.end(LAST_WAIT);
            if transcript.is_busy() && player.tried + 1 < TRIES {
                self.waiting.push_back((player.case, player.tried + 1));
            } else {
                done(player.case, transcript);
            }
        }
        Ok(())
    }
}

fn wait(fds: &mut [PollFd<'_>]) -> Result<()> {
    let tick = Timespec::try_from(TICK).map_err(io::Error::other)?;
    match poll(fds, Some(&tick)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(errno).context("wait for a sandbox"),
    }
}
