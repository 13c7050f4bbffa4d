//! Next step for a `PersistentVolumeClaim` that has no volume. Pure.
//!
//! | claim | step |
//! |---|---|
//! | bound, of another driver, or its volume exists | nothing |
//! | its class does not exist | wait for it |
//! | its class waits for the first pod, and no node is selected | nothing |
//! | from another source than a claim or a snapshot | nothing: a populator fills it |
//! | from a claim or a snapshot, with a selector or a `VolumeAttributesClass` | refuse |
//! | the driver makes no volumes | refuse |
//! | the selected node is not known | have another selected |
//! | its topology, or something that its class names, is missing | refuse, and try again |
//! | – | ask the driver |
//!
//! Handling of the driver's answer:
//!
//! | code | volume | then |
//! |---|---|---|
//! | OK | exists | write the PersistentVolume |
//! | CANCELLED, `DEADLINE_EXCEEDED`, UNAVAILABLE, ABORTED, or no answer | may come into being | ask exactly the same again |
//! | `RESOURCE_EXHAUSTED`, and a node was selected | does not exist | have another selected |
//! | `INVALID_ARGUMENT` | does not exist | begin again, after a long time |
//! | others | does not exist | begin again |

use super::creation::{Plan, selected_node};
use super::driver::Facts;
use super::topology::{self, Missing, Nodes, Wanted};
use super::wishes::Wishes;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;
use tonic::{Code, Status};

/// Annotations that name the driver for a claim; older API servers write the second one.
const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];

/// Annotation that named a claim's class before it became a field.
const OLD_CLASS: &str = "volume.beta.kubernetes.io/storage-class";

/// Known state, the input of [`decide`].
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The claim.
    pub claim: &'a PersistentVolumeClaim,
    /// Its class, if it exists.
    pub class: Option<&'a StorageClass>,
    /// True if its volume exists already.
    pub provisioned: bool,
    /// The driver.
    pub driver: &'a Facts,
    /// The nodes, for drivers with topology.
    pub nodes: &'a Nodes,
    /// Identity of this process.
    pub identity: &'a str,
    /// Flags of this process.
    pub wishes: &'a Wishes,
}

/// One step.
#[derive(Clone, Debug)]
pub enum Step {
    /// There is nothing to do.
    Nothing,
    /// Another controller makes its volume.
    Populated,
    /// Ask the driver.
    Provision(Box<Plan>),
}

/// Reason why there is no step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A missing object, which queues the claim again when it appears; no Event is written.
    Wait(String),
    /// Message for an Event. The next attempt may succeed.
    Said(String),
    /// Another node has to be selected.
    Elsewhere(String),
}

impl From<String> for Refusal {
    fn from(sentence: String) -> Self {
        Self::Said(sentence)
    }
}

/// Reports whether a claim asks this driver for a volume, judged by the claim alone.
pub fn is_asked(claim: &PersistentVolumeClaim, driver: &str) -> bool {
    let bound =
        claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).is_some_and(|name| !name.is_empty());
    let annotations = claim.annotations();
    let provisioner = PROVISIONER.iter().find_map(|key| annotations.get(*key));
    !bound && provisioner.is_some_and(|provisioner| provisioner == driver)
}

/// Returns the name of a claim's class.
pub fn class_of(claim: &PersistentVolumeClaim) -> &str {
    let field = || claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    claim.annotations().get(OLD_CLASS).or_else(field).map_or("", String::as_str)
}

/// Decides the next step.
///
/// # Errors
///
/// Fails if there is no step, with the reason.
pub fn decide(seen: &Seen<'_>) -> Result<Step, Refusal> {
    let (claim, driver) = (seen.claim, seen.driver);
    if seen.provisioned || !is_asked(claim, &driver.name) {
        return Ok(Step::Nothing);
    }
    let missing =
        || Refusal::Wait(format!("StorageClass {:?} is not there: it is waited for", class_of(claim)));
    let class = seen.class.ok_or_else(missing)?;
    let waits = class.volume_binding_mode.as_deref() == Some("WaitForFirstConsumer");
    if class.provisioner != driver.name || (waits && selected_node(claim).is_none()) {
        return Ok(Step::Nothing);
    }
    if is_populated(claim)? {
        return Ok(Step::Populated);
    }
    if !driver.provisions {
        return Err(format!("driver {} makes no volumes: it has no CREATE_DELETE_VOLUME", driver.name).into());
    }
    let requirement = if driver.topology { place(seen, class)? } else { None };
    let plan = Plan::make(claim, class, driver, requirement, (seen.identity, seen.wishes))?;
    Ok(Step::Provision(Box::new(plan)))
}

