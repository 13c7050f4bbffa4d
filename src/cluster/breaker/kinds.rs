//! Fields of nodes, pods and locks that count for the controller.

use super::seen::{SeenNode, SeenPod};
use crate::controllers::kinds::{Condition, kind};
pub use crate::controllers::kinds::{Node, Pod};
use crate::fence::evidence::Ending;
use crate::fence::record::Record;
use crate::fence::store::kubernetes::{FORCE_DETACH, OUT_OF_SERVICE};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

/// Annotation of a mirror pod: the uid of the static pod, which a kubelet runs from a file of its
/// own.
pub(crate) const SHOWS: &str = "kubernetes.io/config.hash";

kind!(
    Lock,
    "FlexAttachment",
    "flexattachments",
    "flexvol.dev",
    "flexvol.dev/v1alpha1",
    "v1alpha1",
    NamespaceResourceScope
);

impl Node {
    /// Returns the state that counts.
    pub fn seen(&self) -> SeenNode {
        let ready = |condition: &Condition| condition.kind == "Ready" && condition.status == "True";
        SeenNode {
            uid: self.metadata.uid.clone().unwrap_or_default(),
            boot: self.status.node_info.boot.clone(),
            ready: self.status.conditions.iter().any(ready),
            out_of_service: self.spec.taints.iter().any(|taint| taint.key == OUT_OF_SERVICE),
        }
    }

    /// Removes fields that are never read.
    pub(super) fn strip(&mut self) {
        strip(&mut self.metadata);
        self.spec.taints.retain(|taint| taint.key == OUT_OF_SERVICE);
        self.status.conditions.retain(|condition| condition.kind == "Ready");
    }
}

impl Pod {
    /// Returns the state that counts.
    pub fn seen(&self) -> SeenPod {
        let annotations = self.metadata.annotations.as_ref();
        SeenPod {
            uid: self.metadata.uid.clone().unwrap_or_default(),
            shows: annotations.and_then(|all| all.get(SHOWS)).cloned().unwrap_or_default(),
            ending: self.metadata.deletion_timestamp.is_some(),
        }
    }

    /// Removes fields that are never read.
    pub(super) fn strip(&mut self) {
        self.forget_claims();
        strip_but(&mut self.metadata, SHOWS);
    }
}

/// Lock of one storage.
#[derive(Clone, Debug, Deserialize)]
pub struct Lock {
    metadata: ObjectMeta,
    /// Record; `None` if it is not valid. Such a lock is left to people.
    #[serde(deserialize_with = "record")]
    pub(super) spec: Option<Record>,
}

impl Lock {
    /// Reports whether the lock is being deleted, and whether it is marked for a forced detach.
    pub(super) fn ending(&self) -> Ending {
        let marked = self
            .metadata
            .annotations
            .as_ref()
            .is_some_and(|all| all.get(FORCE_DETACH).is_some_and(|value| value == "true"));
        match &self.metadata.deletion_timestamp {
            None => Ending::No,
            Some(_) if marked => Ending::Forced,
            Some(_) => Ending::Deleted,
        }
    }

    /// Removes fields that are never read.
    pub(super) fn strip(&mut self) {
        strip_but(&mut self.metadata, FORCE_DETACH);
        for holder in self.spec.iter_mut().flat_map(|record| &mut record.holders) {
            for text in [&mut holder.agent, &mut holder.target, &mut holder.device, &mut holder.since] {
                *text = String::new();
            }
        }
    }
}

fn record<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Record>, D::Error> {
    Ok(Record::from_json(&Value::deserialize(from)?).ok())
}

/// Removes all annotations except one, and all other metadata that is never read.
fn strip_but(metadata: &mut ObjectMeta, key: &str) {
    let annotations = metadata.annotations.take();
    strip(metadata);
    let kept = annotations.map(|mut all| {
        all.retain(|known, _| known == key);
        all
    });
    metadata.annotations = kept.filter(|all| !all.is_empty());
}

fn strip(metadata: &mut ObjectMeta) {
    (metadata.managed_fields, metadata.labels, metadata.annotations) = (None, None, None);
    (metadata.owner_references, metadata.finalizers) = (None, None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::contract::holder;
    use crate::fence::sharing::Sharing;
    use serde_json::json;

    #[test]
    fn a_node_says_what_counts() {
        let node = |ready: &str, taints: Value| -> Node {
            let conditions =
                json!([{"type": "DiskPressure", "status": "True"}, {"type": "Ready", "status": ready}]);
            let object = json!({"metadata": {"name": "a", "uid": "u", "labels": {"a": "b"}}, "spec": {"taints": taints},
                "status": {"conditions": conditions, "nodeInfo": {"bootID": "boot", "kernelVersion": "6"}}});
            let mut node: Node = serde_json::from_value(object).unwrap();
            node.strip();
            node
        };
        let other = json!([{"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}]);
        let off = json!([{"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}]);
        let said =
            |ready, out_of_service| SeenNode { uid: "u".into(), boot: "boot".into(), ready, out_of_service };
        assert_eq!(node("True", other.clone()).seen(), said(true, false));
        assert_eq!(node("Unknown", other).seen(), said(false, false));
        assert_eq!(node("False", off).seen(), said(false, true));
        let bare: Node = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
        assert_eq!(bare.seen(), SeenNode::default());
    }

    #[test]
    fn a_pod_says_what_counts() {
        let object = json!({"metadata": {"name": "a", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"x": "y", SHOWS: "file"}}, "spec": {}});
        let mut pod: Pod = serde_json::from_value(object).unwrap();
        pod.strip();
        assert_eq!(pod.seen(), SeenPod { uid: "u".into(), shows: "file".into(), ending: true });
    }

    /// One invalid object does not prevent the others from being read.
    #[test]
    fn a_lock_that_means_nothing_is_left() {
        let record = Record {
            holders: vec![holder("a", "1")],
            sharing: Sharing::Exclusive,
            ..Record::free("file:/x")
        };
        let lock = |spec: Value| -> Lock {
            let mut lock: Lock =
                serde_json::from_value(json!({"metadata": {"name": "x"}, "spec": spec})).unwrap();
            lock.strip();
            lock
        };
        let read = lock(record.to_json()).spec.unwrap();
        assert_eq!((&*read.handle, &*read.holders[0].id), ("file:/x", &*record.holders[0].id));
        assert_eq!(
            (&read.holders[0].node, &read.holders[0].pod),
            (&record.holders[0].node, &record.holders[0].pod)
        );
        assert!(lock(json!({"epoch": "none"})).spec.is_none());
    }

    #[test]
    fn a_lock_says_whether_it_is_to_go() {
        let ending = |metadata: Value| {
            let mut lock: Lock = serde_json::from_value(json!({"metadata": metadata, "spec": {}})).unwrap();
            lock.strip();
            lock.ending()
        };
        let mark = |value: &str| json!({"x": "y", FORCE_DETACH: value});
        let at = "2026-01-01T00:00:00Z";
        assert_eq!(ending(json!({"annotations": mark("true")})), Ending::No);
        assert_eq!(ending(json!({"deletionTimestamp": at})), Ending::Deleted);
        assert_eq!(ending(json!({"deletionTimestamp": at, "annotations": mark("false")})), Ending::Deleted);
        assert_eq!(ending(json!({"deletionTimestamp": at, "annotations": mark("true")})), Ending::Forced);
    }
}
