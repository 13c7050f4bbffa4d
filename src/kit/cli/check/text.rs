//! Report for people: failures and their fixes, then a summary.

use crate::check::{CaseOutcome, CaseResult, Level, Report};
use crate::sandbox::Isolation;
use flexvol_protocol::text::one_line;
use flexvol_terminal::report::duration;
use flexvol_terminal::screen::{Tone, counted, wrap};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Function that gives text the colour of its tone.
pub(super) type Paint<'a> = &'a dyn Fn(Tone, &str) -> String;

/// Width of the page.
const WIDTH: usize = 100;

/// Width of the names on the left, and of the margin before them.
const NAMES: usize = 10;
const MARGIN: usize = 2;

/// Limit for sent or received text that is shown, in bytes.
const SHOWN: usize = 700;

/// Limit for ids that are listed in one sentence.
const IDS: usize = 8;

/// Returns the whole page.
pub(super) fn rendered(report: &Report, paint: Paint<'_>) -> String {
    let mut page = Page { report, paint, text: String::new() };
    page.failures();
    page.groups();
    page.notes();
    page.last_words();
    page.text
}

struct Page<'a> {
    report: &'a Report,
    paint: Paint<'a>,
    text: String,
}

impl<'a> Page<'a> {
    /// Writes the failures; those of cases that must hold come first.
    fn failures(&mut self) {
        for level in Level::ALL {
            for result in self.report.results.iter().filter(|result| result.case.level == level) {
                match &result.outcome {
                    CaseOutcome::Failed => self.failure(result, "FAIL"),
                    CaseOutcome::Broken(_) => self.failure(result, "BROKEN"),
                    _ => {}
                }
            }
        }
    }

    fn failure(&mut self, result: &CaseResult, word: &str) {
        let tone = if result.case.level == Level::Must { Tone::Bad } else { Tone::Warning };
        let head = (self.paint)(tone, &format!("{word} {}", result.case.id));
        self.line(&format!("{head}  {}", result.case.level));
        self.row("expected", result.case.claim);
        if let CaseOutcome::Broken(why) = &result.outcome {
            self.row(
                "but",
                &format!("{why}: this says nothing of the driver; if it is so each time, please report it"),
            );
        }
        let mut told = Vec::new();
        for evidence in result.telling() {
            for fact in result.told(evidence) {
                // Reason and fix are often those of the case: write them once.
                if !told.contains(&fact) {
                    told.push(fact);
                }
            }
        }
        for (name, text) in told {
            self.row(name, &text);
        }
        if !result.seen_in.is_empty() {
            let count = counted(result.seen_in.len(), "case");
            self.row("where", &format!("in {count}: {}", listed(&result.seen_in)));
        }
        self.line("");
    }

    fn groups(&mut self) {
        let head = format!(
            "{:<12}{:>6}{:>8}{:>12}{:>9}{:>10}",
            "GROUP", "HOLD", "FAILED", "NOT JUDGED", "SKIPPED", "TIME"
        );
        self.line(&(self.paint)(Tone::Heading, &head));
        for group in self.report.groups() {
            let failed = group.count(|each| matches!(each, CaseOutcome::Failed | CaseOutcome::Broken(_)));
            let line = format!(
                "{:<12}{:>6}{failed:>8}{:>12}{:>9}{:>10}",
                group.name,
                group.count(|each| *each == CaseOutcome::Passed),
                group.count(|each| matches!(each, CaseOutcome::Blocked(_))),
                group.count(|each| matches!(each, CaseOutcome::Skipped(_))),
                Some(group.took()).filter(|time| !time.is_zero()).map(duration).unwrap_or_default()
            );
            let line = line.trim_end().to_owned();
            self.line(&if failed > 0 { (self.paint)(Tone::Bad, &line) } else { line });
        }
        self.line("");
    }

    /// Writes the cases that were not judged, and the reasons.
    fn notes(&mut self) {
        let report = self.report;
        let blocked =
            |outcome: &'a CaseOutcome| if let CaseOutcome::Blocked(by) = outcome { Some(by) } else { None };
        for (by, ids) in reasons(report, blocked) {
            let count = counted(ids.len(), "case");
            let text = format!("{count} not judged, because {by} does not hold: {}", listed(&ids));
            self.text.push_str(&wrap(&text, 0, WIDTH));
            self.stranger(by);
        }
        let skipped =
            |outcome: &'a CaseOutcome| if let CaseOutcome::Skipped(why) = outcome { Some(why) } else { None };
        for (why, ids) in reasons(report, skipped) {
            let text = format!("skipped, {}: {}", one_line(why, SHOWN), in_groups(report, &ids));
            self.text.push_str(&wrap(&text, 0, WIDTH));
        }
        let apart = match self.report.isolation {
            Isolation::Full => return,
            Isolation::User => {
                "not root: played as root of a user namespace, in which no device can be mounted"
            }
            Isolation::None => {
                "not root, and there are no user namespaces: nothing was mounted; run it as root"
            }
        };
        self.line(apart);
    }

    /// Shows the failure of a case that was not requested, but on which others depend.
    fn stranger(&mut self, id: &str) {
        let of = |result: &&CaseResult| matches!(&result.outcome, CaseOutcome::Blocked(by) if by == id);
        if self.report.has_failed(id) {
            return;
        }
        let report = self.report;
        if let Some((result, evidence)) =
            report.results.iter().filter(of).find_map(|result| Some((result, result.evidence.first()?)))
        {
            for (name, text) in result.told(evidence).into_iter().filter(|(name, _)| *name != "because") {
                self.row(name, &text);
            }
        }
    }

