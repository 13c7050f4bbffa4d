//! JSON form of a report or of a case.

use super::{CaseOutcome, CaseResult, Report};
use crate::check::case::{Case, Level};
use crate::sandbox::Isolation;
use flexvol_protocol::Verb;
use serde_json::{Value, json};
use std::time::Duration;

impl Case {
    /// Returns everything that is data.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id, "level": self.level, "scope": self.scope, "items": self.items,
            "needs": self.needs.iter().map(Verb::name).collect::<Vec<_>>(),
            "claim": self.claim, "reason": self.reason, "run": self.run, "fix": self.fix,
        })
    }
}

impl CaseResult {
    fn to_json(&self) -> Value {
        let mut value = self.case.to_json();
        if let Some(object) = value.as_object_mut() {
            let (result, why) = word(&self.outcome);
            object.insert("result".to_owned(), result.into());
            object.insert("why".to_owned(), why.into());
            object.insert("evidence".to_owned(), json!(self.evidence));
            object.insert("seenIn".to_owned(), json!(self.seen_in));
            object.insert("seconds".to_owned(), seconds(self.took));
            object.insert("calls".to_owned(), self.calls.into());
        }
        value
    }
}

impl Report {
    /// Returns everything, for programs.
    pub fn to_json(&self) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "driver": self.driver,
            "seed": self.seed,
            "isolation": match self.isolation {
                Isolation::Full => "full",
                Isolation::User => "user",
                Isolation::None => "none",
            },
            "seconds": seconds(self.took),
            "exitStatus": self.exit_status(),
            "must": self.counts(Level::Must),
            "should": self.counts(Level::Should),
            "harden": self.counts(Level::Harden),
            "facts": self.facts,
            "cases": self.results.iter().map(CaseResult::to_json).collect::<Vec<_>>(),
        })
    }

    fn counts(&self, level: Level) -> Value {
        let count = |name: &str| self.count(Some(level), |outcome| word(outcome).0 == name);
        let names = ["passed", "failed", "blocked", "skipped", "broken"];
        Value::Object(names.iter().map(|name| ((*name).to_owned(), count(name).into())).collect())
    }
}

fn word(outcome: &CaseOutcome) -> (&'static str, Option<&str>) {
    match outcome {
        CaseOutcome::Passed => ("passed", None),
        CaseOutcome::Failed => ("failed", None),
        CaseOutcome::Blocked(why) => ("blocked", Some(why)),
        CaseOutcome::Skipped(why) => ("skipped", Some(why)),
        CaseOutcome::Broken(why) => ("broken", Some(why)),
    }
}

fn seconds(time: Duration) -> Value {
    json!(time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::super::tests::made_up;
    use serde_json::json;

    #[test]
    fn everything_is_in_it() {
        let report = made_up().to_json();
        assert_eq!((&report["seed"], &report["exitStatus"]), (&json!(123), &json!(1)));
        assert_eq!(report["should"], json!({"passed":0,"failed":1,"blocked":0,"skipped":1,"broken":1}));
        let twice = &report["cases"][3];
        assert_eq!((&twice["result"], &twice["why"]), (&json!("blocked"), &json!("mount::works")));
        assert_eq!(report["cases"][1]["seenIn"][1], "mount::odd");
        assert_eq!(report["cases"][2]["evidence"][0]["sent"][0], "mount");
        assert_eq!(report["cases"][2]["items"], json!([62, 63]));
    }
}
