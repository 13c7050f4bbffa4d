//! Objects of a cluster that commands report on. Pure.

use crate::breaker::kinds::{Node, SHOWS};
use crate::breaker::seen::SeenNode;
use crate::fence::decide::Task;
use crate::fence::record::{Holder, Record};
use crate::fence::store::kubernetes::task_of;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// Objects that were found, by kind.
#[derive(Debug, Default)]
pub struct Objects {
    /// Locks of the agents.
    pub locks: Vec<Record>,
    /// Cleanup tasks of nodes.
    pub tasks: Vec<Task>,
    /// Nodes, by name.
    pub nodes: BTreeMap<String, SeenNode>,
    /// Pods.
    pub pods: Vec<Pod>,
    /// Indexes of `pods`, by uid.
    by_uid: HashMap<String, usize>,
    /// `PersistentVolumes` that a FlexVolume driver serves.
    pub volumes: Vec<Volume>,
    /// Number of locks and tasks that are not valid: they are left to people.
    pub strange: usize,
}

/// Pod, and the volumes that it uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod in the namespace.
    pub name: String,
    /// Uid of this object, and uid of the static pod that this object mirrors.
    pub uids: [String; 2],
    /// Node on which it runs; empty before that is chosen.
    pub node: String,
    /// Claims of its namespace that it uses.
    pub claims: Vec<String>,
    /// Its `FlexVolumes` without a claim, each with its driver.
    pub inline: Vec<(String, String)>,
    /// True if the pod has ended: it uses nothing any more.
    pub ended: bool,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Name of the volume.
    pub name: String,
    /// Uid, which no other volume has.
    pub uid: String,
    /// Driver that serves it.
    pub driver: String,
    /// Namespace and name of its claim.
    pub claim: Option<(String, String)>,
    /// Uid of that claim; empty until it is bound.
    pub claim_uid: String,
}

impl Objects {
    /// Adds a lock; counts it as strange if it is not valid.
    pub fn add_lock(&mut self, object: &Value) {
        match Record::from_json(&object["spec"]) {
            Ok(record) => self.locks.push(record),
            Err(_) => self.strange += 1,
        }
    }

    /// Adds a task; counts it as strange if it is not valid.
    pub fn add_task(&mut self, object: &Value) {
        match task_of(object) {
            Some(task) => self.tasks.push(task),
            None => self.strange += 1,
        }
    }

    /// Adds a node, if its object is valid.
    pub fn add_node(&mut self, object: &Value) {
        // Parse it as the controller does.
        if let Ok(node) = serde_json::from_str::<Node>(&object.to_string()) {
            self.nodes.insert(text(&object["metadata"], "name"), node.seen());
        }
    }

    /// Adds a pod.
    pub fn add_pod(&mut self, object: &Value) {
        let pod = Pod::of(object);
        for uid in pod.uids.iter().filter(|uid| !uid.is_empty()) {
            self.by_uid.insert(uid.clone(), self.pods.len());
        }
        self.pods.push(pod);
    }

    /// Adds a PersistentVolume; ignores it if no FlexVolume driver serves it.
    pub fn add_volume(&mut self, object: &Value) {
        let (spec, metadata) = (&object["spec"], &object["metadata"]);
        if let Some(driver) = spec["flexVolume"]["driver"].as_str() {
            let claim = &spec["claimRef"];
            let claim = claim.is_object().then(|| (text(claim, "namespace"), text(claim, "name")));
            let [name, uid] = ["name", "uid"].map(|key| text(metadata, key));
            let claim_uid = text(&spec["claimRef"], "uid");
            self.volumes.push(Volume { name, uid, driver: driver.to_owned(), claim, claim_uid });
        }
    }

    /// Returns the pod of a holder.
    pub fn pod_of(&self, holder: &Holder) -> Option<&Pod> {
        self.pods.get(*self.by_uid.get(&holder.pod.uid)?)
    }
}

impl Pod {
    fn of(object: &Value) -> Self {
        let (metadata, spec) = (&object["metadata"], &object["spec"]);
        let mut pod = Self {
            namespace: text(metadata, "namespace"),
            name: text(metadata, "name"),
            uids: [text(metadata, "uid"), text(&metadata["annotations"], SHOWS)],
            node: text(spec, "nodeName"),
            ended: matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed")),
            ..Self::default()
        };
        for volume in spec["volumes"].as_array().into_iter().flatten() {
            if let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() {
                pod.claims.push(claim.to_owned());
            }
            if let Some(driver) = volume["flexVolume"]["driver"].as_str() {
                pod.inline.push((text(volume, "name"), driver.to_owned()));
            }
        }
        pod
    }

    /// Reports whether it uses a claim of its namespace, or will use it.
    pub fn uses(&self, claim: &str) -> bool {
        !self.ended && self.claims.iter().any(|own| own == claim)
    }

    /// Reports whether a holder holds storage for it.
    pub fn has(&self, holder: &Holder) -> bool {
        !holder.pod.uid.is_empty() && self.uids.contains(&holder.pod.uid)
    }

    /// Returns namespace and name, for people.
    pub fn shown(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn text(object: &Value, key: &str) -> String {
    object[key].as_str().unwrap_or_default().to_owned()
}
