//! Next step for a VolumeAttachment, and for a PersistentVolume that is being deleted. Pure: the
//! known state goes in, one step comes out.
//!
//! | VolumeAttachment | what is missing | step |
//! |---|---|---|
//! | another driver's | – | nothing |
//! | wanted, attached | – | nothing, unless the driver says otherwise |
//! | wanted, the driver attaches nothing | – | mark it attached |
//! | wanted | volume, node, capability, Secret | refuse: nothing was touched, so it can be deleted at once |
//! | wanted | our finalizer on the PersistentVolume | put it there |
//! | wanted | our finalizer or the node's id on it | put them there |
//! | wanted | – | publish; then mark it attached |
//! | being deleted, without our finalizer | – | nothing, unless the driver says otherwise |
//! | being deleted | – | unpublish; then take our finalizer off, and mark it detached |
//!
//! **Once attach has begun, detach must follow**: the finalizer is set before the driver is called,
//! whatever the result of the call, and is removed only after a successful unpublish. Finalizers
//! and annotations have the names of upstream's external-attacher, so that each can continue the
//! other's work.

use super::driver::Facts;
use super::volumes::{PersistentVolume, PersistentVolumeSpec, VolumeAttachment};
use super::{access, creation};
use crate::wire::csi::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, SecretReference};
use k8s_openapi::api::storage::v1::CSINode;
use kube::ResourceExt as _;

/// Annotation with the driver's id of the node, for use after the node is gone.
pub const NODE_ID: &str = "csi.alpha.kubernetes.io/node-id";

/// Returns the finalizer of a driver's attacher.
pub fn finalizer(driver: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let mut name: String = driver.chars().map(plain).collect();
    if name.ends_with('-') {
        name.push('X');
    }
    format!("external-attacher/{name}")
}

/// Known state, the input of [`decide`].
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The object.
    pub attachment: &'a VolumeAttachment,
    /// The volume that it names, if it exists.
    pub volume: Option<&'a PersistentVolume>,
    /// The CSINode of its node, written by kubelet.
    pub node: Option<&'a CSINode>,
    /// The driver.
    pub driver: &'a Facts,
    /// True if the driver contradicts the object's status.
    pub contradicted: bool,
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// There is nothing to do.
    Nothing,
    /// Mark it attached: the driver does not attach.
    MarkAttached,
    /// Put the finalizer on the PersistentVolume.
    GuardVolume(String),
    /// Put the finalizer and the driver's id of the node on the VolumeAttachment, once this Secret
    /// has been read.
    GuardAttachment(String, Option<SecretReference>),
    /// Call ControllerPublishVolume, with this Secret.
    Publish(Box<ControllerPublishVolumeRequest>, Option<SecretReference>),
    /// Call ControllerUnpublishVolume, with this Secret.
    Unpublish(Box<ControllerUnpublishVolumeRequest>, Option<SecretReference>),
    /// Remove the finalizer: this driver has published nothing.
    Release,
}

/// Decides the next step.
///
/// # Errors
///
/// Fails if it cannot be attached or detached, with a message for the object's status.
pub fn decide(seen: &Seen<'_>) -> Result<Step, String> {
    let (attachment, driver) = (seen.attachment, seen.driver);
    if attachment.spec.attacher != driver.name {
        return Ok(Step::Nothing);
    }
    let guarded = attachment.finalizers().contains(&finalizer(&driver.name));
    if attachment.metadata.deletion_timestamp.is_some() {
        return match (guarded || seen.contradicted, driver.publishes) {
            (false, _) => Ok(Step::Nothing),
            (true, false) => Ok(Step::Release),
            (true, true) => unpublish(seen),
        };
    }
    let attached = attachment.status.as_ref().is_some_and(|status| status.attached);
    match (attached && !seen.contradicted, driver.publishes) {
        (true, _) => Ok(Step::Nothing),
        (false, false) => Ok(Step::MarkAttached),
        (false, true) => publish(seen, guarded),
    }
}

