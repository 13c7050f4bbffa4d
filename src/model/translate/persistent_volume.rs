//! Translation of a `PersistentVolume` for a CSI driver, and back.

use super::flex_volume::{FlexVolume, is_subdomain};
use super::original::{self, Rewrite};
use super::way::{Place, To, Way};
use super::{Reason, Translation, Warning, credential, in_tree};
use serde_json::{Value, json};

const FLEX_VOLUME: &str = "/spec/flexVolume";
const CSI: &str = "/spec/csi";
const POLICY: &str = "/spec/persistentVolumeReclaimPolicy";
const MOUNT_OPTIONS: &str = "/spec/mountOptions";
const FINALIZERS: &str = "/metadata/finalizers";

/// Annotations that tell a provisioner what to delete.
const PROVISIONED: [&str; 4] = [
    "pv.kubernetes.io/migrated-to",
    "pv.kubernetes.io/provisioned-by",
    "volume.kubernetes.io/provisioner-deletion-secret-name",
    "volume.kubernetes.io/provisioner-deletion-secret-namespace",
];
/// Finalizers that only a volume's provisioner removes: without it the volume could never be
/// deleted.
const PROVISIONER_FINALIZERS: [&str; 2] =
    ["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-controller"];
/// Fields that only the API server writes, and that it refuses in an object to be created.
const SERVER_FIELDS: [&str; 8] = [
    "/metadata/creationTimestamp",
    "/metadata/generation",
    "/metadata/managedFields",
    "/metadata/resourceVersion",
    "/metadata/selfLink",
    "/metadata/uid",
    "/spec/claimRef/resourceVersion",
    "/status",
];

/// Returns the volume without the fields that only the API server writes. The UID of the claim
/// stays, because it binds the claim to a volume that is created again.
pub fn without_server_fields(object: &Value) -> Value {
    let mut object = object.clone();
    for path in SERVER_FIELDS {
        original::put(&mut object, path, None);
    }
    object
}

pub(super) fn to_csi(object: &Value, to: To<'_>) -> Result<Option<Translation>, Reason> {
    let plugin = in_tree::of(object).filter(|plugin| to == To::Driver(plugin.to));
    let flex = object.pointer(FLEX_VOLUME).filter(|flex| !flex.is_null());
    if plugin.is_none() && flex.is_none() {
        return Ok(None);
    }
    let name = checked(object, flex.is_some(), plugin.is_some())?;
    let mut rewrite = Rewrite::new(without_server_fields(object));
    let mut warnings = match (plugin, flex) {
        (Some(plugin), _) => in_tree::rewrite(object, plugin, &mut rewrite)?,
        (None, Some(flex)) => {
            let Some(warnings) = flex_to_csi(object, name, flex, to, &mut rewrite)? else {
                let warnings = vec![Warning::Left(flex["driver"].as_str().unwrap_or_default().to_owned())];
                return Ok(Some(Translation { object: object.clone(), warnings }));
            };
            warnings
        }
        (None, None) => return Ok(None),
    };
    if let Some(key) = credential::in_volume(object) {
        return Err(Reason::CredentialInAnnotation(key.to_owned()));
    }
    warnings.extend(retain(&mut rewrite));
    warnings.extend(forget_provisioner(&mut rewrite).then_some(Warning::ProvisionerRemoved));
    let uid = |claim: &Value| claim.get("uid").and_then(Value::as_str).is_some_and(|uid| !uid.is_empty());
    let is_unbound = object.pointer("/spec/claimRef").is_some_and(|claim| claim.is_object() && !uid(claim));
    warnings.extend(is_unbound.then_some(Warning::ClaimWithoutUid));
    Ok(Some(Translation { object: rewrite.finish()?, warnings }))
}

/// Replaces the FlexVolume source by the CSI source; `None` if it has no way there.
fn flex_to_csi(
    object: &Value,
    name: &str,
    flex: &Value,
    to: To<'_>,
    rewrite: &mut Rewrite,
) -> Result<Option<Vec<Warning>>, Reason> {
    let flex = FlexVolume::read(flex)?;
    let Some(way) = Way::of(&flex.driver, to) else { return Ok(None) };
    let claim = object.pointer("/spec/claimRef/namespace").and_then(Value::as_str);
    let claim = claim.filter(|namespace| !namespace.is_empty());
    let csi = way.csi(&flex, Place::Volume { name, claim, object })?;
    rewrite.set(FLEX_VOLUME, None);
    rewrite.set(CSI, Some(csi.source));
    rewrite.note(MOUNT_OPTIONS);
    if !csi.mount_options.is_empty() {
        rewrite.set(MOUNT_OPTIONS, Some(csi.mount_options.into()));
    }
    let mut warnings = csi.warnings;
    let first_mode = object.pointer("/spec/accessModes/0").and_then(Value::as_str);
    warnings.extend((first_mode == Some("ReadOnlyMany")).then_some(Warning::ReadOnlyNow));
    warnings.extend((flex.read_only == Some(true)).then_some(Warning::ReadOnlyIgnored));
    Ok(Some(warnings))
}

