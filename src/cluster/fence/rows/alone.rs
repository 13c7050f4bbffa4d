//! Rows 1 to 13: mounts that request exclusive use.

use super::*;

#[test]
fn row_1_who_writes_gets_a_free_storage() {
    let me = holder("a", "1");
    for sharing in [Sharing::Exclusive, Sharing::ExclusivePerNode] {
        let request = Request::Mount { me: Box::new(me.clone()), sharing };
        let decision = decide(HANDLE, None, &request, &Evidence::default());
        let next = written(&decision);
        assert_eq!((decision.row, &decision.reply), (1, &Reply::Go { epoch: 0 }));
        assert_eq!((next.sharing, next.holders[0].phase), (sharing, Phase::Reserved));
        assert_eq!(next.holders[0].device, "");
    }
}

#[test]
fn row_1_an_epoch_that_has_risen_goes_on() {
    let mut free = record(Sharing::SharedReadOnly, &[]);
    free.epoch = 7;
    let decision = mount(&free, &holder("a", "1"), Sharing::Exclusive, &Evidence::default());
    let next = written(&decision);
    assert_eq!((next.epoch, next.holders[0].epoch, next.sharing), (7, 7, Sharing::Exclusive));
}

#[test]
fn row_2_who_shares_gets_a_free_storage() {
    for (me, sharing) in
        [(reader("a", "1"), Sharing::SharedReadOnly), (holder("a", "1"), Sharing::SharedReadWrite)]
    {
        let decision = mount(&Record::free(HANDLE), &me, sharing, &Evidence::default());
        assert_eq!((decision.row, written(&decision).sharing), (2, sharing));
    }
}

#[test]
fn row_3_the_same_mount_goes_again() {
    let mut mine = holder("a", "1");
    (mine.epoch, mine.since) = (4, "earlier".to_owned());
    let record = record(Sharing::Exclusive, std::slice::from_ref(&mine));
    // Written although it is the same: a process that is about to take it must read again.
    let same = mount(&record, &mine, Sharing::Exclusive, &Evidence::default());
    assert_eq!((same.row, &same.reply, written(&same)), (3, &Reply::Go { epoch: 4 }, &record));
    let me = Holder { agent: "agent-2".to_owned(), since: "now".to_owned(), epoch: 0, ..mine.clone() };
    let decision = mount(&record, &me, Sharing::Exclusive, &Evidence::default());
    let next = &written(&decision).holders;
    assert_eq!(
        (next.len(), &next[0].agent[..], &next[0].since[..], next[0].epoch),
        (1, "agent-2", "earlier", 4)
    );
    assert_eq!((next[0].phase, &next[0].device[..]), (Phase::Attached, "/dev/rbd0"));
}

#[test]
fn row_3_after_a_reboot_all_is_attached_again() {
    let mine = holder("a", "1");
    let record = record(Sharing::Exclusive, std::slice::from_ref(&mine));
    let mut me = mine;
    me.node.boot = "boot-2".to_owned();
    let decision = mount(&record, &me, Sharing::Exclusive, &Evidence::default());
    let next = &written(&decision).holders[0];
    assert_eq!((next.phase, &next.device[..], &next.node.boot[..]), (Phase::Reserved, "", "boot-2"));
}

#[test]
fn row_4_another_access_is_a_conflict_once_attached() {
    let record = record(Sharing::Exclusive, &[holder("a", "1")]);
    let decision = mount(&record, &reader("a", "1"), Sharing::Exclusive, &Evidence::default());
    refuses(&decision, 4, Reason::AccessDiffers);
}

#[test]
fn row_4_another_access_is_decided_anew_before() {
    let mine = Holder { phase: Phase::Reserved, ..reader("a", "1") };
    let alone = record(Sharing::SharedReadOnly, std::slice::from_ref(&mine));
    let decision = mount(&alone, &holder("a", "1"), Sharing::Exclusive, &Evidence::default());
    let next = written(&decision);
    assert_eq!((decision.row, next.holders.len(), next.holders[0].read_only), (4, 1, false));
    assert_eq!(next.sharing, Sharing::Exclusive);
    // It may not write beside another reader.
    let two = record(Sharing::SharedReadOnly, &[mine, reader("b", "2")]);
    let decision = mount(&two, &holder("a", "1"), Sharing::Exclusive, &Evidence::default());
    refuses(&decision, 16, Reason::NodeUnknown);
}

#[test]
fn row_5_a_pod_of_this_node_that_has_left_nothing_gives_way() {
    let record = record(Sharing::Exclusive, &[holder("a", "1")]);
    let evidence = seen(Sight { pod: PodState::Gone, usage: Usage::Unused, ..Sight::default() });
    let decision = mount(&record, &holder("a", "2"), Sharing::Exclusive, &evidence);
    takes(&decision, 5, &record);
    assert_eq!(tasks(&decision), []);
}

