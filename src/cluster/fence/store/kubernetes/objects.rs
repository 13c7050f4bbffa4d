//! Records and tasks as Kubernetes objects. Pure.

use super::super::{Ending, Result, StoreError};
use crate::csi::name::hash;
use crate::fence::decide::{Cause, Task};
use crate::fence::record::{Holder, Node, Record};
use serde_json::{Map, Value, json};
use std::fmt;

/// API group of both kinds.
pub const GROUP: &str = "flexvol.dev";

/// API version of both kinds.
pub const VERSION: &str = "v1alpha1";

/// Name of the attachments in paths.
pub(super) const ATTACHMENTS: &str = "flexattachments";

/// Name of the tasks in paths.
pub(super) const TASKS: &str = "flexdetachtasks";

/// Finalizer that keeps an object with holders from being removed.
pub const FINALIZER: &str = "flexvol.dev/held";

/// Annotation of a deleted object: with the value `true`, its storage is to be unmounted by force.
pub const FORCE_DETACH: &str = "flexvol.dev/force-detach";

/// Limit for the name of an object, in bytes.
const LONGEST: usize = 253;

/// Prefix of the labels that name the nodes of an object.
pub const NODE_LABEL: &str = "n.flexvol.dev/";

/// Taint by which an administrator declares a node off.
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Returns why a node in this boot may not hold storage, from its Node object; `None` if it may.
pub(super) fn refuses(object: &Value, node: &Node) -> Option<String> {
    let Node { name, uid, boot } = node;
    let taints = object["spec"]["taints"].as_array().map_or(&[][..], Vec::as_slice);
    let why = if object["metadata"]["uid"] != **uid {
        "its Node object was made again: restart its agent".to_owned()
    } else if object["status"]["nodeInfo"]["bootID"] != **boot {
        "its Node object does not show this boot yet: wait for its kubelet, or start that".to_owned()
    } else if taints.iter().any(|taint| taint["key"] == OUT_OF_SERVICE) {
        format!("it was said to be off: kubectl taint node {name} {OUT_OF_SERVICE}-, if it is on again")
    } else {
        return None;
    };
    Some(format!("node {name} holds nothing: {why}"))
}

/// Returns advice about a node, from its Node object.
pub(super) fn how_to_take(node: &str, object: Result<Option<Value>>) -> String {
    let taint = format!("kubectl taint node {node} {OUT_OF_SERVICE}=nodeshutdown:NoExecute");
    let Ok(object) = object else {
        return format!("delete that pod; only if the node is off: {taint}");
    };
    let Some(object) = object else {
        return format!("the Node object of {node} is gone: what to do is in docs/agent.md");
    };
    let conditions = object["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let ready = conditions.iter().find(|condition| condition["type"] == "Ready");
    let text = |key: &str| ready.and_then(|ready| ready[key].as_str()).unwrap_or_default();
    if text("status") == "True" {
        return "the node is ready: delete that pod".to_owned();
    }
    let since = text("lastTransitionTime");
    format!("the node is not ready since {since}: only if it is off: {taint}")
}

/// Reports whether an object can have this name. Other text would change the meaning of a path.
pub fn is_name(text: &str) -> bool {
    let letters = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte));
    letters && !text.is_empty() && text.len() <= LONGEST && !text.starts_with('.')
}

/// Returns the name of a storage's object. A handle may be longer than a name, with any letters.
pub fn name_of(handle: &str) -> String {
    format!("x-{}", &hash(handle.as_bytes())[..40])
}

/// Returns the label of objects that are about a node.
pub fn node_label(node: &str) -> String {
    format!("{NODE_LABEL}{}", &hash(node.as_bytes())[..12])
}

/// Returns the deletion state of an object.
pub(super) fn ending_of(object: &Value) -> Ending {
    let metadata = &object["metadata"];
    match metadata["deletionTimestamp"].is_string() {
        false => Ending::No,
        true if metadata["annotations"][FORCE_DETACH] == "true" => Ending::Forced,
        true => Ending::Deleted,
    }
}

/// Metadata that others write. It is kept, because a PUT replaces all of it.
const KEPT: [&str; 4] = ["annotations", "finalizers", "labels", "ownerReferences"];

/// State of an object, and the metadata that others have written there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) uid: String,
    pub(super) resource: String,
    kept: Map<String, Value>,
}

impl Version {
    pub(super) fn of(object: &Value) -> Option<Self> {
        Self::of_metadata(&object["metadata"])
    }

