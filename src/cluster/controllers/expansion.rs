//! Next step for a `PersistentVolumeClaim` that asks for growth, and the patches to write. Pure.
//!
//! A claim asks for growth if it is bound and requests more than it has. The size to grow to now
//! depends on the request, and also on what was begun before: the volume may already have the size
//! in `allocatedResources`, and `allocatedResourceStatuses` tells whether it has.
//!
//! | PersistentVolume | status | grow to |
//! |---|---|---|
//! | smaller than asked for | `ControllerResizeInProgress`, result unknown | what was begun |
//! | smaller than asked for | `NodeResizePending`, `NodeResizeInProgress` | what was begun, unless it is: a node is at it |
//! | smaller than asked for | `NodeResizeInfeasible` | what was begun |
//! | smaller than asked for | others, or it has failed for certain | what is asked for |
//! | large enough | `NodeResizePending`, `NodeResizeInProgress` | nothing: a node is growing it |
//! | large enough | `NodeResizeInfeasible`, no controller grows the driver's volumes | what is asked for |
//! | large enough | others | what was begun, else what is asked for |
//!
//! Handling of the driver's answer:
//!
//! | code | volume | then |
//! |---|---|---|
//! | OK | has grown | write its PersistentVolume, then the claim: a node continues, or it is done |
//! | CANCELLED, `DEADLINE_EXCEEDED`, UNAVAILABLE, `RESOURCE_EXHAUSTED`, ABORTED, or no answer | may grow yet | the same again, whatever is asked for meanwhile |
//! | `INVALID_ARGUMENT`, `OUT_OF_RANGE`, `NOT_FOUND` | has not grown | the same again after a long time; less at once |
//! | others | has not grown | ask again, for the size requested then |

use super::capacity;
use super::creation::STORAGE;
use super::volumes::PersistentVolume;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimCondition, PersistentVolumeClaimStatus,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use tonic::{Code, Status};

/// Annotation of a PersistentVolume: size of its file system, until a node has grown that.
pub const SIZE_BEFORE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

/// Annotation of a claim: kubelet has nothing to do.
const NO_NODE: &str = "volume.kubernetes.io/node-expansion-not-required";

const RESIZING: &str = "Resizing";
const PENDING: &str = "FileSystemResizePending";
const FAILED: &str = "ControllerResizeError";

/// Types of the conditions about growth.
const CONDITIONS: [&str; 4] = [RESIZING, PENDING, FAILED, "NodeResizeError"];

const CONTROLLER_IN_PROGRESS: &str = "ControllerResizeInProgress";
const CONTROLLER_INFEASIBLE: &str = "ControllerResizeInfeasible";
const NODE_PENDING: &str = "NodeResizePending";
const NODE_IN_PROGRESS: &str = "NodeResizeInProgress";
const NODE_INFEASIBLE: &str = "NodeResizeInfeasible";

/// Way in which a driver's volumes grow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Growth {
    /// `ControllerExpandVolume`, and then a node if the driver says so.
    Controller,
    /// `NodeExpandVolume` alone.
    Node,
    /// Not supported by the driver.
    None,
}

/// Facts about a claim's last growth that are in no object, only in this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// True if it failed, and the volume will not grow any more.
    pub failed: bool,
    /// True if it failed a short time ago, and the same request would fail again.
    pub infeasible: bool,
    /// True if the driver does not grow volumes in use.
    pub in_use: bool,
}

/// Known state, the input of [`decide`].
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The claim.
    pub claim: &'a PersistentVolumeClaim,
    /// Its volume, which belongs to the driver.
    pub volume: &'a PersistentVolume,
    /// Way in which it grows.
    pub growth: Growth,
    /// Facts about the last growth.
    pub memory: Memory,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// There is nothing to do.
    Nothing,
    /// Remove the note of the former size: a node has grown the file system.
    Forget,
    /// Refuse: the driver does not support growth.
    Refuse,
    /// Try later: the same request would fail again now.
    Later,
    /// Write down the growth that begins.
    Begin(Begin),
    /// Ask for growth to this size.
    Expand(Quantity),
}

/// Growth that begins.
#[derive(Clone, Debug, PartialEq)]
pub struct Begin {
    size: Quantity,
    /// True if another size was begun before, or none.
    pub fresh: bool,
}