#[test]
fn row_6_a_pod_of_this_node_that_may_use_it_stays() {
    let record = record(Sharing::Exclusive, &[holder("a", "1")]);
    for (pod, usage) in [
        (PodState::Gone, Usage::InUse),
        (PodState::Gone, Usage::Unknown),
        (PodState::Terminating, Usage::Unused),
        (PodState::Present, Usage::Unused),
        (PodState::Unknown, Usage::Unused),
    ] {
        // The state of the node makes no difference: it is this node.
        for node in [NodeState::Unknown, NodeState::Alive, NodeState::OutOfService, NodeState::Rebooted] {
            let evidence = seen(Sight { node, pod, usage, fence: Fence::Fenced });
            let decision = mount(&record, &holder("a", "2"), Sharing::Exclusive, &evidence);
            refuses(&decision, 6, Reason::HeldHere);
        }
    }
}

/// Test 11.
#[test]
fn row_6_t11_one_node_s_pods_share_where_that_is_set() {
    let shared = record(Sharing::ExclusivePerNode, &[holder("a", "1")]);
    let decision = mount(&shared, &holder("a", "2"), Sharing::ExclusivePerNode, &Evidence::default());
    assert_eq!((decision.row, written(&decision).holders.len()), (6, 2));
    assert_eq!(decision.reply, Reply::Go { epoch: 0 });
    // Both pods must accept the sharing.
    let decision = mount(&shared, &holder("a", "2"), Sharing::Exclusive, &Evidence::default());
    refuses(&decision, 6, Reason::HeldHere);
    let alone = record(Sharing::Exclusive, &[holder("a", "1")]);
    let decision = mount(&alone, &holder("a", "2"), Sharing::ExclusivePerNode, &Evidence::default());
    refuses(&decision, 6, Reason::HeldHere);
    let decision = mount(&shared, &holder("b", "2"), Sharing::ExclusivePerNode, &Evidence::default());
    refuses(&decision, 12, Reason::NodeUnknown);
}

#[test]
fn row_6_one_pod_has_the_storage_at_two_of_its_directories() {
    let first = holder("a", "1");
    let record = record(Sharing::Exclusive, std::slice::from_ref(&first));
    let mut second = Holder { target: "/elsewhere".to_owned(), ..first };
    second.id = Holder::id_of(&second.node, &second.pod.uid, HANDLE, &second.target);
    let decision = mount(&record, &second, Sharing::Exclusive, &Evidence::default());
    assert_eq!((decision.row, written(&decision).holders.len()), (6, 2));
}

/// Test 13.
#[test]
fn row_7_t13_a_reboot_has_ended_what_its_pod_did() {
    for pod in [PodState::Gone, PodState::Terminating] {
        let (record, decision) = from_b(&known(NodeState::Rebooted, pod));
        takes(&decision, 7, &record);
        assert_eq!(tasks(&decision), []);
    }
}

/// Test 14.
#[test]
fn row_8_t14_a_node_out_of_service_is_fenced_and_then_gives_way() {
    let sight = |fence| Sight { node: NodeState::OutOfService, fence, ..Sight::default() };
    let (record, decision) = from_b(&seen(sight(Fence::NotTried)));
    assert_eq!((decision.row, &decision.write), (8, &Write::Nothing));
    assert_eq!(decision.reply, Reply::FenceFirst(vec![record.holders[0].id.clone()]));
    for fence in [Fence::Fenced, Fence::Unsupported] {
        let (record, decision) = from_b(&seen(sight(fence)));
        takes(&decision, 8, &record);
        assert_eq!(tasks(&decision), [Cause::NodeLost]);
        assert_eq!(decision.tasks[0].holder, record.holders[0]);
    }
    // A storage that could not be told may still accept the node's writes.
    refuses(&from_b(&seen(sight(Fence::Failed))).1, 8, Reason::NotFenced);
}

/// Tests 15 and 17: a recreated Node object is another node, and the old one is gone.
#[test]
fn row_9_t15_t17_a_node_gone_for_long_gives_way_once_it_is_fenced() {
    let sight = |node, fence| Sight { node, fence, ..Sight::default() };
    let shortly = NodeState::Gone(Duration::from_secs(299));
    refuses(&from_b(&seen(sight(shortly, Fence::Fenced))).1, 9, Reason::GoneShortly);
    let (record, decision) = from_b(&seen(sight(LONG, Fence::NotTried)));
    assert_eq!(decision.reply, Reply::FenceFirst(vec![record.holders[0].id.clone()]));
    let (record, decision) = from_b(&seen(sight(LONG, Fence::Fenced)));
    takes(&decision, 9, &record);
    assert_eq!(tasks(&decision), [Cause::NodeLost]);
    for fence in [Fence::Unsupported, Fence::Failed] {
        refuses(&from_b(&seen(sight(LONG, fence))).1, 9, Reason::NotFenced);
    }
}

