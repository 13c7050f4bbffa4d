//! Runner of the cases: decides which are played and where, and collects the results.

mod crew;
mod transcript;

use super::case::{Case, How, Scope};
use super::chosen::Chosen;
use super::evidence::{BUSY, Evidence};
use super::facts::Facts;
use super::given::Given;
use super::report::{CaseOutcome, CaseResult, Report};
use super::subject::KUBELET_ROOT;
use super::survey;
use crate::sandbox::{Ended, Isolation, Terms};
use anyhow::{Context as _, Result};
use crew::Crew;
use flexvol_protocol::Verb;
use flexvol_protocol::failure::{Code, Failure};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use transcript::Transcript;

/// Case about a step that nearly all cases need.
const MOUNT_WORKS: &str = "mount::works";

/// Limit for the pieces of evidence that are kept of one watched case.
const KEPT: usize = 3;

/// Surveys the driver, plays the chosen cases and builds the report.
/// Calls `done` for each case as it ends.
///
/// An error means that the kit failed, or that its input is wrong; exit status 2.
pub fn run(given: &Given, chosen: &Chosen, done: &mut dyn FnMut(&CaseResult)) -> Result<Report> {
    let start = Instant::now();
    let terms = Terms {
        isolation: Isolation::possible(),
        network: given.network,
        exposed: given.exposed.clone(),
        makes_nodes: given.makes_nodes,
        empty: vec![KUBELET_ROOT.into()],
    };
    let facts = learn(given, &terms)?;
    let mut run = Run { results: BTreeMap::new(), sights: BTreeMap::new() };
    let mut crew = Crew::new(given, &facts, &terms);
    let mut chosen = chosen.clone();
    let mut cases = chosen.played.clone();
    // The case that blocks another explains it, so it is played even if it was not selected.
    while !cases.is_empty() {
        for case in std::mem::take(&mut cases) {
            match reason_to_skip(case, given, &facts, terms.isolation) {
                Some(outcome) => run.take(CaseResult::of(case, outcome), &chosen, done),
                None => crew.enlist(case),
            }
        }
        crew.work(&mut |case, played| {
            let result = run.note(case, played);
            run.take(result, &chosen, done);
        })?;
        cases = chosen.add(&run.blockers());
    }
    let mut results = run.finish(&chosen, done);
    judge_first_look(&mut results, &facts);
    judge_blocked(&mut results);
    Ok(Report {
        driver: given.driver.clone(),
        results,
        facts,
        seed: given.seed,
        decides: chosen.decides,
        isolation: terms.isolation,
        took: start.elapsed(),
    })
}

/// Surveys the driver in a sandbox of its own, as each case has one.
fn learn(given: &Given, terms: &Terms) -> Result<Facts> {
    let surveyed = |inside: &_| serde_json::to_vec(&survey::survey(given, inside)).unwrap_or_default();
    let mut facts = Facts { busy: true, ..Facts::default() };
    for _ in 0..crew::TRIES {
        if !facts.busy {
            break;
        }
        facts = match crew::alone(terms, surveyed, crew::limit(given)).context("make a sandbox")? {
            Ended::Said(facts) => serde_json::from_slice(&facts).context("read what the survey found")?,
            Ended::Died(how) => {
                let text =
                    format!("the first look at the driver {how}: this is a bug of flexvol, please report it");
                return Err(Failure::new(Code::Internal, text).into());
            }
        };
    }
    Ok(facts)
}

/// Returns the outcome of a case from which nothing can be learnt; `None` if it can be played.
fn reason_to_skip(case: &Case, given: &Given, facts: &Facts, isolation: Isolation) -> Option<CaseOutcome> {
    let skip = |why: &str| Some(CaseOutcome::Skipped(why.to_owned()));
    if case.scope == Scope::All {
        return None;
    }
    if given.volume.is_none() {
        return skip("needs a volume: give --options or --volume");
    }
    if isolation == Isolation::None {
        return skip("needs root, or a user namespace, for mounts");
    }
    if facts.busy && !case.id.ends_with("::works") {
        return skip(BUSY);
    }
    if facts.hangs && !case.id.ends_with("::works") {
        return Some(CaseOutcome::Blocked(MOUNT_WORKS.to_owned()));
    }
    match case.scope {
        Scope::Attach if !facts.attaches => return skip(why_nothing_is_attached(facts)),
        Scope::Daemon if facts.daemons.is_empty() => return skip("no process of the driver serves a mount"),
        Scope::Secrets if given.volume.as_ref().is_none_or(|volume| volume.options.secrets.is_empty()) => {
            return skip("the volume has no secret: give --secret, or kubernetes.io/secret/KEY in --options");
        }
        Scope::Expand if !facts.has(Verb::ExpandFs) => return skip("the driver has no expandfs"),
        _ => {}
    }
    // A successful survey has called every verb. After a failed survey only the answers count.
    let lacks = |verb| facts.leaves_to_kubelet(verb) || facts.mounts && !facts.has(verb);
    let lacking = case.needs.iter().find(|verb| lacks(*verb));
    lacking.and_then(|verb| skip(&format!("the driver leaves {verb} to kubelet")))
}

