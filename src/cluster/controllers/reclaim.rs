//! Next step for a PersistentVolume of a driver: its finalizer, and the deletion of its volume.
//! Pure.
//!
//! | PersistentVolume | step |
//! |---|---|
//! | another driver's | nothing |
//! | Delete, bound, not being deleted, without our finalizer | put it there |
//! | Retain or Recycle, with our finalizer | take it off |
//! | being deleted, without our finalizer | nothing: its volume was deleted, or is not ours |
//! | Delete, Released, a `VolumeAttachment` names it | wait until that is gone |
//! | Delete, Released | delete the volume, then the object, then our finalizer |
//! | others | nothing |
//!
//! A volume that was not provisioned is deleted too, if the author of its PersistentVolume wrote
//! Delete, as with upstream's.

use super::creation::{DELETION_SECRET, FINALIZER, PROVISIONED_BY};
use super::secret_refs::{self, Of, Pairs, Purpose};
use super::volumes::{PersistentVolume, VolumeAttachment};
use k8s_openapi::api::core::v1::SecretReference;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt as _;

/// One step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// There is nothing to do.
    Nothing,
    /// Add our finalizer.
    Guard,
    /// Remove our finalizer.
    Unguard,
    /// Wait: the volume is attached to this node. Its detachment queues the key again.
    Wait(String),
    /// Delete the volume with this handle.
    Delete(String),
}

/// Reports whether a PersistentVolume belongs to a driver.
pub fn is_ours(volume: &PersistentVolume, driver: &str) -> bool {
    match volume.annotations().get(PROVISIONED_BY) {
        Some(provisioner) => provisioner == driver,
        None => handle(volume, driver).is_some(),
    }
}

fn handle<'a>(volume: &'a PersistentVolume, driver: &str) -> Option<&'a str> {
    let source = volume.spec.as_ref()?.csi.as_ref()?;
    Some(source.volume_handle.as_str()).filter(|_| source.driver == driver)
}

/// Decides the next step.
pub fn decide<'a>(
    volume: &PersistentVolume,
    mut attachments: impl Iterator<Item = &'a VolumeAttachment>,
    driver: &str,
) -> Step {
    let policy = volume.spec.as_ref().and_then(|spec| spec.persistent_volume_reclaim_policy.as_deref());
    let phase = volume.status.as_ref().and_then(|status| status.phase.as_deref());
    let guarded = volume.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let deleted = volume.metadata.deletion_timestamp.is_some();
    match (policy, phase) {
        _ if !is_ours(volume, driver) => Step::Nothing,
        (Some("Retain" | "Recycle"), _) if guarded => Step::Unguard,
        (Some("Delete"), Some("Bound")) if !deleted && !guarded => Step::Guard,
        (Some("Delete"), Some("Released")) if guarded || !deleted => {
            let name = volume.name_any();
            let names =
                |each: &&VolumeAttachment| each.spec.source.persistent_volume_name.as_ref() == Some(&name);
            match (attachments.find(names), handle(volume, driver)) {
                (Some(attachment), _) => Step::Wait(attachment.spec.node_name.clone()),
                (None, Some(handle)) => Step::Delete(handle.to_owned()),
                (None, None) => Step::Nothing,
            }
        }
        _ => Step::Nothing,
    }
}

/// Returns the Secret for `DeleteVolume`: the one in the annotations, otherwise that of the class.
///
/// # Errors
///
/// Fails if the class does not name a valid Secret.
pub fn secret(
    volume: &PersistentVolume,
    class: Option<&StorageClass>,
) -> Result<Option<SecretReference>, String> {
    let noted = |part: &str| volume.annotations().get(&format!("{DELETION_SECRET}-{part}")).cloned();
    if let Some((name, namespace)) = noted("name").zip(noted("namespace")) {
        let named = !name.is_empty() && !namespace.is_empty();
        let named = Some(SecretReference { name: Some(name), namespace: Some(namespace) }).filter(|_| named);
        return Ok(named);
    }
    let parameters = class.and_then(|class| class.parameters.as_ref());
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let Some((parameters, claim)) = parameters.zip(claim) else { return Ok(None) };
    let (name, nothing) = (volume.name_any(), Pairs::new());
    let of = Of {
        volume: &name,
        namespace: claim.namespace.as_deref().unwrap_or_default(),
        claim: claim.name.as_deref().unwrap_or_default(),
        annotations: Some(&nothing),
    };
    secret_refs::reference(Purpose::Provision, parameters, of)
}

#[cfg(test)]
mod tests {
    use super::super::creation::tests::{DRIVER, class, object};
    use super::*;
    use serde_json::{Value, json};

