//! Tests of the controller alone: nodes that die, reboot and come back, two controllers at once, an
//! API server that does not answer.

use super::review::{Cluster, Reviewed, Reviewer};
use super::seen::{Missing, SeenNode, SeenPod};
use crate::fence::contract::{Always, HANDLE, ask, goes, holder, mount, release, soon};
use crate::fence::decide::{Cause, Reply};
use crate::fence::evidence::{Ending, Rules};
use crate::fence::record::{Holder, Pod, Record};
use crate::fence::request::Request;
use crate::fence::settle::settle;
use crate::fence::sharing::Sharing;
use crate::fence::store::memory::{Fault, MemoryStore};
use crate::fence::store::{RecordStore as _, StoreError};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Nodes and pods of an API server.
#[derive(Clone, Default)]
struct Objects {
    nodes: Arc<Mutex<BTreeMap<String, SeenNode>>>,
    pods: Arc<Mutex<BTreeMap<String, SeenPod>>>,
    asked: Arc<Mutex<Vec<String>>>,
    /// True if it does not answer.
    silent: Arc<Mutex<bool>>,
}

impl Cluster for Objects {
    fn node(&self, name: &str, _: Instant) -> Result<Option<SeenNode>, StoreError> {
        self.ask(name)?;
        Ok(self.nodes.lock().unwrap().get(name).cloned())
    }

    fn pod(&self, pod: &Pod, _: Instant) -> Result<Option<SeenPod>, StoreError> {
        let name = format!("{}/{}", pod.namespace, pod.name);
        self.ask(&name)?;
        Ok(self.pods.lock().unwrap().get(&name).cloned())
    }
}

impl Objects {
    fn ask(&self, what: &str) -> Result<(), StoreError> {
        self.asked.lock().unwrap().push(what.to_owned());
        if *self.silent.lock().unwrap() { Err(StoreError::Failed("silent".to_owned())) } else { Ok(()) }
    }

    fn node_is(&self, name: &str, change: impl FnOnce(&mut SeenNode)) {
        change(self.nodes.lock().unwrap().get_mut(name).unwrap());
    }

    fn is_off(&self, name: &str) {
        self.node_is(name, |node| (node.ready, node.out_of_service) = (false, true));
    }
}

type Shared = Arc<MemoryStore>;

/// A node `a` whose pod 1 holds the storage, a node `b`, and a controller.
struct Scene {
    store: Shared,
    objects: Objects,
    reviewer: Reviewer,
}

impl Scene {
    fn new() -> Self {
        Self::with(MemoryStore::default(), Rules::default())
    }

    fn with(store: MemoryStore, rules: Rules) -> Self {
        let (store, objects) = (Arc::new(store), Objects::default());
        for (name, pod) in [("a", "1"), ("b", "2")] {
            let it = holder(name, pod);
            let node = SeenNode { uid: it.node.uid, boot: it.node.boot, ready: true, out_of_service: false };
            objects.nodes.lock().unwrap().insert(name.to_owned(), node);
            let seen = SeenPod { uid: it.pod.uid, ..SeenPod::default() };
            objects.pods.lock().unwrap().insert(format!("default/{}", it.pod.name), seen);
        }
        let reviewer = reviewer(&store, &objects, rules);
        let scene = Self { store, objects, reviewer };
        while !goes(&mount(&scene.store, "a", "1")) {}
        scene
    }

    fn review(&self) -> Reviewed {
        self.reviewer.review(HANDLE, soon()).unwrap()
    }

    fn record(&self) -> Record {
        self.store.record(HANDLE).unwrap()
    }

    fn causes(&self) -> Vec<Cause> {
        self.store.all_tasks(soon()).unwrap().iter().map(|task| task.reason).collect()
    }

