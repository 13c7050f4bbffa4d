//! Tests of the agent alone: two nodes at one store, restarts in every phase, late requests, lost
//! answers.

mod forced;
mod tasks;

use super::fault::{Code, Fault};
use super::holding::Released;
use super::journal::{Entry, Phase};
use super::usage::Look;
use super::{Agent, Asked, Setup};
use crate::cri::Runtimes;
use crate::fence::record::{Node, Record};
use crate::fence::request::Left;
use crate::fence::store::file::FileStore;
use crate::fence::store::memory::{Fault as StoreFault, MemoryStore};
use crate::fence::store::{Read, RecordStore};
use crate::pace::deadline;
use flexvol_linux::fs::files;
use flexvol_linux::proc::clock;
use flexvol_model::agent::{Fence, Hold, HoldAccess};
use forced::Puppet;
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const HANDLE: &str = "file:/srv/images/db.img";

/// Returns a deadline that no test reaches.
fn soon() -> Instant {
    Instant::now() + deadline(30)
}

/// State that a test sets: mounted targets, removal of the pod by kubelet, attached targets.
#[derive(Clone, Default)]
struct Mounts(Arc<Mutex<BTreeSet<String>>>, Arc<Mutex<bool>>, Arc<Mutex<BTreeSet<String>>>);

impl Look for Mounts {
    fn left_of(&self, _: &str, target: &str) -> Left {
        match (self.0.lock().unwrap().contains(target), self.2.lock().unwrap().contains(target)) {
            (true, _) => Left::Mounted,
            (false, true) => Left::Attached,
            (false, false) => Left::Nothing,
        }
    }

    fn is_removed(&self, target: &str) -> bool {
        !Path::new(target).exists()
    }

    fn is_pod_gone(&self, _: &str) -> bool {
        *self.1.lock().unwrap()
    }
}

/// A store, and the state of the nodes that use it.
struct Nodes {
    home: TempDir,
    store: Arc<MemoryStore>,
    mounts: Mounts,
    hands: Puppet,
}

impl Nodes {
    fn new() -> Self {
        Self::with(MemoryStore::default())
    }

    fn with(store: MemoryStore) -> Self {
        let home = tempfile::tempdir().unwrap();
        let mounts = Mounts::default();
        let hands = Puppet::over(&mounts);
        Self { home, store: Arc::new(store), mounts, hands }
    }

    /// Starts the agent of a node, or restarts it.
    fn start(&self, name: &str, boot: &str) -> Agent {
        let agent = self.open(name, boot, Box::new(Arc::clone(&self.store)));
        agent.recover(soon()).unwrap();
        agent
    }

    fn open(&self, name: &str, boot: &str, store: Box<dyn RecordStore>) -> Agent {
        let node = Node { name: name.to_owned(), uid: String::new(), boot: boot.to_owned() };
        let spool = self.home.path().join("spool");
        files::make_private(&spool).unwrap();
        let journal = self.home.path().join(name);
        let look = Arc::new(self.mounts.clone());
        let hands = Box::new(self.hands.clone());
        let runtimes = Runtimes::at(None);
        let store_name = "/locks".to_owned();
        let csi = super::csi::Setup { journal: self.home.path().join("csi"), kubelet_root: "/k".into() };
        let setup =
            Setup { node, store, store_name, journal, spool, look, hands, runtimes, csi, programs: None };
        let (agent, broken) = Agent::open(setup).unwrap();
        assert_eq!(broken, [""; 0]);
        agent
    }

    fn holders(&self) -> Vec<String> {
        let record = self.store.record(HANDLE);
        record.map_or(Vec::new(), |record| record.holders.iter().map(|it| it.node.name.clone()).collect())
    }
}

fn hold_of(pod: &str) -> Hold {
    Hold {
        handle: HANDLE.to_owned(),
        fence: Fence::Pod,
        target: format!("/kubelet/pods/{pod}/volumes/example~image/v"),
        access: HoldAccess::ReadWrite,
        pod_namespace: "default".to_owned(),
        pod_name: format!("db-{pod}"),
        pod_uid: pod.to_owned(),
    }
}

fn write(path: impl AsRef<Path>, text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    files::replace(path.as_ref(), text.as_ref())
}

fn now() -> Asked {
    Asked::now(deadline(30))
}

fn code<T: std::fmt::Debug>(result: Result<T, Fault>) -> Code {
    result.unwrap_err().code
}

