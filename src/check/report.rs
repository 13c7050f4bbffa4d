//! What came of all cases.

use super::case::{Case, Level};
use super::evidence::Evidence;
use super::facts::Facts;
use crate::sys::sandbox::Isolation;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What came of one case.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// Which.
    pub case: &'static Case,
    /// How it ended.
    pub outcome: Outcome,
    /// What was found: of a watched case the first few.
    pub evidence: Vec<Evidence>,
    /// Of a watched case: the cases in which it was seen.
    pub seen_in: Vec<&'static str>,
    /// How long it took; nothing for what was watched.
    pub took: Duration,
    /// How often the driver was called.
    pub calls: usize,
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "result", content = "why")]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It does not.
    Failed,
    /// Not judged, because another case, named here, failed.
    Blocked(String),
    /// Nothing to check; why.
    Skipped(String),
    /// The kit could not play it; why.
    Broken(String),
}

impl CaseResult {
    /// That ended so, and nothing more to say.
    pub fn of(case: &'static Case, outcome: Outcome) -> Self {
        Self { case, outcome, evidence: Vec::new(), seen_in: Vec::new(), took: Duration::ZERO, calls: 0 }
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Report {
    /// In the order of the table.
    pub results: Vec<CaseResult>,
    /// What is known of the driver.
    pub facts: Facts,
    /// How much the sandboxes kept apart.
    pub isolation: Isolation,
    /// What was decided by chance is decided by this.
    pub seed: u64,
    /// From the beginning to the end.
    pub took: Duration,
}

impl Report {
    /// How many cases of a level ended so.
    pub fn count(&self, level: Option<Level>, ended: impl Fn(&Outcome) -> bool) -> usize {
        let wanted = |result: &&CaseResult| level.is_none_or(|level| result.case.level == level);
        self.results.iter().filter(wanted).filter(|result| ended(&result.outcome)).count()
    }

    /// 0 if no must failed, 1 if one did or was blocked, 2 if one could not be played.
    pub fn exit_status(&self) -> u8 {
        let bad = |outcome: &Outcome| matches!(outcome, Outcome::Failed | Outcome::Blocked(_));
        let broken = |outcome: &Outcome| matches!(outcome, Outcome::Broken(_));
        match () {
            () if self.count(Some(Level::Must), bad) > 0 => 1,
            () if self.count(None, broken) > 0 => 2,
            () => 0,
        }
    }
}
