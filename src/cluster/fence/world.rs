//! Small world for the model checker: nodes, pods, one storage, and everything that can happen to
//! them.
//!
//! An agent reads, decides and writes in separate steps, so any event may happen in between. A
//! write may be lost, its answer may be lost, and it may arrive late. Nodes are cut off, lose power
//! and return. Their agents are killed. Pods are deleted, also by force. Attached storage stays in
//! the kernel when the agent ends, but not when the node loses power.

mod ends;
mod invariants;
mod nodes;
mod writes;

use super::decide::{Reply, Write, decide};
use super::evidence::{Evidence, Fence, NodeState, PodState, Sight, Usage};
use super::record::{Holder, Phase, Record};
use super::request::{Left, Request};
use super::rows::{HANDLE, holder};
use super::sharing::Sharing;
use std::time::Duration;

/// Rule that is broken on purpose: then an invariant must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    Nothing,
    /// A pod that the API server does not know counts as ended. This destroyed Rook's volumes.
    PodMissingIsEvidence,
    /// A node that does not report counts as off.
    SilentIsOff,
    /// Writes are not compared with what was read.
    BlindWrite,
    /// The lock is released before the device is detached.
    ReleaseFirst,
    /// The storage is not told to fence a node.
    NoFence,
    /// A node that returns serves the volumes that it has.
    NoReturn,
    /// A node that returns reads that it still holds the storage, and writes nothing.
    ReturnUnwritten,
    /// A retried mount reads that it still holds the storage, and writes nothing.
    AgainUnwritten,
    /// A record without holders is removed, together with its epoch.
    EpochForgotten,
    /// Readers join a writer.
    ReaderBesideWriter,
    /// The taint is set on a node that is only cut off.
    TaintWithoutPowerOff,
    /// The local mount table is ignored.
    UsageIgnored,
    /// An agent serves before its Node object shows the current boot.
    ServesUnreported,
    /// An agent serves although its Node object still has the taint of an earlier boot.
    ServesTainted,
}

/// Initial properties of a pod.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) node: usize,
    pub(super) read_only: bool,
    pub(super) sharing: Sharing,
}

/// Properties of a world that do not change.
#[derive(Clone, Debug)]
pub(super) struct Setting {
    pub(super) pods: Vec<Plan>,
    pub(super) nodes: usize,
    pub(super) boots: u8,
    /// True if a controller reviews the holders.
    pub(super) reviewed: bool,
    pub(super) fence: Fence,
    pub(super) broken: Broken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Held {
    pod: u8,
    phase: Phase,
    epoch: u8,
    boot: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kept {
    epoch: u8,
    sharing: Sharing,
    holders: Vec<Held>,
}

/// Write that is under way: `fresh` until another process has written.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pending {
    next: Option<Kept>,
    fresh: bool,
    then: Then,
}

/// Meaning of a positive answer to a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Then {
    Go(u8),
    Noted,
    Released,
}

/// Progress of the agent with a pod.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Op {
    Idle,
    Writing(Pending),
    /// The pod may attach.
    Go,
    /// The pod has unmounted.
    Detached,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pod {
    /// State in the API server.
    api: PodState,
    /// True if the pod's processes run.
    runs: bool,
    op: Op,
    /// True if the storage is attached in the kernel.
    attached: bool,
    /// Epoch in the journal.
    epoch: u8,
    /// Epoch of a task for its node to clean up.
    task: Option<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::struct_excessive_bools, reason = "each can be so beside the others")]
struct Node {
    off: bool,
    cut: bool,
    /// True if the Node object was removed long ago.
    removed: bool,
    tainted: bool,
    fenced: bool,
    /// True if the agent has checked its journal.
    serves: bool,
    boot: u8,
    /// Boot that the Node object shows.
    shown: u8,
}

/// State of the whole world.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    kept: Option<Kept>,
    /// Write whose caller has given up.
    late: Option<(Option<Kept>, bool)>,
    /// Pending write of the controller; true if no other process has written since the read.
    review: Option<(Option<Kept>, bool)>,
    pods: Vec<Pod>,
    nodes: Vec<Node>,
    highest: u8,
}

