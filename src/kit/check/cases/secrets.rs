//! Secrets of a volume: for the driver only, and for no one else on the node or in the cluster.

mod traces;
mod values;

use crate::check::case::{How, Scene, Seen};
use crate::check::evidence::Evidence;
use crate::check::hunt::Hunt;

pub(in crate::check) const SCENES: &[Scene] = &[
    ("secrets::binary", How::Played(values::binary)),
    ("secrets::bad_base64", How::Played(values::bad_base64)),
    ("secrets::missing", How::Played(values::missing)),
    ("secrets::output", How::Watched(output)),
    ("secrets::malformed_options", How::Played(values::malformed_options)),
    ("secrets::arguments", How::Played(traces::arguments)),
    ("secrets::environment", How::Played(traces::environment)),
    ("secrets::mount_table", How::Played(traces::mount_table)),
    ("secrets::files", How::Played(traces::files)),
    ("secrets::logs", How::Played(traces::logs)),
    ("secrets::daemon", How::Played(traces::daemon)),
];

fn output(seen: &Seen<'_>) -> Option<Vec<Evidence>> {
    let hunt = Hunt::of_answers(seen.answers);
    if hunt.is_vain() {
        return None;
    }
    let leak = |answer: &crate::check::answer::Answer| {
        let what = hunt.found(&answer.run.output)?;
        Some(hunt.masked(answer.evidence(format!("the output holds {what}"))))
    };
    Some(seen.answers.iter().filter_map(leak).collect())
}
