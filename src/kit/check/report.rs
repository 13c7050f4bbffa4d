//! Results of all cases.

mod json;
mod junit;
mod tap;

use super::case::{Case, Level};
use super::evidence::Evidence;
use super::facts::Facts;
use crate::sandbox::Isolation;
use flexvol_protocol::shell::words;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Kubernetes release whose runs the cases cite.
const RELEASE: &str = "Kubernetes 1.37.2";

/// Result of one case.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// The case.
    pub case: &'static Case,
    /// Outcome of the case.
    pub outcome: CaseOutcome,
    /// Evidence that was found; only the first few pieces for a watched case.
    pub evidence: Vec<Evidence>,
    /// Cases in which a watched case found it; empty for a played case.
    pub seen_in: Vec<&'static str>,
    /// Duration of the case; zero for a watched case.
    pub took: Duration,
    /// Number of calls of the driver.
    pub calls: usize,
}

/// Outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "result", content = "why")]
pub enum CaseOutcome {
    /// The claim holds.
    Passed,
    /// The claim does not hold.
    Failed,
    /// Not judged, because another case, named here, failed.
    Blocked(String),
    /// Nothing to check; the reason.
    Skipped(String),
    /// The kit could not play the case; the reason.
    Broken(String),
}

impl CaseResult {
    /// Builds a result with this outcome and without any details.
    pub fn of(case: &'static Case, outcome: CaseOutcome) -> Self {
        Self { case, outcome, evidence: Vec::new(), seen_in: Vec::new(), took: Duration::ZERO, calls: 0 }
    }

    /// Returns the evidence, each problem only once.
    pub fn telling(&self) -> impl Iterator<Item = &Evidence> {
        let is_new = |(index, each): &(usize, &Evidence)| {
            self.evidence[..*index].iter().all(|earlier| earlier.problem != each.problem)
        };
        self.evidence.iter().enumerate().filter(is_new).map(|(_, each)| each)
    }

    /// Describes a piece of evidence as names and texts, in the order that an author needs: what
    /// was seen, what was sent, what came back, what kubelet does then, why that matters and how to
    /// fix it.
    pub fn told(&self, evidence: &Evidence) -> Vec<(&'static str, String)> {
        // A blocked case is explained by the case that blocks it.
        let about = match &self.outcome {
            CaseOutcome::Blocked(by) => Case::named(by).unwrap_or(self.case),
            _ => self.case,
        };
        let fix = evidence.fix.as_deref().unwrap_or(about.fix);
        let all = [
            ("seen", evidence.problem.clone()),
            ("sent", words(&evidence.sent)),
            ("got", evidence.came_back.clone()),
            ("kubelet", evidence.kubelet.clone()),
            ("because", about.reason.to_owned()),
            ("fix", fix.to_owned()),
            ("run", about.run.map(|run| format!("{RELEASE}, {run}")).unwrap_or_default()),
        ];
        all.into_iter().filter(|(_, text)| !text.is_empty()).collect()
    }
}

/// Results of one run.
#[derive(Clone, Debug)]
pub struct Report {
    /// Path of the driver, as it was called.
    pub driver: PathBuf,
    /// Results in the order of the table.
    pub results: Vec<CaseResult>,
    /// Facts about the driver.
    pub facts: Facts,
    /// Isolation of the sandboxes.
    pub isolation: Isolation,
    /// Seed of all random decisions.
    pub seed: u64,
    /// Lowest level whose failures decide the exit status.
    pub decides: Level,
    /// Duration from the beginning to the end.
    pub took: Duration,
}

/// Cases of one group.
#[derive(Debug)]
pub struct Group<'a> {
    /// Part of their ids before `::`.
    pub name: &'static str,
    /// Results in the order of the table.
    pub results: Vec<&'a CaseResult>,
}

impl Report {
    /// Counts the cases of a level with such an outcome; `None` is every level.
    pub fn count(&self, level: Option<Level>, ended: impl Fn(&CaseOutcome) -> bool) -> usize {
        let wanted = |result: &&CaseResult| level.is_none_or(|level| result.case.level == level);
        self.results.iter().filter(wanted).filter(|result| ended(&result.outcome)).count()
    }

    /// Returns 1 if a case that decides failed or was blocked; else 2 if any case could not be
    /// played, or nothing was judged; else 0.
    pub fn exit_status(&self) -> u8 {
        let bad = |outcome: &CaseOutcome| matches!(outcome, CaseOutcome::Failed | CaseOutcome::Blocked(_));
        let broken = |outcome: &CaseOutcome| matches!(outcome, CaseOutcome::Broken(_));
        let skipped = |outcome: &CaseOutcome| matches!(outcome, CaseOutcome::Skipped(_));
        match () {
            () if Level::ALL
                .iter()
                .any(|level| *level <= self.decides && self.count(Some(*level), bad) > 0) =>
            {
                1
            }
            () if self.count(None, broken) > 0 => 2,
            () if self.count(None, skipped) == self.results.len() => 2,
            () => 0,
        }
    }

    /// Counts the calls of the driver.
    pub fn calls(&self) -> usize {
        self.results.iter().map(|result| result.calls).sum()
    }

