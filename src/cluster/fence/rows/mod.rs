//! Tests of the table of [`decide`](super::decide), row by row; this file has their helpers.

mod alone;
mod shared;

use super::decide::{Cause, Decision, Reason, Reply, Write, decide};
use super::evidence::{Evidence, Fence, NodeState, PodState, Sight, Usage};
use super::record::{HOLDERS, Holder, Phase, Record};
use super::request::{Left, Request};
use super::sharing::Sharing;
use std::time::Duration;

pub(super) use super::contract::{HANDLE, holder};
const LONG: NodeState = NodeState::Gone(Duration::from_secs(301));

pub(super) fn reader(node: &str, pod: &str) -> Holder {
    Holder { read_only: true, ..holder(node, pod) }
}

pub(super) fn record(sharing: Sharing, holders: &[Holder]) -> Record {
    Record { sharing, holders: holders.to_vec(), ..Record::free(HANDLE) }
}

pub(super) fn ask(record: &Record, request: &Request, evidence: &Evidence) -> Decision {
    decide(HANDLE, Some(record), request, evidence)
}

pub(super) fn mount(record: &Record, me: &Holder, sharing: Sharing, evidence: &Evidence) -> Decision {
    ask(record, &Request::Mount { me: Box::new(me.clone()), sharing }, evidence)
}

/// Returns this evidence about the other holder, pod 1 of node `a`.
pub(super) fn known(node: NodeState, pod: PodState) -> Evidence {
    seen(Sight { node, pod, ..Sight::default() })
}

pub(super) fn seen(sight: Sight) -> Evidence {
    Evidence { sights: [(holder("a", "1").id, sight)].into(), ..Evidence::default() }
}

pub(super) fn written(decision: &Decision) -> &Record {
    let Write::Put(record) = &decision.write else { panic!("{decision:?} writes no record") };
    record
}

pub(super) fn refused(decision: &Decision) -> Reason {
    let Reply::Refused(refusal) = &decision.reply else { panic!("{decision:?} is no refusal") };
    refusal.reason
}

pub(super) fn tasks(decision: &Decision) -> Vec<Cause> {
    decision.tasks.iter().map(|task| task.reason).collect()
}

/// Checks that the new pod is the only holder, under a higher epoch.
#[track_caller]
pub(super) fn takes(decision: &Decision, row: u8, of: &Record) {
    let next = written(decision);
    assert_eq!((decision.row, &decision.reply), (row, &Reply::Go { epoch: of.epoch + 1 }));
    assert_eq!((next.epoch, next.holders.len()), (of.epoch + 1, 1));
    assert_eq!((&next.holders[0].pod.uid[..], next.holders[0].epoch), ("2", of.epoch + 1));
}

#[track_caller]
pub(super) fn refuses(decision: &Decision, row: u8, reason: Reason) {
    assert_eq!((decision.row, refused(decision)), (row, reason));
    assert_eq!(decision.write, Write::Nothing);
}

/// Decides a mount for writing of a pod on node `b`, while pod 1 of node `a` is the only holder.
pub(super) fn from_b(evidence: &Evidence) -> (Record, Decision) {
    let record = record(Sharing::Exclusive, &[holder("a", "1")]);
    let decision = mount(&record, &holder("b", "2"), Sharing::Exclusive, evidence);
    (record, decision)
}