/// Explains why nothing is attached. Another case reports each of the first two reasons.
fn why_nothing_is_attached(facts: &Facts) -> &'static str {
    match (facts.init_works, facts.says_attach) {
        (false, _) => "init does not work, so kubelet does not know whether it attaches: see init::works",
        (true, true) => "it has no attach, waitforattach or mountdevice: see init::attach_is_meant",
        (true, false) => "the driver does not attach",
    }
}

/// Results so far.
struct Run {
    results: BTreeMap<&'static str, CaseResult>,
    /// Evidence of each watched case, and the cases in which it was seen.
    sights: BTreeMap<&'static str, Sight>,
}

/// Evidence by the position of the played case in the table: cases end in any order, but are
/// reported in this one.
type Sight = BTreeMap<usize, (&'static str, Vec<Evidence>)>;

impl Run {
    /// Records what a played case found for itself and for the watched cases.
    fn note(&mut self, case: &'static Case, played: Transcript) -> CaseResult {
        for (id, evidence) in &played.watched {
            let Some(watched) = Case::named(id) else { continue };
            let sight = self.sights.entry(watched.id).or_default();
            if !evidence.is_empty() {
                let place = Case::all().position(|other| other.id == case.id).unwrap_or_default();
                sight.insert(place, (case.id, evidence.iter().take(KEPT).cloned().collect()));
            }
        }
        CaseResult {
            evidence: played.evidence,
            took: Duration::from_micros(played.microseconds),
            calls: played.calls,
            ..CaseResult::of(case, played.outcome)
        }
    }

    fn take(&mut self, result: CaseResult, chosen: &Chosen, done: &mut dyn FnMut(&CaseResult)) {
        if chosen.reports(result.case.id) {
            done(&result);
            self.results.insert(result.case.id, result);
        }
    }

    /// Lists the cases that block others.
    fn blockers(&self) -> Vec<&'static Case> {
        let blocked = self.results.values().filter_map(|result| match &result.outcome {
            CaseOutcome::Blocked(by) => Case::named(by),
            _ => None,
        });
        blocked.collect()
    }

    /// Returns all results in the order of the table; watched cases with what was seen of them.
    fn finish(mut self, chosen: &Chosen, done: &mut dyn FnMut(&CaseResult)) -> Vec<CaseResult> {
        for case in &chosen.reported {
            if matches!(case.how, How::Watched(_)) {
                let result = match self.sights.remove(case.id) {
                    None => {
                        CaseResult::of(case, CaseOutcome::Skipped("there was nothing to look at".to_owned()))
                    }
                    Some(sight) if sight.is_empty() => CaseResult::of(case, CaseOutcome::Passed),
                    Some(sight) => seen(case, sight),
                };
                done(&result);
                self.results.insert(case.id, result);
            }
        }
        chosen.reported.iter().filter_map(|case| self.results.remove(case.id)).collect()
    }
}

/// Builds the result of a watched case that does not hold.
fn seen(case: &'static Case, sight: Sight) -> CaseResult {
    let (seen_in, evidence): (Vec<_>, Vec<_>) = sight.into_values().unzip();
    let evidence = evidence.into_iter().flatten().take(KEPT).collect();
    CaseResult { evidence, seen_in, ..CaseResult::of(case, CaseOutcome::Failed) }
}

/// Fails `mount::works` if the driver hung in the survey but not later: most cases were not played
/// because of that.
fn judge_first_look(results: &mut [CaseResult], facts: &Facts) {
    let holds = |result: &&mut CaseResult| {
        result.case.id == MOUNT_WORKS && result.outcome == CaseOutcome::Passed && facts.hangs
    };
    if let Some(result) = results.iter_mut().find(holds) {
        let text = format!("in the first look at the driver it did not: {}", facts.why_not);
        result.outcome = CaseOutcome::Failed;
        result.evidence.push(Evidence::new(text));
    }
}

/// Fails a case that is blocked by one that holds: it has found a problem of its own.
fn judge_blocked(results: &mut [CaseResult]) {
    let held: Vec<_> = results
        .iter()
        .filter(|result| result.outcome == CaseOutcome::Passed)
        .map(|result| result.case.id.to_owned())
        .collect();
    for result in results {
        if matches!(&result.outcome, CaseOutcome::Blocked(by) if held.contains(by)) {
            result.outcome = CaseOutcome::Failed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_hangs_now_and_then_is_told_what_hung() {
        let named = |id: &str| Case::named(id).unwrap();
        let results = || {
            let blocked = CaseOutcome::Blocked(MOUNT_WORKS.to_owned());
            vec![
                CaseResult::of(named(MOUNT_WORKS), CaseOutcome::Passed),
                CaseResult::of(named("mount::twice"), blocked),
            ]
        };
        let judged = |hangs| {
            let mut results = results();
            judge_first_look(
                &mut results,
                &Facts { hangs, why_not: "no end".to_owned(), ..Facts::default() },
            );
            judge_blocked(&mut results);
            results
        };
        let [works, twice] = &judged(true)[..] else { panic!() };
        assert_eq!((&works.outcome, &twice.outcome), (&CaseOutcome::Failed, &results()[1].outcome));
        assert!(works.evidence[0].problem.ends_with("no end"));
        let [works, twice] = &judged(false)[..] else { panic!() };
        assert_eq!((&works.outcome, &twice.outcome), (&CaseOutcome::Passed, &CaseOutcome::Failed));
    }
}
