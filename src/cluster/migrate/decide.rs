//! Next step for a volume, decided by the existing objects. Pure.
//!
//! | volume | claim | next |
//! |---|---|---|
//! | the old one, as it was read | | [`Next::Prepare`]: `Retain`, and the mark |
//! | the old one with the mark | without the mark | [`Next::MarkClaim`] |
//! | the old one with the mark | with the mark | [`Next::Delete`], once it is unused |
//! | the old one with the mark, being deleted | | [`Next::Release`]: its finalizers |
//! | missing | with the mark | [`Next::Create`] |
//! | the new one | with the mark | [`Next::UnmarkClaim`], then Kubernetes binds it at once |
//! | the new one, not bound | | [`Next::Wait`] |
//! | the new one, bound | without the mark | [`Next::Finish`], or it is done |
//!
//! Every other state comes from others, and stays as it is. A rollback is the same with both
//! volumes exchanged, so a volume that was only prepared is finished at once.

use super::found::{mark, text};
use super::make::{is_known, source};
use super::plan::{MARK, Volume};
use serde_json::{Value, json};

/// Direction of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// To the volume `after` of the plan.
    Forward,
    /// To the volume `before` of the plan.
    Back,
}

/// One write, or none.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Change the volume: set `Retain` and the mark.
    Prepare(Value),
    /// Change the claim: set the mark.
    MarkClaim(Value),
    /// Delete the volume, if it still has this uid and version. Only once it is unused.
    Delete(Value),
    /// Change the volume: remove its finalizers. It is gone then.
    Release(Value),
    /// Create this volume.
    Create(Value),
    /// Change the claim: remove the mark.
    UnmarkClaim(Value),
    /// Wait until Kubernetes binds it.
    Wait,
    /// Change the flex volume: remove the mark, and restore its policy.
    Finish(Value),
    /// There is nothing left to do.
    Done,
}

impl Next {
    /// Name of the step after which the volume is gone.
    pub const RELEASE: &str = "release";

    /// Returns the name for the journal, and for messages.
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

/// Reason why nothing is done: the objects are not those of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict(pub String);

/// Volume that is being moved.
#[derive(Clone, Copy, Debug)]
pub struct Move<'a> {
    /// The volume.
    pub volume: &'a Volume,
    /// Id of the migration.
    pub run: &'a str,
    /// Direction of the migration.
    pub goal: Goal,
    /// True if the migration is known to have begun with it.
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

    /// Decides the next step.
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

    /// Decides the next step while the volume to be replaced exists.
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

    /// Decides the next step once the desired volume exists.
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

    /// Returns the volume to create, with `Retain`: nothing deletes it before it is bound.
    pub fn created(&self) -> Value {
        let mut object = flexvol_model::translate::without_server_fields(self.target());
        object["spec"]["persistentVolumeReclaimPolicy"] = "Retain".into();
        // Finalizers of an attacher belong to attachments that are over.
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

    /// Returns the last change. A CSI volume needs none: its mark shows that it was migrated. A
    /// flex volume loses the mark, and gets its policy back if a claim keeps the policy from
    /// acting, or if no claim refers to the volume.
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

    /// Checks that the claim is still the one that was bound.
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

/// Adds a precondition: the API server refuses the change if the object has changed since the look.
pub fn precondition(change: &mut Value, found: &Value) {
    for key in ["uid", "resourceVersion"] {
        change["metadata"][key] = found["metadata"][key].clone();
    }
}

fn is_retained(found: &Value) -> bool {
    found["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
}

/// Reports whether both are the same volume to a driver, without fields that the API server omits.
fn same_source(one: &Value, other: &Value) -> bool {
    let whole = |object: &Value| {
        let mut source = source(object).clone();
        strip(&mut source);
        (object["spec"]["csi"].is_object(), source)
    };
    whole(one) == whole(other) && text(&one["metadata"], "name") == text(&other["metadata"], "name")
}

/// Removes the fields that the API server omits.
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
