//! What every answer must be, whatever the call: one JSON object that kubelet can read.

use crate::check::case::{Case, How, Level, Scope};
use crate::check::evidence::Evidence;
use crate::check::subject::Seen;
use crate::kubelet::{Fault, Verdict};
use crate::protocol::VerbSet;

pub(in crate::check) const CASES: &[Case] = &[Case {
    id: "output::one_object",
    level: Level::Must,
    scope: Scope::All,
    needs: VerbSet::of(&[]),
    items: &[1, 2, 3],
    claim: "every answer is one JSON object on standard output and error together, and nothing else",
    reason: "kubelet hands all of both outputs to one json.Unmarshal (driver-call.go: handleCmdResponse)",
    mend: "print one object with double quotes and nothing else; send messages to a log",
    how: How::Watched(one_object),
}];

fn one_object(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    seen.calls(|answer| match &answer.verdict {
        Verdict::Failure(Fault::Malformed(why)) => {
            Some(answer.evidence(format!("not one JSON object: {why}")))
        }
        _ => None,
    })
}