/// Event that can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Mount(usize),
    Attach(usize),
    Confirm(usize),
    Detach(usize),
    Release(usize),
    Work(usize),
    Answered(usize),
    ReplyLost(usize),
    RequestLost(usize),
    RequestLate(usize),
    LateArrives,
    Delete(usize),
    ForceDelete(usize),
    Serve(usize),
    AgentKilled(usize),
    CutOff(usize),
    Healed(usize),
    PowerOff(usize),
    PowerOn(usize),
    Taint(usize),
    Untaint(usize),
    Report(usize),
    RemoveNode(usize),
    Review,
    Reviewed,
    ReviewLost,
}

const OF_PODS: [fn(usize) -> Event; 11] = [
    Event::Mount,
    Event::Attach,
    Event::Confirm,
    Event::Detach,
    Event::Release,
    Event::Work,
    Event::Answered,
    Event::ReplyLost,
    Event::RequestLost,
    Event::RequestLate,
    Event::Delete,
];
const OF_NODES: [fn(usize) -> Event; 10] = [
    Event::Serve,
    Event::AgentKilled,
    Event::CutOff,
    Event::Healed,
    Event::PowerOff,
    Event::PowerOn,
    Event::Taint,
    Event::Untaint,
    Event::Report,
    Event::RemoveNode,
];

impl Setting {
    /// Returns the first state: pods wait to be mounted, and nodes serve.
    pub(super) fn begin(&self) -> World {
        let pod =
            Pod { api: PodState::Present, runs: true, op: Op::Idle, attached: false, epoch: 0, task: None };
        World {
            kept: None,
            late: None,
            review: None,
            pods: vec![pod; self.pods.len()],
            nodes: vec![Node { serves: true, ..Node::default() }; self.nodes],
            highest: 0,
        }
    }

    /// Returns all events that can happen in any state.
    pub(super) fn events(&self) -> Vec<Event> {
        let pods = (0..self.pods.len())
            .flat_map(|pod| OF_PODS.iter().map(move |event| event(pod)).chain([Event::ForceDelete(pod)]));
        let nodes = (0..self.nodes).flat_map(|node| OF_NODES.iter().map(move |event| event(node)));
        let review = [Event::Review, Event::Reviewed, Event::ReviewLost];
        let review = review.into_iter().filter(|_| self.reviewed);
        pods.chain(nodes).chain([Event::LateArrives]).chain(review).collect()
    }

    fn holder(&self, held: Held) -> Holder {
        let plan = self.pods[usize::from(held.pod)];
        let mut it = holder(&plan.node.to_string(), &held.pod.to_string());
        it.node.boot = held.boot.to_string();
        Holder {
            read_only: plan.read_only,
            phase: held.phase,
            epoch: held.epoch.into(),
            device: String::new(),
            ..it
        }
    }

    fn record(&self, kept: &Kept) -> Record {
        let holders = kept.holders.iter().map(|held| self.holder(*held)).collect();
        Record { handle: HANDLE.to_owned(), sharing: kept.sharing, epoch: kept.epoch.into(), holders }
    }

    fn kept(record: &Record) -> Kept {
        let number = |text: &str| text.parse().unwrap();
        let small = |number: u64| u8::try_from(number).unwrap();
        let held = |holder: &Holder| Held {
            pod: number(&holder.pod.uid),
            phase: holder.phase,
            epoch: small(holder.epoch),
            boot: number(&holder.node.boot),
        };
        let holders = record.holders.iter().map(held).collect();
        Kept { epoch: small(record.epoch), sharing: record.sharing, holders }
    }

    fn me(&self, world: &World, pod: usize) -> Holder {
        let boot = world.nodes[self.pods[pod].node].boot;
        let pod = u8::try_from(pod).unwrap();
        self.holder(Held { pod, phase: Phase::Reserved, epoch: 0, boot })
    }