    /// Asserts that nothing is removed and nothing is written.
    fn stays(&self, why: &str) {
        let before = self.record();
        assert_eq!(self.review().removed, [], "{why}");
        assert_eq!(self.record(), before, "{why}");
        assert!(!goes(&mount(&self.store, "b", "2")), "{why}");
    }

    /// Asserts that the holder is removed, once, and the next one gets the storage with a higher
    /// epoch.
    fn gives_way(&self) {
        let epoch = self.record().epoch;
        assert!(self.reviewer.is_due(&self.record(), Ending::No, &self.objects));
        let removed = self.review().removed;
        assert_eq!(removed.iter().map(|holder| &*holder.id).collect::<Vec<_>>(), [holder("a", "1").id]);
        assert_eq!(self.review(), Reviewed::default());
        assert_eq!(mount(&self.store, "b", "2"), Ok(Reply::Go { epoch: epoch + 1 }));
        assert!(!goes(&mount(&self.store, "a", "1")));
    }
}

fn reviewer(store: &Shared, objects: &Objects, rules: Rules) -> Reviewer {
    let (store, cluster) = (Box::new(store.clone()), Box::new(objects.clone()));
    Reviewer { store, cluster, rules, missing: Missing::default() }
}

fn named() -> String {
    format!("default/{}", holder("a", "1").pod.name)
}

/// Tests 14 and 16: silence is no evidence, but an administrator's statement that a node is off is.
#[test]
fn t14_t16_a_node_that_is_silent_keeps_what_it_holds_until_it_is_said_to_be_off() {
    let scene = Scene::new();
    scene.stays("alive");
    scene.objects.node_is("a", |node| node.ready = false);
    scene.stays("silent");
    scene.objects.node_is("a", |node| (node.ready, node.out_of_service) = (true, true));
    scene.stays("it reports");
    assert_eq!(scene.causes(), []);
    scene.objects.is_off("a");
    scene.gives_way();
    assert_eq!(scene.causes(), [Cause::NodeLost]);
}

/// Test 18: the case that corrupted Rook's volumes.
#[test]
fn t18_a_pod_deleted_by_force_on_a_silent_node_keeps_its_storage() {
    let scene = Scene::new();
    scene.objects.node_is("a", |node| node.ready = false);
    scene.objects.pods.lock().unwrap().clear();
    scene.stays("silent, without a pod");
    assert_eq!(scene.causes(), []);
    // A pod of the same name elsewhere is another pod.
    let other = SeenPod { uid: "9".to_owned(), ..SeenPod::default() };
    scene.objects.pods.lock().unwrap().insert(named(), other);
    scene.stays("silent, and one of its name runs");
    // The node reports again and is asked to clean up; it keeps its lock.
    scene.objects.node_is("a", |node| node.ready = true);
    scene.stays("alive, without a pod");
    assert_eq!(scene.causes(), [Cause::PodGone]);
}

/// Test 13.
#[test]
fn t13_a_reboot_ends_what_a_pod_had_that_is_gone() {
    let scene = Scene::new();
    scene.objects.node_is("a", |node| node.boot = "later".to_owned());
    scene.stays("its pod mounts again");
    scene.objects.pods.lock().unwrap().get_mut(&named()).unwrap().ending = true;
    scene.gives_way();
    assert_eq!(scene.causes(), []);
}

