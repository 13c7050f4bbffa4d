//! Forced unmounts.

use super::*;
use crate::agent::force::{Action, Hands, Performed};
use crate::fence::decide::{Cause, Task};
use crate::fence::progress::{Outcome, Phase as Said, Progress};
use flexvol_protocol::TargetPath;

/// Executor that acts as a test says.
#[derive(Clone, Default)]
pub(super) struct Puppet {
    mounts: Mounts,
    /// Actions that unmount, with their target.
    helps: Arc<Mutex<Vec<(Action, String)>>>,
    /// Targets whose actions do not return.
    hangs: Arc<Mutex<BTreeSet<String>>>,
    did: Arc<Mutex<Vec<(Action, String)>>>,
    hindrance: Arc<Mutex<Option<String>>>,
    /// True if no driver confirms that nothing is mounted.
    mute: Arc<Mutex<bool>>,
}

impl Hands for Puppet {
    fn hindrance(&self, _: &TargetPath) -> Option<String> {
        self.hindrance.lock().unwrap().clone()
    }

    fn perform(&self, action: Action, target: &TargetPath) -> Performed {
        let key = (action, target.to_string());
        self.did.lock().unwrap().push(key.clone());
        while self.hangs.lock().unwrap().contains(&key.1) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let is_over = self.mounts.left_of("", &key.1) == Left::Nothing;
        let says_so = action == Action::Driver && is_over && !*self.mute.lock().unwrap();
        if !says_so && !self.helps.lock().unwrap().contains(&key) {
            return Performed { failed: Some("busy".to_owned()), stuck: Vec::new() };
        }
        self.mounts.0.lock().unwrap().remove(&key.1);
        if action == Action::Driver {
            self.mounts.2.lock().unwrap().remove(&key.1);
        }
        Performed { failed: None, stuck: Vec::new() }
    }
}

impl Puppet {
    pub(super) fn over(mounts: &Mounts) -> Self {
        Self { mounts: mounts.clone(), ..Self::default() }
    }

    fn helps(&self, action: Action, pod: &str) {
        self.helps.lock().unwrap().push((action, hold_of(pod).target));
    }

    fn did(&self, pod: &str) -> Vec<Action> {
        let did = self.did.lock().unwrap();
        did.iter().filter(|(_, target)| *target == hold_of(pod).target).map(|(action, _)| *action).collect()
    }
}

fn hold(pod: &str) -> Hold {
    Hold { handle: format!("file:/srv/{pod}"), ..hold_of(pod) }
}

/// Holds and mounts a volume, and leaves a task to unmount it by force.
fn forced(nodes: &Nodes, agent: &Agent, pod: &str) -> Task {
    agent.hold(&hold(pod), now()).unwrap();
    nodes.mounts.0.lock().unwrap().insert(hold(pod).target);
    let holder = nodes.store.record(&hold(pod).handle).unwrap().holders.remove(0);
    let task = Task { holder, reason: Cause::Forced };
    nodes.store.note(&task, soon()).unwrap();
    agent.tasks_came();
    task
}

