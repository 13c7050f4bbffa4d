//! Record of one storage, with its holders. Pure.
//!
//! A storage without holders has no record, or a record without holders. A record whose epoch has
//! ever risen is kept, because the epoch would be lost with it.

use super::sharing::Sharing;
use crate::csi::name::hash;
use flexvol_protocol::failure::{Failure, Result};
use serde_json::{Value, json};

/// Limit for the holders of one storage.
pub const HOLDERS: usize = 256;

/// Length of a holder's id, in hexadecimal digits.
const ID: usize = 20;

/// Holders of one storage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Storage: the class of driver that reaches it, and its canonical name there.
    pub handle: String,
    /// Sharing of the holders. It has no meaning without holders.
    pub sharing: Sharing,
    /// Number of times that a holder was removed by another one.
    pub epoch: u64,
    /// Holders. Each id occurs once.
    pub holders: Vec<Holder>,
}

/// Machine in one of its boots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Node {
    /// Name in Kubernetes.
    pub name: String,
    /// UID of the Node object. A new object with the same name has another UID.
    pub uid: String,
    /// Boot id of the kernel.
    pub boot: String,
}

impl Node {
    /// Reports whether both are the same machine, in any boot.
    pub fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.uid == other.uid
    }
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod. A recreated pod of a `StatefulSet` has the same name.
    pub name: String,
    /// UID, which no other pod has.
    pub uid: String,
}

/// Lifecycle phase of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The holder may attach.
    Reserved,
    /// The holder has attached.
    Attached,
    /// The holder is about to detach, or has detached.
    Releasing,
}

/// Pod that holds the storage at one of its directories.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Id, built from node, pod, storage and directory: see [`Holder::id_of`].
    pub id: String,
    /// Node of the pod.
    pub node: Node,
    /// Agent process that wrote this. The agent recognises its own writes by it.
    pub agent: String,
    /// The pod.
    pub pod: Pod,
    /// Directory of the pod where the volume is mounted.
    pub target: String,
    /// True if the pod only reads.
    pub read_only: bool,
    /// Lifecycle phase.
    pub phase: Phase,
    /// Epoch of the record when the pod became a holder.
    pub epoch: u64,
    /// Attached device; empty before the attach.
    pub device: String,
    /// Time when the pod became a holder, for people only: clocks of nodes are never compared.
    pub since: String,
}

impl Holder {
    /// Returns the id of a mount, the same for every retry. The directory is part of it: a pod may
    /// have the same storage at two directories, and releases it at both.
    pub fn id_of(node: &Node, pod: &str, handle: &str, target: &str) -> String {
        let text = [&node.name, &node.uid, pod, handle, target].join("\0");
        hash(text.as_bytes())[..ID].to_owned()
    }

    /// Returns the text for people: `pod default/web-0 on node a`.
    pub fn shown(&self) -> String {
        let Pod { namespace, name, uid } = &self.pod;
        let pod = if name.is_empty() { uid.clone() } else { format!("{namespace}/{name}") };
        format!("pod {pod} on node {}", self.node.name)
    }

    /// Returns the JSON form.
    pub fn to_json(&self) -> Value {
        json!({
            "id": self.id,
            "node": self.node.name,
            "nodeUID": self.node.uid,
            "bootID": self.node.boot,
            "agentInstance": self.agent,
            "podNamespace": self.pod.namespace,
            "podName": self.pod.name,
            "podUID": self.pod.uid,
            "target": self.target,
            "readOnly": self.read_only,
            "phase": self.phase.name(),
            "epoch": self.epoch,
            "device": self.device,
            "acquiredAt": self.since,
        })
    }

    /// Parses the form of [`to_json`](Self::to_json).
    pub fn from_json(value: &Value) -> Result<Self> {
        let node =
            Node { name: text(value, "node")?, uid: text(value, "nodeUID")?, boot: text(value, "bootID")? };
        let pod = Pod {
            namespace: text(value, "podNamespace")?,
            name: text(value, "podName")?,
            uid: text(value, "podUID")?,
        };
        Ok(Self {
            id: text(value, "id")?,
            node,
            agent: text(value, "agentInstance")?,
            pod,
            target: text(value, "target")?,
            read_only: value["readOnly"].as_bool().ok_or_else(|| damaged("readOnly"))?,
            phase: Phase::parse(&text(value, "phase")?).ok_or_else(|| damaged("phase"))?,
            epoch: number(value, "epoch")?,
            device: text(value, "device")?,
            since: text(value, "acquiredAt")?,
        })
    }
}

const PHASES: [(Phase, &str); 3] =
    [(Phase::Reserved, "Reserved"), (Phase::Attached, "Attached"), (Phase::Releasing, "Releasing")];