    fn last_words(&mut self) {
        let report = self.report;
        let held = |level| report.count(Some(level), |outcome| *outcome == CaseOutcome::Passed);
        let count = |ended: fn(&CaseOutcome) -> bool| report.count(None, ended);
        let broken = count(|outcome| matches!(outcome, CaseOutcome::Broken(_)));
        self.line(&format!(
            "{} in {}; --seed {} replays exactly this",
            counted(report.calls(), "call"),
            duration(report.took),
            report.seed
        ));
        let mut line = format!(
            "{} must, {} should and {} harden cases hold, {} failed, {} not judged, {} skipped",
            held(Level::Must),
            held(Level::Should),
            held(Level::Harden),
            count(|outcome| *outcome == CaseOutcome::Failed),
            count(|outcome| matches!(outcome, CaseOutcome::Blocked(_))),
            count(|outcome| matches!(outcome, CaseOutcome::Skipped(_))),
        );
        if broken > 0 {
            let _ = write!(line, ", {broken} could not be played");
        }
        let tone = if report.exit_status() == 0 { Tone::Good } else { Tone::Bad };
        self.line(&(self.paint)(tone, &line));
    }

    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// Writes a row. Sent and received text is not wrapped, so that it can be copied.
    fn row(&mut self, name: &str, text: &str) {
        let margin = " ".repeat(MARGIN);
        let text = match name {
            "sent" | "got" => one_line(text, SHOWN) + "\n",
            _ => wrap(&one_line(text, usize::MAX), MARGIN + NAMES, WIDTH).trim_start().to_owned(),
        };
        let _ = write!(self.text, "{margin}{name:<NAMES$}{text}");
    }
}

/// Groups cases by the text that explains their outcome.
fn reasons<'a>(
    report: &'a Report,
    why: impl Fn(&'a CaseOutcome) -> Option<&'a String>,
) -> BTreeMap<&'a str, Vec<&'static str>> {
    let mut reasons: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for result in &report.results {
        if let Some(why) = why(&result.outcome) {
            reasons.entry(why).or_default().push(result.case.id);
        }
    }
    reasons
}

/// Returns ids, or `group::*` for a whole group.
fn in_groups(report: &Report, ids: &[&'static str]) -> String {
    let mut words = Vec::new();
    for group in report.groups() {
        let here: Vec<_> =
            group.results.iter().map(|result| result.case.id).filter(|id| ids.contains(id)).collect();
        if here.len() > 1 && here.len() == group.results.len() {
            words.push(format!("{}::*", group.name));
        } else {
            words.extend(here.iter().map(|id| (*id).to_owned()));
        }
    }
    words.join(", ")
}

/// Returns the first few ids, and the number of the others.
fn listed(ids: &[&str]) -> String {
    let shown = ids[..ids.len().min(IDS)].join(", ");
    if ids.len() > IDS { format!("{shown} and {} more", ids.len() - IDS) } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::made_up;
    use crate::wording::wording;

    fn page(report: &Report) -> String {
        rendered(report, &|_, text| text.to_owned())
    }

    #[test]
    fn a_page_says_what_failed_and_why_and_what_else_there_was() {
        let expected = r#"FAIL mount::works  must
  expected  a second mount of a mounted directory changes nothing
  seen      1 mounts became 2
  sent      mount '/var/lib/kubelet/a b' '{"k":"it'\''s <&>"}'
  got       {"status":"Success"}?[31m]]>
  kubelet   believes it
  because   kubelet repeats a mount whose answer it lost, and unmounts once
  fix       look first whether the directory is a mount point
  run       Kubernetes 1.37.2, truth: mount::works: Success without a mount is believed

FAIL output::message  should
  expected  a second mount of a mounted directory changes nothing
  seen      a # newline
  sent      mount '/var/lib/kubelet/a b' '{"k":"it'\''s <&>"}'
  got       {"status":"Success"}?[31m]]>
  kubelet   believes it
  because   kubelet repeats a mount whose answer it lost, and unmounts once
  fix       look first whether the directory is a mount point
  seen      empty
  fix       say "why"
  where     in 3 cases: mount::works, mount::odd, mount::daemon

BROKEN mount::odd  should
  expected  a second mount of a mounted directory changes nothing
  but       ended with signal 9: this says nothing of the driver; if it is so each time, please
            report it

GROUP         HOLD  FAILED  NOT JUDGED  SKIPPED      TIME
output           1       1           0        0
mount            0       2           1        1   12.0 ms

1 case not judged, because mount::works does not hold: mount::twice
skipped, no process serves a mount: mount::daemon
3 calls in 1.50 s; --seed 123 replays exactly this
1 must, 0 should and 0 harden cases hold, 2 failed, 1 not judged, 1 skipped, 1 could not be played
"#;
        assert_eq!(page(&made_up()), expected);
    }

    #[test]
    fn what_blocks_and_was_not_asked_for_is_shown() {
        let mut report = made_up();
        report.results.remove(2);
        let page = page(&report);
        let note = &[
            "because mount::works does not hold: mount::twice\n  seen      ",
            wording("check-needs-mount"),
            "\n",
        ]
        .concat();
        assert!(page.contains(note), "{page}");
    }

    #[test]
    fn what_a_whole_group_has_in_common_is_said_of_the_group() {
        let mut report = made_up();
        for result in &mut report.results[2..] {
            result.outcome = CaseOutcome::Skipped("needs a volume".to_owned());
        }
        let page = page(&report);
        assert!(page.contains("\nskipped, needs a volume: mount::*\n"), "{page}");
    }
}
