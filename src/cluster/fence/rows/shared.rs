//! Rows 14 to 31: shared storage, and all requests except mounts.

use super::*;

/// Test 5.
#[test]
fn row_14_t5_readers_join_readers() {
    let mut now = Record::free(HANDLE);
    for node in ["a", "b", "c"] {
        let me = reader(node, node);
        let decision = mount(&now, &me, Sharing::SharedReadOnly, &Evidence::default());
        assert_eq!(decision.reply, Reply::Go { epoch: 0 });
        assert_eq!(decision.row, if node == "a" { 2 } else { 14 });
        now = written(&decision).clone();
    }
    assert_eq!((now.holders.len(), now.sharing), (3, Sharing::SharedReadOnly));
}

#[test]
fn row_15_a_writer_comes_when_every_reader_can_be_removed() {
    let record = record(Sharing::SharedReadOnly, &[reader("a", "1"), reader("c", "3")]);
    let mut evidence = known(NodeState::Rebooted, PodState::Gone);
    let sight = Sight { node: NodeState::OutOfService, fence: Fence::Unsupported, ..Sight::default() };
    evidence.sights.insert(reader("c", "3").id, sight);
    let decision = mount(&record, &holder("b", "2"), Sharing::Exclusive, &evidence);
    takes(&decision, 15, &record);
    assert_eq!((written(&decision).sharing, tasks(&decision)), (Sharing::Exclusive, vec![Cause::NodeLost]));
}

/// Test 6.
#[test]
fn row_16_t6_one_reader_that_stays_keeps_the_writer_out() {
    let record = record(Sharing::SharedReadOnly, &[reader("a", "1"), reader("c", "3"), reader("d", "4")]);
    let mut evidence = known(NodeState::OutOfService, PodState::Gone);
    let alive = |pod| Sight { node: NodeState::Alive, pod, ..Sight::default() };
    evidence.sights.insert(reader("c", "3").id, alive(PodState::Present));
    evidence.sights.insert(reader("d", "4").id, alive(PodState::Gone));
    let decision = mount(&record, &holder("b", "2"), Sharing::Exclusive, &evidence);
    // No node is fenced without need, and possible cleanups are requested.
    refuses(&decision, 16, Reason::HeldElsewhere);
    assert_eq!(tasks(&decision), [Cause::PodGone]);
    // A shared writer counts as a writer.
    let decision = mount(&record, &holder("b", "2"), Sharing::SharedReadWrite, &evidence);
    refuses(&decision, 16, Reason::HeldElsewhere);
}

/// Test 7.
#[test]
fn row_17_t7_a_reader_beside_a_writer_is_refused_as_a_writer_is() {
    let record = record(Sharing::Exclusive, &[holder("a", "1")]);
    for (node, pod) in [
        (NodeState::Rebooted, PodState::Gone),
        (NodeState::Alive, PodState::Gone),
        (NodeState::Alive, PodState::Present),
        (NodeState::Suspect, PodState::Gone),
        (LONG, PodState::Gone),
    ] {
        let evidence = known(node, pod);
        let (_, writer) = from_b(&evidence);
        let decision = mount(&record, &reader("b", "2"), Sharing::SharedReadOnly, &evidence);
        assert_eq!((decision.row, &decision.tasks), (writer.row, &writer.tasks));
        assert_eq!(std::mem::discriminant(&decision.reply), std::mem::discriminant(&writer.reply));
    }
}

/// Test 9.
#[test]
fn row_18_t9_shared_writers_join_and_leave() {
    let mut now = Record::free(HANDLE);
    let pods = [holder("a", "1"), holder("b", "2"), reader("b", "3")];
    for me in &pods {
        let decision = mount(&now, me, Sharing::SharedReadWrite, &Evidence::default());
        assert_eq!(decision.row, if now.holders.is_empty() { 2 } else { 18 });
        now = written(&decision).clone();
    }
    // A pod that requests exclusive use is refused.
    let alone = mount(&now, &holder("c", "4"), Sharing::Exclusive, &Evidence::default());
    refuses(&alone, 12, Reason::NodeUnknown);
    for me in &pods {
        let request = Request::EndUnmount { id: me.id.clone(), left: Left::Nothing };
        match ask(&now, &request, &Evidence::default()).write {
            Write::Put(next) => now = next,
            write => assert_eq!((write, now.holders.len()), (Write::Delete, 1)),
        }
    }
}