#[test]
fn one_node_holds_and_the_other_is_told_who() {
    let nodes = Nodes::new();
    let (a, b) = (nodes.start("a", "1"), nodes.start("b", "1"));
    assert_eq!(a.hold(&hold_of("1"), now()), Ok(0));
    // kubelet asks again after any failure.
    assert_eq!(a.hold(&hold_of("1"), now()), Ok(0));
    let fault = b.hold(&hold_of("2"), now()).unwrap_err();
    assert_eq!(fault.code, Code::Fenced);
    assert!(fault.message.contains("default/db-1") && fault.message.contains("node a"), "{}", fault.message);
    let stranger = Hold { pod_namespace: "other".to_owned(), ..hold_of("2") };
    let fault = b.hold(&stranger, now()).unwrap_err();
    assert!(!fault.message.contains("db-1") && fault.message.contains("node a"), "{}", fault.message);
    // A pod of the same node is refused as well.
    assert_eq!(code(a.hold(&hold_of("3"), now())), Code::Fenced);
    assert_eq!(b.journal.all(), []);
    assert_eq!(a.release(&hold_of("1"), now()), Ok(Released::Now));
    assert_eq!((a.journal.all(), nodes.holders()), (vec![], vec![]));
    assert_eq!(b.hold(&hold_of("2"), now()), Ok(0));
}

#[test]
fn a_node_shares_with_itself_where_the_fence_is_the_node() {
    let nodes = Nodes::new();
    let (a, b) = (nodes.start("a", "1"), nodes.start("b", "1"));
    let hold = |pod: &str| Hold { fence: Fence::Node, ..hold_of(pod) };
    assert!(a.hold(&hold("1"), now()).is_ok() && a.hold(&hold("2"), now()).is_ok());
    assert_eq!(code(b.hold(&hold("3"), now())), Code::Fenced);
    assert_eq!(a.release(&hold("1"), now()), Ok(Released::Now));
    assert_eq!(code(b.hold(&hold("3"), now())), Code::Fenced);
    assert_eq!(a.release(&hold("2"), now()), Ok(Released::Now));
    assert!(b.hold(&hold("3"), now()).is_ok());
    // Pods that only read share it on all nodes.
    assert_eq!(b.release(&hold("3"), now()), Ok(Released::Now));
    let reader = |pod: &str| Hold { access: HoldAccess::ReadOnly, ..hold_of(pod) };
    assert!(a.hold(&reader("4"), now()).is_ok() && b.hold(&reader("5"), now()).is_ok());
    assert_eq!(code(a.hold(&hold_of("6"), now())), Code::Fenced);
}

#[test]
fn nothing_is_released_that_is_still_mounted() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    a.hold(&hold_of("1"), now()).unwrap();
    nodes.mounts.0.lock().unwrap().insert(hold_of("1").target);
    assert_eq!(a.release(&hold_of("1"), now()), Ok(Released::Later));
    assert_eq!(nodes.holders(), ["a"]);
    a.sweep(soon()).unwrap();
    assert_eq!(nodes.holders(), ["a"]);
    nodes.mounts.0.lock().unwrap().clear();
    a.sweep(soon()).unwrap();
    assert_eq!((nodes.holders(), a.journal.all()), (vec![], vec![]));
}

/// A driver that was killed has left its request in the socket.
#[test]
fn a_late_release_does_not_end_a_newer_hold() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    let late = now();
    a.hold(&hold_of("1"), now()).unwrap();
    assert_eq!(a.release(&hold_of("1"), late), Ok(Released::Nothing));
    assert_eq!(nodes.holders(), ["a"]);
    // The same is true after a restart of the agent.
    drop(a);
    let a = nodes.start("a", "1");
    assert_eq!(a.release(&hold_of("1"), late), Ok(Released::Nothing));
    assert_eq!(nodes.holders(), ["a"]);
}

#[test]
fn a_late_hold_holds_nothing() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    let late = now();
    assert_eq!(a.release(&hold_of("1"), now()), Ok(Released::Nothing));
    assert_eq!(code(a.hold(&hold_of("1"), late)), Code::Late);
    let given_up = Asked { at: clock::since_boot(), until: clock::since_boot() };
    assert_eq!(code(a.hold(&hold_of("2"), given_up)), Code::Late);
    let from_the_future = Asked { at: u64::MAX - 1, until: u64::MAX };
    assert_eq!(code(a.hold(&hold_of("2"), from_the_future)), Code::Late);
    assert_eq!(nodes.holders(), [""; 0]);
}