fn publish(seen: &Seen<'_>, guarded: bool) -> Result<Step, String> {
    let driver = seen.driver;
    let (spec, source) = source(seen)?;
    if let Some(volume) = seen.volume.filter(|volume| volume.metadata.deletion_timestamp.is_some()) {
        return Err(format!("PersistentVolume {:?} is marked for deletion", volume.name_any()));
    }
    let capability = access::of_volume(spec, driver.single_node_multi_writer)?;
    let node = node_id(seen)?;
    if let Some(volume) = seen.volume.filter(|volume| !volume.finalizers().contains(&finalizer(&driver.name)))
    {
        return Ok(Step::GuardVolume(volume.name_any()));
    }
    let secret = source.controller_publish_secret_ref.clone();
    if !guarded || seen.attachment.annotations().get(NODE_ID) != Some(&node) {
        return Ok(Step::GuardAttachment(node, secret));
    }
    let request = ControllerPublishVolumeRequest {
        volume_id: source.volume_handle.clone(),
        node_id: node,
        volume_capability: Some(capability),
        // Only drivers that support it get a read-only request.
        readonly: driver.publishes_read_only && source.read_only.unwrap_or_default(),
        volume_context: source.volume_attributes.clone().unwrap_or_default().into_iter().collect(),
        ..ControllerPublishVolumeRequest::default()
    };
    Ok(Step::Publish(Box::new(request), secret))
}

fn unpublish(seen: &Seen<'_>) -> Result<Step, String> {
    let (_, source) = source(seen)?;
    let remembered = || seen.attachment.annotations().get(NODE_ID).cloned();
    let request = ControllerUnpublishVolumeRequest {
        volume_id: source.volume_handle.clone(),
        // A deleted node has no CSINode, but its volumes must still be detached.
        node_id: node_id(seen).or_else(|error| remembered().ok_or(error))?,
        ..ControllerUnpublishVolumeRequest::default()
    };
    Ok(Step::Unpublish(Box::new(request), source.controller_publish_secret_ref.clone()))
}

/// Returns the specification and the CSI source of the volume to attach.
fn source<'a>(seen: &Seen<'a>) -> Result<(&'a PersistentVolumeSpec, &'a CSIPersistentVolumeSource), String> {
    let wanted = &seen.attachment.spec.source;
    let spec = match (&wanted.persistent_volume_name, &wanted.inline_volume_spec) {
        (Some(name), None) => seen
            .volume
            .and_then(|volume| volume.spec.as_ref())
            .ok_or_else(|| format!("persistentvolume {name:?} not found"))?,
        (None, Some(spec)) => spec,
        (Some(_), Some(_)) => {
            return Err("it names a PersistentVolume and has an inline one: leave one".to_owned());
        }
        (None, None) => return Err("it names no PersistentVolume and has no inline one".to_owned()),
    };
    let source = spec.csi.as_ref().ok_or("its volume is not one of CSI")?;
    if source.driver != seen.driver.name {
        return Err(format!(
            "its volume is of driver {:?}, and not of {:?}",
            source.driver, seen.driver.name
        ));
    }
    Ok((spec, source))
}

fn node_id(seen: &Seen<'_>) -> Result<String, String> {
    let name = &seen.attachment.spec.node_name;
    let node = seen.node.ok_or_else(|| format!("csinode.storage.k8s.io {name:?} not found"))?;
    let drivers = node.spec.drivers.iter();
    let mut found = drivers.filter(|driver| driver.name == seen.driver.name);
    let driver = found.next();
    driver
        .map(|driver| driver.node_id.clone())
        .ok_or_else(|| format!("CSINode {name} does not contain driver {}", seen.driver.name))
}

/// Reports whether our finalizer on a PersistentVolume can go: the volume is being deleted, and no
/// VolumeAttachment needs it. False while it has the provisioner's finalizer: that may go with
/// ours.
pub fn is_released<'a>(
    volume: &PersistentVolume,
    mut attachments: impl Iterator<Item = &'a VolumeAttachment>,
    driver: &str,
) -> bool {
    let name = volume.name_any();
    let needs = |attachment: &VolumeAttachment| {
        attachment.spec.source.persistent_volume_name.as_deref() == Some(name.as_str())
    };
    volume.metadata.deletion_timestamp.is_some()
        && volume.finalizers().contains(&finalizer(driver))
        && !volume.finalizers().iter().any(|name| name == creation::FINALIZER)
        && !attachments.any(needs)
}

#[cfg(test)]
mod tests {
    use super::super::creation::tests::{DRIVER, merge, object};
    use super::*;
    use serde_json::{Value, json};

    const OURS: &str = "external-attacher/d-example-com";

    fn facts() -> Facts {
        Facts { name: DRIVER.to_owned(), publishes: true, publishes_read_only: true, ..Facts::default() }
    }