/// Sweeps until the task reports this phase.
fn until(nodes: &Nodes, agent: &Agent, task: &Task, phase: Said) -> Progress {
    let start = Instant::now();
    loop {
        agent.sweep(soon()).unwrap();
        match nodes.store.reported(&task.name()) {
            Some(said) if said.phase == phase && (phase != Said::Running || !said.steps.is_empty()) => {
                return said;
            }
            said => assert!(start.elapsed() < deadline(60), "{phase:?}: {said:?}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn outcomes(said: &Progress) -> Vec<(&str, Outcome)> {
    said.steps.iter().map(|step| (step.name, step.outcome)).collect()
}

fn is_held(nodes: &Nodes, pod: &str) -> bool {
    nodes.store.record(&hold(pod).handle).is_some()
}

const ALL: [Action; 4] = [Action::Driver, Action::Abort, Action::TakeOff, Action::Driver];

/// After an action has succeeded, no harder one follows, and the driver is always the last.
#[test]
fn the_mildest_that_helps_is_the_last() {
    for (helps, did) in [
        (Action::Driver, &ALL[..1]),
        (Action::Abort, &[Action::Driver, Action::Abort, Action::Driver]),
        (Action::TakeOff, &ALL[..]),
    ] {
        let nodes = Nodes::new();
        let a = nodes.start("a", "1");
        let task = forced(&nodes, &a, "1");
        nodes.hands.helps(helps, "1");
        let said = until(&nodes, &a, &task, Said::Done);
        assert_eq!(nodes.hands.did("1"), did);
        assert_eq!(said.steps.last().unwrap().outcome, Outcome::Done, "{said:?}");
        assert!(!is_held(&nodes, "1") && a.journal.all().is_empty() && !a.has_tasks());
        assert_eq!(nodes.store.all_tasks(soon()).unwrap(), []);
    }
}

/// Test 52: an unmount that hangs blocks neither its own release nor other tasks.
#[test]
fn t52_one_that_hangs_holds_up_no_other() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    let target = hold("1").target;
    nodes.hands.hangs.lock().unwrap().insert(target.clone());
    let (one, two) = (forced(&nodes, &a, "1"), forced(&nodes, &a, "2"));
    nodes.hands.helps(Action::Driver, "2");
    until(&nodes, &a, &two, Said::Done);
    assert_eq!(
        outcomes(&until(&nodes, &a, &one, Said::Running)),
        [(Action::Driver.name(), Outcome::Running)]
    );
    assert!(is_held(&nodes, "1") && !is_held(&nodes, "2"));
    // This storage cannot be mounted again now, but other storage can.
    assert_eq!(code(a.hold(&hold("1"), now())), Code::NotReady);
    a.hold(&hold("3"), now()).unwrap();
    // The driver that hangs calls `release` itself, once it continues.
    nodes.mounts.0.lock().unwrap().remove(&target);
    assert_eq!(a.release(&hold("1"), now()), Ok(Released::Now));
    nodes.hands.hangs.lock().unwrap().clear();
    until(&nodes, &a, &one, Said::Done);
    a.hold(&hold("1"), now()).unwrap();
}

/// A mount that was removed from its directory still has its device, and may be written to.
#[test]
fn nothing_is_released_whose_device_is_attached() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    let task = forced(&nodes, &a, "1");
    nodes.mounts.2.lock().unwrap().insert(hold("1").target);
    nodes.hands.helps(Action::TakeOff, "1");
    let said = until(&nodes, &a, &task, Said::Stuck);
    assert_eq!(nodes.hands.did("1"), ALL);
    assert!(is_held(&nodes, "1") && said.message.contains("default/db-1"), "{said:?}");
    // A mounted volume is not released either, whatever the driver reports.
    let task = forced(&nodes, &a, "2");
    let said = until(&nodes, &a, &task, Said::Stuck);
    assert!(is_held(&nodes, "2") && said.message.contains("default/db-2"), "{said:?}");
    assert!(outcomes(&said).iter().all(|(_, outcome)| *outcome == Outcome::Failed), "{said:?}");
    // Killed at any point, the agent starts again.
    nodes.hands.helps(Action::Driver, "1");
    drop(a);
    let a = nodes.start("a", "1");
    until(&nodes, &a, &forced_of(&nodes, "1"), Said::Done);
    assert!(!is_held(&nodes, "1") && is_held(&nodes, "2"));
}

fn forced_of(nodes: &Nodes, pod: &str) -> Task {
    let tasks = nodes.store.all_tasks(soon()).unwrap();
    tasks.into_iter().find(|task| task.holder.target == hold(pod).target).unwrap()
}

/// A mount may be under way right after its hold. Only the driver knows, because it allows one call
/// at a time for a volume.
#[test]
fn what_may_be_about_to_mount_is_not_released() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    *nodes.hands.mute.lock().unwrap() = true;
    let task = forced(&nodes, &a, "1");
    nodes.mounts.0.lock().unwrap().clear();
    until(&nodes, &a, &task, Said::Stuck);
    assert!(is_held(&nodes, "1"));
    // The hold was requested long ago.
    a.journal.write(&Entry { asked: 0, ..a.journal.all().remove(0) }).unwrap();
    until(&nodes, &a, &task, Said::Done);
    assert!(!is_held(&nodes, "1"));
}

