//! Progress of the cases while they are played.

use crate::check::{CaseOutcome, CaseResult, Given};
use anyhow::Result;
use flexvol_terminal::report::duration;
use flexvol_terminal::screen::counted;
use flexvol_terminal::screen::{Screen, Tone};
use std::time::{Duration, Instant};

/// Number of cases after which the remaining time is estimated: fewer are no measure.
const MEASURE: usize = 10;

/// Width of an id.
const ID: usize = 36;

/// Progress with one line per case: on a terminal the last case, and those that failed; elsewhere
/// every case that was played.
pub(super) struct Progress<'a> {
    screen: &'a mut Screen,
    wanted: bool,
    total: usize,
    ended: usize,
    start: Instant,
    stays: bool,
    written: Result<()>,
}

/// Estimates the time for the remaining cases from the time of those that have ended.
fn remaining(elapsed: Duration, ended: usize, total: usize) -> String {
    let (left, measured) = (total.saturating_sub(ended), u32::try_from(ended).unwrap_or(u32::MAX));
    match u32::try_from(left) {
        Ok(left @ 1..) if ended >= MEASURE => {
            format!(", about {} left", duration(elapsed / measured * left))
        }
        _ => String::new(),
    }
}

impl<'a> Progress<'a> {
    /// Creates the progress of this number of cases; without `wanted` it shows nothing.
    pub(super) fn new(screen: &'a mut Screen, total: usize, wanted: bool) -> Self {
        Self { screen, wanted, total, ended: 0, start: Instant::now(), stays: false, written: Ok(()) }
    }

    /// Prints what is about to be done.
    pub(super) fn begin(&mut self, given: &Given) -> Result<()> {
        if !self.wanted {
            return Ok(());
        }
        let intro = format!(
            "flexvol {}: {} as kubelet sees it, {}, seed {}",
            env!("CARGO_PKG_VERSION"),
            given.driver.display(),
            counted(self.total, "case"),
            given.seed
        );
        self.screen.heading(&flexvol_protocol::text::one_line(&intro, usize::MAX))?;
        self.screen.line("")?;
        self.screen.passing("looking at the driver …")
    }

    /// Counts a case that has ended, and shows it.
    pub(super) fn done(&mut self, result: &CaseResult) {
        self.ended += 1;
        if self.wanted && self.written.is_ok() {
            self.written = self.show(result);
        }
    }

    fn show(&mut self, result: &CaseResult) -> Result<()> {
        let (tone, word, stays) = match &result.outcome {
            CaseOutcome::Passed => (Tone::Good, "ok", false),
            CaseOutcome::Failed => (Tone::Bad, "FAIL", true),
            CaseOutcome::Blocked(_) => (Tone::Warning, "-", false),
            CaseOutcome::Skipped(_) => return Ok(()),
            CaseOutcome::Broken(_) => (Tone::Bad, "BROKEN", true),
        };
        let word = self.screen.paint(tone, &format!("{word:<6}"));
        let time = if result.took.is_zero() { String::new() } else { duration(result.took) };
        let line = format!("{word}  {:<ID$}{time:>9}", result.case.id);
        if self.screen.is_terminal() && !stays {
            let left = remaining(self.start.elapsed(), self.ended, self.total);
            self.screen.passing(&format!("{line}  {}/{}{left}", self.ended, self.total))
        } else {
            self.stays = true;
            self.screen.line(line.trim_end())
        }
    }

    /// Ends the display after the last case; fails if something could not be shown.
    pub(super) fn end(self) -> Result<()> {
        self.written?;
        if self.stays { self.screen.line("") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_it_goes_on_is_said_once_there_is_a_measure() {
        let at = |ended, total| remaining(Duration::from_secs(10), ended, total);
        assert_eq!(at(9, 100), "");
        assert_eq!(at(20, 100), format!(", about {} left", duration(Duration::from_secs(40))));
        assert_eq!(at(100, 100), "");
        // Further cases were played because others need them.
        assert_eq!(at(101, 100), "");
    }
}