/// Test 55.
#[test]
fn t55_256_pods_and_no_more() {
    let readers: Vec<_> = (0..HOLDERS).map(|pod| reader("a", &pod.to_string())).collect();
    let full = record(Sharing::SharedReadOnly, &readers);
    let decision = mount(&full, &reader("a", "one more"), Sharing::SharedReadOnly, &Evidence::default());
    refuses(&decision, 14, Reason::TooMany);
    let again = mount(&full, &readers[3], Sharing::SharedReadOnly, &Evidence::default());
    assert_eq!(again.reply, Reply::Go { epoch: 0 });
}

fn attached(record: &Record, epoch: u64) -> Decision {
    let id = holder("a", "1").id;
    let request = Request::Attached { id, epoch, device: "/dev/rbd7".to_owned() };
    ask(record, &request, &Evidence::default())
}

#[test]
fn row_19_what_is_attached_is_noted() {
    let reserved = Holder { phase: Phase::Reserved, epoch: 3, ..holder("a", "1") };
    let decision = attached(&record(Sharing::Exclusive, &[reserved]), 3);
    let next = written(&decision).clone();
    assert_eq!((decision.row, &decision.reply), (19, &Reply::Done));
    assert_eq!((next.holders[0].phase, &next.holders[0].device[..]), (Phase::Attached, "/dev/rbd7"));
    assert_eq!(attached(&next, 3).write, Write::Nothing);
}

#[test]
fn row_20_what_was_attached_too_late_is_undone() {
    let other = record(Sharing::Exclusive, &[holder("b", "2")]);
    let newer = record(Sharing::Exclusive, &[Holder { epoch: 4, ..holder("a", "1") }]);
    for record in [Record::free(HANDLE), other, newer] {
        let decision = attached(&record, 3);
        assert_eq!((decision.row, decision.write, decision.reply), (20, Write::Nothing, Reply::Undo));
    }
}

#[test]
fn row_21_an_unmount_begins() {
    let record = record(Sharing::SharedReadOnly, &[reader("a", "1"), reader("a", "2"), reader("b", "3")]);
    for (id, last) in [(reader("a", "1").id, false), (reader("b", "3").id, true)] {
        let decision = ask(&record, &Request::BeginUnmount { id: id.clone() }, &Evidence::default());
        assert_eq!((decision.row, &decision.reply), (21, &Reply::Unmount { known: true, last }));
        assert_eq!(written(&decision).holder(&id).unwrap().phase, Phase::Releasing);
    }
}

fn ended(record: &Record, pod: &Holder, left: Left) -> Decision {
    ask(record, &Request::EndUnmount { id: pod.id.clone(), left }, &Evidence::default())
}

/// Test 21: Rook counted one holder on this node instead of two, and detached a device in use.
#[test]
fn row_22_t21_another_pod_of_the_node_keeps_the_device() {
    let pods = [reader("a", "1"), reader("a", "2"), reader("b", "3")];
    let record = record(Sharing::SharedReadOnly, &pods);
    let begun = ask(&record, &Request::BeginUnmount { id: pods[0].id.clone() }, &Evidence::default());
    assert_eq!(begun.reply, Reply::Unmount { known: true, last: false });
    // The device is still attached, for the other pod.
    let decision = ended(&record, &pods[0], Left::Attached);
    assert_eq!((decision.row, &decision.reply), (22, &Reply::Done));
    assert_eq!(written(&decision).holders, &pods[1..]);
    assert_eq!(ended(written(&decision), &pods[1], Left::Attached).row, 24);
}

#[test]
fn row_23_the_last_one_releases_after_the_detach() {
    let mine = holder("a", "1");
    let mut record = record(Sharing::Exclusive, std::slice::from_ref(&mine));
    let decision = ended(&record, &mine, Left::Nothing);
    assert_eq!((decision.row, decision.write, decision.reply), (23, Write::Delete, Reply::Done));
    // An epoch that has risen is kept after the last holder.
    record.epoch = 1;
    let decision = ended(&record, &mine, Left::Nothing);
    let next = written(&decision);
    assert_eq!((next.epoch, next.holders.len()), (1, 0));
}

