//! What is next for a volume, by what is there. Pure.
//!
//! | there is | of a claim | next |
//! |---|---|---|
//! | the old volume, as it was read | | [`Next::Prepare`]: `Retain`, and the mark |
//! | the old one with the mark | without it | [`Next::MarkClaim`] |
//! | the old one with the mark | with it | [`Next::Delete`], once nobody uses it |
//! | the old one with the mark, being deleted | | [`Next::Release`]: its finalizers |
//! | nothing | with the mark | [`Next::Create`] |
//! | the new one | with the mark | [`Next::UnmarkClaim`], which has Kubernetes bind it at once |
//! | the new one, not bound | | [`Next::Wait`] |
//! | the new one, bound | without it | [`Next::Finish`], or it is done |
//!
//! Everything else is somebody else's, and stays as it is. The way back is the same with both
//! volumes exchanged, so one that was only prepared is finished at once.

use super::found::{mark, text};
use super::make::{is_known, source};
use super::plan::{MARK, Volume};
use serde_json::{Value, json};

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// To what the plan has as `after`.
    Forward,
    /// To what it has as `before`.
    Back,
}

/// One write, or none.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Change the volume so.
    Prepare(Value),
    /// Change the claim so.
    MarkClaim(Value),
    /// Delete the volume, if it is still this one: its uid and version. Only once nobody uses it.
    Delete(Value),
    /// Change the volume so: it goes then.
    Release(Value),
    /// Make this volume.
    Create(Value),
    /// Change the claim so.
    UnmarkClaim(Value),
    /// Kubernetes binds it.
    Wait,
    /// Change the volume so.
    Finish(Value),
    /// There is nothing left to do.
    Done,
}

impl Next {
    /// Whose volume goes.
    pub const RELEASE: &str = "release";

    /// For the journal, and for messages.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Prepare(_) => "prepare",
            Self::MarkClaim(_) => "mark",
            Self::Delete(_) => "delete",
            Self::Release(_) => Self::RELEASE,
            Self::Create(_) => "create",
            Self::UnmarkClaim(_) => "unmark",
            Self::Wait => "waiting until it is bound",
            Self::Finish(_) => "finish",
            Self::Done => "done",
        }
    }
}

/// Why nothing is done: what is there is not what was planned for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict(pub String);

/// A volume that is moved.
#[derive(Clone, Copy, Debug)]
pub struct Move<'a> {
    /// The volume.
    pub volume: &'a Volume,
    /// The migration.
    pub run: &'a str,
    /// Which way.
    pub goal: Goal,
    /// Whether it is known that the migration has begun with it.
    pub begun: bool,
}