/// Tests every phase as the last state of the journal.
#[test]
fn a_restart_in_any_phase_converges() {
    for phase in [Phase::Asking, Phase::Held, Phase::Releasing] {
        for (recorded, mounted) in [(false, false), (true, false), (true, true)] {
            let nodes = Nodes::new();
            let a = nodes.start("a", "1");
            a.hold(&hold_of("1"), now()).unwrap();
            let entry = a.journal.all().remove(0);
            if !recorded {
                a.release(&hold_of("1"), now()).unwrap();
            }
            a.journal.write(&Entry { phase, ..entry.clone() }).unwrap();
            if mounted {
                nodes.mounts.0.lock().unwrap().insert(hold_of("1").target);
            }
            drop(a);
            let a = nodes.start("a", "1");
            let phases: Vec<_> = a.journal.all().iter().map(|entry| entry.phase).collect();
            let expected = match (phase, recorded, mounted) {
                (Phase::Releasing, _, false) | (_, false, _) => vec![],
                (Phase::Releasing, true, true) => vec![Phase::Releasing],
                _ => vec![Phase::Held],
            };
            let holders = if expected.is_empty() { vec![] } else { vec!["a"] };
            assert_eq!(
                (phases, nodes.holders()),
                (expected, holders.iter().map(|it| (*it).to_owned()).collect())
            );
            // The end of the pod releases it.
            nodes.mounts.0.lock().unwrap().clear();
            a.release(&hold_of("1"), now()).unwrap();
            assert_eq!((nodes.holders(), a.journal.all()), (vec![], vec![]), "{phase:?}");
        }
    }
}

/// The agent was killed before it noted the epoch.
#[test]
fn an_answer_that_was_not_noted_is_found_in_the_record() {
    let nodes = Nodes::new();
    let broken = Record { epoch: 3, ..Record::free(HANDLE) };
    nodes.store.write(HANDLE, &Read::default(), Some(&broken), soon()).unwrap();
    let a = nodes.start("a", "1");
    assert_eq!(a.hold(&hold_of("1"), now()), Ok(3));
    nodes.mounts.0.lock().unwrap().insert(hold_of("1").target);
    let entry = a.journal.all().remove(0);
    a.journal.write(&Entry { phase: Phase::Asking, epoch: 0, ..entry.clone() }).unwrap();
    assert_eq!(nodes.start("a", "1").journal.all(), [entry]);
}

#[test]
fn what_an_earlier_boot_held_is_released() {
    for phase in [Phase::Asking, Phase::Held, Phase::Releasing, Phase::Lost] {
        let nodes = Nodes::new();
        let a = nodes.start("a", "1");
        a.hold(&hold_of("1"), now()).unwrap();
        let entry = a.journal.all().remove(0);
        a.journal.write(&Entry { phase, ..entry }).unwrap();
        // Another boot has other mounts at the same directories.
        nodes.mounts.0.lock().unwrap().insert(hold_of("1").target);
        let a = nodes.start("a", "2");
        assert_eq!((nodes.holders(), a.journal.all()), (vec![], vec![]), "{phase:?}");
    }
}

#[test]
fn a_lost_journal_is_made_again_from_the_records() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    a.hold(&hold_of("1"), now()).unwrap();
    drop(a);
    std::fs::remove_dir_all(nodes.home.path().join("a")).unwrap();
    let a = nodes.start("a", "1");
    assert_eq!(a.journal.all().len(), 1);
    assert_eq!(a.release(&hold_of("1"), now()), Ok(Released::Now));
    assert_eq!(nodes.holders(), [""; 0]);
}

#[test]
fn a_damaged_entry_is_set_aside() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    a.hold(&hold_of("1"), now()).unwrap();
    let id = a.journal.all().remove(0).id;
    drop(a);
    let path = nodes.home.path().join("a").join(format!("{id}.json"));
    let whole = std::fs::read_to_string(&path).unwrap();
    for text in
        ["", "{", "[]", &whole.replace(&id, "0123456789"), &whole.replace("\"version\":1", "\"version\":2")]
    {
        write(&path, text).unwrap();
        let (journal, broken) = super::journal::Journal::<Entry>::open(nodes.home.path().join("a")).unwrap();
        assert_eq!((journal.all(), broken.len()), (vec![], 1), "{text}");
    }
    // The hold is restored from its record.
    assert_eq!(nodes.start("a", "1").journal.all().len(), 1);
}