#[test]
fn row_24_what_is_still_attached_is_not_released() {
    let mine = holder("a", "1");
    let record = record(Sharing::Exclusive, &[mine.clone(), holder("b", "2")]);
    let decision = ended(&record, &mine, Left::Attached);
    assert_eq!(
        (decision.row, &decision.reply, tasks(&decision)),
        (24, &Reply::Later, vec![Cause::StillAttached])
    );
    assert_eq!(written(&decision).holder(&mine.id).unwrap().phase, Phase::Releasing);
    let decision = ended(&record, &mine, Left::Mounted);
    assert_eq!((decision.row, refused(&decision)), (24, Reason::StillMounted));
    assert_eq!(written(&decision).holder(&mine.id).unwrap().phase, Phase::Releasing);
}

fn clean_up(record: &Record, epoch: u64, left: Left, pod: PodState) -> Decision {
    let request = Request::CleanUp { id: holder("a", "1").id, epoch, left };
    ask(record, &request, &known(NodeState::Alive, pod))
}

/// Test 50.
#[test]
fn row_25_t50_a_holder_that_lives_is_left_alone() {
    let record = record(Sharing::Exclusive, &[holder("a", "1")]);
    let decision = clean_up(&record, 0, Left::Mounted, PodState::Present);
    assert_eq!((decision.row, decision.write, decision.reply), (25, Write::Nothing, Reply::Obsolete));
    // The storage was taken again after the task was written.
    let mut record = record;
    record.holders[0].epoch = 1;
    let decision = clean_up(&record, 0, Left::Nothing, PodState::Gone);
    assert_eq!((decision.row, decision.reply), (25, Reply::Obsolete));
}

/// Test 50.
#[test]
fn row_26_t50_a_holder_that_is_gone_is_removed_once_nothing_is_left() {
    let held = record(Sharing::Exclusive, &[holder("a", "1")]);
    for left in [Left::Attached, Left::Mounted] {
        let decision = clean_up(&held, 0, left, PodState::Gone);
        assert_eq!((decision.row, decision.write, decision.reply), (26, Write::Nothing, Reply::Undo));
    }
    let decision = clean_up(&held, 0, Left::Nothing, PodState::Gone);
    assert_eq!((decision.row, decision.write, decision.reply), (26, Write::Delete, Reply::Done));
    for pod in [PodState::Terminating, PodState::Unknown] {
        let decision = clean_up(&held, 0, Left::Nothing, pod);
        assert_eq!((decision.row, decision.write, decision.reply), (26, Write::Nothing, Reply::Later));
    }
    // Another node has the storage: only this node's own mounts are cleaned up.
    let taken = record(Sharing::Exclusive, &[holder("b", "2")]);
    assert_eq!(clean_up(&taken, 0, Left::Attached, PodState::Gone).reply, Reply::Undo);
    let decision = clean_up(&taken, 0, Left::Nothing, PodState::Gone);
    assert_eq!((decision.write, decision.reply), (Write::Nothing, Reply::Done));
}

/// Test 19.
#[test]
fn row_27_t19_who_returns_under_an_older_epoch_undoes_its_volumes() {
    let came_back = |record: &Record| {
        let (id, agent) = (holder("a", "1").id, "agent-2".to_owned());
        let decision =
            ask(record, &Request::Return { id: id.clone(), epoch: 0, agent }, &Evidence::default());
        // A kept hold is written, so that a process that is about to take it must read again.
        let kept = decision.reply == Reply::Keep;
        let agent = |next: &Record| next.holder(&id).map(|mine| mine.agent.clone());
        let written = if let Write::Put(next) = &decision.write { agent(next) } else { None };
        assert_eq!((decision.row, written.as_deref()), (27, kept.then_some("agent-2")));
        decision.reply
    };
    let mine = record(Sharing::Exclusive, &[holder("a", "1")]);
    assert_eq!(came_back(&mine), Reply::Keep);
    // Another node has taken and released it, or still has it, or this pod has a newer hold.
    let mut free = Record::free(HANDLE);
    free.epoch = 1;
    let taken = Record { epoch: 1, ..record(Sharing::Exclusive, &[holder("b", "2")]) };
    let anew = record(Sharing::Exclusive, &[Holder { epoch: 1, ..holder("a", "1") }]);
    for record in [free, taken, anew] {
        assert_eq!(came_back(&record), Reply::Undo);
    }
    // Another reader was removed, but this one is still a holder.
    let mut among = record(Sharing::SharedReadOnly, &[reader("a", "1")]);
    among.epoch = 5;
    assert_eq!(came_back(&among), Reply::Keep);
}