/// Checks what holds for every driver, and returns the volume's name.
fn checked(object: &Value, is_flex: bool, is_plugin: bool) -> Result<&str, Reason> {
    let is_there = |path: &str| object.pointer(path).is_some_and(|value| !value.is_null());
    let name = object.pointer("/metadata/name").and_then(Value::as_str);
    let name = name.filter(|name| is_subdomain(name)).ok_or(Reason::Name)?;
    let mode = object.pointer("/spec/volumeMode").and_then(Value::as_str);
    if original::is_in(object) {
        Err(Reason::HasOriginal)
    } else if is_there(CSI) || is_flex && is_plugin {
        Err(Reason::TwoSources)
    } else if is_flex && mode.is_some_and(|mode| mode != "Filesystem") {
        Err(Reason::Block)
    } else if is_flex && is_there(MOUNT_OPTIONS) && object.pointer(MOUNT_OPTIONS) != Some(&json!([])) {
        Err(Reason::MountOptions)
    } else if is_there("/metadata/deletionTimestamp") {
        Err(Reason::BeingDeleted)
    } else {
        Ok(name)
    }
}

/// Sets the policy to `Retain`, which is also the API server's default for an absent policy.
fn retain(rewrite: &mut Rewrite) -> Option<Warning> {
    let policy = rewrite.object.pointer(POLICY).filter(|policy| !policy.is_null())?;
    let policy = policy.as_str().unwrap_or_default().to_owned();
    if policy == "Retain" {
        return None;
    }
    rewrite.set(POLICY, Some("Retain".into()));
    Some(Warning::Retained(if policy.is_empty() { "not valid".to_owned() } else { policy }))
}

/// Removes the traces of the provisioner. Reports whether there were any.
fn forget_provisioner(rewrite: &mut Rewrite) -> bool {
    let mut found = false;
    for path in PROVISIONED.map(original::annotation) {
        if rewrite.object.pointer(&path).is_some() {
            rewrite.set(&path, None);
            found = true;
        }
    }
    let is_theirs =
        |finalizer: &Value| finalizer.as_str().is_some_and(|name| PROVISIONER_FINALIZERS.contains(&name));
    let all = rewrite.object.pointer(FINALIZERS).and_then(Value::as_array).cloned().unwrap_or_default();
    let (theirs, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_theirs);
    if !theirs.is_empty() {
        rewrite.set(FINALIZERS, Some(others.into()));
        found = true;
    }
    found
}

/// Reports whether a translation changes the field of a volume.
fn is_changed(path: &str) -> bool {
    [FLEX_VOLUME, CSI, POLICY, MOUNT_OPTIONS, FINALIZERS].contains(&path)
        || in_tree::is_changed(path)
        || PROVISIONED.iter().any(|key| original::annotation(key) == path)
}

pub(super) fn to_flex(object: &Value) -> Result<Option<Translation>, Reason> {
    let Some(restored) = original::restored(object, is_changed)? else { return Ok(None) };
    if object.pointer(CSI).is_none_or(Value::is_null) {
        return Err(Reason::NotCsi);
    }
    // An intact annotation of a volume that could not have been translated is not ours.
    let restored = without_server_fields(&restored);
    let again = to_csi(&restored, To::of(object.pointer(CSI)))?.ok_or(Reason::OriginalForeign)?;
    let policy = |object: &Value| object.pointer(POLICY).and_then(Value::as_str).map(str::to_owned);
    let mut warnings = Vec::new();
    if policy(&restored) != policy(object) {
        warnings.extend(policy(&restored).map(Warning::PolicyRestored));
    }
    let differs = |path: &&str| original::given(object, path) != original::given(&again.object, path);
    warnings.extend([CSI, MOUNT_OPTIONS].iter().any(differs).then_some(Warning::Drift));
    Ok(Some(Translation { object: restored, warnings }))
}
