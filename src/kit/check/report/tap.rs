//! Test Anything Protocol form of a report, version 14.

use super::{CaseOutcome, CaseResult, Report};
use std::fmt::Write as _;

impl Report {
    /// Returns one line for each case, and a YAML block for each that does not hold.
    /// A case that is blocked by one that failed here counts as skipped.
    pub fn to_tap(&self) -> String {
        let mut tap = format!(
            "TAP version 14\n1..{}\n# flexvol check {}, seed {}\n",
            self.results.len(),
            flexvol_protocol::text::one_line(&self.driver.to_string_lossy(), usize::MAX),
            self.seed
        );
        for (index, result) in self.results.iter().enumerate() {
            let (word, directive) = self.tap_verdict(result);
            let (number, case) = (index + 1, result.case);
            // Writing to a String cannot fail, here and below.
            let _ = writeln!(tap, "{word} {number} - {}: {}{directive}", case.id, escaped(case.claim));
            if word == "not ok" {
                block(result, &mut tap);
            }
        }
        tap
    }

    fn tap_verdict(&self, result: &CaseResult) -> (&'static str, String) {
        match &result.outcome {
            CaseOutcome::Passed => ("ok", String::new()),
            CaseOutcome::Blocked(by) if self.has_failed(by) => {
                ("ok", format!(" # SKIP not judged, because {by} does not hold"))
            }
            CaseOutcome::Skipped(why) => ("ok", format!(" # SKIP {}", escaped(why))),
            CaseOutcome::Failed | CaseOutcome::Blocked(_) | CaseOutcome::Broken(_) => {
                ("not ok", String::new())
            }
        }
    }
}

/// Writes the block of a case. JSON strings are valid YAML, whatever they hold.
fn block(result: &CaseResult, tap: &mut String) {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let _ = writeln!(tap, "  ---\n  level: {}", result.case.level);
    let mut pair = |key: &str, text: &str| {
        if !text.is_empty() {
            let _ = writeln!(tap, "  {key}: {}", quoted(text));
        }
    };
    let evidence = result.evidence.first().cloned().unwrap_or_default();
    match &result.outcome {
        CaseOutcome::Blocked(by) => pair("blocked", &format!("not judged, because {by} does not hold")),
        CaseOutcome::Broken(why) => pair("broken", why),
        _ => {}
    }
    pair("problem", &evidence.problem);
    pair("sent", &flexvol_protocol::shell::words(&evidence.sent));
    pair("came_back", &evidence.came_back);
    pair("kubelet", &evidence.kubelet);
    pair("because", result.case.reason);
    pair("fix", evidence.fix.as_deref().unwrap_or(result.case.fix));
    pair("seen_in", &result.seen_in.join(" "));
    tap.push_str("  ...\n");
}

/// Escapes a description, in which `#` would begin a directive.
fn escaped(text: &str) -> String {
    flexvol_protocol::text::one_line(text, usize::MAX).replace('\\', "\\\\").replace('#', "\\#")
}

#[cfg(test)]
mod tests {
    use super::super::tests::made_up;

    #[test]
    fn each_case_has_its_line_and_what_does_not_hold_its_block() {
        let tap = made_up().to_tap();
        let mut lines = tap.lines();
        assert_eq!(lines.next(), Some("TAP version 14"));
        assert_eq!(lines.next(), Some("1..6"));
        let tests: Vec<_> =
            tap.lines().filter(|line| line.starts_with("ok ") || line.starts_with("not ok ")).collect();
        let verdicts: Vec<_> =
            tests.iter().map(|line| line.split(" - ").next().unwrap_or_default()).collect();
        assert_eq!(verdicts, ["ok 1", "not ok 2", "not ok 3", "ok 4", "ok 5", "not ok 6"]);
        assert!(tests[3].ends_with(" # SKIP not judged, because mount::works does not hold"), "{tap}");
        assert_eq!(tap.matches("\n  ---\n").count(), 3);
        assert_eq!(tap.matches("\n  ...\n").count(), 3);
        assert!(tap.contains("  problem: \"a # newline\"\n"), "{tap}");
        assert!(tap.contains("  came_back: \"{\\\"status\\\":\\\"Success\\\"}\\u001b[31m]]>\"\n"), "{tap}");
        assert!(tap.contains("  broken: \"ended with signal 9\"\n"), "{tap}");
    }
}
