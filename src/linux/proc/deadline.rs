//! Until when something may take, and whether the process was told to stop meanwhile.

use crate::proc::signal;
use flexvol_protocol::failure::{Code, Failure, Result};
use std::time::{Duration, Instant};

/// A point on the monotonic clock. Copied freely: every step of a call works towards the same one.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    end: Option<Instant>,
    allowed: Duration,
    heeds_signals: bool,
}

impl Deadline {
    /// Ends when `allowed` has passed from now on, or when a signal tells the process to stop.
    pub fn after(allowed: Duration) -> Self {
        Self { end: Instant::now().checked_add(allowed), allowed, heeds_signals: true }
    }

    /// The same for work that must also be done once the process was told to stop: undoing what the
    /// call did.
    pub fn for_undo(allowed: Duration) -> Self {
        Self { heeds_signals: false, ..Self::after(allowed) }
    }

    /// The same, but it ends so much sooner: for who leaves some of it to others.
    #[must_use]
    pub fn sooner(self, by: Duration) -> Self {
        Self { end: self.end.map(|end| end.checked_sub(by).unwrap_or(end)), ..self }
    }

    /// What is left; zero once it passed.
    pub fn remaining(&self) -> Duration {
        self.end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    /// Whether the time is over. Says nothing about signals, [`Deadline::check`] does.
    pub fn expired(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Fails with `Timeout` once the time is over or the process was told to stop; called at least
    /// every 100 ms or every mebibyte by whatever takes long. `doing` completes the sentence:
    /// `making an xfs file system`.
    pub fn check(&self, doing: &str) -> Result<()> {
        self.check_signals(doing)?;
        if self.expired() {
            let text = format!("deadline of {} passed while {doing}", self.text());
            return Err(Failure::new(Code::Timeout, text));
        }
        Ok(())
    }

    /// The same without the time: for a short step that is worth doing late.
    pub fn check_signals(&self, doing: &str) -> Result<()> {
        if self.heeds_signals && signal::interrupted() {
            return Err(Failure::new(Code::Timeout, format!("told to stop while {doing}")));
        }
        Ok(())
    }

    fn text(&self) -> String {
        match self.allowed.as_secs() {
            0 => format!("{} ms", self.allowed.as_millis()),
            seconds => format!("{seconds} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes() {
        let deadline = Deadline::after(Duration::ZERO);
        let failure = deadline.check("resting").unwrap_err();
        assert_eq!(failure.code(), Code::Timeout);
        assert_eq!(failure.message(), "deadline of 0 ms passed while resting");
        assert!(deadline.expired() && deadline.remaining().is_zero());
    }

    #[test]
    fn lasts() {
        let deadline = Deadline::after(Duration::from_secs(110));
        assert!(deadline.check("resting").is_ok() && !deadline.expired());
        assert!(deadline.remaining() > Duration::from_secs(100));
        assert!(Deadline::after(Duration::MAX).check("resting").is_ok());
    }
}