/// Decides the next step.
pub fn decide(seen: &Seen<'_>) -> Step {
    let (claim, volume) = (seen.claim, seen.volume);
    if is_noted_in_vain(claim, volume) {
        return Step::Forget;
    }
    if !is_asked(claim, volume) {
        return Step::Nothing;
    }
    if seen.growth == Growth::None {
        return Step::Refuse;
    }
    let Some(size) = size(seen) else { return Step::Nothing };
    let fresh = allocated(claim).map(bytes) != Some(bytes(&size));
    if seen.memory.infeasible && !fresh {
        return Step::Later;
    }
    if fresh || condition(claim, RESIZING).is_none() || claim.annotations().contains_key(NO_NODE) {
        return Step::Begin(Begin { size, fresh });
    }
    Step::Expand(size)
}

/// Reports whether a claim needs a step, judged by the claim and its volume.
pub fn concerns(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    is_noted_in_vain(claim, volume) || is_asked(claim, volume)
}

/// Reports whether a change of a claim needs attention. The writes of a resizer do not, and those
/// of kubelet do not while it is growing the file system.
pub fn is_news(before: &PersistentVolumeClaim, now: &PersistentVolumeClaim) -> bool {
    let infeasible = |claim| progress(claim) == Some(NODE_INFEASIBLE);
    let of = |claim| (requested(claim), capacity_of(claim), volume_name(claim), phase(claim));
    before.resource_version() == now.resource_version()
        || before.uid() != now.uid()
        || of(before) != of(now)
        || (infeasible(now) && !infeasible(before))
        || (progress(now).is_none() && progress(before).is_some())
}

/// Returns the name of a claim's volume.
pub fn volume_name(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.spec.as_ref()?.volume_name.as_deref().filter(|name| !name.is_empty())
}

fn is_noted_in_vain(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    volume.annotations().contains_key(SIZE_BEFORE) && capacity_of(claim) >= size_of(volume)
}

fn is_asked(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let holder = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let is_its = holder.is_some_and(|holder| {
        holder.uid == claim.metadata.uid && holder.namespace == claim.metadata.namespace
    });
    is_its && phase(claim) == Some("Bound") && requested(claim) > capacity_of(claim)
}

/// Returns the size to grow to now; `None` if a node is growing the volume.
fn size(seen: &Seen<'_>) -> Option<Quantity> {
    let asked = request(seen.claim)?.clone();
    let allocated = allocated(seen.claim).cloned();
    let small = size_of(seen.volume) < bytes(&asked);
    match (small, progress(seen.claim)) {
        (true, Some(NODE_PENDING | NODE_IN_PROGRESS)) => {
            allocated.or(Some(asked)).filter(|size| size_of(seen.volume) < bytes(size))
        }
        (true, Some(CONTROLLER_IN_PROGRESS)) if seen.memory.failed => Some(asked),
        (true, Some(CONTROLLER_IN_PROGRESS | NODE_INFEASIBLE)) => allocated.or(Some(asked)),
        (true, _) => Some(asked),
        (false, Some(NODE_PENDING | NODE_IN_PROGRESS)) => None,
        (false, Some(NODE_INFEASIBLE)) if seen.growth != Growth::Controller => Some(asked),
        (false, Some(NODE_INFEASIBLE | CONTROLLER_IN_PROGRESS | CONTROLLER_INFEASIBLE)) => {
            allocated.or(Some(asked))
        }
        (false, None) if allocated.is_some() => allocated,
        // API servers before 1.32 report growth on a node by this condition.
        (false, _) => Some(asked).filter(|_| condition(seen.claim, PENDING).is_none()),
    }
}

fn status(claim: &PersistentVolumeClaim) -> Option<&PersistentVolumeClaimStatus> {
    claim.status.as_ref()
}

fn phase(claim: &PersistentVolumeClaim) -> Option<&str> {
    status(claim)?.phase.as_deref()
}

fn progress(claim: &PersistentVolumeClaim) -> Option<&str> {
    status(claim)?.allocated_resource_statuses.as_ref()?.get(STORAGE).map(String::as_str)
}

fn allocated(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    status(claim)?.allocated_resources.as_ref()?.get(STORAGE)
}

fn request(claim: &PersistentVolumeClaim) -> Option<&Quantity> {
    claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?.get(STORAGE)
}

/// Returns the condition of this type if it is true.
fn condition<'a>(
    claim: &'a PersistentVolumeClaim,
    type_: &str,
) -> Option<&'a PersistentVolumeClaimCondition> {
    let mut conditions = status(claim)?.conditions.iter().flatten();
    conditions.find(|condition| condition.type_ == type_ && condition.status == "True")
}