/// Tests 15 and 17: by default, a missing Node object says nothing about its machine.
#[test]
fn t15_t17_a_node_that_is_gone_is_off_only_where_that_was_said() {
    let scene = Scene::new();
    scene.objects.nodes.lock().unwrap().remove("a");
    scene.stays("gone");
    assert!(!scene.reviewer.is_due(&scene.record(), Ending::No, &scene.objects));
    let grace = Duration::from_millis(300);
    let rules = Rules { unfenced_break: true, gone_grace: grace, ..Rules::default() };
    let scene = Scene::with(MemoryStore::default(), rules);
    // Another object of the same boot is the same machine.
    scene.objects.node_is("a", |node| node.uid = "again".to_owned());
    scene.stays("made again");
    assert!(!scene.reviewer.is_due(&scene.record(), Ending::No, &scene.objects));
    scene.objects.node_is("a", |node| node.boot = "another machine's".to_owned());
    let gone = Instant::now();
    assert!(scene.review() == Reviewed { removed: Vec::new(), waits: true } || gone.elapsed() >= grace);
    std::thread::sleep(grace + Duration::from_millis(5));
    scene.gives_way();
    // No node will do its tasks any more.
    assert_eq!(scene.causes(), [Cause::NodeLost]);
    assert_eq!(scene.reviewer.close_tasks(&|_| false, soon()), Ok(false));
    assert_eq!(scene.causes(), []);
}

/// Facts known before the record was read do not count: a node that came back holds the storage
/// again.
#[test]
fn what_is_known_is_asked_for_after_the_record_was_read() {
    let scene = Scene::new();
    let mut known = Objects { nodes: Arc::default(), ..scene.objects.clone() };
    *known.nodes.lock().unwrap() = scene.objects.nodes.lock().unwrap().clone();
    known.is_off("a");
    assert!(scene.reviewer.is_due(&scene.record(), Ending::No, &known));
    scene.stays("what is known is old");
    // The node has rebooted meanwhile; its pod, which is being deleted, holds in the new boot.
    scene.objects.pods.lock().unwrap().get_mut(&named()).unwrap().ending = true;
    known = scene.objects.clone();
    known.node_is("a", |node| node.boot = "later".to_owned());
    assert_eq!(release(&scene.store, &holder("a", "1")), Ok(Reply::Done));
    let mut me = holder("a", "1");
    me.node.boot = "later".to_owned();
    let request = Request::Mount { me: Box::new(me), sharing: Sharing::Exclusive };
    assert!(goes(&ask(&scene.store, &request, &Always::default())));
    scene.stays("it holds in the new boot");
}

#[test]
fn an_api_server_that_does_not_answer_is_no_evidence() {
    let scene = Scene::new();
    scene.objects.is_off("a");
    *scene.objects.silent.lock().unwrap() = true;
    scene.stays("no one answers");
    *scene.objects.silent.lock().unwrap() = false;
    scene.gives_way();
}

/// The pod's name in a record comes from a tenant: it must not lead to another object.
#[test]
fn a_pods_name_that_is_none_is_not_asked_for() {
    let scene = Scene::new();
    let mut me = holder("b", "2");
    (me.pod.namespace, me.pod.name) = ("../../nodes".to_owned(), "a?x".to_owned());
    assert_eq!(release(&scene.store, &holder("a", "1")), Ok(Reply::Done));
    let request = Request::Mount { me: Box::new(me.clone()), sharing: Sharing::Exclusive };
    assert!(goes(&ask(&scene.store, &request, &Always::default())));
    scene.objects.node_is("b", |node| node.boot = "later".to_owned());
    scene.objects.asked.lock().unwrap().clear();
    assert_eq!(scene.review().removed, []);
    assert_eq!(*scene.objects.asked.lock().unwrap(), ["b"]);
}

/// Two controllers, an agent that comes back, lost requests and answers, in any order: the epoch
/// rises once for each break, and each holder that was told that it holds the storage does hold it.
#[test]
fn two_controllers_at_once_break_once() {
    for seed in 0..60_u64 {
        let mut at = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let store = MemoryStore::with_faults(move |_| {
            at = at.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match at >> 60 {
                0 => Fault::LostReply,
                1 => Fault::LostRequest,
                _ => Fault::None,
            }
        });
        let scene = Scene::with(store, Rules::default());
        scene.objects.is_off("a");
        let others: Vec<_> =
            (0..2).map(|_| reviewer(&scene.store, &scene.objects, Rules::default())).collect();
        std::thread::scope(|threads| {
            for reviewer in &others {
                threads.spawn(move || while reviewer.review(HANDLE, soon()).is_err() {});
            }
        });
        let record = scene.record();
        assert_eq!((record.epoch, record.holders), (1, Vec::<Holder>::new()), "seed {seed}");
    }
}