/// An unmount in a container alone is no unmount on the node.
#[test]
fn an_agent_that_cannot_unmount_says_so() {
    let nodes = Nodes::new();
    let a = nodes.start("a", "1");
    *nodes.hands.hindrance.lock().unwrap() = Some("it may not".to_owned());
    nodes.hands.helps(Action::Driver, "1");
    let task = forced(&nodes, &a, "1");
    let said = until(&nodes, &a, &task, Said::Stuck);
    assert_eq!((&*said.message, said.steps, nodes.hands.did("1")), ("it may not", vec![], vec![]));
    // If the task is withdrawn, the volume stays as it was.
    nodes.store.finish(&task).unwrap();
    a.tasks_came();
    a.sweep(soon()).unwrap();
    a.hold(&hold("1"), now()).unwrap();
}

/// Test 19: storage that another node was given is unmounted here without a request, and before
/// anything new is mounted.
#[test]
fn t19_what_was_lost_is_unmounted() {
    let nodes = Nodes::new();
    let a = lost(&nodes, |record| Some(Record { epoch: 2, holders: Vec::new(), ..record }));
    // As long as it stays mounted, the unmount is retried, and everything else waits.
    until_did(&nodes, &a, &ALL);
    assert!(a.has_tasks());
    assert_eq!(code(a.hold(&hold("2"), now())), Code::NotReady);
    nodes.hands.helps(Action::Driver, "1");
    drop(a);
    nodes.hands.did.lock().unwrap().clear();
    let a = nodes.start("a", "1");
    until_did(&nodes, &a, &ALL[..1]);
    while a.has_tasks() {
        a.sweep(soon()).unwrap();
    }
    assert!(a.journal.all().is_empty() && !a.force.is_about(&hold("1").handle));
    a.hold(&hold("2"), now()).unwrap();
}

/// The volumes of a cluster stay mounted if its records are removed, or restored from a backup.
#[test]
fn what_only_has_no_record_stays_mounted() {
    let nodes = Nodes::new();
    let a = lost(&nodes, |_| None);
    a.sweep(soon()).unwrap();
    assert_eq!(a.journal.all()[0].phase, Phase::Lost);
    assert!(nodes.hands.did("1").is_empty() && !a.has_tasks());
    assert_eq!(code(a.hold(&hold("2"), now())), Code::NotReady);
}

/// Starts an agent after the record of its mounted storage was changed.
fn lost(nodes: &Nodes, change: impl Fn(Record) -> Option<Record>) -> Agent {
    let a = nodes.start("a", "1");
    a.hold(&hold("1"), now()).unwrap();
    nodes.mounts.0.lock().unwrap().insert(hold("1").target);
    let (handle, deadline) = (hold("1").handle, soon());
    let read = nodes.store.read(&handle, deadline).unwrap();
    let changed = change(read.record.clone().unwrap());
    nodes.store.write(&handle, &read, changed.as_ref(), deadline).unwrap();
    drop(a);
    nodes.start("a", "1")
}

/// Sweeps until exactly these actions were performed on the volume of pod 1.
fn until_did(nodes: &Nodes, agent: &Agent, actions: &[Action]) {
    let start = Instant::now();
    while nodes.hands.did("1") != actions {
        agent.sweep(soon()).unwrap();
        assert!(start.elapsed() < deadline(60), "{:?}", nodes.hands.did("1"));
        std::thread::sleep(Duration::from_millis(1));
    }
}
