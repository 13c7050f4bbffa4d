//! Custom resources in which agents record the holders of storage. Pure.
//!
//! The rules that must never be broken are given to the API server as well, in CEL: it rejects the
//! writes of a faulty agent.

use crate::fence::progress::{Phase, STEPS};
use crate::fence::record::HOLDERS;
use crate::fence::store::kubernetes::{GROUP, VERSION};
use serde_json::{Value, json};

/// Limit for the length of a holder's path or handle.
const LONGEST: u32 = 4096;

/// Returns both, in the order in which they can be created.
pub fn crds() -> [Value; 2] {
    [attachments(), tasks()]
}

fn attachments() -> Value {
    let columns = json!([
        column("Storage", ".spec.volumeHandle", "string"),
        column("Policy", ".spec.policy", "string"),
        column("Node", ".spec.holders[0].node", "string"),
        column("Pod", ".spec.holders[0].podName", "string"),
        column("RO", ".spec.holders[0].readOnly", "boolean"),
        column("Epoch", ".spec.epoch", "integer"),
        column("Age", ".metadata.creationTimestamp", "date"),
    ]);
    let mut handle = text(LONGEST);
    handle["minLength"] = json!(1);
    handle["x-kubernetes-validations"] =
        json!([rule("self == oldSelf", "a FlexAttachment is of one storage for ever")]);
    let mut epoch = number();
    epoch["x-kubernetes-validations"] = json!([rule("self >= oldSelf", "an epoch never falls")]);
    let policies = ["exclusive", "exclusive-per-node", "shared-ro", "shared-rw"];
    let mut spec = object(&json!({
        "volumeHandle": handle,
        "policy": {"type": "string", "enum": policies},
        "epoch": epoch,
        "holders": {
            "type": "array",
            "maxItems": HOLDERS,
            "items": holder(),
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["id"],
        },
    }));
    spec["x-kubernetes-validations"] = json!([
        rule("self.policy != 'exclusive' || self.holders.size() <= 1", "exclusive storage has one holder"),
        rule(
            "self.policy != 'exclusive-per-node' || self.holders.all(h, h.node == self.holders[0].node)",
            "storage that is exclusive to a node has holders on one node"
        ),
        rule(
            "self.policy != 'shared-ro' || self.holders.all(h, h.readOnly)",
            "storage that is shared to be read has no writer"
        ),
        rule("self.holders.all(h, h.epoch <= self.epoch)", "no holder has an epoch that was not reached yet"),
        rule(
            "self.policy == oldSelf.policy || self.holders.size() <= 1",
            "how storage is shared does not change while others hold it"
        ),
    ]);
    crd(["FlexAttachment", "flexattachments", "flexattachment", "fxa"], &spec, &columns)
}

fn tasks() -> Value {
    let columns = json!([
        column("Reason", ".spec.reason", "string"),
        column("Node", ".spec.holder.node", "string"),
        column("Pod", ".spec.holder.podName", "string"),
        column("Target", ".spec.holder.target", "string"),
        column("State", ".status.phase", "string"),
        column("Age", ".metadata.creationTimestamp", "date"),
    ]);
    let reasons = ["PodGone", "NodeLost", "StillAttached", "Forced"];
    let mut spec = object(&json!({"reason": {"type": "string", "enum": reasons}, "holder": holder()}));
    spec["x-kubernetes-validations"] = json!([rule("self == oldSelf", "a task does not change")]);
    let mut crd = crd(["FlexDetachTask", "flexdetachtasks", "flexdetachtask", "fxd"], &spec, &columns);
    let version = &mut crd["spec"]["versions"][0];
    version["subresources"] = json!({"status": {}});
    version["schema"]["openAPIV3Schema"]["properties"]["status"] = progress();
    crd
}

/// Schema for the progress of a node that detaches by force.
fn progress() -> Value {
    let step = object(&json!({"step": text(64), "outcome": text(64), "message": text(LONGEST)}));
    json!({
        "type": "object",
        "properties": {
            "phase": {"type": "string", "enum": Phase::ALL.map(Phase::name)},
            "message": text(LONGEST),
            "steps": {"type": "array", "maxItems": STEPS, "items": step},
        },
    })
}

/// Schema of a holder, as in a record.
fn holder() -> Value {
    object(&json!({
        "id": text(64),
        "node": text(253),
        "nodeUID": text(64),
        "bootID": text(64),
        "agentInstance": text(128),
        "podNamespace": text(253),
        "podName": text(253),
        "podUID": text(253),
        "target": text(LONGEST),
        "readOnly": {"type": "boolean"},
        "phase": {"type": "string", "enum": ["Reserved", "Attached", "Releasing"]},
        "epoch": number(),
        "device": text(LONGEST),
        "acquiredAt": text(64),
    }))
}

/// Schema of an object that requires all these properties.
fn object(properties: &Value) -> Value {
    let required: Vec<_> = properties.as_object().into_iter().flat_map(serde_json::Map::keys).collect();
    let required = json!(required);
    json!({"type": "object", "properties": properties, "required": required})
}

fn text(longest: u32) -> Value {
    json!({"type": "string", "maxLength": longest})
}

fn number() -> Value {
    json!({"type": "integer", "format": "int64", "minimum": 0})
}

fn rule(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message})
}

fn column(name: &str, path: &str, kind: &str) -> Value {
    json!({"name": name, "jsonPath": path, "type": kind})
}

fn crd([kind, plural, singular, short]: [&str; 4], spec: &Value, columns: &Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.{GROUP}"),
            "labels": super::labels("agent"),
        },
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": format!("{kind}List"),
                "plural": plural,
                "singular": singular,
                "shortNames": [short],
            },
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {
                    "type": "object",
                    "required": ["spec"],
                    "properties": {"spec": spec},
                }},
                "additionalPrinterColumns": columns,
            }],
        },
    })
}
