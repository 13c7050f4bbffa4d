//! What a cluster has, of which something is said. Pure.

use crate::breaker::kinds::{Node, SHOWS};
use crate::breaker::seen::SeenNode;
use crate::fence::decide::Task;
use crate::fence::record::{Holder, Record};
use crate::fence::store::kubernetes::task_of;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};

/// What was found, kind by kind.
#[derive(Debug, Default)]
pub struct Objects {
    /// Of the agents.
    pub locks: Vec<Record>,
    /// What nodes have to clean up.
    pub tasks: Vec<Task>,
    /// By name.
    pub nodes: BTreeMap<String, SeenNode>,
    /// Pods.
    pub pods: Vec<Pod>,
    /// Where they are there, by uid.
    by_uid: HashMap<String, usize>,
    /// `PersistentVolumes` that a FlexVolume driver serves.
    pub volumes: Vec<Volume>,
    /// How many locks and tasks mean nothing: they are left for people.
    pub strange: usize,
}

/// A pod, and what it wants.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pod {
    /// Where it is.
    pub namespace: String,
    /// What it is called there.
    pub name: String,
    /// No other pod has it; or that of the pod which this object shows.
    pub uids: [String; 2],
    /// Where it runs; empty before that is chosen.
    pub node: String,
    /// The claims of its namespace that it uses.
    pub claims: Vec<String>,
    /// Its `FlexVolumes` without a claim, with their drivers.
    pub inline: Vec<(String, String)>,
    /// Whether all of it has ended: it uses nothing any more.
    pub ended: bool,
}

/// A PersistentVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// No other volume has it.
    pub uid: String,
    /// The driver that serves it.
    pub driver: String,
    /// Namespace and name of the claim that has it.
    pub claim: Option<(String, String)>,
    /// The uid of that claim; empty until it is bound.
    pub claim_uid: String,
}

impl Objects {
    /// Takes an object of the kind that was asked for.
    pub fn add_lock(&mut self, object: &Value) {
        match Record::from_json(&object["spec"]) {
            Ok(record) => self.locks.push(record),
            Err(_) => self.strange += 1,
        }
    }

    /// The same.
    pub fn add_task(&mut self, object: &Value) {
        match task_of(object) {
            Some(task) => self.tasks.push(task),
            None => self.strange += 1,
        }
    }

    /// The same.
    pub fn add_node(&mut self, object: &Value) {
        // As the controller reads them.
        if let Ok(node) = serde_json::from_str::<Node>(&object.to_string()) {
            self.nodes.insert(text(&object["metadata"], "name"), node.seen());
        }
    }

    /// The same.
    pub fn add_pod(&mut self, object: &Value) {
        let pod = Pod::of(object);
        for uid in pod.uids.iter().filter(|uid| !uid.is_empty()) {
            self.by_uid.insert(uid.clone(), self.pods.len());
        }
        self.pods.push(pod);
    }

    /// The same; of other volumes nothing is said.
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

    /// The pod of a holder.
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

    /// Whether it uses a claim of its namespace, or will.
    pub fn uses(&self, claim: &str) -> bool {
        !self.ended && self.claims.iter().any(|own| own == claim)
    }

    /// Whether a holder holds for it.
    pub fn has(&self, holder: &Holder) -> bool {
        !holder.pod.uid.is_empty() && self.uids.contains(&holder.pod.uid)
    }

    /// As people say it.
    pub fn shown(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn text(object: &Value, key: &str) -> String {
    object[key].as_str().unwrap_or_default().to_owned()
}