/// Cost of a complete scan: every lock is reviewed, and removed if its node is off.
#[test]
fn a_scan_of_fifty_thousand_volumes_takes_seconds() {
    const NODES: usize = 1_000;
    const VOLUMES: usize = 50;
    let (store, objects) = (Shared::default(), Objects::default());
    let handles: Vec<_> = (0..NODES * VOLUMES).map(|at| format!("rbd:f/pool/{at}")).collect();
    for (at, handle) in handles.iter().enumerate() {
        let (node, pod) = (format!("node-{}", at / VOLUMES), at.to_string());
        let me = holder(&node, &pod);
        let seen = SeenPod { uid: me.pod.uid.clone(), ..SeenPod::default() };
        objects.pods.lock().unwrap().insert(format!("default/{}", me.pod.name), seen);
        let is = SeenNode { uid: me.node.uid.clone(), boot: me.node.boot.clone(), ..Default::default() };
        // One of ten is off.
        let off = (at / VOLUMES).is_multiple_of(10);
        let is = SeenNode { ready: !off, out_of_service: off, ..is };
        objects.nodes.lock().unwrap().insert(node, is);
        let request = Request::Mount { me: Box::new(me), sharing: Sharing::Exclusive };
        settle(&store, handle, &request, &Always::default(), soon()).unwrap();
    }
    let reviewer = reviewer(&store, &objects, Rules::default());
    let begun = Instant::now();
    let due: Vec<_> = handles
        .iter()
        .filter(|handle| reviewer.is_due(&store.record(handle).unwrap(), Ending::No, &objects))
        .collect();
    let removed: usize =
        due.iter().map(|handle| reviewer.review(handle, soon()).unwrap().removed.len()).sum();
    let took = begun.elapsed();
    assert_eq!((due.len(), removed), (NODES * VOLUMES / 10, NODES * VOLUMES / 10));
    // A debug build takes a second; comparing each with each would take hours.
    assert!(took <= crate::pace::deadline(60), "{took:?}");
    // Requests per holder: its node and its pod, and both once more before a change.
    let asked = objects.asked.lock().unwrap().len();
    assert!(asked <= 4 * handles.len(), "{asked}");
}

/// Test 53: to delete and mark a lock means that its holders must go and no new ones may come. A
/// controller that started later finds the mark when it reads the lock.
#[test]
fn t53_a_lock_that_is_deleted_and_marked_is_detached_by_force() {
    let scene = Scene::new();
    let due = |ending| scene.reviewer.is_due(&scene.record(), ending, &scene.objects);
    assert_eq!([Ending::No, Ending::Deleted, Ending::Forced].map(due), [false, false, true]);
    scene.store.end(Ending::Deleted);
    scene.stays("deleted");
    assert_eq!(scene.causes(), []);
    scene.store.end(Ending::Forced);
    scene.stays("deleted, and marked");
    assert_eq!(scene.causes(), [Cause::Forced]);
    // The task is created once.
    scene.stays("again");
    assert_eq!(scene.causes(), [Cause::Forced]);
    // The storage gets no new holder either, once it is free.
    assert_eq!(release(&scene.store, &holder("a", "1")), Ok(Reply::Done));
    assert!(!goes(&mount(&scene.store, "b", "2")));
    scene.store.end(Ending::No);
    assert!(goes(&mount(&scene.store, "b", "2")));
    // A node that is off cannot detach: its lock is removed as usual.
    let scene = Scene::new();
    scene.store.end(Ending::Forced);
    scene.objects.is_off("a");
    assert_eq!(scene.review().removed.len(), 1);
    assert_eq!(scene.causes(), [Cause::NodeLost]);
}