    fn attachment(changes: Value) -> VolumeAttachment {
        let source = json!({ "persistentVolumeName": "pv" });
        let spec = json!({ "attacher": DRIVER, "nodeName": "node", "source": source });
        object(json!({ "metadata": { "name": "va" }, "spec": spec }), changes)
    }

    fn volume(changes: Value) -> PersistentVolume {
        let csi = json!({ "driver": DRIVER, "volumeHandle": "handle", "readOnly": true, "volumeAttributes": { "a": "b" } });
        let spec = json!({ "accessModes": ["ReadWriteOnce"], "csi": csi });
        object(json!({ "metadata": { "name": "pv", "finalizers": [OURS] }, "spec": spec }), changes)
    }

    fn node() -> CSINode {
        let driver = json!({ "name": DRIVER, "nodeID": "id" });
        object(json!({ "metadata": { "name": "node" }, "spec": { "drivers": [driver] } }), json!({}))
    }

    /// Returns the changes of an attachment that this attacher has begun to publish.
    fn begun() -> Value {
        json!({ "metadata": { "finalizers": [OURS], "annotations": { NODE_ID: "id" } } })
    }

    fn deleted(mut changes: Value) -> Value {
        changes["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        changes
    }

    fn with(mut changes: Value, more: Value) -> Value {
        merge(&mut changes, more);
        changes
    }

    fn next(
        attachment: &VolumeAttachment,
        volume: Option<&PersistentVolume>,
        node: Option<&CSINode>,
    ) -> Result<Step, String> {
        decide(&Seen { attachment, volume, node, driver: &facts(), contradicted: false })
    }

    #[test]
    fn one_step_after_the_other() {
        let (bare, ours, node) =
            (volume(json!({ "metadata": { "finalizers": ["other"] } })), volume(json!({})), node());
        let step = |changes, volume| next(&attachment(changes), Some(volume), Some(&node));
        assert_eq!(step(json!({}), &bare), Ok(Step::GuardVolume("pv".to_owned())));
        assert_eq!(step(json!({}), &ours), Ok(Step::GuardAttachment("id".to_owned(), None)));
        let moved = with(begun(), json!({ "metadata": { "annotations": { NODE_ID: "another" } } }));
        assert_eq!(step(moved, &ours), Ok(Step::GuardAttachment("id".to_owned(), None)));
        let Ok(Step::Publish(request, secret)) = step(begun(), &ours) else { panic!() };
        assert_eq!((request.volume_id.as_str(), request.node_id.as_str(), secret), ("handle", "id", None));
        assert!(request.readonly && request.volume_context["a"] == "b");
        let attached = with(begun(), json!({ "status": { "attached": true } }));
        assert_eq!(step(attached.clone(), &ours), Ok(Step::Nothing));
        let Ok(Step::Unpublish(request, _)) = step(deleted(attached), &ours) else { panic!() };
        assert_eq!((request.volume_id.as_str(), request.node_id.as_str()), ("handle", "id"));
        assert_eq!(step(deleted(json!({})), &ours), Ok(Step::Nothing));
        let others = json!({ "spec": { "attacher": "another.example.com" } });
        assert_eq!(step(others, &ours), Ok(Step::Nothing));
    }

    #[test]
    fn a_refusal_leaves_no_finalizer() {
        let (found, node) = (volume(json!({ "metadata": { "finalizers": null } })), node());
        let refused = |changes, volume: Option<&PersistentVolume>, node| {
            next(&attachment(changes), volume, node).unwrap_err()
        };
        assert!(refused(json!({}), None, Some(&node)).contains("\"pv\""));
        assert!(refused(json!({}), Some(&found), None).contains("\"node\""));
        let empty = object(json!({ "metadata": { "name": "node" }, "spec": { "drivers": [] } }), json!({}));
        assert!(refused(json!({}), Some(&found), Some(&empty)).contains(DRIVER));
        let foreign = volume(json!({ "spec": { "csi": { "driver": "another" } } }));
        assert!(refused(json!({}), Some(&foreign), Some(&node)).contains("\"another\""));
        let flex = volume(json!({ "spec": { "csi": null, "flexVolume": { "driver": "a/b" } } }));
        refused(json!({}), Some(&flex), Some(&node));
        let dying = volume(deleted(json!({})));
        assert!(refused(json!({}), Some(&dying), Some(&node)).contains("\"pv\""));
        let modes = volume(json!({ "spec": { "accessModes": ["ReadOnlyMany", "ReadWriteOnce"] } }));
        assert!(refused(json!({}), Some(&modes), Some(&node)).contains("ReadOnlyMany"));
        let inline =
            json!({ "spec": { "source": { "inlineVolumeSpec": { "accessModes": ["ReadWriteOnce"] } } } });
        refused(inline, Some(&found), Some(&node));
        let nothing = json!({ "spec": { "source": { "persistentVolumeName": null } } });
        refused(nothing, Some(&found), Some(&node));
    }

    #[test]
    fn a_node_that_has_gone_is_detached_from() {
        let found = volume(deleted(json!({})));
        let step = next(&attachment(deleted(begun())), Some(&found), None);
        let Ok(Step::Unpublish(request, _)) = step else { panic!() };
        assert_eq!(request.node_id, "id");
        let forgotten = with(begun(), json!({ "metadata": { "annotations": null } }));
        assert!(next(&attachment(deleted(forgotten)), Some(&found), None).unwrap_err().contains("\"node\""));
    }

    #[test]
    fn an_inline_volume_needs_no_object() {
        let csi = json!({ "driver": DRIVER, "volumeHandle": "inline" });
        let spec = json!({ "accessModes": ["ReadWriteOnce"], "csi": csi });
        let source = json!({ "persistentVolumeName": null, "inlineVolumeSpec": spec });
        let changes = with(begun(), json!({ "spec": { "source": source } }));
        let step = next(&attachment(changes), None, Some(&node()));
        let Ok(Step::Publish(request, _)) = step else { panic!() };
        assert_eq!(request.volume_id, "inline");
    }

    #[test]
    fn a_driver_that_attaches_nothing() {
        let driver = Facts { publishes: false, ..facts() };
        let step = |changes| {
            let attachment = attachment(changes);
            decide(&Seen {
                attachment: &attachment,
                volume: None,
                node: None,
                driver: &driver,
                contradicted: false,
            })
        };
        assert_eq!(step(json!({})), Ok(Step::MarkAttached));
        assert_eq!(step(json!({ "status": { "attached": true } })), Ok(Step::Nothing));
        assert_eq!(step(deleted(json!({}))), Ok(Step::Nothing));
        // A former version of the driver attached the volume.
        assert_eq!(step(deleted(begun())), Ok(Step::Release));
    }

    #[test]
    fn what_the_driver_contradicts_is_done_once_more() {
        let (volume, node, driver) = (volume(json!({})), node(), facts());
        let step = |changes| {
            let attachment = attachment(changes);
            let (volume, node) = (Some(&volume), Some(&node));
            decide(&Seen { attachment: &attachment, volume, node, driver: &driver, contradicted: true })
        };
        let attached = with(begun(), json!({ "status": { "attached": true } }));
        assert!(matches!(step(attached), Ok(Step::Publish(..))));
        assert!(matches!(step(deleted(json!({}))), Ok(Step::Unpublish(..))));
    }

    #[test]
    fn read_only_is_for_drivers_that_know_it() {
        let driver = Facts { publishes_read_only: false, ..facts() };
        let (attachment, volume, node) = (attachment(begun()), volume(json!({})), node());
        let (volume, node) = (Some(&volume), Some(&node));
        let seen = Seen { attachment: &attachment, volume, node, driver: &driver, contradicted: false };
        let Ok(Step::Publish(request, _)) = decide(&seen) else { panic!() };
        assert!(!request.readonly);
    }

    #[test]
    fn a_volume_is_released_when_nothing_needs_it() {
        let (needs, other) = (
            attachment(json!({})),
            attachment(json!({ "spec": { "source": { "persistentVolumeName": "b" } } })),
        );
        let released = |volume: &PersistentVolume, attachments: &[&VolumeAttachment]| {
            is_released(volume, attachments.iter().copied(), DRIVER)
        };
        let dying = volume(deleted(json!({})));
        assert!(released(&dying, &[&other]));
        assert!(!released(&dying, &[&other, &needs]));
        assert!(!released(&volume(json!({})), &[]));
        assert!(!released(&volume(deleted(json!({ "metadata": { "finalizers": ["other"] } }))), &[]));
    }

    #[test]
    fn finalizers_are_those_of_upstream() {
        assert_eq!(
            finalizer("tmpfs.flexvol.flex.flexvol.dev"),
            "external-attacher/tmpfs-flexvol-flex-flexvol-dev"
        );
        assert_eq!(finalizer("d."), "external-attacher/d-X");
    }
}
