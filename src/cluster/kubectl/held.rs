//! Who holds which storage, and what frees it. Pure.

use super::objects::{Objects, Pod, Volume};
use crate::breaker::seen::{Missing, SeenNode, state_of};
use crate::fence::evidence::NodeState;
use crate::fence::record::{Holder, Record};
use crate::fence::store::kubernetes::{OUT_OF_SERVICE, is_name};
use flexvol_protocol::volume_dir::VolumeDir;
use flexvol_protocol::{DriverName, TargetPath};
use serde_json::{Value, json};

/// One holder of one storage.
#[derive(Clone, Copy, Debug)]
pub struct Held<'a> {
    /// The storage.
    pub record: &'a Record,
    /// Who has it.
    pub holder: &'a Holder,
    /// How its node is.
    pub node: State,
    /// Whether its pod is known to be gone: only where the pods of its namespace were asked for.
    pub pod_is_gone: bool,
}

/// What a node says, and what is said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It reports, in the boot in which it was given the storage.
    Ready,
    /// It does not.
    Silent,
    /// Nor does it, and an administrator has said that it is off.
    Off,
    /// An administrator has said so, and it reports.
    Marked,
    /// It runs in a later boot.
    StartedAgain,
    /// It has no object any more, or another machine has its name.
    Gone,
}

impl State {
    fn of(holder: &Holder, node: Option<&SeenNode>) -> Self {
        match state_of(&holder.node, node, &Missing::default()) {
            NodeState::Alive if node.is_some_and(|node| node.out_of_service) => Self::Marked,
            NodeState::Alive => Self::Ready,
            NodeState::Suspect | NodeState::Unknown => Self::Silent,
            NodeState::Rebooted => Self::StartedAgain,
            NodeState::OutOfService => Self::Off,
            NodeState::Gone(_) => Self::Gone,
        }
    }

    /// For a table, and for programs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Silent => "not ready",
            Self::Off => "off",
            Self::Marked => "ready, and said to be off",
            Self::StartedAgain => "started again",
            Self::Gone => "gone",
        }
    }
}

/// All that is held. `knows_pods` is the namespace whose pods were asked for, or all.
pub fn held(objects: &Objects, knows_pods: impl Fn(&str) -> bool) -> Vec<Held<'_>> {
    let mut all = Vec::new();
    for record in &objects.locks {
        for holder in &record.holders {
            let node = State::of(holder, objects.nodes.get(&holder.node.name));
            let known = knows_pods(&holder.pod.namespace);
            let pod_is_gone = known && objects.pod_of(holder).is_none();
            all.push(Held { record, holder, node, pod_is_gone });
        }
    }
    all
}

/// The name of the PersistentVolume that a claim has; empty if it has none. Whoever makes a claim
/// may name any volume in it: that it is bound says Kubernetes alone.
pub fn bound_volume(claim: &Value) -> &str {
    let named = claim["spec"]["volumeName"].as_str().filter(|_| claim["status"]["phase"] == "Bound");
    named.unwrap_or_default()
}

/// Of a claim that is bound to this PersistentVolume: its mounts, and what its pods hold.
pub fn held_for<'a>(objects: &'a Objects, namespace: &str, claim: &str, volume: &str) -> Vec<Held<'a>> {
    let mut held = held(objects, |of| of == namespace);
    held.retain(|held| {
        let of_its_pod = |pod: &Pod| pod.namespace == namespace && pod.uses(claim);
        (!volume.is_empty() && held.may_show(objects, namespace, volume))
            || objects.pod_of(held.holder).is_some_and(of_its_pod)
    });
    held
}

