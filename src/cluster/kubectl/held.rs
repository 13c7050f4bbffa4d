//! Holders of storage, and the ways to free it. Pure.

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
    /// Record of the storage.
    pub record: &'a Record,
    /// Holder of the storage.
    pub holder: &'a Holder,
    /// State of its node.
    pub node: State,
    /// True if its pod is known to be gone; only if the pods of its namespace were read.
    pub pod_is_gone: bool,
}

/// States of a node, from its own reports and from an administrator's taint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It reports, in the boot in which it got the storage.
    Ready,
    /// It does not report.
    Silent,
    /// It does not report, and an administrator has declared it off.
    Off,
    /// It reports, although an administrator has declared it off.
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

    /// Returns the name, for a table and for programs.
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

/// Returns all holders. `knows_pods` is true for a namespace whose pods were read.
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

/// Returns the name of the PersistentVolume of a claim; empty if it has none. The creator of a
/// claim may name any volume in it: only Kubernetes marks the claim as bound.
pub fn bound_volume(claim: &Value) -> &str {
    let named = claim["spec"]["volumeName"].as_str().filter(|_| claim["status"]["phase"] == "Bound");
    named.unwrap_or_default()
}

/// Returns the holders for a claim that is bound to this PersistentVolume: the mounts of the
/// volume, and all that the claim's pods hold.
pub fn held_for<'a>(objects: &'a Objects, namespace: &str, claim: &str, volume: &str) -> Vec<Held<'a>> {
    let mut held = held(objects, |of| of == namespace);
    held.retain(|held| {
        let of_its_pod = |pod: &Pod| pod.namespace == namespace && pod.uses(claim);
        (!volume.is_empty() && held.may_show(objects, namespace, volume))
            || objects.pod_of(held.holder).is_some_and(of_its_pod)
    });
    held
}

/// Returns the pods that use a claim and hold none of its storage.
pub fn waiting<'a>(objects: &'a Objects, namespace: &str, claim: &str, held: &[Held<'_>]) -> Vec<&'a Pod> {
    let has = |pod: &Pod| held.iter().any(|held| pod.has(held.holder));
    objects.pods.iter().filter(|pod| pod.namespace == namespace && pod.uses(claim) && !has(pod)).collect()
}

impl<'a> Held<'a> {
    /// Returns the name of the volume that the target directory belongs to.
    pub fn volume(&self) -> &'a str {
        self.holder.target.rsplit('/').next().unwrap_or_default()
    }

    /// Reports whether the directory may belong to a PersistentVolume of a claim in this namespace.
    /// A tenant chooses the names of the volumes in a pod, and may take the name of a stranger's
    /// PersistentVolume.
    fn may_show(&self, objects: &Objects, namespace: &str, volume: &str) -> bool {
        let of = &self.holder.pod.namespace;
        let stands_in = |pod: &Pod| pod.inline.iter().any(|(name, _)| name == volume);
        self.volume() == volume
            && (of.is_empty() || of == namespace)
            && !objects.pod_of(self.holder).is_some_and(stands_in)
    }

    /// Returns the PersistentVolume that is mounted there, if that is certain: its name, its
    /// driver, and the namespace of its claim match the directory and the pod.
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

    /// Returns the pod's name, for people.
    pub fn pod(&self) -> String {
        let pod = &self.holder.pod;
        if pod.name.is_empty() { pod.uid.clone() } else { format!("{}/{}", pod.namespace, pod.name) }
    }

    /// Returns the node with its state.
    pub fn node(&self) -> String {
        format!("{} ({})", self.holder.node.name, self.node.name())
    }

    /// Returns a sentence: the holder, the time since which it holds, and what frees the storage.
    pub fn sentence(&self) -> String {
        let Holder { node, since, .. } = self.holder;
        let Record { handle, epoch, .. } = self.record;
        let who = format!("{handle} is held by pod {} on node {} since {since}", self.pod(), node.name);
        format!("{who}, epoch {epoch}; {}", self.advice())
    }

    /// Returns what frees the storage.
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
        // Users copy this text into a shell: put in a valid name and nothing else.
        let word = if is_name(node) { node } else { "NODE" };
        match self.node {
            State::Silent => format!("node {node} {text} {word} {OUT_OF_SERVICE}=nodeshutdown:NoExecute"),
            State::Marked => format!("node {node} {text} {word} {OUT_OF_SERVICE}-"),
            _ => format!("node {node} {text}"),
        }
    }

    /// Returns the JSON form.
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
