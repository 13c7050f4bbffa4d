//! What is seen of the cases while they are played.

use crate::check::{CaseOutcome, CaseResult, Given};
use anyhow::Result;
use flexvol_terminal::report::duration;
use flexvol_terminal::screen::counted;
use flexvol_terminal::screen::{Screen, Tone};

/// The width of an id.
const ID: usize = 36;

/// One line a case: on a terminal the last one, and those that failed; elsewhere every one that was
/// played.
pub(super) struct Progress<'a> {
    screen: &'a mut Screen,
    wanted: bool,
    total: usize,
    ended: usize,
    stays: bool,
    written: Result<()>,
}

impl<'a> Progress<'a> {
    /// For so many cases. Where not text is wanted nothing is shown.
    pub(super) fn new(screen: &'a mut Screen, total: usize, wanted: bool) -> Self {
        Self { screen, wanted, total, ended: 0, stays: false, written: Ok(()) }
    }

    /// Says what is about to be done.
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

    /// Another case came to its end.
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
            self.screen.passing(&format!("{line}  {}/{}", self.ended, self.total))
        } else {
            self.stays = true;
            self.screen.line(line.trim_end())
        }
    }

    /// After the last case; fails if something could not be shown.
    pub(super) fn end(self) -> Result<()> {
        self.written?;
        if self.stays { self.screen.line("") } else { Ok(()) }
    }
}