fn bytes(amount: &Quantity) -> i64 {
    capacity::bytes(amount).unwrap_or(0)
}

fn of(amounts: Option<&BTreeMap<String, Quantity>>) -> i64 {
    amounts.and_then(|amounts| amounts.get(STORAGE)).map_or(0, bytes)
}

fn requested(claim: &PersistentVolumeClaim) -> i64 {
    request(claim).map_or(0, bytes)
}

fn capacity_of(claim: &PersistentVolumeClaim) -> i64 {
    of(status(claim).and_then(|status| status.capacity.as_ref()))
}

fn size_of(volume: &PersistentVolume) -> i64 {
    of(volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref()))
}

/// Fate of a volume after `ControllerExpandVolume` has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It may still grow.
    Unknown,
    /// It does not grow.
    Failed,
    /// It does not grow, and the same request would fail again.
    Infeasible,
}

/// Derives the fate from the driver's answer.
pub fn fate(status: &Status) -> Fate {
    // An error that did not come from the driver says nothing about the volume.
    if std::error::Error::source(status).is_some() {
        return Fate::Unknown;
    }
    match status.code() {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Unavailable
        | Code::ResourceExhausted
        | Code::Aborted => Fate::Unknown,
        Code::InvalidArgument | Code::OutOfRange | Code::NotFound => Fate::Infeasible,
        _ => Fate::Failed,
    }
}

/// Strategic merge patches: the type identifies a condition, and those of others stay.
impl Begin {
    /// Returns the patch of the claim's status.
    pub fn patch(&self, claim: &PersistentVolumeClaim, now: &str) -> Value {
        let mut patch = of_version(claim);
        patch["metadata"]["annotations"] = json!({ NO_NODE: null });
        let mut conditions = vec![holds(RESIZING, None, now)];
        if self.fresh {
            conditions.extend(CONDITIONS.into_iter().filter(|type_| *type_ != RESIZING).map(no_more));
            patch["status"]["allocatedResourceStatuses"] = json!({ STORAGE: CONTROLLER_IN_PROGRESS });
            patch["status"]["allocatedResources"] = json!({ STORAGE: self.size });
        }
        patch["status"]["conditions"] = json!(conditions);
        patch
    }
}

/// Returns the patch for a claim whose volume has grown; a node has to grow the file system.
pub fn pending(claim: &PersistentVolumeClaim, now: &str) -> Value {
    let message = "Waiting for user to (re-)start a pod to finish file system resize of volume on node.";
    let mut patch = of_version(claim);
    patch["metadata"]["annotations"] = json!({ NO_NODE: null });
    patch["status"] = json!({
        "conditions": [holds(PENDING, Some(message), now)],
        "allocatedResourceStatuses": { STORAGE: NODE_PENDING },
    });
    patch
}

/// Returns the patch for a claim whose volume has grown; nothing else is needed.
pub fn finished(claim: &PersistentVolumeClaim, size: &Quantity) -> Value {
    let mut patch = of_version(claim);
    patch["metadata"]["annotations"] = json!({ NO_NODE: "true" });
    patch["status"] = json!({
        "capacity": { STORAGE: size },
        "conditions": CONDITIONS.map(no_more),
        "allocatedResourceStatuses": { STORAGE: null },
    });
    patch
}

/// Returns the patch for a claim whose volume does not grow; `None` if the claim says so already.
/// It applies to any version: the next request may depend on it.
pub fn failed(claim: &PersistentVolumeClaim, why: &str, infeasible: bool, now: &str) -> Option<Value> {
    let message = format!("failed to expand pvc with {why}");
    let said = condition(claim, FAILED).is_some_and(|said| said.message.as_ref() == Some(&message));
    if said && (!infeasible || progress(claim) == Some(CONTROLLER_INFEASIBLE)) {
        return None;
    }
    let mut patch = json!({
        "metadata": { "uid": claim.metadata.uid },
        "status": { "conditions": [holds(FAILED, Some(&message), now)] },
    });
    if infeasible {
        patch["status"]["allocatedResourceStatuses"] = json!({ STORAGE: CONTROLLER_INFEASIBLE });
    }
    Some(patch)
}

