//! Mount pods of a node in the API, with the facts that an upgrade needs. Pure.
//!
//! Any tenant's pod may run a program with this command line. A pod that mounts for the node is
//! privileged and has kubelet's directory with bidirectional propagation. The API server ensures
//! that only privileged containers have that propagation, and a user who may create such a pod is
//! root of the node.

use crate::fence::store::kubernetes::is_name;
use flexvol_model::mounter::{Lack, Process1};
use serde_json::Value;

/// Label of a pod, or of a revision, that identifies the template.
const REVISION: &str = "controller-revision-hash";

/// One mount pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountPod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod in the namespace.
    pub name: String,
    /// Uid, which no other pod has.
    pub uid: String,
    /// DaemonSet that made the pod, according to the pod, if it names one.
    pub owner: Option<Owner>,
    /// Label of the template that the pod was made from.
    pub revision: String,
    /// Name of the container with process 1.
    pub container: String,
    /// Program of process 1.
    pub program: String,
    /// Drivers, `vendor/driver`.
    pub plugins: Vec<String>,
    /// Property that it lacks to be a mount pod; no other field of such a pod is trusted.
    pub lacks: Option<&'static str>,
    /// True if its probe reports that it is registered and answers.
    pub is_ready: bool,
    /// True if its container runs.
    pub is_running: bool,
    /// True if it is being deleted.
    pub is_ending: bool,
}

/// A DaemonSet, in the namespace of its pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Namespace of the DaemonSet and of its pods.
    pub namespace: String,
    /// Name of the DaemonSet in the namespace.
    pub name: String,
    /// Uid, which no other DaemonSet has.
    pub uid: String,
}

impl MountPod {
    /// Reads a pod's object; `None` if the pod runs no process 1.
    pub fn of(pod: &Value) -> Option<Self> {
        let (metadata, spec, status) = (&pod["metadata"], &pod["spec"], &pod["status"]);
        let (container, program, process_1) = entries(&spec["containers"]).find_map(|container| {
            let (program, process_1) = Process1::of_container(container)?;
            Some((container, program, process_1))
        })?;
        let name = text(container, "name");
        let state = entries(&status["containerStatuses"]).find(|state| state["name"] == *name);
        let is_ready = |condition: &Value| condition["type"] == "Ready" && condition["status"] == "True";
        Some(Self {
            namespace: text(metadata, "namespace"),
            name: text(metadata, "name"),
            uid: text(metadata, "uid"),
            owner: owner(metadata),
            revision: text(&metadata["labels"], REVISION),
            lacks: process_1.lacks(spec, container).map(why),
            is_ready: entries(&status["conditions"]).any(is_ready),
            is_running: state.is_some_and(|state| state["state"]["running"].is_object()),
            is_ending: !metadata["deletionTimestamp"].is_null(),
            plugins: process_1.plugins,
            container: name,
            program,
        })
    }