#[test]
fn what_a_driver_could_not_tell_is_heard_at_the_start() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    a.hold(&hold_of("1"), now()).unwrap();
    let note = nodes.home.path().join("spool/x.released");
    let text = |asked: u64| json!({"v": 1, "asked": asked, "params": hold_of("1")}).to_string();
    write(&note, text(1)).unwrap();
    write(note.with_file_name("y.released"), "{").unwrap();
    write(note.with_file_name("z"), "a note of a hold").unwrap();
    let a = nodes.start("a", "1");
    // The note was about an older mount.
    assert_eq!((nodes.holders(), note.exists()), (vec!["a".to_owned()], false));
    write(&note, text(clock::since_boot())).unwrap();
    a.sweep(soon()).unwrap();
    assert_eq!((nodes.holders(), note.exists()), (vec![], false));
    assert!(note.with_file_name("z").exists() && !note.with_file_name("y.released").exists());
}

#[test]
fn what_no_one_came_to_release_is_released_once_its_directory_is_gone() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    let directory = nodes.home.path().join("v");
    let hold = Hold { target: directory.to_str().unwrap().to_owned(), ..hold_of("1") };
    std::fs::create_dir(&directory).unwrap();
    a.hold(&hold, now()).unwrap();
    let old = Entry { asked: 0, ..a.journal.all().remove(0) };
    a.journal.write(&old).unwrap();
    let sweep = || a.sweep(soon()).unwrap();
    sweep();
    assert_eq!(nodes.holders(), ["a"]);
    std::fs::remove_dir(&directory).unwrap();
    nodes.mounts.0.lock().unwrap().insert(hold.target.clone());
    sweep();
    assert_eq!(nodes.holders(), ["a"]);
    nodes.mounts.0.lock().unwrap().clear();
    a.journal.write(&Entry { asked: clock::since_boot(), ..old.clone() }).unwrap();
    sweep();
    assert_eq!(nodes.holders(), ["a"]);
    a.journal.write(&old).unwrap();
    sweep();
    assert_eq!(nodes.holders(), [""; 0]);
}

/// An administrator has given the storage to another node while this node had it.
#[test]
fn nothing_new_is_held_while_lost_storage_is_mounted() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    a.hold(&hold_of("1"), now()).unwrap();
    nodes.mounts.0.lock().unwrap().insert(hold_of("1").target);
    let read = nodes.store.read(HANDLE, soon()).unwrap();
    let mut taken = read.record.clone().unwrap();
    taken.epoch += 1;
    taken.holders.clear();
    nodes.store.write(HANDLE, &read, Some(&taken), soon()).unwrap();
    let a = nodes.start("a", "1");
    assert_eq!(a.journal.all()[0].phase, Phase::Lost);
    let other = Hold { handle: "file:/srv/images/other.img".to_owned(), ..hold_of("2") };
    assert_eq!(code(a.hold(&other, now())), Code::NotReady);
    nodes.mounts.0.lock().unwrap().clear();
    assert!(a.hold(&other, now()).is_ok());
    assert_eq!(a.hold(&hold_of("1"), now()), Ok(1));
}

/// The store loses one request or one reply, or is unavailable once.
#[test]
fn a_store_that_fails_once_costs_no_hold_and_no_release() {
    for fault in [StoreFault::LostReply, StoreFault::LostRequest, StoreFault::Unavailable] {
        for nth in 1..14 {
            let mut calls = 0;
            let nodes = Nodes::with(MemoryStore::with_faults(move |_| {
                calls += 1;
                if calls == nth { fault } else { StoreFault::None }
            }));
            let a = nodes.open("a", "1", Box::new(Arc::clone(&nodes.store)));
            let held = || a.hold(&hold_of("1"), now());
            assert!(held().is_ok() || held().is_ok(), "{fault:?} {nth}");
            assert_eq!(nodes.holders(), ["a"]);
            a.release(&hold_of("1"), now()).unwrap();
            a.sweep(soon()).or_else(|_| a.sweep(soon())).unwrap();
            assert_eq!((nodes.holders(), a.journal.all()), (vec![], vec![]), "{fault:?} {nth}");
            assert!(a.state().is_settled());
        }
    }
}