fn place(
    seen: &Seen<'_>,
    class: &StorageClass,
) -> Result<Option<crate::wire::csi::TopologyRequirement>, Refusal> {
    let wanted = Wanted {
        driver: &seen.driver.name,
        claim: seen.claim.metadata.name.as_deref().unwrap_or_default(),
        allowed: class.allowed_topologies.as_deref().unwrap_or_default(),
        node: selected_node(seen.claim),
        strict: seen.wishes.strict_topology,
        everywhere: seen.wishes.immediate_topology,
    };
    topology::requirement(wanted, seen.nodes).map_err(|missing| match missing {
        Missing::Node(sentence) => Refusal::Elsewhere(sentence),
        Missing::Yet(sentence) => Refusal::Said(sentence),
    })
}

/// Reports whether another controller fills the volume. Refuses claims that need more than an
/// empty volume from us.
fn is_populated(claim: &PersistentVolumeClaim) -> Result<bool, Refusal> {
    let Some(spec) = &claim.spec else { return Ok(false) };
    let refuse = |what: &str| Err(Refusal::Said(format!("{what}: flexvold makes empty volumes only")));
    let plain = spec.data_source.as_ref().map(|source| (source.kind.as_str(), source.name.as_str()));
    let named = spec.data_source_ref.as_ref().map(|source| (source.kind.as_str(), source.name.as_str()));
    match plain.or(named) {
        Some(("PersistentVolumeClaim", name)) => {
            return refuse(&format!("cannot clone the volume of claim {name:?}"));
        }
        Some(("VolumeSnapshot", name)) => return refuse(&format!("cannot restore VolumeSnapshot {name:?}")),
        Some(_) => return Ok(true),
        None => (),
    }
    if spec.selector.is_some() {
        return refuse("a claim with a selector wants a volume that is there");
    }
    if spec.volume_attributes_class_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return refuse("VolumeAttributesClass is not supported");
    }
    Ok(false)
}

/// Fate of a volume after `CreateVolume` has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It may still be created: the same request has to be repeated.
    Unknown,
    /// It does not exist.
    Failed,
    /// It does not exist, and the same request would fail again.
    Infeasible,
    /// It does not exist, and may be created if another node is selected.
    Elsewhere,
}