    /// Returns the world after an event; `None` if the event cannot happen now.
    pub(super) fn step(&self, world: &World, event: Event) -> Option<World> {
        let mut next = world.clone();
        let happened = match event {
            Event::Mount(pod) => next.mount(self, pod),
            Event::Attach(pod) => next.attach(self, pod),
            Event::Confirm(pod) => next.confirm(self, pod),
            Event::Detach(pod) => next.detach(self, pod),
            Event::Release(pod) => next.release(self, pod),
            Event::Work(pod) => next.work(self, pod),
            Event::Answered(pod)
            | Event::ReplyLost(pod)
            | Event::RequestLost(pod)
            | Event::RequestLate(pod) => next.deliver(self, pod, event),
            Event::LateArrives => next.late_arrives(self),
            Event::Delete(_) | Event::ForceDelete(_) => next.delete(event),
            Event::Review => next.review(self),
            Event::Reviewed => next.reviewed(self),
            Event::ReviewLost => next.review.take().map(drop),
            _ => next.happens_to_node(self, event),
        };
        (happened.is_some() && next != *world).then_some(next)
    }
}

impl World {
    fn node<'a>(&'a self, setting: &Setting, pod: usize) -> &'a Node {
        &self.nodes[setting.pods[pod].node]
    }

    /// Returns `Some` if the pod's agent can act on the pod and reach the store.
    fn reaches(&self, setting: &Setting, pod: usize) -> Option<()> {
        let node = self.node(setting, pod);
        (!node.off && !node.cut && node.serves).then_some(())
    }

    fn evidence(&self, setting: &Setting, from: usize) -> Evidence {
        let mut evidence = Evidence::default();
        for (pod, plan) in setting.pods.iter().enumerate() {
            let held = self.held(pod).map_or(0, |held| held.boot);
            let id = setting.me(self, pod).id;
            evidence.sights.insert(id, self.sight(setting, pod, plan.node == from, held));
        }
        evidence
    }

    fn sight(&self, setting: &Setting, pod: usize, here: bool, boot: u8) -> Sight {
        let (node, it) = (self.node(setting, pod), &self.pods[pod]);
        let ready = !node.off && !node.cut;
        let mut state = match node {
            Node { removed: true, .. } => NodeState::Gone(Duration::from_secs(400)),
            Node { tainted: true, .. } if !ready => NodeState::OutOfService,
            Node { shown, .. } if *shown != boot => NodeState::Rebooted,
            _ if !ready => NodeState::Suspect,
            _ => NodeState::Alive,
        };
        let missing = setting.broken == Broken::PodMissingIsEvidence && it.api == PodState::Gone;
        if state == NodeState::Suspect && (missing || setting.broken == Broken::SilentIsOff) {
            state = NodeState::Rebooted;
        }
        // This node knows itself whether the pod runs.
        let local = if it.runs { PodState::Present } else { PodState::Gone };
        let busy = it.attached || it.op != Op::Idle;
        let ignored = setting.broken == Broken::UsageIgnored;
        let usage = if busy && !ignored { Usage::InUse } else { Usage::Unused };
        let pod = if here && !ignored { local } else { it.api };
        Sight { node: state, pod, usage, fence: Fence::NotTried }
    }

    fn held(&self, pod: usize) -> Option<Held> {
        self.kept.as_ref()?.holders.iter().find(|held| usize::from(held.pod) == pod).copied()
    }

    /// Decides for a pod's agent, and fences nodes if required.
    fn decide(&mut self, setting: &Setting, pod: usize, request: &Request) -> (Option<Pending>, Reply) {
        self.decide_from(setting, setting.pods[pod].node, request)
    }

    /// Decides on a node, or on none for the controller.
    fn decide_from(&mut self, setting: &Setting, from: usize, request: &Request) -> (Option<Pending>, Reply) {
        let record = self.kept.as_ref().map(|kept| setting.record(kept));
        let mut evidence = self.evidence(setting, from);
        let mut decision = decide(HANDLE, record.as_ref(), request, &evidence);
        if let Reply::FenceFirst(ids) = &decision.reply {
            for id in ids {
                evidence.sights.get_mut(id).unwrap().fence = setting.fence;
                let node = record.as_ref().unwrap().holder(id).unwrap().node.name.parse::<usize>().unwrap();
                let told = setting.fence == Fence::Fenced && setting.broken != Broken::NoFence;
                self.nodes[node].fenced |= told;
            }
            decision = decide(HANDLE, record.as_ref(), request, &evidence);
        }
        for task in &decision.tasks {
            let of: usize = task.holder.pod.uid.parse().unwrap();
            self.pods[of].task = u8::try_from(task.holder.epoch).ok();
        }
        let forgotten = setting.broken == Broken::EpochForgotten;
        let next = match decision.write {
            Write::Put(next)
                if setting.broken == Broken::AgainUnwritten && Some(&next) == record.as_ref() =>
            {
                return (None, decision.reply);
            }
            Write::Nothing => return (None, decision.reply),
            Write::Put(next) if forgotten && next.holders.is_empty() => None,
            Write::Put(next) => Some(Setting::kept(&next)),
            Write::Delete => None,
        };
        let then = match decision.reply {
            Reply::Go { epoch } => Then::Go(u8::try_from(epoch).unwrap()),
            Reply::Done if matches!(request, Request::EndUnmount { .. } | Request::CleanUp { .. }) => {
                Then::Released
            }
            _ => Then::Noted,
        };
        (Some(Pending { next, fresh: true, then }), decision.reply)
    }

    fn mount(&mut self, setting: &Setting, pod: usize) -> Option<()> {
        self.reaches(setting, pod)?;
        let it = &self.pods[pod];
        if it.op != Op::Idle || !it.runs || it.api != PodState::Present || it.attached && self.is_held(pod) {
            return None;
        }
        let me = Box::new(setting.me(self, pod));
        let plan = setting.pods[pod];
        let beside = setting.broken == Broken::ReaderBesideWriter && plan.read_only && self.kept.is_some();
        let request = Request::Mount { me, sharing: plan.sharing };
        let before = self.kept.clone();
        if beside && let Some(kept) = &mut self.kept {
            kept.sharing = Sharing::SharedReadWrite;
        }
        let (pending, reply) = self.decide(setting, pod, &request);
        self.kept = before;
        self.carry_on(pod, pending, &reply);
        Some(())
    }

    fn is_held(&self, pod: usize) -> bool {
        self.held(pod).is_some_and(|held| held.epoch == self.pods[pod].epoch)
    }

    fn carry_on(&mut self, pod: usize, pending: Option<Pending>, reply: &Reply) {
        match (pending, reply) {
            (Some(pending), Reply::Undo) => unreachable!("{pending:?} and undone"),
            (Some(pending), _) => self.pods[pod].op = Op::Writing(pending),
            (None, Reply::Go { epoch }) => {
                self.pods[pod].epoch = u8::try_from(*epoch).unwrap();
                self.pods[pod].op = Op::Go;
            }
            (None, Reply::Undo) => self.undo(pod),
            (None, _) => (),
        }
    }

    fn undo(&mut self, pod: usize) {
        self.pods[pod].attached = false;
        self.pods[pod].op = Op::Idle;
    }

    fn attach(&mut self, setting: &Setting, pod: usize) -> Option<()> {
        // The driver needs no store to attach.
        let node = self.node(setting, pod);
        let goes = self.pods[pod].op == Op::Go && !node.off && node.serves;
        goes.then(|| {
            self.pods[pod].attached = true;
            self.pods[pod].op = Op::Idle;
        })
    }

    fn confirm(&mut self, setting: &Setting, pod: usize) -> Option<()> {
        self.reaches(setting, pod)?;
        let it = &self.pods[pod];
        let confirmed = self.held(pod).is_some_and(|held| held.phase == Phase::Attached);
        if !it.attached || it.op != Op::Idle || confirmed {
            return None;
        }
        let id = setting.me(self, pod).id;
        let request = Request::Attached { id, epoch: it.epoch.into(), device: String::new() };
        let (pending, reply) = self.decide(setting, pod, &request);
        self.carry_on(pod, pending, &reply);
        Some(())
    }
}
