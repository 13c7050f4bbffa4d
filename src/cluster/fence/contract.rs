//! Contract of every store, for the tests of each: in memory and in files here, in a real API
//! server in tests/controllers.

use crate::pace::deadline;
use flexvol_cluster::fence::decide::{Cause, Reason, Reply, Task};
use flexvol_cluster::fence::evidence::{Evidence, Fence, Sight};
use flexvol_cluster::fence::record::{Holder, Node, Phase, Pod, Record};
use flexvol_cluster::fence::request::{Left, Request};
use flexvol_cluster::fence::settle::{Witness, settle};
use flexvol_cluster::fence::sharing::Sharing;
use flexvol_cluster::fence::store::{Read, RecordStore, StoreError};
use std::sync::Mutex;
use std::time::Instant;

pub(crate) const HANDLE: &str = "rbd:f/pool/image";

/// Returns a pod on a node, with the storage attached.
pub(crate) fn holder(node: &str, pod: &str) -> Holder {
    let name = |of: &str| format!("{of}-{node}");
    let node = Node { name: node.to_owned(), uid: name("uid"), boot: name("boot") };
    let pod = Pod { namespace: "default".to_owned(), name: format!("pod-{pod}"), uid: pod.to_owned() };
    let target = format!("/pods/{}", pod.uid);
    Holder {
        id: Holder::id_of(&node, &pod.uid, HANDLE, &target),
        node,
        agent: "agent-1".to_owned(),
        pod,
        target,
        read_only: false,
        phase: Phase::Attached,
        epoch: 0,
        device: "/dev/rbd0".to_owned(),
        since: String::new(),
    }
}

/// Witness with the same evidence about every holder. It records its fence requests in order.
#[derive(Default)]
pub(crate) struct Always {
    pub(crate) sight: Sight,
    pub(crate) fence: Fence,
    pub(crate) asked: Mutex<Vec<String>>,
}

impl Witness for Always {
    fn look(&self, record: &Record) -> Evidence {
        let sights = record.holders.iter().map(|holder| (holder.id.clone(), self.sight));
        Evidence { sights: sights.collect(), ..Evidence::default() }
    }

    fn fence(&self, holder: &Holder) -> Fence {
        self.asked.lock().unwrap().push(holder.node.name.clone());
        self.fence
    }
}

/// Returns a deadline that no test reaches.
pub(crate) fn soon() -> Instant {
    Instant::now() + deadline(60)
}

pub(crate) fn ask(store: &dyn RecordStore, request: &Request, witness: &Always) -> Result<Reply, StoreError> {
    settle(store, HANDLE, request, witness, soon()).map(|decision| decision.reply)
}

pub(crate) fn mount_as(store: &dyn RecordStore, me: Holder, sharing: Sharing) -> Result<Reply, StoreError> {
    ask(store, &Request::Mount { me: Box::new(me), sharing }, &Always::default())
}

pub(crate) fn mount(store: &dyn RecordStore, node: &str, pod: &str) -> Result<Reply, StoreError> {
    mount_as(store, holder(node, pod), Sharing::Exclusive)
}

pub(crate) fn release(store: &dyn RecordStore, me: &Holder) -> Result<Reply, StoreError> {
    let request = Request::EndUnmount { id: me.id.clone(), left: Left::Nothing };
    ask(store, &request, &Always::default())
}

pub(crate) fn goes(reply: &Result<Reply, StoreError>) -> bool {
    matches!(reply, Ok(Reply::Go { .. }))
}

/// Checks the contract of a store.
pub(crate) fn is_a_store(store: &(dyn RecordStore + Sync), readers: usize) {
    t1_one_of_fifty(store);
    // Test 3: the loser is told which holder has the storage.
    let Ok(Reply::Refused(refusal)) = mount(store, "late", "late") else { panic!("not refused") };
    let winner = *refusal.holder.unwrap();
    assert_eq!((refusal.reason, store.list().unwrap().len()), (Reason::NodeUnknown, 1));
    assert_eq!(release(store, &winner), Ok(Reply::Done));
    assert_eq!(store.list().unwrap(), []);
    t8_readers_join_at_once(store, readers);
    t23_a_removal_and_a_taking_over_do_not_both_happen(store);
    tasks_are_kept_until_they_are_done(store);
}

