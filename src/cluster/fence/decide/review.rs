//! A look at all holders of a storage, for which no one waits.

use super::{Cause, Decision, Outcome, Reply, Task, Write, judge_there};
use crate::fence::evidence::Evidence;
use crate::fence::record::{Holder, Record};

/// Each holder is judged as if a pod of another node asked for the storage. Those that would have
/// to give way are removed at once: who asks next finds it free, and may know nothing of nodes.
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