    fn volume(changes: Value) -> PersistentVolume {
        let base = json!({
            "metadata": { "name": "pv", "finalizers": [FINALIZER], "annotations": { PROVISIONED_BY: DRIVER } },
            "spec": { "persistentVolumeReclaimPolicy": "Delete", "storageClassName": "fast",
                "claimRef": { "namespace": "team", "name": "data" },
                "csi": { "driver": DRIVER, "volumeHandle": "handle" } },
            "status": { "phase": "Released" },
        });
        object(base, changes)
    }

    fn step(changes: Value) -> Step {
        decide(&volume(changes), std::iter::empty(), DRIVER)
    }

    fn with(finalizers: &Value, phase: &str, policy: &str, deleted: bool) -> Value {
        let timestamp = if deleted { json!("2026-01-01T00:00:00Z") } else { Value::Null };
        json!({ "metadata": { "finalizers": finalizers, "deletionTimestamp": timestamp },
            "status": { "phase": phase }, "spec": { "persistentVolumeReclaimPolicy": policy } })
    }

    /// Covers every policy and phase, with and without our finalizer and a deletion.
    #[test]
    fn every_volume_has_its_step() {
        let delete = || Step::Delete("handle".to_owned());
        for (policy, phase, guarded, deleted, expected) in [
            ("Delete", "Pending", false, false, Step::Nothing),
            ("Delete", "Available", true, false, Step::Nothing),
            ("Delete", "Bound", false, false, Step::Guard),
            ("Delete", "Bound", true, false, Step::Nothing),
            ("Delete", "Bound", false, true, Step::Nothing),
            ("Delete", "Bound", true, true, Step::Nothing),
            ("Delete", "Released", true, false, delete()),
            ("Delete", "Released", false, false, delete()),
            ("Delete", "Released", true, true, delete()),
            ("Delete", "Released", false, true, Step::Nothing),
            ("Delete", "Failed", true, false, Step::Nothing),
            ("Retain", "Bound", true, false, Step::Unguard),
            ("Retain", "Released", true, true, Step::Unguard),
            ("Retain", "Released", false, false, Step::Nothing),
            ("Retain", "Released", false, true, Step::Nothing),
            ("Recycle", "Released", true, false, Step::Unguard),
        ] {
            let finalizers = if guarded { json!(["other", FINALIZER]) } else { json!(["other"]) };
            let found = step(with(&finalizers, phase, policy, deleted));
            assert_eq!(found, expected, "{policy} {phase} guarded={guarded} deleted={deleted}");
        }
    }

    #[test]
    fn whose_it_is() {
        let others = json!({ "metadata": { "annotations": { PROVISIONED_BY: "other" } } });
        assert_eq!(step(others), Step::Nothing);
        let by_hand = json!({ "metadata": { "annotations": null } });
        assert_eq!(step(by_hand), Step::Delete("handle".to_owned()));
        let others = json!({ "metadata": { "annotations": null }, "spec": { "csi": { "driver": "other" } } });
        assert_eq!(step(others), Step::Nothing);
        let not_csi = json!({ "spec": { "csi": null } });
        assert_eq!(step(not_csi), Step::Nothing);
    }

    #[test]
    fn what_is_attached_is_not_deleted() {
        let attachment = |volume: &str| -> VolumeAttachment {
            let source = json!({ "persistentVolumeName": volume });
            object(
                json!({ "metadata": {}, "spec": { "attacher": DRIVER, "nodeName": "n1", "source": source } }),
                json!({}),
            )
        };
        let found = |attachments: &[VolumeAttachment]| decide(&volume(json!({})), attachments.iter(), DRIVER);
        assert_eq!(found(&[attachment("other"), attachment("pv")]), Step::Wait("n1".to_owned()));
        assert_eq!(found(&[attachment("other")]), Step::Delete("handle".to_owned()));
    }

    #[test]
    fn the_secret_is_the_noted_one() {
        let secret = |changes: Value, class: Option<&StorageClass>| {
            secret(&volume(changes), class)
                .unwrap()
                .map(|secret| (secret.namespace.unwrap(), secret.name.unwrap()))
        };
        let noted = |name: &str| {
            json!({ "metadata": { "annotations": { PROVISIONED_BY: DRIVER,
            "volume.kubernetes.io/provisioner-deletion-secret-name": name,
            "volume.kubernetes.io/provisioner-deletion-secret-namespace": if name.is_empty() { "" } else { "ns" } } } })
        };
        let parameters = json!({ "parameters": { "csi.storage.k8s.io/provisioner-secret-name": "${pvc.name}",
            "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}" } });
        let class = class(parameters);
        assert_eq!(secret(noted("s"), Some(&class)), Some(("ns".to_owned(), "s".to_owned())));
        assert_eq!(secret(noted(""), Some(&class)), None);
        assert_eq!(secret(json!({}), Some(&class)), Some(("team".to_owned(), "data".to_owned())));
        assert_eq!(secret(json!({}), None), None);
        assert_eq!(secret(json!({ "spec": { "claimRef": null } }), Some(&class)), None);
    }
}
