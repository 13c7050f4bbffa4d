//! Choice of the CSI driver for a volume, and the volume's form there.

use super::flex_volume::{FlexVolume, is_subdomain};
use super::original::set;
use super::target::{FsType, Handle, Inline, Login, Target};
use super::targets::TARGETS;
use super::{Reason, Warning, in_tree, options};
use crate::csi::{handle, name};
use flexvol_protocol::DriverName;
use serde_json::{Map, Value, json};

/// CSI driver to which volumes are translated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To<'a> {
    /// `flexvold csi` over the same FlexVolume driver.
    Flexvold,
    /// The driver of this name. A volume that cannot be translated for it stays as it is.
    Driver(&'a str),
}

impl<'a> To<'a> {
    /// Returns the target for which a `csi` was translated.
    pub(super) fn of(csi: Option<&'a Value>) -> Self {
        let driver = csi.and_then(|csi| csi.get("driver")).and_then(Value::as_str).unwrap_or_default();
        if is_target(driver) { Self::Driver(driver) } else { Self::Flexvold }
    }
}

/// Reports whether volumes of some FlexVolume driver, or of one of Kubernetes' own plugins, can be
/// translated for the CSI driver of this name.
pub fn is_target(driver: &str) -> bool {
    TARGETS.iter().any(|target| target.to == driver) || in_tree::is_target(driver)
}

/// Returns the CSI drivers for which volumes can be translated, besides `flexvold csi`.
pub fn target_names() -> Vec<&'static str> {
    let rows = TARGETS.iter().map(|target| target.to);
    let mut all: Vec<_> = rows.chain(in_tree::PLUGINS.iter().map(|plugin| plugin.to)).collect();
    all.dedup();
    all
}

/// Way from a FlexVolume driver to a CSI driver.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// `flexvold csi`: the options are the attributes.
    Served,
    /// A row of the table.
    Row(&'static Target),
}

/// Volume in the form for its CSI driver.
pub(super) struct Csi {
    /// `spec.csi`, or `csi` of a pod's volume.
    pub(super) source: Value,
    pub(super) mount_options: Vec<Value>,
    pub(super) warnings: Vec<Warning>,
}

impl Way {
    /// Finds the way for a driver; `None` if there is no way.
    pub(super) fn of(driver: &DriverName, to: To<'_>) -> Option<Self> {
        let full = driver.to_string();
        match to {
            To::Flexvold => Some(Self::Served),
            To::Driver(to) if to == name::of_driver(driver) => Some(Self::Served),
            To::Driver(to) => {
                let row = TARGETS.iter().find(|row| row.to == to && row.is_from(&full));
                row.map(|row| Self::Row(row))
            }
        }
    }

    /// Makes `csi`. `place` has what only a `PersistentVolume` provides.
    pub(super) fn csi(self, flex: &FlexVolume<'_>, place: Place<'_>) -> Result<Csi, Reason> {
        let secret = match place {
            Place::Volume { claim, .. } => flex.secret(claim)?,
            Place::Pod => flex.local_secret()?,
        };
        match (self, place) {
            (Self::Served, _) => Ok(served(flex, place, secret)),
            (Self::Row(row), Place::Volume { name, object, .. }) => {
                let mut volume = Made::new(flex, row)?;
                let handle = volume.handle(name, object)?;
                set(&mut volume.source, "volumeHandle", handle.into());
                volume.login(secret)?;
                Ok(volume.finish())
            }
            (Self::Row(row), Place::Pod) => {
                let mut volume = Made::new(flex, row)?;
                volume.inline(secret)?;
                Ok(volume.finish())
            }
        }
    }
}

/// Object that contains a volume.
#[derive(Clone, Copy)]
pub(super) enum Place<'a> {
    /// A `PersistentVolume`: its name, the namespace of its claim, and the whole object.
    Volume { name: &'a str, claim: Option<&'a str>, object: &'a Value },
    /// A pod.
    Pod,
}

/// Makes a volume for `flexvold csi`.
fn served(flex: &FlexVolume<'_>, place: Place<'_>, secret: Option<Value>) -> Csi {
    let mut source = flex.source();
    if let Place::Volume { name, .. } = place {
        set(&mut source, "volumeHandle", handle::of_name(name).into());
    }
    if let Some(secret) = secret {
        set(&mut source, "nodePublishSecretRef", secret);
    }
    Csi { source: source.into(), mount_options: Vec::new(), warnings: Vec::new() }
}

/// Volume that is made by a row of the table.
struct Made {
    row: &'static Target,
    source: Map<String, Value>,
    applied: options::Applied,
}

