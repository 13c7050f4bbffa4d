//! The record of one storage: who holds it. Pure.
//!
//! A storage that no one holds has no record, or one without holders: a record whose epoch has ever
//! risen is kept, because with it the epoch would be forgotten.

use super::sharing::Sharing;
use crate::csi::name::hash;
use flexvol_protocol::failure::{Failure, Result};
use serde_json::{Value, json};

/// More pods than this do not hold one storage.
pub const HOLDERS: usize = 256;

/// Hexadecimal digits of a holder's id.
const ID: usize = 20;

/// Who holds one storage.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// The storage: what class of driver reaches it, and its canonical name there.
    pub handle: String,
    /// How the holders share it. Says nothing while there are none.
    pub sharing: Sharing,
    /// How often a holder was removed by another one.
    pub epoch: u64,
    /// By id, each once.
    pub holders: Vec<Holder>,
}

/// A machine, and which boot of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Node {
    /// In Kubernetes.
    pub name: String,
    /// Of the Node object: one that is made again under the same name has another.
    pub uid: String,
    /// The kernel's boot id.
    pub boot: String,
}

impl Node {
    /// Whether both are the same machine, in whichever boot.
    pub fn is_same(&self, other: &Self) -> bool {
        self.name == other.name && self.uid == other.uid
    }
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pod {
    /// Its namespace.
    pub namespace: String,
    /// Its name. A pod of a `StatefulSet` that is made again has the same.
    pub name: String,
    /// No other pod has it.
    pub uid: String,
}

/// How far a holder has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It may attach.
    Reserved,
    /// It has attached.
    Attached,
    /// It is about to detach, or has.
    Releasing,
}

/// A pod that holds the storage at one of its directories.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// Of node, pod, storage and directory: see [`Holder::id_of`].
    pub id: String,
    /// Where the pod runs.
    pub node: Node,
    /// Which process of the agent wrote this: it knows its own writes by it.
    pub agent: String,
    /// The pod.
    pub pod: Pod,
    /// The pod's directory on which the volume is mounted.
    pub target: String,
    /// Whether the pod only reads.
    pub read_only: bool,
    /// How far it has come.
    pub phase: Phase,
    /// The record's epoch when it became a holder.
    pub epoch: u64,
    /// What was attached, once it is.
    pub device: String,
    /// When it became a holder, for people: clocks of nodes are never compared.
    pub since: String,
}

impl Holder {
    /// The same for every try of the same mount. The directory is part of it: a pod may have the
    /// same storage at two, and gives it back at both.
    pub fn id_of(node: &Node, pod: &str, handle: &str, target: &str) -> String {
        let text = [&node.name, &node.uid, pod, handle, target].join("\0");
        hash(text.as_bytes())[..ID].to_owned()
    }

    /// As people say it: `pod default/web-0 on node a`.
    pub fn shown(&self) -> String {
        let Pod { namespace, name, uid } = &self.pod;
        let pod = if name.is_empty() { uid.clone() } else { format!("{namespace}/{name}") };
        format!("pod {pod} on node {}", self.node.name)
    }

    /// As JSON.
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

    /// From what [`to_json`](Self::to_json) makes.
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

    /// Its name in records.
    pub fn name(self) -> &'static str {
        PHASES.into_iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

impl Record {
    /// Of a storage that no one holds and no one has taken from another.
    pub fn free(handle: &str) -> Self {
        let handle = handle.to_owned();
        Self { handle, sharing: Sharing::Exclusive, epoch: 0, holders: Vec::new() }
    }

    /// The holder of this id.
    pub fn holder(&self, id: &str) -> Option<&Holder> {
        self.holders.iter().find(|holder| holder.id == id)
    }

    /// Whether nothing would be forgotten with it.
    pub fn is_nothing(&self) -> bool {
        self.holders.is_empty() && self.epoch == 0
    }

    /// As JSON.
    pub fn to_json(&self) -> Value {
        let holders: Vec<_> = self.holders.iter().map(Holder::to_json).collect();
        json!({
            "volumeHandle": self.handle,
            "policy": self.sharing.name(),
            "epoch": self.epoch,
            "holders": holders,
        })
    }

    /// From what [`to_json`](Self::to_json) makes. What a later version adds is passed over; what
    /// is missing or means nothing is refused: a lock is never guessed.
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