impl Move<'_> {
    fn target(&self) -> &Value {
        match self.goal {
            Goal::Forward => &self.volume.after,
            Goal::Back => &self.volume.before,
        }
    }

    fn other(&self) -> &Value {
        match self.goal {
            Goal::Forward => &self.volume.before,
            Goal::Back => &self.volume.after,
        }
    }

    /// What is next.
    pub fn next(&self, volume: Option<&Value>, claim: Option<&Value>) -> Result<Next, Conflict> {
        self.check_claim(claim)?;
        let is_marked = claim.is_some_and(|claim| self.has_mark(claim));
        let Some(found) = volume else {
            return if is_marked || (self.begun && self.volume.claim.is_none()) {
                Ok(Next::Create(self.created()))
            } else {
                Err(self.conflict("is gone, and this migration has not deleted it"))
            };
        };
        let is_ours = self.has_mark(found);
        if !found["metadata"]["deletionTimestamp"].is_null() {
            return if is_ours && is_retained(found) {
                self.release(found)
            } else {
                Err(self.conflict("is being deleted by somebody else"))
            };
        }
        if same_source(found, self.target()) {
            return Ok(self.ending(found, claim, is_marked));
        }
        if !same_source(found, self.other()) {
            return Err(self.conflict("has another source than was planned for"));
        }
        self.away(found, claim, is_ours, is_marked)
    }

    /// The other volume is there.
    fn away(
        &self,
        found: &Value,
        claim: Option<&Value>,
        is_ours: bool,
        is_marked: bool,
    ) -> Result<Next, Conflict> {
        let is_planned = ["uid", "resourceVersion"]
            .iter()
            .all(|key| found["metadata"][*key] == self.other()["metadata"][*key]);
        match (is_ours, &claim) {
            (false, _) if self.goal == Goal::Back || !is_planned => {
                Err(self.conflict("was changed since the plan was made"))
            }
            (false, _) => Ok(Next::Prepare(prepared(found, self.run))),
            (true, _) if !is_retained(found) => Ok(Next::Prepare(prepared(found, self.run))),
            (true, Some(claim)) if !is_marked => Ok(Next::MarkClaim(marked(claim, Some(self.run)))),
            (true, _) => Ok(Next::Delete(json!({"apiVersion": "v1", "kind": "DeleteOptions",
                "preconditions": {"uid": found["metadata"]["uid"],
                    "resourceVersion": found["metadata"]["resourceVersion"]}}))),
        }
    }

    /// The volume that there is to be is there.
    fn ending(&self, found: &Value, claim: Option<&Value>, is_marked: bool) -> Next {
        if let Some(claim) = claim.filter(|_| is_marked) {
            return Next::UnmarkClaim(marked(claim, None));
        }
        let bound = |object: &Value| object["status"]["phase"] == "Bound";
        let waits = claim.is_some_and(|claim| !bound(claim) || !bound(found));
        match (waits, self.finished(found)) {
            (true, _) => Next::Wait,
            (false, Some(change)) => Next::Finish(change),
            (false, None) => Next::Done,
        }
    }

    /// What it is to be made as: nothing deletes it before it is bound.
    pub fn created(&self) -> Value {
        let mut object = flexvol_model::translate::without_server_fields(self.target());
        object["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        // An attacher's own, of attachments that are over.
        if let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut() {
            finalizers
                .retain(|name| !name.as_str().is_some_and(|name| name.starts_with("external-attacher/")));
        }
        if !object["metadata"]["annotations"].is_object() {
            object["metadata"]["annotations"] = json!({});
        }
        object["metadata"]["annotations"][MARK] = self.run.into();
        object
    }

    /// What is left to change: of a CSI volume nothing, the mark says that it was migrated; of a
    /// flex volume the policy that it had, if a claim keeps that from acting, and no mark.
    fn finished(&self, found: &Value) -> Option<Value> {
        if self.target()["spec"]["csi"].is_object() || !self.has_mark(found) {
            return None;
        }
        let mut change = json!({"metadata": {"annotations": { MARK: null }}});
        precondition(&mut change, found);
        let policy = &self.target()["spec"]["persistentVolumeReclaimPolicy"];
        let is_free = self.volume.claim.is_none() && !found["spec"]["claimRef"].is_object();
        if !policy.is_null() && (self.volume.claim.is_some() || is_free) {
            change["spec"] = json!({"persistentVolumeReclaimPolicy": policy});
        }
        Some(change)
    }

    fn release(&self, found: &Value) -> Result<Next, Conflict> {
        let finalizers = found["metadata"]["finalizers"].as_array().into_iter().flatten();
        let strange = finalizers.filter_map(Value::as_str).find(|name| !is_known(name));
        if let Some(name) = strange {
            return Err(self.conflict(&format!("has the finalizer {name}")));
        }
        let mut change = json!({"metadata": {"finalizers": null}});
        precondition(&mut change, found);
        Ok(Next::Release(change))
    }

    /// Whether the claim is still the one that was bound.
    fn check_claim(&self, found: Option<&Value>) -> Result<(), Conflict> {
        let Some(claim) = &self.volume.claim else { return Ok(()) };
        let Some(found) = found else {
            return Err(self.conflict(&format!("has lost its claim {}", claim.shown())));
        };
        let metadata = &found["metadata"];
        let is_it = metadata["uid"] == *claim.uid && found["spec"]["volumeName"] == *self.volume.name;
        if !is_it || !metadata["deletionTimestamp"].is_null() {
            return Err(self.conflict(&format!("has another claim than {}", claim.shown())));
        }
        match mark(metadata).filter(|id| id != self.run) {
            Some(id) => Err(self.conflict(&format!("is being moved by migration {id}"))),
            None => Ok(()),
        }
    }

    fn has_mark(&self, object: &Value) -> bool {
        object["metadata"]["annotations"][MARK] == *self.run
    }

    fn conflict(&self, why: &str) -> Conflict {
        Conflict(format!("PersistentVolume {} {why}", self.volume.name))
    }
}

fn prepared(found: &Value, run: &str) -> Value {
    let mut change = json!({"metadata": {"annotations": { MARK: run }},
        "spec": {"persistentVolumeReclaimPolicy": "Retain"}});
    precondition(&mut change, found);
    change
}

fn marked(claim: &Value, run: Option<&str>) -> Value {
    let mut change = json!({"metadata": {"annotations": { MARK: run }}});
    precondition(&mut change, claim);
    change
}

/// The change is refused of an object that is not as it was read.
pub fn precondition(change: &mut Value, found: &Value) {
    for key in ["uid", "resourceVersion"] {
        change["metadata"][key] = found["metadata"][key].clone();
    }
}

fn is_retained(found: &Value) -> bool {
    found["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
}

/// Whether both are the same volume to a driver, whatever the API server leaves out.
fn same_source(one: &Value, other: &Value) -> bool {
    let whole = |object: &Value| {
        let mut source = source(object).clone();
        strip(&mut source);
        (object["spec"]["csi"].is_object(), source)
    };
    whole(one) == whole(other) && text(&one["metadata"], "name") == text(&other["metadata"], "name")
}

/// Without what the API server leaves out.
fn strip(value: &mut Value) {
    if let Value::Object(fields) = value {
        fields.values_mut().for_each(strip);
        fields.retain(|_, value| match value {
            Value::Null => false,
            Value::Bool(flag) => *flag,
            Value::Object(fields) => !fields.is_empty(),
            _ => true,
        });
    }
}