impl Made {
    /// Makes what a `PersistentVolume` and a volume in a pod have in common.
    fn new(flex: &FlexVolume<'_>, row: &'static Target) -> Result<Self, Reason> {
        if flex.has_secret() && matches!(row.secret, Login::None | Login::Own(..)) {
            return Err(Reason::NoSecret(row.to));
        }
        let fs_type = flex.fs_type.filter(|fs_type| !fs_type.is_empty());
        let kept = match row.fs_type {
            FsType::Only(must) if fs_type != Some(must) => return Err(Reason::FsType(row.to, must)),
            FsType::KeptBut(other) if fs_type == Some(other) => return Err(Reason::FsType(row.to, other)),
            FsType::Kept | FsType::KeptBut(_) => fs_type,
            FsType::Dropped | FsType::Only(_) => None,
        };
        let none = Map::new();
        let mut applied = options::apply(flex.options.unwrap_or(&none), row)?;
        for what in row.differs {
            applied.warnings.push(Warning::Differs(what));
        }
        let mut source = Map::new();
        set(&mut source, "driver", row.to.into());
        if let Some(flag) = flex.read_only {
            set(&mut source, "readOnly", flag.into());
        }
        if let Some(fs_type) = kept {
            set(&mut source, "fsType", fs_type.into());
        }
        Ok(Self { row, source, applied })
    }

    fn handle(&self, name: &str, object: &Value) -> Result<String, Reason> {
        let handle = match self.row.handle {
            Handle::Made => handle::of_foreign(name),
            Handle::Name => name.to_owned(),
            Handle::Part(option) => self.applied.part(option)?.to_owned(),
            Handle::PartOrName(option) => self.applied.part(option).unwrap_or(name).to_owned(),
            Handle::Annotation(key, form) => {
                let text = object.pointer("/metadata/annotations").and_then(|all| all.get(key)?.as_str());
                text.and_then(|text| form.read(text)).ok_or(Reason::Identity(key))?
            }
        };
        if handle.len() <= handle::LIMIT { Ok(handle) } else { Err(Reason::Name) }
    }

    /// Adds the Secret of a `PersistentVolume`.
    fn login(&mut self, secret: Option<Value>) -> Result<(), Reason> {
        let (field, secret) = match (self.row.secret, secret) {
            (Login::Own(name, namespace, keys), _) => {
                let secret = json!({"name": name, "namespace": self.applied.part(namespace)?});
                self.has_to_be_made(&secret, keys.to_owned());
                ("nodeStageSecretRef", secret)
            }
            (Login::Renamed(keys), Some(mut secret)) => {
                let name = format!("{}-csi", secret["name"].as_str().unwrap_or_default());
                if !is_subdomain(&name) {
                    return Err(Reason::SecretName);
                }
                secret["name"] = name.into();
                let keys: Vec<_> = keys.iter().map(|(was, is)| format!("{is} ({was} before)")).collect();
                self.has_to_be_made(&secret, keys.join(", "));
                ("nodeStageSecretRef", secret)
            }
            (Login::Published, Some(secret)) => ("nodePublishSecretRef", secret),
            (_, Some(secret)) => ("nodeStageSecretRef", secret),
            (_, None) => return Ok(()),
        };
        set(&mut self.source, field, secret);
        Ok(())
    }

    fn has_to_be_made(&mut self, secret: &Value, keys: String) {
        let word = |key: &str| secret[key].as_str().unwrap_or_default();
        let name = format!("{}/{}", word("namespace"), word("name"));
        self.applied.warnings.push(Warning::SecretToMake(name, keys));
    }

    /// Moves the Secret's name and the mount options to the attributes: a driver with inline
    /// volumes reads the Secret itself.
    fn inline(&mut self, secret: Option<Value>) -> Result<(), Reason> {
        let Inline::Attributes(secret_name, list) = self.row.inline else {
            return Err(Reason::NoInline(self.row.to));
        };
        if let Some(secret) = secret {
            set(&mut self.applied.attributes, secret_name, secret["name"].clone());
        }
        let words: Vec<_> = self.applied.mount_options.iter().filter_map(Value::as_str).collect();
        if !words.is_empty() {
            set(&mut self.applied.attributes, list, words.join(",").into());
        }
        self.applied.mount_options.clear();
        Ok(())
    }

    fn finish(mut self) -> Csi {
        let options::Applied { attributes, mount_options, warnings, .. } = self.applied;
        if !attributes.is_empty() {
            set(&mut self.source, "volumeAttributes", attributes.into());
        }
        Csi { source: self.source.into(), mount_options, warnings }
    }
}
