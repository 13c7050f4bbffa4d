//! Output of the sandbox of one case.

use crate::check::case::Seen;
use crate::check::case::{Case, How, Scope};
use crate::check::evidence::{BUSY, Evidence, Played, Stopped};
use crate::check::facts::Facts;
use crate::check::given::Given;
use crate::check::left::Left;
use crate::check::report::CaseOutcome;
use crate::check::subject::Subject;
use crate::sandbox::{Inside, Isolation};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Result of one played case, and what the watched cases saw in it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Transcript {
    pub(super) outcome: CaseOutcome,
    pub(super) evidence: Vec<Evidence>,
    pub(super) calls: usize,
    pub(super) microseconds: u64,
    /// Evidence by the id of the watched case; only cases that had something to check.
    pub(super) watched: Vec<(String, Vec<Evidence>)>,
}

impl Transcript {
    /// Plays a case in its sandbox.
    pub(super) fn play(case: &Case, given: &Given, facts: &Facts, inside: &Inside) -> Self {
        let How::Played(scene) = case.how else { return Self::broken("a watched case cannot be played") };
        let start = Instant::now();
        let mut subject = Subject::new(given, facts, inside, given.seed ^ hash(case.id));
        let mut played = scene(&mut subject);
        if matches!(played, Err(Stopped::Failed(_) | Stopped::Broken(_)))
            && let Err(blocked) = usual_life(&mut subject, case)
        {
            played = Err(blocked);
        }
        if subject.is_unclear() && !matches!(played, Ok(()) | Err(Stopped::Skipped(_))) {
            played = Err(Stopped::busy());
        }
        let mut left = None;
        if played.is_ok() && inside.isolation() != Isolation::None {
            match Left::look(&subject) {
                Ok(found) => left = Some(found),
                Err(error) => played = Err(Stopped::Broken(error)),
            }
        }
        let seen = Seen { case, answers: subject.answers(), facts, left: left.as_ref() };
        let (outcome, evidence) = outcome(played);
        let microseconds = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
        Self { outcome, evidence, calls: subject.answers().len(), microseconds, watched: watch(&seen) }
    }

    /// Reports whether the machine was too busy to judge the case.
    pub(super) fn is_busy(&self) -> bool {
        matches!(&self.outcome, CaseOutcome::Skipped(why) if why == BUSY)
    }

    /// Builds the result of a case that the kit could not play.
    pub(super) fn broken(why: impl Into<String>) -> Self {
        let outcome = CaseOutcome::Broken(why.into());
        Self { outcome, evidence: Vec::new(), calls: 0, microseconds: 0, watched: Vec::new() }
    }
}

/// Plays the usual life cycle of a volume if the survey could not.
/// If that fails, other failures are no surprise: the case about the failing step blocks this one.
fn usual_life(subject: &mut Subject<'_>, case: &Case) -> Played {
    if case.scope == Scope::All || subject.facts.mounts {
        return Ok(());
    }
    let volume = subject.volume();
    let lived = volume.and_then(|volume| subject.bring_up(&volume).and_then(|_| subject.take_down(&volume)));
    match lived {
        Err(Stopped::Blocked(by, evidence)) if by != case.id => Err(Stopped::Blocked(by, evidence)),
        _ => Ok(()),
    }
}

fn outcome(played: Played) -> (CaseOutcome, Vec<Evidence>) {
    match played {
        Ok(()) => (CaseOutcome::Passed, Vec::new()),
        Err(Stopped::Failed(evidence)) => (CaseOutcome::Failed, vec![*evidence]),
        Err(Stopped::Blocked(by, evidence)) => (CaseOutcome::Blocked(by.to_owned()), vec![*evidence]),
        Err(Stopped::Skipped(why)) => (CaseOutcome::Skipped(why), Vec::new()),
        Err(Stopped::Broken(error)) => (CaseOutcome::Broken(format!("{error:#}")), Vec::new()),
    }
}

fn watch(seen: &Seen<'_>) -> Vec<(String, Vec<Evidence>)> {
    let look = |case: &'static Case| match case.how {
        How::Watched(look) => look(seen).map(|evidence| (case.id.to_owned(), evidence)),
        How::Played(_) => None,
    };
    Case::all().filter_map(look).collect()
}

/// Returns the FNV-1a hash of a name: the same in every build.
fn hash(name: &str) -> u64 {
    name.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
