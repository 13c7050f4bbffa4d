//! Properties of [`decide`](super::decide) that hold for every request.

use super::decide::{Decision, Reply, Write, decide};
use super::evidence::{Evidence, Fence, NodeState, PodState, Rules, Sight, Usage};
use super::record::{Holder, Phase, Record};
use super::request::{Left, Request};
use super::rows::{HANDLE, holder, record};
use super::sharing::Sharing;
use proptest::prelude::*;
use proptest::sample::select;
use std::collections::BTreeSet;
use std::time::Duration;

const SHARINGS: [Sharing; 4] =
    [Sharing::Exclusive, Sharing::ExclusivePerNode, Sharing::SharedReadOnly, Sharing::SharedReadWrite];

fn holders() -> impl Strategy<Value = Holder> {
    let phases = [Phase::Reserved, Phase::Attached, Phase::Releasing];
    let of = (select(&["a", "b", "c"][..]), select(&["1", "2", "3", "4"][..]), any::<bool>());
    (of, select(phases.to_vec()), 0..3_u64).prop_map(|((node, pod, read_only), phase, epoch)| Holder {
        read_only,
        phase,
        epoch,
        ..holder(node, pod)
    })
}

/// Generates records, also some that no decision has made: other versions share the store.
fn records() -> impl Strategy<Value = Record> {
    let all = proptest::collection::vec(holders(), 0..5);
    (select(&SHARINGS[..]), all, 2..5_u64).prop_map(|(sharing, mut all, epoch)| {
        let mut ids = BTreeSet::new();
        all.retain(|holder| ids.insert(holder.id.clone()));
        Record { epoch, ..record(sharing, &all) }
    })
}

fn requests() -> impl Strategy<Value = Request> {
    let lefts = [Left::Nothing, Left::Attached, Left::Mounted];
    (0..8, holders(), select(&SHARINGS[..]), select(lefts.to_vec())).prop_map(|(kind, me, sharing, left)| {
        let (id, epoch) = (me.id.clone(), me.epoch);
        match kind {
            0 | 1 => Request::Mount { me: Box::new(me), sharing },
            2 => Request::Attached { id, epoch, device: "/dev/rbd9".to_owned() },
            3 => Request::BeginUnmount { id },
            4 => Request::EndUnmount { id, left },
            5 => Request::CleanUp { id, epoch, left },
            6 => Request::Review,
            _ => Request::Return { id, epoch, agent: "agent-2".to_owned() },
        }
    })
}

fn sights() -> impl Strategy<Value = Sight> {
    let gone = |seconds| NodeState::Gone(Duration::from_secs(seconds));
    let nodes = [
        NodeState::Unknown,
        NodeState::Alive,
        NodeState::Suspect,
        NodeState::Rebooted,
        NodeState::OutOfService,
        gone(1),
        gone(400),
    ];
    let pods = [PodState::Unknown, PodState::Present, PodState::Terminating, PodState::Gone];
    let usages = [Usage::Unknown, Usage::InUse, Usage::Unused];
    let fences = [Fence::NotTried, Fence::Fenced, Fence::Unsupported, Fence::Failed];
    (select(nodes.to_vec()), select(pods.to_vec()), select(usages.to_vec()), select(fences.to_vec()))
        .prop_map(|(node, pod, usage, fence)| Sight { node, pod, usage, fence })
}

/// Generates records and requests with evidence about every holder, under an administrator's rules.
fn scenes() -> impl Strategy<Value = (Record, Request, Evidence)> {
    let rules = (any::<bool>(), any::<bool>()).prop_map(|(unfenced_break, same_name_break)| Rules {
        unfenced_break,
        same_name_break,
        ..Rules::default()
    });
    let seen = proptest::collection::vec(sights(), 5);
    (records(), requests(), seen, rules, any::<bool>()).prop_map(
        |(record, request, seen, rules, draining)| {
            let sights = record.holders.iter().map(|holder| holder.id.clone()).zip(seen).collect();
            (record, request, Evidence { sights, rules, draining, forced: draining })
        },
    )
}

/// Returns the record after the decision.
fn after(record: &Record, decision: &Decision) -> Record {
    match &decision.write {
        Write::Nothing => record.clone(),
        Write::Put(next) => next.clone(),
        Write::Delete => Record::free(HANDLE),
    }
}