#[test]
fn row_28_a_lock_is_not_deleted() {
    let held = record(Sharing::Exclusive, &[holder("a", "1")]);
    refuses(&ask(&held, &Request::Delete, &Evidence::default()), 28, Reason::Held);
    let decision = ask(&Record::free(HANDLE), &Request::Delete, &Evidence::default());
    assert_eq!((decision.row, decision.write), (28, Write::Delete));
}

#[test]
fn row_29_nothing_new_is_mounted_while_draining_and_what_is_is_released() {
    let evidence = Evidence { draining: true, ..Evidence::default() };
    let mine = holder("a", "1");
    for held in [Record::free(HANDLE), record(Sharing::Exclusive, std::slice::from_ref(&mine))] {
        refuses(&mount(&held, &mine, Sharing::Exclusive, &evidence), 29, Reason::Draining);
    }
    let held = record(Sharing::Exclusive, std::slice::from_ref(&mine));
    let request = Request::EndUnmount { id: mine.id, left: Left::Nothing };
    assert_eq!(ask(&held, &request, &evidence).reply, Reply::Done);
}

/// Test 28.
#[test]
fn row_30_t28_what_no_one_knows_of_is_unmounted_all_the_same() {
    let id = holder("a", "1").id;
    for record in [Record::free(HANDLE), record(Sharing::Exclusive, &[holder("b", "2")])] {
        let begun = ask(&record, &Request::BeginUnmount { id: id.clone() }, &Evidence::default());
        assert_eq!((begun.row, begun.write), (30, Write::Nothing));
        assert_eq!(begun.reply, Reply::Unmount { known: false, last: false });
        for left in [Left::Nothing, Left::Attached, Left::Mounted] {
            let ended = ended(&record, &holder("a", "1"), left);
            assert_eq!((ended.row, ended.write, ended.reply), (30, Write::Nothing, Reply::Done));
        }
    }
}

#[test]
fn row_31_a_review_removes_whom_a_mount_would() {
    let readers = [reader("a", "1"), reader("b", "2")];
    let mut held = record(Sharing::SharedReadOnly, &readers);
    held.epoch = 3;
    for (sight, removed, causes) in [
        (
            Sight { node: NodeState::OutOfService, fence: Fence::Unsupported, ..Sight::default() },
            true,
            vec![Cause::NodeLost],
        ),
        (Sight { node: LONG, fence: Fence::Fenced, ..Sight::default() }, true, vec![Cause::NodeLost]),
        (Sight { node: LONG, fence: Fence::Unsupported, ..Sight::default() }, false, vec![]),
        (Sight { node: NodeState::Rebooted, pod: PodState::Gone, ..Sight::default() }, true, vec![]),
        (Sight { node: NodeState::Rebooted, pod: PodState::Present, ..Sight::default() }, false, vec![]),
        (Sight { node: NodeState::Rebooted, ..Sight::default() }, false, vec![]),
        (
            Sight { node: NodeState::Alive, pod: PodState::Gone, ..Sight::default() },
            false,
            vec![Cause::PodGone],
        ),
        (Sight { node: NodeState::Suspect, pod: PodState::Gone, ..Sight::default() }, false, vec![]),
        (Sight::default(), false, vec![]),
    ] {
        let decision = ask(&held, &Request::Review, &seen(sight));
        assert_eq!(
            (decision.row, &decision.reply, tasks(&decision)),
            (31, &Reply::Done, causes),
            "{sight:?}"
        );
        if removed {
            let next = written(&decision);
            assert_eq!((next.epoch, &next.holders[..]), (4, &readers[1..]), "{sight:?}");
        } else {
            assert_eq!(decision.write, Write::Nothing, "{sight:?}");
        }
    }
}

#[test]
fn row_31_the_storage_is_told_first() {
    let held = record(Sharing::Exclusive, &[holder("a", "1")]);
    let decision = ask(&held, &Request::Review, &known(NodeState::OutOfService, PodState::Gone));
    assert_eq!(decision.reply, Reply::FenceFirst(vec![holder("a", "1").id]));
    assert_eq!(decision.write, Write::Nothing);
}