impl Phase {
    fn parse(name: &str) -> Option<Self> {
        PHASES.into_iter().find(|(_, known)| *known == name).map(|(phase, _)| phase)
    }

    /// Returns the name in records.
    pub fn name(self) -> &'static str {
        PHASES.into_iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

impl Record {
    /// Returns the record of a storage that has no holder and was never taken from a holder.
    pub fn free(handle: &str) -> Self {
        let handle = handle.to_owned();
        Self { handle, sharing: Sharing::Exclusive, epoch: 0, holders: Vec::new() }
    }

    /// Returns the holder with this id.
    pub fn holder(&self, id: &str) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.id == id)
    }

    /// Reports whether a removal of the record loses no information.
    pub fn is_nothing(&self) -> bool {
        self.holders.is_empty() && self.epoch == 0
    }

    /// Returns the JSON form.
    pub fn to_json(&self) -> Value {
        let holders: Vec<_> = self.holders.iter().map(Holder::to_json).collect();
        json!({
            "volumeHandle": self.handle,
            "policy": self.sharing.name(),
            "epoch": self.epoch,
            "holders": holders,
        })
    }

    /// Parses the form of [`to_json`](Self::to_json). Keys of later versions are ignored. Missing
    /// or invalid values are refused: a lock is never guessed.
    pub fn from_json(value: &Value) -> Result<Self> {
        let holders = value["holders"].as_array().ok_or_else(|| damaged("holders"))?;
        let holders: Vec<_> = holders.iter().map(Holder::from_json).collect::<Result<_>>()?;
        let twice = |(at, holder): (usize, &Holder)| holders[..at].iter().any(|it| it.id == holder.id);
        if holders.len() > HOLDERS || holders.iter().enumerate().any(twice) {
            return Err(damaged("holders"));
        }
        Ok(Self {
            handle: text(value, "volumeHandle")?,
            sharing: Sharing::parse(&text(value, "policy")?).ok_or_else(|| damaged("policy"))?,
            epoch: number(value, "epoch")?,
            holders,
        })
    }
}

fn text(value: &Value, key: &str) -> Result<String> {
    value[key].as_str().map(str::to_owned).ok_or_else(|| damaged(key))
}

fn number(value: &Value, key: &str) -> Result<u64> {
    value[key].as_u64().ok_or_else(|| damaged(key))
}

fn damaged(key: &str) -> Failure {
    Failure::options(format!("lock record is damaged: {key:?} is missing or not valid"))
}

#[cfg(test)]
mod tests {
    use super::super::rows::{holder, record};
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let mut record = record(Sharing::SharedReadOnly, &[holder("a", "1"), holder("b", "2")]);
        record.epoch = u64::MAX;
        assert_eq!(Record::from_json(&record.to_json()).unwrap(), record);
        let mut later = record.to_json();
        later["color"] = json!("red");
        assert_eq!(Record::from_json(&later).unwrap(), record);
    }

    #[test]
    fn a_damaged_record_is_no_free_one() {
        let whole = record(Sharing::Exclusive, &[holder("a", "1")]).to_json();
        let keys = whole.as_object().unwrap().keys().cloned();
        for key in keys {
            let mut damaged = whole.clone();
            damaged[&key] = json!({});
            assert!(Record::from_json(&damaged).is_err(), "{key}");
        }
        for key in whole["holders"][0].as_object().unwrap().keys() {
            let mut damaged = whole.clone();
            damaged["holders"][0][key] = json!([]);
            assert!(Record::from_json(&damaged).is_err(), "{key}");
        }
        let mut twice = whole.clone();
        twice["holders"] = json!([whole["holders"][0], whole["holders"][0]]);
        assert!(Record::from_json(&twice).is_err());
        assert!(Record::from_json(&Value::Null).is_err());
    }

    #[test]
    fn a_mount_that_is_tried_again_has_the_same_id_and_no_other_has() {
        let node = |name: &str, uid: &str, boot: &str| Node {
            name: name.to_owned(),
            uid: uid.to_owned(),
            boot: boot.to_owned(),
        };
        let id = |node: &Node, pod, handle, target| Holder::id_of(node, pod, handle, target);
        let first = id(&node("a", "1", "x"), "p", "h", "/t");
        assert_eq!(first, id(&node("a", "1", "another boot"), "p", "h", "/t"));
        assert_eq!(first.len(), ID);
        for other in [
            id(&node("b", "1", "x"), "p", "h", "/t"),
            id(&node("a", "2", "x"), "p", "h", "/t"),
            id(&node("a", "1", "x"), "q", "h", "/t"),
            id(&node("a", "1", "x"), "p", "i", "/t"),
            id(&node("a", "1", "x"), "p", "h", "/u"),
        ] {
            assert_ne!(first, other);
        }
    }
}