#[test]
fn row_9_without_a_fence_only_if_an_administrator_allows_it() {
    let mut evidence = seen(Sight { node: LONG, fence: Fence::Unsupported, ..Sight::default() });
    evidence.rules.unfenced_break = true;
    let (record, decision) = from_b(&evidence);
    takes(&decision, 9, &record);
    // Even then, a fence that failed does not count.
    evidence.sights.values_mut().for_each(|sight| sight.fence = Fence::Failed);
    refuses(&from_b(&evidence).1, 9, Reason::NotFenced);
}

/// Test 12.
#[test]
fn row_10_t12_a_node_that_lives_is_asked_to_clean_up() {
    let (record, decision) = from_b(&known(NodeState::Alive, PodState::Gone));
    refuses(&decision, 10, Reason::CleaningUp);
    assert_eq!(tasks(&decision), [Cause::PodGone]);
    assert_eq!(decision.tasks[0].holder, record.holders[0]);
}

#[test]
fn row_11_a_pod_that_is_there_stays() {
    for (node, pod) in [
        (NodeState::Alive, PodState::Present),
        (NodeState::Alive, PodState::Terminating),
        (NodeState::Alive, PodState::Unknown),
        (NodeState::Rebooted, PodState::Present),
        (NodeState::Rebooted, PodState::Unknown),
    ] {
        refuses(&from_b(&known(node, pod)).1, 11, Reason::HeldElsewhere);
    }
}

/// Tests 16 and 18: the pod was deleted by force, and its node is cut off. This is how Rook's
/// volumes were damaged.
#[test]
fn row_12_t16_t18_a_node_that_is_silent_keeps_its_lock_whatever_becomes_of_the_pod() {
    for pod in [PodState::Gone, PodState::Terminating, PodState::Present, PodState::Unknown] {
        for fence in [Fence::NotTried, Fence::Fenced, Fence::Unsupported] {
            let sight = |node| seen(Sight { node, pod, fence, usage: Usage::Unused });
            refuses(&from_b(&sight(NodeState::Suspect)).1, 12, Reason::NodeSuspect);
            refuses(&from_b(&sight(NodeState::Unknown)).1, 12, Reason::NodeUnknown);
        }
    }
    refuses(&from_b(&Evidence::default()).1, 12, Reason::NodeUnknown);
}

/// A pod of a `StatefulSet` was recreated on another node.
#[test]
fn row_13_the_same_name_is_not_the_same_pod() {
    let record = record(Sharing::Exclusive, &[holder("a", "1")]);
    let mut me = holder("b", "2");
    me.pod.name = "pod-1".to_owned();
    for (node, pod, row) in [
        (NodeState::Rebooted, PodState::Gone, 7),
        (NodeState::OutOfService, PodState::Gone, 8),
        (LONG, PodState::Gone, 9),
        (NodeState::Alive, PodState::Gone, 10),
        (NodeState::Alive, PodState::Present, 11),
        (NodeState::Suspect, PodState::Gone, 12),
    ] {
        let evidence = known(node, pod);
        let (_, other) = from_b(&evidence);
        let decision = mount(&record, &me, Sharing::Exclusive, &evidence);
        assert_eq!((decision.row, &decision.tasks), (row, &other.tasks));
        assert_eq!(
            std::mem::discriminant(&decision.reply),
            std::mem::discriminant(&other.reply),
            "{node:?} {pod:?}"
        );
    }
}

#[test]
fn row_13_by_setting_the_same_name_takes_it_from_a_node_that_is_not_alive() {
    let record = record(Sharing::Exclusive, &[holder("a", "1")]);
    let mut me = holder("b", "2");
    let mut evidence =
        seen(Sight { node: NodeState::Suspect, fence: Fence::Unsupported, ..Sight::default() });
    evidence.rules.same_name_break = true;
    refuses(&mount(&record, &me, Sharing::Exclusive, &evidence), 12, Reason::NodeSuspect);
    me.pod.name = "pod-1".to_owned();
    takes(&mount(&record, &me, Sharing::Exclusive, &evidence), 13, &record);
    evidence.sights.values_mut().for_each(|sight| sight.node = NodeState::Alive);
    refuses(&mount(&record, &me, Sharing::Exclusive, &evidence), 11, Reason::HeldElsewhere);
}
