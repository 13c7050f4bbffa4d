//! Tasks that others leave for a node, and the conditions for a node to hold storage at all.

use super::*;
use crate::fence::decide::{Cause, Task};

/// Returns the agent of node `a`, which holds storage for a pod, and a task about that hold.
fn held(nodes: &Nodes, reason: Cause) -> (Agent, Task) {
    let a = nodes.start("a", "1");
    a.hold(&hold_of("1"), now()).unwrap();
    nodes.mounts.0.lock().unwrap().insert(hold_of("1").target);
    let holder = nodes.store.record(HANDLE).unwrap().holders.remove(0);
    (a, Task { holder, reason })
}

/// Leaves the task as a controller does.
fn is_left(nodes: &Nodes, agent: &Agent, task: &Task) {
    nodes.store.note(task, soon()).unwrap();
    agent.tasks_came();
}

fn sweep(agent: &Agent) {
    agent.sweep(soon()).unwrap();
}

fn tasks(nodes: &Nodes) -> usize {
    nodes.store.all_tasks(soon()).unwrap().len()
}

/// Another node was given the storage. The agent knows it at once, and holds nothing new until the
/// storage is unmounted.
#[test]
fn t19_what_was_taken_is_known_as_soon_as_the_task_comes() {
    let nodes = Nodes::new();
    let (a, task) = held(&nodes, Cause::NodeLost);
    let before = nodes.store.read(HANDLE, soon()).unwrap();
    let taken = Record { epoch: 1, holders: Vec::new(), ..before.record.clone().unwrap() };
    nodes.store.write(HANDLE, &before, Some(&taken), soon()).unwrap();
    is_left(&nodes, &a, &task);
    sweep(&a);
    assert_eq!((a.journal.all()[0].phase, tasks(&nodes)), (Phase::Lost, 1));
    assert_eq!(code(a.hold(&hold_of("2"), now())), Code::NotReady);
    nodes.mounts.0.lock().unwrap().clear();
    sweep(&a);
    assert_eq!((a.journal.all(), tasks(&nodes)), (vec![], 0));
    assert_eq!(a.hold(&hold_of("2"), now()), Ok(1));
}

/// R12: the task was left, and then the record was not changed.
#[test]
fn a_task_about_what_is_still_held_is_obsolete() {
    let nodes = Nodes::new();
    let (a, task) = held(&nodes, Cause::NodeLost);
    is_left(&nodes, &a, &task);
    sweep(&a);
    assert_eq!((a.journal.all()[0].phase, tasks(&nodes)), (Phase::Held, 0));
    assert_eq!(nodes.holders(), ["a"]);
}

/// Test 50: a pod that is gone for the API server may still run here. Its storage is released once
/// kubelet has removed the pod.
#[test]
fn t50_what_a_pod_had_that_is_gone_is_released_once_nothing_is_left() {
    let nodes = Nodes::new();
    let (a, task) = held(&nodes, Cause::PodGone);
    is_left(&nodes, &a, &task);
    sweep(&a);
    assert_eq!((nodes.holders(), tasks(&nodes)), (vec!["a".to_owned()], 1));
    *nodes.mounts.1.lock().unwrap() = true;
    sweep(&a);
    assert_eq!((nodes.holders(), tasks(&nodes)), (vec!["a".to_owned()], 1), "it is mounted");
    assert!(a.has_tasks(), "it is looked again soon");
    nodes.mounts.0.lock().unwrap().clear();
    sweep(&a);
    assert_eq!((nodes.holders(), a.journal.all(), tasks(&nodes)), (vec![], vec![], 0));
    assert!(!a.has_tasks());
}

/// Nothing is left of an earlier boot, and the task does not concern a newer hold.
#[test]
fn a_task_about_an_earlier_boot_or_hold_is_done() {
    let nodes = Nodes::new();
    let (a, task) = held(&nodes, Cause::NodeLost);
    drop(a);
    nodes.mounts.0.lock().unwrap().clear();
    nodes.store.note(&task, soon()).unwrap();
    let a = nodes.start("a", "2");
    sweep(&a);
    assert_eq!((tasks(&nodes), nodes.holders()), (0, vec![]));
    a.hold(&hold_of("1"), now()).unwrap();
    is_left(&nodes, &a, &task);
    sweep(&a);
    assert_eq!((tasks(&nodes), nodes.holders()), (0, vec!["a".to_owned()]));
}

/// All tasks are kept if the store is lost while they are carried out.
#[test]
fn no_task_is_forgotten_when_the_store_is_lost() {
    let silent = Arc::new(Mutex::new(false));
    let of_store = Arc::clone(&silent);
    let faults = move |_| if *of_store.lock().unwrap() { StoreFault::Unavailable } else { StoreFault::None };
    let nodes = Nodes::with(MemoryStore::with_faults(faults));
    let (a, task) = held(&nodes, Cause::PodGone);
    *nodes.mounts.1.lock().unwrap() = true;
    nodes.mounts.0.lock().unwrap().clear();
    is_left(&nodes, &a, &task);
    *silent.lock().unwrap() = true;
    assert!(a.sweep(soon()).is_err());
    *silent.lock().unwrap() = false;
    sweep(&a);
    assert_eq!((tasks(&nodes), nodes.holders()), (0, vec![]));
}

/// Others judge the node by its Node object. Until that shows the running boot, nothing is held.
#[test]
fn a_node_that_is_not_admitted_holds_nothing_and_releases() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    let refuses = |why: Option<&str>| *nodes.store.refuses.lock().unwrap() = why.map(str::to_owned);
    refuses(Some("its kubelet has not told its boot"));
    let fault = a.hold(&hold_of("1"), now()).unwrap_err();
    assert_eq!((fault.code, &*fault.message), (Code::NotReady, "its kubelet has not told its boot"));
    assert_eq!(nodes.holders(), [""; 0]);
    refuses(None);
    assert_eq!(a.hold(&hold_of("1"), now()), Ok(0));
    // The store is asked again after its loss or after a new task, and not before.
    refuses(Some("it was said to be off"));
    assert_eq!(a.release(&hold_of("1"), now()), Ok(Released::Now));
    assert_eq!(a.hold(&hold_of("1"), now()), Ok(0));
    a.unsettle();
    assert_eq!(code(a.hold(&hold_of("2"), now())), Code::NotReady);
    assert_eq!(a.release(&hold_of("1"), now()), Ok(Released::Now));
    refuses(None);
    assert_eq!(a.hold(&hold_of("1"), now()), Ok(0));
    refuses(Some("it was said to be off"));
    a.tasks_came();
    assert_eq!(code(a.hold(&hold_of("1"), now())), Code::NotReady);
}