    /// Returns namespace and name, for people.
    pub fn shown(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

impl Owner {
    /// Returns namespace and name, for people.
    pub fn shown(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

fn owner(metadata: &Value) -> Option<Owner> {
    let is_one = |owner: &&Value| {
        let api = owner["apiVersion"].as_str().unwrap_or_default();
        let is_set = owner["kind"] == "DaemonSet" && api.starts_with("apps/");
        // The API server accepts any text as the name of an owner.
        owner["controller"] == true && is_set && owner["name"].as_str().is_some_and(is_name)
    };
    let owner = entries(&metadata["ownerReferences"]).find(is_one)?;
    let namespace = text(metadata, "namespace");
    Some(Owner { namespace, name: text(owner, "name"), uid: text(owner, "uid") })
}

fn why(lack: Lack) -> &'static str {
    match lack {
        Lack::Privilege => "its container is not privileged",
        Lack::Directory => "it has no hostPath of kubelet's directory with mountPropagation: Bidirectional",
    }
}

/// Returns the label of a DaemonSet's newest template, from the revisions of its namespace.
pub fn newest_revision(revisions: &[Value], owner: &str) -> Option<String> {
    let is_own = |revision: &&Value| {
        entries(&revision["metadata"]["ownerReferences"]).any(|reference| reference["uid"] == *owner)
    };
    let newest = revisions.iter().filter(is_own).max_by_key(|revision| revision["revision"].as_i64())?;
    Some(text(&newest["metadata"]["labels"], REVISION))
}

pub(super) fn entries(list: &Value) -> std::slice::Iter<'_, Value> {
    list.as_array().map_or(&[][..], Vec::as_slice).iter()
}

pub(super) fn text(object: &Value, key: &str) -> String {
    object[key].as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod() -> Value {
        json!({"metadata": {"namespace": "n", "name": "p", "uid": "u", "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "x"},
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d", "uid": "o", "controller": true}]},
            "spec": {
                "containers": [{"name": "x"}, {"name": "m", "command": ["/flexvold", "mounter", "init"],
                    "args": ["--plugin=v/sshfs"], "securityContext": {"privileged": true},
                    "volumeMounts": [{"name": "k", "mountPath": "/var/lib/kubelet",
                        "mountPropagation": "Bidirectional"}]}],
                "volumes": [{"name": "k", "hostPath": {"path": "/var/lib/kubelet"}}]}})
    }

    #[test]
    fn a_mount_pod_is_known_by_what_it_runs() {
        let mut object = pod();
        let found = MountPod::of(&object).unwrap();
        assert_eq!((&*found.container, &*found.program, found.lacks), ("m", "/flexvold", None));
        assert_eq!(found.owner.as_ref().map(Owner::shown).as_deref(), Some("n/d"));
        assert_eq!(
            (found.plugins, found.is_ready, found.is_running),
            (vec!["v/sshfs".to_owned()], false, false)
        );
        object["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "m", "state": {"running": {}}}]});
        let found = MountPod::of(&object).unwrap();
        assert!(found.is_ready && found.is_running && !found.is_ending);
        object["spec"]["containers"][1]["command"] = json!(["sleep"]);
        assert_eq!(MountPod::of(&object), None);
    }

    /// A pod that only has the same command line is not a mount pod.
    #[test]
    fn a_mount_pod_mounts_for_the_node() {
        let lacks = |pointer: &str, value: Value| {
            let mut object = pod();
            *object.pointer_mut(pointer).unwrap() = value;
            MountPod::of(&object).unwrap().lacks
        };
        let container = "/spec/containers/1";
        for (pointer, value) in [
            ("/securityContext/privileged", json!(false)),
            ("/volumeMounts/0/mountPropagation", json!("HostToContainer")),
            ("/volumeMounts/0/mountPath", json!("/var/lib/kubelet/pods")),
            ("/volumeMounts/0/name", json!("other")),
            ("/volumeMounts", json!([])),
        ] {
            assert!(lacks(&format!("{container}{pointer}"), value).is_some(), "{pointer}");
        }
        assert!(lacks("/spec/volumes/0", json!({"name": "k", "emptyDir": {}})).is_some());
        assert!(lacks("/spec/volumes/0/hostPath/path", json!("/srv")).is_some());
        let mut around = pod();
        around["spec"]["volumes"][0]["hostPath"]["path"] = json!("/var/lib");
        around["spec"]["containers"][1]["volumeMounts"][0]["mountPath"] = json!("/var/lib");
        assert_eq!(MountPod::of(&around).unwrap().lacks, None);
        for (key, value) in [
            ("controller", json!(false)),
            ("kind", json!("ReplicaSet")),
            ("apiVersion", json!("x/v1")),
            ("name", json!("../../nodes")),
        ] {
            let mut object = pod();
            object["metadata"]["ownerReferences"][1][key] = value;
            assert_eq!(MountPod::of(&object).unwrap().owner, None, "{key}");
        }
    }

    #[test]
    fn the_newest_template_counts() {
        let revision = |number: i64, owner: &str| {
            json!({"revision": number, "metadata": {"labels": {REVISION: format!("h{number}")},
                "ownerReferences": [{"uid": owner}]}})
        };
        let all = [revision(1, "a"), revision(3, "a"), revision(2, "a"), revision(9, "b")];
        assert_eq!(newest_revision(&all, "a").as_deref(), Some("h3"));
        assert_eq!(newest_revision(&all, "c"), None);
    }
}