    /// Groups the results, in the order of the table.
    pub fn groups(&self) -> Vec<Group<'_>> {
        let mut groups: Vec<Group<'_>> = Vec::new();
        for result in &self.results {
            let name = result.case.group();
            match groups.last_mut().filter(|group| group.name == name) {
                Some(group) => group.results.push(result),
                None => groups.push(Group { name, results: vec![result] }),
            }
        }
        groups
    }

    /// Reports whether a case is in this report and failed.
    pub fn has_failed(&self, id: &str) -> bool {
        self.results.iter().any(|result| result.case.id == id && result.outcome == CaseOutcome::Failed)
    }
}

impl Group<'_> {
    /// Counts the cases with such an outcome.
    pub fn count(&self, ended: impl Fn(&CaseOutcome) -> bool) -> usize {
        self.results.iter().filter(|result| ended(&result.outcome)).count()
    }

    /// Adds up the durations of the cases.
    pub fn took(&self) -> Duration {
        self.results.iter().map(|result| result.took).sum()
    }
}

/// Reports that are made up for tests.
#[cfg(test)]
pub(crate) mod tests {
    use super::super::case::{How, Scope};
    use super::*;
    use flexvol_protocol::VerbSet;

    fn case(id: &'static str, level: Level) -> &'static Case {
        Box::leak(Box::new(Case {
            id,
            level,
            scope: Scope::Volume,
            needs: VerbSet::of(&[]),
            items: vec![62, 63],
            claim: "a second mount of a mounted directory changes nothing",
            reason: "kubelet repeats a mount whose answer it lost, and unmounts once",
            fix: "look first whether the directory is a mount point",
            run: (id == "mount::works").then_some("truth: mount::works: Success without a mount is believed"),
            how: How::Watched(|_| None),
        }))
    }

    /// Builds a report of six cases: one that holds, one that failed in three others, one that
    /// failed, one that is blocked by it, one skipped and one broken.
    pub(crate) fn made_up() -> Report {
        let seen = |problem: &str| Evidence {
            problem: problem.to_owned(),
            sent: ["mount", "/var/lib/kubelet/a b", "{\"k\":\"it's <&>\"}"].map(str::to_owned).to_vec(),
            came_back: "{\"status\":\"Success\"}\u{1b}[31m]]>".to_owned(),
            kubelet: "believes it".to_owned(),
            fix: None,
        };
        let cases = [
            case("output::one_object", Level::Must),
            case("output::message", Level::Should),
            case("mount::works", Level::Must),
            case("mount::twice", Level::Must),
            case("mount::daemon", Level::Should),
            case("mount::odd", Level::Should),
        ];
        let of = |index: usize, outcome| CaseResult::of(cases[index], outcome);
        let results = vec![
            of(0, CaseOutcome::Passed),
            CaseResult {
                evidence: vec![seen("a # newline"), seen("a # newline"), seen("empty").fix("say \"why\"")],
                seen_in: vec!["mount::works", "mount::odd", "mount::daemon"],
                ..of(1, CaseOutcome::Failed)
            },
            CaseResult {
                evidence: vec![seen("1 mounts became 2")],
                took: Duration::from_millis(12),
                calls: 3,
                ..of(2, CaseOutcome::Failed)
            },
            CaseResult {
                evidence: vec![seen("a mount is needed first")],
                ..of(3, CaseOutcome::Blocked("mount::works".to_owned()))
            },
            of(4, CaseOutcome::Skipped("no process serves a mount".to_owned())),
            of(5, CaseOutcome::Broken("ended with signal 9".to_owned())),
        ];
        Report {
            driver: "/plugins/example.com~nfs/nfs".into(),
            results,
            facts: Facts::default(),
            isolation: Isolation::Full,
            seed: 123,
            decides: Level::Must,
            took: Duration::from_millis(1500),
        }
    }

    #[test]
    fn the_exit_status_is_that_of_the_musts() {
        let mut report = made_up();
        assert_eq!(report.exit_status(), 1);
        report.results.remove(2);
        assert_eq!(report.exit_status(), 1, "a blocked must is no must that holds");
        report.results.remove(2);
        assert_eq!(report.exit_status(), 2, "one could not be played");
        report.results.pop();
        assert_eq!(report.exit_status(), 0, "a should that failed");
        report.decides = Level::Should;
        assert_eq!(report.exit_status(), 1, "a should that failed, and decides");
        report.results.retain(|result| matches!(result.outcome, CaseOutcome::Skipped(_)));
        assert_eq!(report.exit_status(), 2, "nothing was judged");
    }

    #[test]
    fn groups_keep_the_order_of_the_table() {
        let report = made_up();
        let groups: Vec<_> = report.groups().iter().map(|group| (group.name, group.results.len())).collect();
        assert_eq!(groups, [("output", 2), ("mount", 4)]);
    }

    #[test]
    fn evidence_is_told_once_with_the_better_fix() {
        let report = made_up();
        let told: Vec<_> = report.results[1].telling().map(|each| report.results[1].told(each)).collect();
        assert_eq!(told.len(), 2);
        assert_eq!(told[0][5], ("fix", "look first whether the directory is a mount point".to_owned()));
        assert_eq!(told[1][5], ("fix", "say \"why\"".to_owned()));
        assert_eq!(told[0][1].1, r#"mount '/var/lib/kubelet/a b' '{"k":"it'\''s <&>"}'"#);
    }
}
