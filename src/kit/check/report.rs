//! What came of all cases.

mod json;
mod junit;
mod tap;

use super::case::{Case, Level};
use super::evidence::Evidence;
use super::facts::Facts;
use super::runs::RELEASE;
use crate::sandbox::Isolation;
use flexvol_protocol::shell::words;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// What came of one case.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// Which.
    pub case: &'static Case,
    /// How it ended.
    pub outcome: CaseOutcome,
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
pub enum CaseOutcome {
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
    pub fn of(case: &'static Case, outcome: CaseOutcome) -> Self {
        Self { case, outcome, evidence: Vec::new(), seen_in: Vec::new(), took: Duration::ZERO, calls: 0 }
    }

    /// The evidence without what only repeats that the same was seen elsewhere.
    pub fn telling(&self) -> impl Iterator<Item = &Evidence> {
        let is_new = |(index, each): &(usize, &Evidence)| {
            self.evidence[..*index].iter().all(|earlier| earlier.problem != each.problem)
        };
        self.evidence.iter().enumerate().filter(is_new).map(|(_, each)| each)
    }

    /// A piece of evidence as names and texts, in the order in which an author wants to know: what
    /// was seen, sent, what came back, what kubelet does then, why that matters and how it is
    /// fixed.
    pub fn told(&self, evidence: &Evidence) -> Vec<(&'static str, String)> {
        // What keeps a case from being judged is another one's subject.
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
            ("run", about.run().map(|run| format!("{RELEASE}, {run}")).unwrap_or_default()),
        ];
        all.into_iter().filter(|(_, text)| !text.is_empty()).collect()
    }
}

/// All of it.
#[derive(Clone, Debug)]
pub struct Report {
    /// The driver, as it was called.
    pub driver: PathBuf,
    /// In the order of the table.
    pub results: Vec<CaseResult>,
    /// What is known of the driver.
    pub facts: Facts,
    /// How much the sandboxes kept apart.
    pub isolation: Isolation,
    /// What was decided by chance is decided by this.
    pub seed: u64,
    /// The least level whose failures decide the exit status.
    pub decides: Level,
    /// From the beginning to the end.
    pub took: Duration,
}

/// The cases of one group.
#[derive(Debug)]
pub struct Group<'a> {
    /// The part of their ids before `::`.
    pub name: &'static str,
    /// In the order of the table.
    pub results: Vec<&'a CaseResult>,
}

impl Report {
    /// How many cases of a level ended so.
    pub fn count(&self, level: Option<Level>, ended: impl Fn(&CaseOutcome) -> bool) -> usize {
        let wanted = |result: &&CaseResult| level.is_none_or(|level| result.case.level == level);
        self.results.iter().filter(wanted).filter(|result| ended(&result.outcome)).count()
    }

    /// 0 if no case failed that decides, 1 if one did or was blocked, 2 if any could not be played,
    /// or nothing was judged.
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

    /// How often the driver was called.
    pub fn calls(&self) -> usize {
        self.results.iter().map(|result| result.calls).sum()
    }

    /// Group by group, in the order of the table.
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

    /// Whether a case is here, and failed.
    pub fn has_failed(&self, id: &str) -> bool {
        self.results.iter().any(|result| result.case.id == id && result.outcome == CaseOutcome::Failed)
    }
}

impl Group<'_> {
    /// How many ended so.
    pub fn count(&self, ended: impl Fn(&CaseOutcome) -> bool) -> usize {
        self.results.iter().filter(|result| ended(&result.outcome)).count()
    }

    /// How long they took.
    pub fn took(&self) -> Duration {
        self.results.iter().map(|result| result.took).sum()
    }
}

/// Reports that were made up.
#[cfg(test)]
pub(crate) mod tests {
    use super::super::case::{How, Scope};
    use super::*;
    use flexvol_protocol::VerbSet;

    const fn case(id: &'static str, level: Level) -> Case {
        Case {
            id,
            level,
            scope: Scope::Volume,
            needs: VerbSet::of(&[]),
            items: &[62, 63],
            claim: "a second mount of a mounted directory changes nothing",
            reason: "kubelet repeats a mount whose answer it lost, and unmounts once",
            fix: "look first whether the directory is a mount point",
            how: How::Watched(|_| None),
        }
    }

    static CASES: [Case; 6] = [
        case("output::one_object", Level::Must),
        case("output::message", Level::Should),
        case("mount::works", Level::Must),
        case("mount::twice", Level::Must),
        case("mount::daemon", Level::Should),
        case("mount::odd", Level::Should),
    ];

    /// One that holds, one that failed in three others, one that failed, one blocked by it, one
    /// skipped and one broken.
    pub(crate) fn made_up() -> Report {
        let seen = |problem: &str| Evidence {
            problem: problem.to_owned(),
            sent: ["mount", "/var/lib/kubelet/a b", "{\"k\":\"it's <&>\"}"].map(str::to_owned).to_vec(),
            came_back: "{\"status\":\"Success\"}\u{1b}[31m]]>".to_owned(),
            kubelet: "believes it".to_owned(),
            fix: None,
        };
        let of = |index: usize, outcome| CaseResult::of(&CASES[index], outcome);
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