    fn of_metadata(metadata: &Value) -> Option<Self> {
        let text = |key: &str| metadata[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let kept = KEPT.iter().filter_map(|key| {
            let value = metadata.get(key).filter(|value| !value.is_null());
            value.map(|value| ((*key).to_owned(), value.clone()))
        });
        Some(Self {
            uid: text("uid")?,
            resource: text("resourceVersion")?,
            kept: flexvol_protocol::ordered::filled(kept),
        })
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::of_metadata(&serde_json::from_str(text).ok()?)
    }

    /// Returns the metadata that others have written, with the version of that state.
    fn metadata(&self) -> Map<String, Value> {
        let mut all = self.kept.clone();
        all.insert("uid".to_owned(), json!(self.uid));
        all.insert("resourceVersion".to_owned(), json!(self.resource));
        all
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Value::Object(self.metadata()))
    }
}

/// Returns a storage's object. With a version, it replaces that state of the object.
pub(super) fn object_of(record: &Record, version: Option<&Version>) -> Value {
    let mut metadata = version.map_or_else(Map::new, Version::metadata);
    let own = labels(record.holders.iter().map(|holder| &*holder.node.name));
    let mut all = metadata.get("labels").and_then(Value::as_object).cloned().unwrap_or_default();
    all.retain(|key, _| !key.starts_with(NODE_LABEL));
    all.extend(own);
    let mut finalizers = metadata.get("finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
    finalizers.retain(|finalizer| finalizer != FINALIZER);
    finalizers.extend((!record.holders.is_empty()).then(|| json!(FINALIZER)));
    let own =
        [("name", json!(name_of(&record.handle))), ("labels", json!(all)), ("finalizers", json!(finalizers))];
    metadata.extend(own.map(|(key, value)| (key.to_owned(), value)));
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "FlexAttachment",
        "metadata": metadata,
        "spec": record.to_json(),
    })
}

fn labels<'a>(nodes: impl Iterator<Item = &'a str>) -> Map<String, Value> {
    flexvol_protocol::ordered::filled(nodes.map(|node| (node_label(node), json!("1"))))
}

/// Parses the record of an object. An object that cannot be read is no free storage.
pub(super) fn record_of(object: &Value) -> Result<Record> {
    Record::from_json(&object["spec"]).map_err(|error| damaged(object, &error.message()))
}

pub(super) fn damaged(object: &Value, reason: &str) -> StoreError {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    StoreError::Failed(format!("FlexAttachment {name}: {reason}"))
}

/// Returns the object of a cleanup task.
pub fn object_of_task(task: &Task) -> Value {
    let nodes = std::iter::once(&*task.holder.node.name);
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": "FlexDetachTask",
        "metadata": {"name": task.name(), "labels": labels(nodes)},
        "spec": {"reason": task.reason.name(), "holder": task.holder.to_json()},
    })
}

/// Parses a cleanup task; `None` if it is invalid.
pub fn task_of(object: &Value) -> Option<Task> {
    let reason = Cause::parse(object["spec"]["reason"].as_str()?)?;
    Some(Task { holder: Holder::from_json(&object["spec"]["holder"]).ok()?, reason })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::contract::{HANDLE, holder};
    use crate::fence::sharing::Sharing;

    /// Metadata of others stays in an object, and outdated metadata of our own is removed.
    #[test]
    fn what_others_have_written_stays() {
        let record = |holders: &[Holder]| Record {
            sharing: Sharing::ExclusivePerNode,
            holders: holders.to_vec(),
            ..Record::free(HANDLE)
        };
        let mut found = object_of(&record(&[holder("a", "1")]), None);
        assert_eq!(found["metadata"]["finalizers"], json!([FINALIZER]));
        found["metadata"]["uid"] = json!("u");
        found["metadata"]["resourceVersion"] = json!("7");
        found["metadata"]["labels"]["team"] = json!("db");
        found["metadata"]["annotations"] = json!({FORCE_DETACH: "true", "slash/ed": "a\nb"});
        found["metadata"]["finalizers"] = json!(["example.com/backup", FINALIZER]);
        found["metadata"]["ownerReferences"] = json!([{"name": "o"}]);
        found["metadata"]["managedFields"] = json!([{}]);
        let version = Version::of(&found).unwrap();
        assert_eq!(Version::parse(&version.to_string()).as_ref(), Some(&version));
        let written = object_of(&record(&[holder("b", "2")]), Some(&version));
        let metadata = &written["metadata"];
        assert_eq!(metadata["labels"], json!({"team": "db", node_label("b"): "1"}));
        assert_eq!(metadata["finalizers"], json!(["example.com/backup", FINALIZER]));
        assert_eq!(metadata["annotations"], found["metadata"]["annotations"]);
        assert_eq!(metadata["ownerReferences"], json!([{"name": "o"}]));
        assert_eq!((&metadata["uid"], &metadata["resourceVersion"]), (&json!("u"), &json!("7")));
        assert!(metadata.get("managedFields").is_none());
        let freed = object_of(&record(&[]), Some(&version));
        assert_eq!(freed["metadata"]["finalizers"], json!(["example.com/backup"]));
        assert_eq!(freed["metadata"]["labels"], json!({"team": "db"}));
    }
}