/// Derives the fate from the driver's answer.
pub fn fate(status: &Status, node_selected: bool) -> Fate {
    // An error that did not come from the driver says nothing about the volume.
    if std::error::Error::source(status).is_some() {
        return Fate::Unknown;
    }
    match status.code() {
        Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted => Fate::Unknown,
        Code::ResourceExhausted if node_selected => Fate::Elsewhere,
        Code::InvalidArgument => Fate::Infeasible,
        _ => Fate::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::super::creation::SELECTED_NODE;
    use super::super::creation::tests::{DRIVER, claim, class, facts};
    use super::*;
    use serde_json::{Value, json};

    fn decided(
        claim_changes: Value,
        class: Option<&StorageClass>,
        provisioned: bool,
        driver: &Facts,
    ) -> Result<Step, Refusal> {
        let (claim, nodes, wishes) = (claim(claim_changes), Nodes::default(), Wishes::default());
        let (identity, wishes) = ("us", &wishes);
        decide(&Seen { claim: &claim, class, provisioned, driver, nodes: &nodes, identity, wishes })
    }

    fn of_claim(changes: Value) -> Result<Step, Refusal> {
        decided(changes, Some(&class(json!({}))), false, &facts())
    }

    fn annotated(key: &str, value: &str) -> Value {
        json!({ "metadata": { "annotations": { key: value } } })
    }

    #[test]
    fn each_claim_has_its_step() {
        assert!(matches!(of_claim(json!({})), Ok(Step::Provision(_))));
        assert!(matches!(of_claim(json!({ "spec": { "volumeName": "pv" } })), Ok(Step::Nothing)));
        let other = annotated("volume.kubernetes.io/storage-provisioner", "other");
        assert!(matches!(of_claim(other), Ok(Step::Nothing)));
        assert!(matches!(of_claim(json!({ "metadata": { "annotations": null } })), Ok(Step::Nothing)));
        let mut old = claim(json!({ "metadata": { "annotations": null } }));
        old.annotations_mut().insert(PROVISIONER[1].to_owned(), DRIVER.to_owned());
        assert!(is_asked(&old, DRIVER));
        assert!(matches!(decided(json!({}), Some(&class(json!({}))), true, &facts()), Ok(Step::Nothing)));
        assert!(matches!(decided(json!({}), None, false, &facts()), Err(Refusal::Wait(_))));
        let others = class(json!({ "provisioner": "other" }));
        assert!(matches!(decided(json!({}), Some(&others), false, &facts()), Ok(Step::Nothing)));
        let none = Facts { provisions: false, ..facts() };
        assert!(matches!(decided(json!({}), Some(&class(json!({}))), false, &none), Err(Refusal::Said(_))));
    }

    #[test]
    fn the_first_pod_is_waited_for() {
        let waits = class(json!({ "volumeBindingMode": "WaitForFirstConsumer" }));
        let step = |changes| decided(changes, Some(&waits), false, &facts());
        assert!(matches!(step(json!({})), Ok(Step::Nothing)));
        assert!(matches!(step(annotated(SELECTED_NODE, "")), Ok(Step::Nothing)));
        let Ok(Step::Provision(plan)) = step(annotated(SELECTED_NODE, "node")) else { panic!() };
        // Without topology the request would be the same for another node.
        assert_eq!((plan.node, plan.request.accessibility_requirements), (None, None));
    }

    #[test]
    fn a_node_that_is_not_known_is_given_back() {
        let driver = Facts { topology: true, ..facts() };
        let selected = annotated(SELECTED_NODE, "gone");
        let immediate = class(json!({}));
        assert!(matches!(decided(selected, Some(&immediate), false, &driver), Err(Refusal::Elsewhere(_))));
        assert!(matches!(decided(json!({}), Some(&immediate), false, &driver), Err(Refusal::Said(_))));
    }

    #[test]
    fn what_is_not_made_is_refused_in_words() {
        let source = |kind: &str| json!({ "apiGroup": "x", "kind": kind, "name": "from" });
        for (field, kind, words) in [
            ("dataSource", "PersistentVolumeClaim", "claim \"from\""),
            ("dataSourceRef", "PersistentVolumeClaim", "clone"),
            ("dataSource", "VolumeSnapshot", "VolumeSnapshot \"from\""),
            ("dataSourceRef", "VolumeSnapshot", "restore"),
        ] {
            let Err(Refusal::Said(said)) = of_claim(json!({ "spec": { field: source(kind) } })) else {
                panic!()
            };
            assert!(said.contains(words), "{said}");
        }
        assert!(matches!(
            of_claim(json!({ "spec": { "dataSourceRef": source("Image") } })),
            Ok(Step::Populated)
        ));
        for spec in [
            json!({ "selector": { "matchLabels": { "a": "b" } } }),
            json!({ "volumeAttributesClassName": "gold" }),
        ] {
            assert!(matches!(of_claim(json!({ "spec": spec })), Err(Refusal::Said(_))));
        }
        let bad = class(json!({ "parameters": { "csi.storage.k8s.io/x": "y" } }));
        assert!(matches!(decided(json!({}), Some(&bad), false, &facts()), Err(Refusal::Said(_))));
    }

    #[test]
    fn the_class_of_old_claims_is_an_annotation() {
        assert_eq!(class_of(&claim(json!({}))), "fast");
        assert_eq!(class_of(&claim(annotated(OLD_CLASS, "old"))), "old");
    }

    #[test]
    fn every_code_has_its_fate() {
        for (code, selected, expected) in [
            (Code::Cancelled, false, Fate::Unknown),
            (Code::DeadlineExceeded, true, Fate::Unknown),
            (Code::Unavailable, false, Fate::Unknown),
            (Code::Aborted, true, Fate::Unknown),
            (Code::ResourceExhausted, true, Fate::Elsewhere),
            (Code::ResourceExhausted, false, Fate::Failed),
            (Code::InvalidArgument, true, Fate::Infeasible),
            (Code::Internal, true, Fate::Failed),
            (Code::Unknown, false, Fate::Failed),
            (Code::AlreadyExists, false, Fate::Failed),
            (Code::OutOfRange, false, Fate::Failed),
            (Code::Unimplemented, false, Fate::Failed),
        ] {
            assert_eq!(fate(&Status::new(code, ""), selected), expected, "{code:?}");
        }
        // The connection broke: this error did not come from the driver.
        let broken = Status::from_error(Box::new(std::io::Error::other("reset")));
        assert_eq!(fate(&broken, true), Fate::Unknown);
    }
}
