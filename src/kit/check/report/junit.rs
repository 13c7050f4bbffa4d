//! XML form of a report, as build servers read it.

use super::{CaseOutcome, CaseResult, Group, Report};
use flexvol_protocol::text::seconds;
use std::fmt::Write as _;

/// Content of a test case.
struct Verdict {
    element: &'static str,
    kind: String,
    message: String,
}

impl Report {
    /// Returns one test suite for each group. A case that is blocked by one that failed here counts
    /// as skipped, so that the failure is reported once. `JUnit` has no levels: a should that does
    /// not hold is a failure too, with its level as the type.
    pub fn to_junit(&self) -> String {
        let mut xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned();
        let verdicts: Vec<_> = self.results.iter().map(|result| self.verdict(result)).collect();
        let counts = counts(&verdicts);
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(
            xml,
            "<testsuites name=\"flexvol check {}\" {counts} time=\"{}\">",
            escaped(&self.driver.to_string_lossy()),
            seconds(self.took, 3)
        );
        for group in self.groups() {
            self.suite(&group, &mut xml);
        }
        xml.push_str("</testsuites>\n");
        xml
    }

    fn suite(&self, group: &Group<'_>, xml: &mut String) {
        let verdicts: Vec<_> = group.results.iter().map(|result| self.verdict(result)).collect();
        let counts = counts(&verdicts);
        let _ = writeln!(
            xml,
            "  <testsuite name=\"{}\" {counts} time=\"{}\">",
            group.name,
            seconds(group.took(), 3)
        );
        let _ =
            writeln!(xml, "    <properties><property name=\"seed\" value=\"{}\"/></properties>", self.seed);
        for (result, verdict) in group.results.iter().zip(verdicts) {
            test_case(result, verdict, xml);
        }
        xml.push_str("  </testsuite>\n");
    }

    /// Returns the verdict on a case; `None` if it holds.
    fn verdict(&self, result: &CaseResult) -> Option<Verdict> {
        let (element, kind, message) = match &result.outcome {
            CaseOutcome::Passed => return None,
            CaseOutcome::Failed => {
                let problem = result.evidence.first().map_or(result.case.claim, |each| &each.problem);
                ("failure", result.case.level.to_string(), problem.to_owned())
            }
            CaseOutcome::Blocked(by) => {
                let element = if self.has_failed(by) { "skipped" } else { "error" };
                (element, "blocked".to_owned(), format!("not judged, because {by} does not hold"))
            }
            CaseOutcome::Skipped(why) => ("skipped", "skipped".to_owned(), why.clone()),
            CaseOutcome::Broken(why) => ("error", "broken".to_owned(), why.clone()),
        };
        Some(Verdict { element, kind, message })
    }
}

fn test_case(result: &CaseResult, verdict: Option<Verdict>, xml: &mut String) {
    let (group, time) = (result.case.group(), seconds(result.took, 3));
    let name = result.case.id.split_once("::").map_or(result.case.id, |(_, name)| name);
    let _ = write!(xml, "    <testcase classname=\"{group}\" name=\"{name}\" time=\"{time}\"");
    let Some(Verdict { element, kind, message }) = verdict else {
        xml.push_str("/>\n");
        return;
    };
    let (kind, message, text) = (escaped(&kind), escaped(&message), escaped(&text(result)));
    let _ = write!(xml, ">\n      <{element} type=\"{kind}\" message=\"{message}\">{text}</{element}>\n");
    xml.push_str("    </testcase>\n");
}

fn counts(verdicts: &[Option<Verdict>]) -> String {
    let count = |element| verdicts.iter().flatten().filter(|verdict| verdict.element == element).count();
    format!(
        "tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\"",
        verdicts.len(),
        count("failure"),
        count("error"),
        count("skipped")
    )
}

/// Describes all that is known, one line each.
fn text(result: &CaseResult) -> String {
    let mut lines = format!("\n{}\n", result.case.claim);
    for evidence in result.telling() {
        for (name, text) in result.told(evidence) {
            let _ = writeln!(lines, "{name}: {text}");
        }
    }
    if !result.seen_in.is_empty() {
        let _ = writeln!(lines, "seen in: {}", result.seen_in.join(", "));
    }
    lines
}

/// Escapes text for an element or an attribute. Omits what XML cannot hold in any form.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            '\u{fffe}' | '\u{ffff}' => {}
            c if c.is_control() => {}
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::super::tests::made_up;
    use super::*;

    #[test]
    fn each_case_is_told_as_build_servers_expect_it() {
        let xml = made_up().to_junit();
        let head = "<testsuites name=\"flexvol check /plugins/example.com~nfs/nfs\" \
                    tests=\"6\" failures=\"2\" errors=\"1\" skipped=\"2\" time=\"1.500\">";
        assert!(xml.contains(head), "{xml}");
        assert!(xml.contains("<testcase classname=\"output\" name=\"one_object\" time=\"0.000\"/>"), "{xml}");
        assert!(xml.contains("<failure type=\"must\" message=\"1 mounts became 2\">"), "{xml}");
        assert!(xml.contains(
            "<skipped type=\"blocked\" message=\"not judged, because mount::works does not hold\">"
        ));
        assert!(xml.contains("<error type=\"broken\" message=\"ended with signal 9\">"), "{xml}");
        assert!(xml.contains("seen in: mount::works, mount::odd, mount::daemon"), "{xml}");
    }

    #[test]
    fn nothing_of_a_driver_breaks_the_document() {
        let xml = made_up().to_junit();
        assert!(xml.contains("it'\\''s &lt;&amp;&gt;"), "{xml}");
        assert!(xml.contains("[31m]]&gt;") && !xml.contains('\u{1b}'), "{xml}");
        assert_eq!(escaped("\u{0}a\u{85}\u{ffff}é\u{10ffff}"), "aé\u{10ffff}");
    }

    #[test]
    fn what_was_blocked_by_a_stranger_is_an_error() {
        let mut report = made_up();
        report.results.remove(2);
        assert!(report.to_junit().contains("<error type=\"blocked\""), "{}", report.to_junit());
    }
}
