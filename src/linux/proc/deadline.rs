//! Deadline of a call, which a request to stop ends as well.

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
    /// Ends when `allowed` has passed from now on, or when a signal asks the process to stop.
    pub fn after(allowed: Duration) -> Self {
        Self { end: Instant::now().checked_add(allowed), allowed, heeds_signals: true }
    }

    /// Creates a deadline for a rollback of the call, which must also be done after a request to
    /// stop.
    pub fn for_undo(allowed: Duration) -> Self {
        Self { heeds_signals: false, ..Self::after(allowed) }
    }

    /// Returns a deadline that ends earlier by this time, which is left to others.
    #[must_use]
    pub fn sooner(self, by: Duration) -> Self {
        Self { end: self.end.map(|end| end.checked_sub(by).unwrap_or(end)), ..self }
    }

    /// Returns the remaining time; zero once it has passed.
    pub fn remaining(&self) -> Duration {
        self.end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()))
    }

    /// Reports whether the time is over. Ignores signals; [`Deadline::check`] respects them.
    pub fn expired(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Fails with `Timeout` once the time is over or the process was asked to stop.
    /// Long work calls it at least every 100 ms or every mebibyte. `doing` completes the sentence:
    /// `making an xfs file system`.
    pub fn check(&self, doing: &str) -> Result<()> {
        self.check_signals(doing)?;
        if self.expired() {
            let text = format!("deadline of {} passed while {doing}", self.text());
            return Err(Failure::new(Code::Timeout, text));
        }
        Ok(())
    }

    /// Checks for a request to stop, not for the time: for a short step that is worth doing late.
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
