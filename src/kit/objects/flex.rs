//! `flexVolume`: the same in a pod and in a PV, except for the namespace of its Secret.

use super::fields::{Field, is_subdomain, namespace};
use super::rules::is_reserved;
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::Result;
use std::collections::BTreeMap;

/// Kind of the object that holds a `flexVolume`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Pod,
    Volume,
}

/// Content of a `flexVolume`.
#[derive(Clone, Debug)]
pub(super) struct FlexVolume {
    pub(super) driver: DriverName,
    /// Type of the file system; mostly empty.
    pub(super) fs_type: String,
    /// True if the volume is read-only; without effect in a PV.
    pub(super) read_only: bool,
    pub(super) options: BTreeMap<String, String>,
    pub(super) secret: Option<SecretReference>,
}

/// Reference to a Secret.
#[derive(Clone, Debug)]
pub(super) struct SecretReference {
    /// Namespace of the Secret, only in a PV; otherwise it is the pod's.
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

impl FlexVolume {
    /// Reads the field; `None` if it is absent.
    pub(super) fn read(field: &Field<'_>, owner: Owner) -> Result<Option<Self>> {
        if field.is_absent() {
            return Ok(None);
        }
        field.only(&["driver", "fsType", "options", "readOnly", "secretRef"])?;
        let driver = field.get("driver")?;
        Ok(Some(Self {
            driver: DriverName::parse(driver.required()?).map_err(|why| driver.error(&why.message()))?,
            fs_type: field.get("fsType")?.text()?.unwrap_or_default().to_owned(),
            read_only: field.get("readOnly")?.flag()?,
            options: options(&field.get("options")?)?,
            secret: SecretReference::read(&field.get("secretRef")?, owner)?,
        }))
    }
}

impl SecretReference {
    fn read(field: &Field<'_>, owner: Owner) -> Result<Option<Self>> {
        let known: &[&str] = if owner == Owner::Pod { &["name"] } else { &["name", "namespace"] };
        field.only(known)?;
        let name = field.get("name")?;
        // Kubelet ignores a reference without a name.
        if name.text()?.is_none_or(str::is_empty) {
            return Ok(None);
        }
        is_subdomain(&name)?;
        let space = field.get("namespace")?;
        let space = if space.is_absent() { None } else { Some(namespace(&space)?) };
        Ok(Some(Self { namespace: space, name: name.required()?.to_owned() }))
    }
}

fn options(field: &Field<'_>) -> Result<BTreeMap<String, String>> {
    let options = field.texts()?;
    match options.keys().find(|key| is_reserved(key)) {
        None => Ok(options),
        Some(key) => Err(field.error(&format!(
            "has the key {key:?}, and kubernetes.io and k8s.io are Kubernetes' own: rename it"
        ))),
    }
}
