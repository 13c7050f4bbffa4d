//! Review of all holders of a storage. No caller waits for it.

use super::{Cause, Decision, Outcome, Reply, Task, Write, judge_there};
use crate::fence::evidence::Evidence;
use crate::fence::record::{Holder, Record};

/// Judges each holder as if a pod of another node requested the storage, and removes those that
/// give way. The next caller finds it free, and needs no evidence about nodes.
pub(super) fn review(record: &Record, evidence: &Evidence) -> Decision {
    let (mut stay, mut unfenced, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
    for holder in &record.holders {
        let (cause, stays) = match judge_there(evidence.of(holder), evidence).1 {
            Outcome::Remove(cause) => (cause, false),
            Outcome::Stay(_, cause) => (cause, true),
            Outcome::Fence => {
                unfenced.push(holder.id.clone());
                (None, true)
            }
        };
        tasks.extend(cause.map(|reason| Task { holder: Holder::clone(holder), reason }));
        if stays && evidence.forced {
            tasks.push(Task { holder: Holder::clone(holder), reason: Cause::Forced });
        }
        stay.extend(stays.then(|| holder.clone()));
    }
    if !unfenced.is_empty() {
        return Decision::new(31, Write::Nothing, Reply::FenceFirst(unfenced));
    }
    let write = if stay.len() == record.holders.len() {
        Write::Nothing
    } else {
        Write::Put(Record { epoch: record.epoch + 1, holders: stay, ..record.clone() })
    };
    Decision { tasks, ..Decision::new(31, write, Reply::Done) }
}