/// Test 1.
fn t1_one_of_fifty(store: &(dyn RecordStore + Sync)) {
    let granted: usize = std::thread::scope(|scope| {
        let one =
            |pod: usize| move || usize::from(goes(&mount(store, &format!("n{}", pod % 5), &pod.to_string())));
        let all: Vec<_> = (0..50).map(|pod| scope.spawn(one(pod))).collect();
        all.into_iter().map(|one| one.join().unwrap()).sum()
    });
    assert_eq!((granted, store.read(HANDLE, soon()).unwrap().record.unwrap().holders.len()), (1, 1));
}

/// Test 8, with as many readers as can succeed within their tries.
fn t8_readers_join_at_once(store: &(dyn RecordStore + Sync), readers: usize) {
    let reader = |pod: usize| Holder { read_only: true, ..holder("a", &pod.to_string()) };
    std::thread::scope(|scope| {
        for pod in 0..readers {
            scope.spawn(move || {
                let join = || mount_as(store, reader(pod), Sharing::SharedReadOnly);
                // kubelet repeats a request that has lost all tries.
                assert!((0..50).any(|_| goes(&join())), "{pod}");
            });
        }
    });
    assert_eq!(store.read(HANDLE, soon()).unwrap().record.unwrap().holders.len(), readers);
    // Test 24: all of them release it at the same time, despite their conflicts.
    std::thread::scope(|scope| {
        for pod in 0..readers {
            scope.spawn(move || {
                assert!((0..50).any(|_| release(store, &reader(pod)) == Ok(Reply::Done)), "{pod}");
            });
        }
    });
    assert_eq!(store.read(HANDLE, soon()).unwrap().record, None);
}

/// Test 23.
fn t23_a_removal_and_a_taking_over_do_not_both_happen(store: &dyn RecordStore) {
    assert!(goes(&mount(store, "a", "1")));
    let before = store.read(HANDLE, soon()).unwrap();
    let mut joined = before.record.clone().unwrap();
    joined.holders = vec![holder("b", "2")];
    store.write(HANDLE, &before, Some(&joined), soon()).unwrap();
    assert_eq!(store.write(HANDLE, &before, None, soon()), Err(StoreError::Conflict));
    let now = store.read(HANDLE, soon()).unwrap();
    store.write(HANDLE, &now, None, soon()).unwrap();
    // The same record again is another state: a decision on the first one is not written.
    assert!(goes(&mount(store, "a", "1")));
    assert_eq!(store.write(HANDLE, &before, None, soon()), Err(StoreError::Conflict));
    assert_eq!(store.write(HANDLE, &Read::default(), Some(&joined), soon()), Err(StoreError::Conflict));
    assert_eq!(release(store, &holder("a", "1")), Ok(Reply::Done));
}

fn tasks_are_kept_until_they_are_done(store: &dyn RecordStore) {
    let task = |node: &str| Task { holder: holder(node, "1"), reason: Cause::NodeLost };
    for _ in 0..2 {
        store.note(&task("a"), soon()).unwrap();
    }
    store.note(&task("b"), soon()).unwrap();
    assert_eq!(store.tasks(&holder("a", "1").node, soon()).unwrap(), [task("a")]);
    store.finish(&task("a")).unwrap();
    store.finish(&task("a")).unwrap();
    assert_eq!(store.tasks(&holder("a", "1").node, soon()).unwrap(), []);
    assert_eq!(store.tasks(&holder("b", "1").node, soon()).unwrap(), [task("b")]);
}
