//! Persistent volumes, and claims to them.

use super::Key;
use super::fields::{Field, Identity, is_subdomain, namespace};
use super::flex::{FlexVolume, Owner};
use super::rules::{BOUND, MOUNT_OPTIONS, STORAGE_CLASS};
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::ordered::filled;
use flexvol_protocol::quantity::Quantity;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Relevant fields of a `PersistentVolume`.
#[derive(Clone, Debug)]
pub(super) struct PersistentVolume {
    pub(super) name: String,
    /// `None` for every other kind of storage.
    pub(super) flex: Option<FlexVolume>,
    /// Capacity, in bytes.
    pub(super) capacity: Option<u64>,
    /// Claim that it is reserved for or bound to.
    pub(super) claim: Option<Key>,
    pub(super) modes: BTreeSet<String>,
    pub(super) class: String,
    pub(super) labels: BTreeMap<String, String>,
    has_mount_options: bool,
}

impl PersistentVolume {
    pub(super) fn read(field: &Field<'_>) -> Result<Self> {
        let (metadata, spec) = (field.get("metadata")?, field.get("spec")?);
        let name = metadata.get("name")?;
        is_subdomain(&name)?;
        let annotation = metadata.at(&["annotations", MOUNT_OPTIONS])?.text()?;
        Ok(Self {
            name: name.required()?.to_owned(),
            flex: FlexVolume::read(&spec.get("flexVolume")?, Owner::Volume)?,
            capacity: size(&spec.at(&["capacity", "storage"])?)?,
            claim: claim_reference(&spec.get("claimRef")?)?,
            modes: filled(spec.get("accessModes")?.words()?),
            class: class(&metadata, &spec)?,
            labels: metadata.get("labels")?.texts()?,
            has_mount_options: annotation.is_some_and(|text| !text.is_empty())
                || !spec.get("mountOptions")?.list()?.is_empty(),
        })
    }

    /// Fails if kubelet would never mount it.
    pub(super) fn check(&self) -> Result<()> {
        if self.has_mount_options {
            return Err(Failure::options(format!(
                "PersistentVolume {}: FlexVolume does not support mountOptions, and kubelet refuses the volume: \
                 put them into flexVolume.options",
                self.name
            )));
        }
        Ok(())
    }
}

/// Relevant fields of a `PersistentVolumeClaim`.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) key: Key,
    /// PV that it is bound to or requests.
    pub(super) volume: Option<String>,
    pub(super) modes: BTreeSet<String>,
    pub(super) class: String,
    /// True if it gets the cluster's default class: it names no class, and is not bound yet.
    pub(super) takes_default: bool,
    pub(super) labels: BTreeMap<String, String>,
    /// Requested size, in bytes.
    pub(super) request: u64,
}

impl Claim {
    pub(super) fn read(field: &Field<'_>) -> Result<Self> {
        let (metadata, spec) = (field.get("metadata")?, field.get("spec")?);
        let volume = spec.get("volumeName")?.text()?.filter(|name| !name.is_empty());
        let says_class = [metadata.at(&["annotations", STORAGE_CLASS])?, spec.get("storageClassName")?];
        let is_bound = !metadata.at(&["annotations", BOUND])?.is_absent();
        Ok(Self {
            key: Identity::read(field)?.key(),
            volume: volume.map(str::to_owned),
            modes: filled(spec.get("accessModes")?.words()?),
            class: class(&metadata, &spec)?,
            takes_default: !is_bound && says_class.iter().all(Field::is_absent),
            labels: spec.at(&["selector", "matchLabels"])?.texts()?,
            request: size(&spec.at(&["resources", "requests", "storage"])?)?.unwrap_or_default(),
        })
    }
}

fn claim_reference(field: &Field<'_>) -> Result<Option<Key>> {
    let name = field.get("name")?;
    if name.text()?.is_none_or(str::is_empty) {
        return Ok(None);
    }
    Ok(Some((namespace(&field.get("namespace")?)?, name.required()?.to_owned())))
}

fn class(metadata: &Field<'_>, spec: &Field<'_>) -> Result<String> {
    let annotation = metadata.at(&["annotations", STORAGE_CLASS])?.text()?;
    Ok(annotation.or(spec.get("storageClassName")?.text()?).unwrap_or_default().to_owned())
}

/// Returns a size in bytes. Unlike in a driver, `k` is a thousand and `m` a thousandth, as in
/// Kubernetes.
fn size(field: &Field<'_>) -> Result<Option<u64>> {
    let text = match field.value() {
        Value::Null => return Ok(None),
        Value::Number(number) => number.to_string(),
        _ => field.required()?.to_owned(),
    };
    let decimal = text.strip_suffix('k').map(|digits| format!("{digits}e3"));
    let size = Quantity::parse(decimal.as_deref().unwrap_or(&text)).ok();
    let size = size.filter(|_| !text.ends_with(['m', 'g', 't']));
    size.map(|size| Some(size.0))
        .ok_or_else(|| field.error("is not a size: write it like 64Mi, 1G or 1048576"))
}