/// Returns the patch of a PersistentVolume with its size, and with the former size of its file
/// system if a node has to grow that; `None` if the object says so already.
pub fn grown(
    volume: &PersistentVolume,
    claim: &PersistentVolumeClaim,
    size: &Quantity,
    by_node: bool,
) -> Option<Value> {
    let notes = by_node && !volume.annotations().contains_key(SIZE_BEFORE);
    if size_of(volume) == bytes(size) && !notes {
        return None;
    }
    let mut patch = json!({
        "metadata": { "uid": volume.metadata.uid },
        "spec": { "capacity": { STORAGE: size } },
    });
    if notes {
        let before = status(claim).and_then(|status| status.capacity.as_ref()?.get(STORAGE));
        patch["metadata"]["annotations"] =
            json!({ SIZE_BEFORE: before.map_or("0", |before| before.0.as_str()) });
    }
    Some(patch)
}

fn of_version(claim: &PersistentVolumeClaim) -> Value {
    json!({ "metadata": { "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version } })
}

fn holds(type_: &str, message: Option<&str>, now: &str) -> Value {
    json!({ "type": type_, "status": "True", "lastTransitionTime": now, "message": message, "reason": null })
}

fn no_more(type_: &str) -> Value {
    json!({ "type": type_, "$patch": "delete" })
}

#[cfg(test)]
mod tests {
    use super::super::creation::tests::object;
    use super::*;

    const NEVER: Memory = Memory { failed: false, infeasible: false, in_use: false };
    const FAILED_BEFORE: Memory = Memory { failed: true, ..NEVER };

    /// Returns a claim that has 1Gi and requests `asks`, with changes.
    fn claim(asks: &str, changes: Value) -> PersistentVolumeClaim {
        let base = json!({
            "metadata": { "name": "data", "namespace": "team", "uid": "u1", "resourceVersion": "1" },
            "spec": { "volumeName": "pv", "resources": { "requests": { STORAGE: asks } } },
            "status": { "phase": "Bound", "capacity": { STORAGE: "1Gi" } },
        });
        object(base, changes)
    }

    fn volume(size: &str, changes: Value) -> PersistentVolume {
        let base = json!({
            "metadata": { "name": "pv", "uid": "v1" },
            "spec": { "capacity": { STORAGE: size }, "claimRef": { "namespace": "team", "name": "data", "uid": "u1" } },
        });
        object(base, changes)
    }

    fn begun(size: &str, progress: &str) -> Value {
        json!({ "status": {
            "allocatedResources": { STORAGE: size },
            "allocatedResourceStatuses": { STORAGE: progress },
            "conditions": [{ "type": RESIZING, "status": "True" }],
        } })
    }

    fn step(
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        growth: Growth,
        memory: Memory,
    ) -> Step {
        decide(&Seen { claim, volume, growth, memory })
    }

    fn size(text: &str) -> Quantity {
        Quantity(text.to_owned())
    }

    fn begins(text: &str) -> Step {
        Step::Begin(Begin { size: size(text), fresh: true })
    }

    #[test]
    fn one_step_after_the_other() {
        let small = volume("1Gi", json!({}));
        let next = |claim: &PersistentVolumeClaim| step(claim, &small, Growth::Controller, NEVER);
        assert_eq!(next(&claim("1Gi", json!({}))), Step::Nothing);
        assert_eq!(next(&claim("2Gi", json!({}))), begins("2Gi"));
        assert_eq!(next(&claim("2Gi", begun("2Gi", CONTROLLER_IN_PROGRESS))), Step::Expand(size("2Gi")));
        let mut told = claim("2Gi", begun("2Gi", CONTROLLER_IN_PROGRESS));
        told.annotations_mut().insert(NO_NODE.to_owned(), "true".to_owned());
        let Step::Begin(begin) = next(&told) else { panic!() };
        assert!(!begin.fresh, "kubelet must not be told so any more");
    }

    #[test]
    fn what_asks_for_no_growth_is_left_alone() {
        let small = volume("1Gi", json!({}));
        for claim in [
            claim("512Mi", json!({})),
            claim("2Gi", json!({ "status": { "phase": "Lost" } })),
            claim("2Gi", json!({ "metadata": { "uid": "another" } })),
            claim("2Gi", json!({ "metadata": { "namespace": "another" } })),
        ] {
            assert_eq!(step(&claim, &small, Growth::Controller, NEVER), Step::Nothing);
            assert!(!concerns(&claim, &small));
        }
        let unbound = volume("1Gi", json!({ "spec": { "claimRef": null } }));
        assert_eq!(step(&claim("2Gi", json!({})), &unbound, Growth::Controller, NEVER), Step::Nothing);
    }

    /// Covers each line of the table: size of the volume, progress with the size that was begun,
    /// and the size to grow to when 3Gi are requested.
    #[test]
    fn what_was_begun_is_ended_first() {
        for (is, progress, memory, by_controller, by_node) in [
            ("1Gi", Some(("2Gi", CONTROLLER_IN_PROGRESS)), NEVER, Some("2Gi"), Some("2Gi")),
            ("1Gi", Some(("2Gi", CONTROLLER_IN_PROGRESS)), FAILED_BEFORE, Some("3Gi"), Some("3Gi")),
            ("1Gi", Some(("4Gi", CONTROLLER_INFEASIBLE)), NEVER, Some("3Gi"), Some("3Gi")),
            ("1Gi", Some(("2Gi", NODE_PENDING)), NEVER, Some("2Gi"), Some("2Gi")),
            ("2Gi", Some(("2Gi", NODE_PENDING)), NEVER, None, None),
            ("2Gi", Some(("2Gi", NODE_IN_PROGRESS)), NEVER, None, None),
            ("2Gi", Some(("2Gi", NODE_INFEASIBLE)), NEVER, Some("2Gi"), Some("2Gi")),
            ("1Gi", None, NEVER, Some("3Gi"), Some("3Gi")),
            ("4Gi", Some(("4Gi", NODE_PENDING)), NEVER, None, None),
            ("4Gi", Some(("4Gi", NODE_IN_PROGRESS)), NEVER, None, None),
            ("4Gi", Some(("4Gi", NODE_INFEASIBLE)), NEVER, Some("4Gi"), Some("3Gi")),
            ("4Gi", Some(("4Gi", CONTROLLER_IN_PROGRESS)), NEVER, Some("4Gi"), Some("4Gi")),
            ("4Gi", Some(("4Gi", CONTROLLER_INFEASIBLE)), NEVER, Some("4Gi"), Some("4Gi")),
            ("4Gi", None, NEVER, Some("3Gi"), Some("3Gi")),
        ] {
            let claim = claim("3Gi", progress.map_or(json!({}), |(size, of)| begun(size, of)));
            let volume = volume(is, json!({}));
            for (growth, expected) in [(Growth::Controller, by_controller), (Growth::Node, by_node)] {
                let grows = match step(&claim, &volume, growth, memory) {
                    Step::Nothing => None,
                    Step::Begin(Begin { size, .. }) | Step::Expand(size) => Some(size.0),
                    other => panic!("{other:?}"),
                };
                assert_eq!(grows.as_deref(), expected, "{is} {progress:?} {growth:?}");
            }
        }
    }

    #[test]
    fn old_servers_note_nothing_but_conditions() {
        let large = volume("3Gi", json!({}));
        let pending = json!({ "status": { "conditions": [{ "type": PENDING, "status": "True" }] } });
        assert_eq!(step(&claim("3Gi", pending), &large, Growth::Controller, NEVER), Step::Nothing);
        let over = json!({ "status": { "conditions": [{ "type": PENDING, "status": "False" }] } });
        assert_eq!(step(&claim("3Gi", over), &large, Growth::Controller, NEVER), begins("3Gi"));
        let allocated = json!({ "status": { "allocatedResources": { STORAGE: "4Gi" } } });
        let Step::Begin(begin) = step(&claim("3Gi", allocated), &large, Growth::Controller, NEVER) else {
            panic!()
        };
        assert_eq!((begin.size, begin.fresh), (size("4Gi"), false));
    }

    #[test]
    fn what_cannot_be_waits_and_less_is_asked_at_once() {
        let small = volume("1Gi", json!({}));
        let infeasible = Memory { infeasible: true, failed: true, in_use: false };
        let claim = |asks| claim(asks, begun("3Gi", CONTROLLER_INFEASIBLE));
        assert_eq!(step(&claim("3Gi"), &small, Growth::Controller, infeasible), Step::Later);
        assert_eq!(step(&claim("2Gi"), &small, Growth::Controller, infeasible), begins("2Gi"));
        // A new process does not know when that failed.
        assert_eq!(step(&claim("3Gi"), &small, Growth::Controller, NEVER), Step::Expand(size("3Gi")));
        assert_eq!(step(&claim("3Gi"), &small, Growth::None, NEVER), Step::Refuse);
    }

    #[test]
    fn the_size_before_is_forgotten_when_a_node_has_grown_it() {
        let noted = |size| volume(size, json!({ "metadata": { "annotations": { SIZE_BEFORE: "1Gi" } } }));
        let grown = claim("2Gi", json!({ "status": { "capacity": { STORAGE: "2Gi" } } }));
        assert_eq!(step(&grown, &noted("2Gi"), Growth::Controller, NEVER), Step::Forget);
        assert!(concerns(&grown, &noted("2Gi")));
        assert_eq!(step(&grown, &noted("3Gi"), Growth::Controller, NEVER), Step::Nothing);
    }

    #[test]
    fn every_code_has_its_fate() {
        for (code, expected) in [
            (Code::Cancelled, Fate::Unknown),
            (Code::DeadlineExceeded, Fate::Unknown),
            (Code::Unavailable, Fate::Unknown),
            (Code::ResourceExhausted, Fate::Unknown),
            (Code::Aborted, Fate::Unknown),
            (Code::InvalidArgument, Fate::Infeasible),
            (Code::OutOfRange, Fate::Infeasible),
            (Code::NotFound, Fate::Infeasible),
            (Code::FailedPrecondition, Fate::Failed),
            (Code::Internal, Fate::Failed),
            (Code::Unknown, Fate::Failed),
            (Code::Unimplemented, Fate::Failed),
        ] {
            assert_eq!(fate(&Status::new(code, "")), expected, "{code:?}");
        }
        let broken = Status::from_error(Box::new(std::io::Error::other("reset")));
        assert_eq!(fate(&broken), Fate::Unknown);
    }

    #[test]
    fn our_own_writing_is_no_news() {
        let plain = claim("2Gi", json!({}));
        let changed = |changes: Value| {
            let mut claim = claim("2Gi", json!({ "metadata": { "resourceVersion": "2" } }));
            let value = serde_json::to_value(&claim).unwrap();
            claim = object(value, changes);
            claim
        };
        assert!(is_news(&plain, &plain), "the watch began once more");
        for ours in [CONTROLLER_IN_PROGRESS, CONTROLLER_INFEASIBLE, NODE_PENDING, NODE_IN_PROGRESS] {
            assert!(!is_news(&plain, &changed(begun("2Gi", ours))), "{ours}");
        }
        assert!(is_news(&plain, &changed(begun("2Gi", NODE_INFEASIBLE))));
        assert!(is_news(
            &changed(begun("2Gi", NODE_PENDING)),
            &changed(json!({ "metadata": { "resourceVersion": "3" } }))
        ));
        for change in [
            json!({ "spec": { "resources": { "requests": { STORAGE: "3Gi" } } } }),
            json!({ "spec": { "volumeName": "another" } }),
            json!({ "status": { "phase": "Lost" } }),
            json!({ "status": { "capacity": { STORAGE: "2Gi" } } }),
            json!({ "metadata": { "uid": "another" } }),
        ] {
            assert!(is_news(&plain, &changed(change.clone())), "{change}");
        }
    }

    #[test]
    fn what_is_written_once_is_not_written_again() {
        let (grown_to, by_node) = (size("2Gi"), true);
        let asks = claim("2Gi", json!({}));
        let patch = grown(&volume("1Gi", json!({})), &asks, &grown_to, by_node).unwrap();
        assert_eq!(patch["metadata"]["annotations"][SIZE_BEFORE], "1Gi");
        let noted = json!({ "metadata": { "annotations": { SIZE_BEFORE: "512Mi" } } });
        let patch = grown(&volume("1Gi", noted.clone()), &asks, &grown_to, by_node).unwrap();
        assert_eq!(patch["metadata"]["annotations"], Value::Null, "the first size stays");
        assert_eq!(grown(&volume("2Gi", noted), &asks, &grown_to, by_node), None);
        assert_eq!(grown(&volume("2Gi", json!({})), &asks, &grown_to, false), None);
        let first = failed(&asks, "no", false, "2026-01-01T00:00:00Z").unwrap();
        let said = json!({ "status": first["status"] });
        assert_eq!(failed(&claim("2Gi", said.clone()), "no", false, "now"), None);
        assert!(failed(&claim("2Gi", said.clone()), "no", true, "now").is_some());
        assert!(failed(&claim("2Gi", said), "never", false, "now").is_some());
    }
}