#[test]
fn one_damaged_record_holds_up_no_other_storage() {
    let nodes = Nodes::new();
    let locks = nodes.home.path().join("locks");
    let open = || Box::new(FileStore::open(&locks).unwrap());
    let a = nodes.open("a", "1", open());
    a.hold(&hold_of("1"), now()).unwrap();
    let file = locks.join("records").read_dir().unwrap().next().unwrap().unwrap().path();
    write(&file, "{").unwrap();
    let a = nodes.open("a", "1", open());
    assert_eq!(code(a.recover(soon())), Code::Unavailable);
    let other = Hold { handle: "file:/srv/images/other.img".to_owned(), ..hold_of("2") };
    assert!(a.hold(&other, now()).is_ok());
    assert_eq!(code(a.hold(&hold_of("1"), now())), Code::Unavailable);
}

/// An administrator declares a node off. It comes back, in another boot or in the same one.
#[test]
fn a_node_that_is_off_is_fenced_until_its_next_boot() {
    let nodes = Nodes::new();
    let locks = nodes.home.path().join("locks");
    let open = || Box::new(FileStore::open(&locks).unwrap());
    let start = |node, boot| {
        let agent = nodes.open(node, boot, open());
        agent.recover(soon()).unwrap();
        agent
    };
    let (a, b) = (start("a", "1"), start("b", "1"));
    a.hold(&hold_of("1"), now()).unwrap();
    nodes.mounts.0.lock().unwrap().insert(hold_of("1").target);
    let fault = b.hold(&hold_of("2"), now()).unwrap_err();
    assert!(fault.message.ends_with("flexvold locks --off a"), "{}", fault.message);
    let store = open();
    assert_eq!((store.set_off("c").unwrap(), store.off().unwrap()), (vec![], vec![]));
    assert_eq!(store.set_off("a").unwrap(), ["1"]);
    assert_eq!(b.hold(&hold_of("2"), now()), Ok(1));
    assert_eq!(store.tasks(a.node(), soon()).unwrap().len(), 1);
    // The node was not off: it gets no further hold, and knows what it has lost.
    let other = Hold { handle: "file:/srv/images/other.img".to_owned(), ..hold_of("3") };
    assert_eq!(code(a.hold(&other, now())), Code::NotReady);
    let a = start("a", "1");
    assert_eq!(a.journal.all()[0].phase, Phase::Lost);
    assert_eq!(store.tasks(a.node(), soon()).unwrap().len(), 1);
    store.set_on("a").unwrap();
    assert_eq!(code(a.hold(&other, now())), Code::NotReady);
    nodes.mounts.0.lock().unwrap().clear();
    assert!(a.hold(&other, now()).is_ok());
    // In another boot nothing is mounted.
    assert_eq!(store.set_off("a").unwrap(), ["1"]);
    let a = start("a", "2");
    assert_eq!((a.journal.all(), store.tasks(a.node(), soon()).unwrap()), (vec![], vec![]));
    assert!(a.hold(&other, now()).is_ok());
    assert_eq!(code(a.hold(&hold_of("1"), now())), Code::Fenced);
}

#[test]
fn after_the_store_was_lost_the_agent_has_another_name() {
    let nodes = Nodes::with(MemoryStore::with_faults({
        let mut calls = 0;
        move |_| {
            calls += 1;
            if calls == 6 { StoreFault::Unavailable } else { StoreFault::None }
        }
    }));
    let a = nodes.start("a", "1");
    let instance = || a.state().instance.clone();
    let first = instance();
    for pod in ["1", "2", "3"] {
        let hold = Hold { handle: format!("file:/{pod}"), ..hold_of(pod) };
        let _ = a.hold(&hold, now());
    }
    assert!(a.recover(soon()).is_ok() && instance() != first);
    let holder = nodes.store.record("file:/1").unwrap().holders.remove(0);
    assert_eq!(holder.agent, instance());
}

#[test]
fn what_is_no_hold_is_refused() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    for hold in [
        Hold { handle: String::new(), ..hold_of("1") },
        Hold { pod_uid: String::new(), ..hold_of("1") },
        Hold { fence: Fence::Off, ..hold_of("1") },
        Hold { target: "v".to_owned(), ..hold_of("1") },
        Hold { target: "/a/../b".to_owned(), ..hold_of("1") },
        Hold { handle: "x".repeat(5000), ..hold_of("1") },
    ] {
        assert_eq!(code(a.hold(&hold, now())), Code::BadRequest, "{hold:?}");
    }
    assert_eq!(a.journal.all(), []);
}