/// The pods that use a claim and hold nothing of it.
pub fn waiting<'a>(objects: &'a Objects, namespace: &str, claim: &str, held: &[Held<'_>]) -> Vec<&'a Pod> {
    let has = |pod: &Pod| held.iter().any(|held| pod.has(held.holder));
    objects.pods.iter().filter(|pod| pod.namespace == namespace && pod.uses(claim) && !has(pod)).collect()
}

impl<'a> Held<'a> {
    /// The name of the volume whose directory it is.
    pub fn volume(&self) -> &'a str {
        self.holder.target.rsplit('/').next().unwrap_or_default()
    }

    /// Whether its directory may be that of a PersistentVolume which a claim of this namespace has.
    /// A tenant names the volumes that stand in a pod, also after the PersistentVolume of a
    /// stranger.
    fn may_show(&self, objects: &Objects, namespace: &str, volume: &str) -> bool {
        let of = &self.holder.pod.namespace;
        let stands_in = |pod: &Pod| pod.inline.iter().any(|(name, _)| name == volume);
        self.volume() == volume
            && (of.is_empty() || of == namespace)
            && !objects.pod_of(self.holder).is_some_and(stands_in)
    }

    /// The PersistentVolume that is mounted there, if that is certain: its name, its driver, and
    /// the namespace of its claim are those of the directory and the pod.
    pub fn persistent<'o>(&self, objects: &'o Objects) -> Option<&'o Volume> {
        let directory = VolumeDir::of(&TargetPath::parse(self.holder.target.as_ref()).ok()?);
        let driver = DriverName::from_directory(&directory.driver?).ok()?.to_string();
        let namespace = &self.holder.pod.namespace;
        let is_it = |volume: &&Volume| {
            let claimed = volume.claim.as_ref().is_some_and(|(of, _)| of == namespace);
            claimed && volume.driver == driver && self.may_show(objects, namespace, &volume.name)
        };
        objects.volumes.iter().find(is_it).filter(|_| !namespace.is_empty())
    }

    /// The pod, as people say it.
    pub fn pod(&self) -> String {
        let pod = &self.holder.pod;
        if pod.name.is_empty() { pod.uid.clone() } else { format!("{}/{}", pod.namespace, pod.name) }
    }

    /// The node, and how it is.
    pub fn node(&self) -> String {
        format!("{} ({})", self.holder.node.name, self.node.name())
    }

    /// Who has it since when, and what frees it.
    pub fn sentence(&self) -> String {
        let Holder { node, since, .. } = self.holder;
        let Record { handle, epoch, .. } = self.record;
        let who = format!("{handle} is held by pod {} on node {} since {since}", self.pod(), node.name);
        format!("{who}, epoch {epoch}; {}", self.advice())
    }

    /// What frees it.
    pub fn advice(&self) -> String {
        let text = match self.node {
            State::Ready if self.pod_is_gone => {
                "is ready, and its pod is gone: its kubelet unmounts it, see its log if that lasts"
            }
            State::Ready => "is ready: delete that pod",
            State::Silent => "is not ready, and may still write: only if it is off: kubectl taint node",
            State::Off => "was said to be off: flexvold controller takes it, see its log if that lasts",
            State::Marked => "was said to be off, and is ready: kubectl taint node",
            State::StartedAgain => "has started again: its agent frees it when its pod is gone",
            State::Gone => "is not in the cluster any more: see docs/agent.md",
        };
        let node = &*self.holder.node.name;
        // What is copied into a shell is a name and nothing else.
        let word = if is_name(node) { node } else { "NODE" };
        match self.node {
            State::Silent => format!("node {node} {text} {word} {OUT_OF_SERVICE}=nodeshutdown:NoExecute"),
            State::Marked => format!("node {node} {text} {word} {OUT_OF_SERVICE}-"),
            _ => format!("node {node} {text}"),
        }
    }

    /// For programs.
    pub fn as_json(&self) -> Value {
        json!({
            "storage": self.record.handle,
            "sharing": self.record.sharing.name(),
            "epoch": self.record.epoch,
            "node": self.holder.node.name,
            "nodeState": self.node.name(),
            "pod": self.pod(),
            "podIsGone": self.pod_is_gone,
            "target": self.holder.target,
            "since": self.holder.since,
            "advice": self.advice(),
        })
    }
}