/// Returns the holder that makes the request; `None` if no holder does.
fn asking(request: &Request) -> Option<&str> {
    match request {
        Request::Mount { me, .. } => Some(&me.id),
        Request::Attached { id, .. }
        | Request::BeginUnmount { id }
        | Request::EndUnmount { id, .. }
        | Request::CleanUp { id, .. }
        | Request::Return { id, .. } => Some(id),
        Request::Review | Request::Delete => None,
    }
}

fn missing<'a>(before: &'a Record, after: &'a Record) -> impl Iterator<Item = &'a Holder> {
    before.holders.iter().filter(|holder| after.holder(&holder.id).is_none())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn epochs_never_fall((record, request, evidence) in scenes()) {
        let decision = decide(HANDLE, Some(&record), &request, &evidence);
        prop_assert!(after(&record, &decision).epoch >= record.epoch, "{decision:?}");
    }

    #[test]
    fn a_holder_is_removed_by_itself_or_under_a_higher_epoch((record, request, evidence) in scenes()) {
        let decision = decide(HANDLE, Some(&record), &request, &evidence);
        let next = after(&record, &decision);
        for lost in missing(&record, &next) {
            let own = asking(&request) == Some(&lost.id);
            prop_assert!(own || next.epoch == record.epoch + 1, "{} by {decision:?}", lost.id);
        }
    }

    /// A silent or unknown node keeps its lock, unless the setting allows otherwise.
    #[test]
    fn a_node_that_may_write_loses_nothing((record, request, evidence) in scenes()) {
        let Request::Mount { me, .. } = &request else { return Ok(()) };
        let decision = decide(HANDLE, Some(&record), &request, &evidence);
        for lost in missing(&record, &after(&record, &decision)).filter(|lost| lost.id != me.id) {
            let sight = evidence.of(lost);
            let here = lost.node.is_same(&me.node);
            let off = matches!(sight.node, NodeState::Rebooted | NodeState::OutOfService | NodeState::Gone(_));
            let by_name = evidence.rules.same_name_break && lost.pod.name == me.pod.name;
            let unused = sight.usage == Usage::Unused && sight.pod == PodState::Gone;
            prop_assert!(if here { unused } else { off || by_name }, "{lost:?} {sight:?}");
        }
    }

    #[test]
    fn who_may_go_is_a_holder_under_the_epoch_it_is_told((record, request, evidence) in scenes()) {
        let Request::Mount { me, sharing } = &request else { return Ok(()) };
        let decision = decide(HANDLE, Some(&record), &request, &evidence);
        let next = after(&record, &decision);
        if let Reply::Go { epoch } = decision.reply {
            let mine = next.holder(&me.id).map(|mine| (mine.epoch, mine.read_only));
            prop_assert_eq!(mine, Some((epoch, me.read_only)));
            // A new pod that requests exclusive use is the only one.
            let others = next.holders.iter().filter(|other| other.pod.uid != me.pod.uid).count();
            let joined = record.holder(&me.id).is_none() && *sharing == Sharing::Exclusive && !me.read_only;
            prop_assert!(!joined || others == 0, "{next:?}");
        } else {
            prop_assert!(next.holder(&me.id).is_some() == record.holder(&me.id).is_some());
        }
    }

    #[test]
    fn what_was_decided_is_decided_again((record, request, evidence) in scenes()) {
        let decision = decide(HANDLE, Some(&record), &request, &evidence);
        let next = after(&record, &decision);
        // The reply was lost, and the same request is made again.
        let again = decide(HANDLE, Some(&next), &request, &evidence);
        prop_assert_eq!(after(&next, &again), next);
        let gone = |reply: &Reply| matches!(reply, Reply::Go { .. });
        prop_assert_eq!(gone(&decision.reply), gone(&again.reply));
    }

    #[test]
    fn what_is_attached_is_released_by_no_one_who_is_last((record, request, evidence) in scenes()) {
        let (Request::EndUnmount { id, left } | Request::CleanUp { id, left, .. }) = &request else {
            return Ok(());
        };
        let decision = decide(HANDLE, Some(&record), &request, &evidence);
        let next = after(&record, &decision);
        let Some(mine) = missing(&record, &next).find(|lost| lost.id == *id) else {
            return Ok(());
        };
        let others = record.holders.iter().any(|it| it.id != *id && it.node.is_same(&mine.node));
        prop_assert!(*left == Left::Nothing || others && *left == Left::Attached);
    }
}
