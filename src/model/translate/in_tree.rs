//! Volumes of drivers that Kubernetes itself once had, for their CSI drivers: what its own
//! translation makes of them, so that handles are the same whoever translates. Unlike there the way
//! back is exact, because what a volume was is kept.

use super::object::{self, Outcome};
use super::volume::Csi;
use super::was::Change;
use super::words::Wrong;
use super::{names, storage_class};
use serde_json::{Map, Value, json};

/// A driver of Kubernetes' own.
#[derive(Debug)]
pub struct Plugin {
    /// Its field of `spec`.
    pub field: &'static str,
    /// Its provisioner, after `kubernetes.io/`.
    pub provisioner: &'static str,
    /// The CSI driver.
    pub to: &'static str,
    /// What the handle is.
    pub handle: Handle,
    /// Fields that are attributes of these names, and what stands there for one that is not there.
    pub attributes: &'static [(&'static str, &'static str, Option<&'static str>)],
    /// Fields that become nothing: they say what the handle says, or nothing.
    pub other: &'static [&'static str],
    /// The keys that its zones and regions have in nodeAffinity.
    pub topology: (Option<&'static str>, Option<&'static str>),
    /// Whether only one node may write.
    pub one_writer: bool,
}

/// What a handle is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handle {
    /// This field.
    Field(&'static str),
    /// The end of this field, after the last slash: `aws://zone/vol-1`.
    End(&'static str),
    /// A disk of Google's in a zone, or in a region.
    Disk,
    /// Resource group, account, share, volume, namespace.
    AzureFile,
}

const PLAIN: Plugin = Plugin {
    field: "",
    provisioner: "",
    to: "",
    handle: Handle::Field("volumeID"),
    attributes: &[],
    other: &[],
    topology: (None, None),
    one_writer: false,
};

/// Every plugin.
pub const PLUGINS: &[Plugin] = &[
    Plugin {
        field: "awsElasticBlockStore",
        provisioner: "aws-ebs",
        to: "ebs.csi.aws.com",
        handle: Handle::End("volumeID"),
        attributes: &[("partition", "partition", Some("0"))],
        topology: (Some("topology.ebs.csi.aws.com/zone"), None),
        ..PLAIN
    },
    Plugin {
        field: "gcePersistentDisk",
        provisioner: "gce-pd",
        to: "pd.csi.storage.gke.io",
        handle: Handle::Disk,
        attributes: &[("partition", "partition", Some(""))],
        topology: (Some("topology.gke.io/zone"), None),
        one_writer: true,
        ..PLAIN
    },
    Plugin {
        field: "azureDisk",
        provisioner: "azure-disk",
        to: "disk.csi.azure.com",
        handle: Handle::Field("diskURI"),
        attributes: &[
            ("kind", "kind", None),
            ("cachingMode", "cachingmode", None),
            ("fsType", "fstype", None),
        ],
        other: &["diskName"],
        ..PLAIN
    },
    Plugin {
        field: "azureFile",
        provisioner: "azure-file",
        to: "file.csi.azure.com",
        handle: Handle::AzureFile,
        attributes: &[("shareName", "sharename", None)],
        other: &["secretName", "secretNamespace"],
        ..PLAIN
    },
    Plugin {
        field: "cinder",
        provisioner: "cinder",
        to: "cinder.csi.openstack.org",
        other: &["secretRef"],
        topology: (Some("topology.cinder.csi.openstack.org/zone"), None),
        ..PLAIN
    },
    Plugin {
        field: "vsphereVolume",
        provisioner: "vsphere-volume",
        to: "csi.vsphere.vmware.com",
        handle: Handle::Field("volumePath"),
        attributes: &[("storagePolicyName", "storagepolicyname", None)],
        other: &["storagePolicyID"],
        topology: (Some("topology.csi.vmware.com/zone"), Some("topology.csi.vmware.com/region")),
        ..PLAIN
    },
    Plugin { field: "portworxVolume", provisioner: "portworx-volume", to: "pxd.portworx.com", ..PLAIN },
];

/// The keys of zones and regions that nodes have, the newer first.
const ZONE: [&str; 2] = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];
const REGION: [&str; 2] = ["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"];

/// The plugin with this field.
pub fn find(field: &str) -> Option<&'static Plugin> {
    PLUGINS.iter().find(|plugin| plugin.field == field)
}

fn wrong<T>(reason: impl Into<String>, fix: &str) -> Result<T, Wrong> {
    Err((reason.into(), fix.to_owned()))
}

/// A volume in Kubernetes' own words.
struct Volume<'a> {
    fields: &'a Map<String, Value>,
    object: &'a Value,
    name: &'a str,
}

pub(super) fn persistent_volume(object: &Value, drivers: &[&str]) -> Outcome {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let found = PLUGINS.iter().find_map(|plugin| Some((plugin, spec.get(plugin.field)?.as_object()?)));
    let Some((plugin, fields)) = found else { return Ok(None) };
    let Some(driver) = drivers.iter().find(|driver| names(driver, plugin.to)) else { return Ok(None) };
    let name = object::sound(object, spec)?;
    let volume = Volume { fields, object, name };
    let source = volume.source(plugin, driver)?;
    let mut change = Change::new(object);
    change.set(&["spec"], plugin.field, None);
    for (key, own) in [(ZONE, plugin.topology.0), (REGION, plugin.topology.1)] {
        if let Some(own) = own {
            let affinity = with_topology(object, change.object["spec"].get("nodeAffinity"), key, own);
            change.set(&["spec"], "nodeAffinity", affinity);
        }
    }
    let mut warnings = Vec::new();
    if plugin.one_writer {
        let modes = one_writer(&spec["accessModes"]);
        if modes != spec["accessModes"] {
            warnings.push("accessModes are now those of one node that writes".to_owned());
            change.set(&["spec"], "accessModes", Some(modes));
        }
    }
    object::finish(change, Csi { source, mount_options: Vec::new(), warnings, copy: None }).map(Some)
}

impl Volume<'_> {
    fn source(&self, plugin: &Plugin, driver: &str) -> Result<Value, Wrong> {
        let known = |key: &str| {
            let handle = match plugin.handle {
                Handle::Field(field) | Handle::End(field) => field,
                Handle::Disk => "pdName",
                Handle::AzureFile => "shareName",
            };
            let attribute = plugin.attributes.iter().any(|(field, ..)| *field == key);
            [handle, "fsType", "readOnly"].contains(&key) || attribute || plugin.other.contains(&key)
        };
        if let Some(key) = self.fields.keys().find(|key| !known(key)) {
            return wrong(format!("{}.{key} is no field of it", plugin.field), "remove it");
        }
        let mut source = Map::new();
        source.insert("driver".to_owned(), driver.into());
        source.insert("volumeHandle".to_owned(), self.handle(plugin)?.into());
        for key in ["fsType", "readOnly"] {
            if let Some(value) = self.fields.get(key).filter(|value| !value.is_null()) {
                source.insert(key.to_owned(), value.clone());
            }
        }
        let attributes = self.attributes(plugin)?;
        if !attributes.is_empty() {
            source.insert("volumeAttributes".to_owned(), attributes.into());
        }
        if plugin.handle == Handle::AzureFile {
            let (name, namespace) = (self.text("secretName")?, self.secret_namespace()?);
            source.insert("nodeStageSecretRef".to_owned(), json!({"name": name, "namespace": namespace}));
        }
        Ok(source.into())
    }

    fn attributes(&self, plugin: &Plugin) -> Result<Map<String, Value>, Wrong> {
        let mut all = Map::new();
        for (field, attribute, otherwise) in plugin.attributes {
            let value = match self.fields.get(*field) {
                Some(Value::String(text)) => Some(text.clone()),
                Some(Value::Number(number)) if number.as_u64() != Some(0) => Some(number.to_string()),
                None | Some(Value::Null | Value::Number(_)) => otherwise.map(str::to_owned),
                Some(_) => {
                    return wrong(format!("{}.{field} is no text and no number", plugin.field), "write one");
                }
            };
            if let Some(value) = value {
                all.insert((*attribute).to_owned(), value.into());
            }
        }
        Ok(all)
    }

    fn handle(&self, plugin: &Plugin) -> Result<String, Wrong> {
        match plugin.handle {
            Handle::Field(field) => Ok(self.text(field)?.to_owned()),
            Handle::End(field) => {
                let end = self.text(field)?.rsplit('/').next().unwrap_or_default();
                if end.is_empty() {
                    wrong(format!("{field} names no volume"), "write its id")
                } else {
                    Ok(end.to_owned())
                }
            }
            Handle::Disk => self.disk(),
            Handle::AzureFile => {
                let group = self.annotation("kubernetes.io/azure-file-resource-group");
                let secret = self.text("secretName")?;
                let stem = secret
                    .strip_prefix("azure-storage-account-")
                    .and_then(|rest| rest.strip_suffix("-secret"));
                let (account, share) = (stem.unwrap_or(secret), self.text("shareName")?);
                Ok(format!("{group}#{account}#{share}#{}#{}", self.name, self.secret_namespace()?))
            }
        }
    }

    fn disk(&self) -> Result<String, Wrong> {
        let (disk, zones) = (self.text("pdName")?, label_values(self.object, ZONE));
        let place = match &zones[..] {
            [] => "zones/UNSPECIFIED".to_owned(),
            [zone] => format!("zones/{zone}"),
            // A zone is its region and a letter.
            [zone, ..] => {
                format!("regions/{}", zone.rsplit_once('-').map_or(zone.as_str(), |(region, _)| region))
            }
        };
        Ok(format!("projects/UNSPECIFIED/{place}/disks/{disk}"))
    }

    fn annotation(&self, key: &str) -> &str {
        let all = self.object.pointer("/metadata/annotations");
        all.and_then(|all| all.get(key)).and_then(Value::as_str).unwrap_or_default()
    }

    fn secret_namespace(&self) -> Result<&str, Wrong> {
        let own = self.fields.get("secretNamespace").and_then(Value::as_str);
        let claim = self.object.pointer("/spec/claimRef/namespace").and_then(Value::as_str);
        own.or(claim).filter(|name| !name.is_empty()).map_or_else(
            || wrong("nothing says in which namespace its Secret is", "write azureFile.secretNamespace"),
            Ok,
        )
    }

    /// A line of text that is there.
    fn text(&self, field: &str) -> Result<&str, Wrong> {
        let text = self.fields.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        match text {
            Some(text) if !text.chars().any(char::is_control) => Ok(text),
            _ => wrong(format!("{field} is missing, or is no line of text"), "write it"),
        }
    }
}

/// What a label of the object says, several between double underscores.
fn label_values(object: &Value, keys: [&str; 2]) -> Vec<String> {
    let labels = object.pointer("/metadata/labels");
    let value = keys.iter().find_map(|key| labels?.get(*key)?.as_str()).unwrap_or_default();
    value.split("__").filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// nodeAffinity with the driver's own key: in place of Kubernetes' where it is there, else from the
/// label, in every term.
fn with_topology(object: &Value, affinity: Option<&Value>, keys: [&str; 2], own: &str) -> Option<Value> {
    let mut affinity = affinity.filter(|value| !value.is_null()).cloned();
    let mut replaced = false;
    if let Some(affinity) = &mut affinity {
        for expression in terms(affinity).into_iter().flatten().flat_map(expressions) {
            if expression.get("key").and_then(Value::as_str).is_some_and(|key| keys.contains(&key)) {
                expression["key"] = own.into();
                replaced = true;
            }
        }
    }
    let values = label_values(object, keys);
    if replaced || values.is_empty() {
        return affinity;
    }
    let expression = json!({"key": own, "operator": "In", "values": values});
    let mut affinity =
        affinity.unwrap_or_else(|| json!({"required": {"nodeSelectorTerms": [{"matchExpressions": []}]}}));
    for term in terms(&mut affinity).into_iter().flatten().filter_map(Value::as_object_mut) {
        let list = term.entry("matchExpressions").or_insert_with(|| json!([]));
        if let Some(list) = list.as_array_mut() {
            list.push(expression.clone());
        }
    }
    Some(affinity)
}

fn terms(affinity: &mut Value) -> Option<&mut Vec<Value>> {
    affinity.pointer_mut("/required/nodeSelectorTerms")?.as_array_mut()
}

fn expressions(term: &mut Value) -> impl Iterator<Item = &mut Value> {
    let list = term.get_mut("matchExpressions").and_then(Value::as_array_mut);
    list.into_iter().flatten().filter(|expression| expression.is_object())
}

/// One node writes, or many read.
fn one_writer(modes: &Value) -> Value {
    let has = |mode: &str| modes.as_array().is_some_and(|modes| modes.contains(&mode.into()));
    if has("ReadWriteMany") || has("ReadWriteOnce") && has("ReadOnlyMany") {
        json!(["ReadWriteOnce"])
    } else {
        modes.clone()
    }
}

pub(super) fn storage_class(object: &Value, provisioner: &str, drivers: &[&str]) -> Outcome {
    let plugin = provisioner.strip_prefix("kubernetes.io/");
    let plugin = plugin.and_then(|name| PLUGINS.iter().find(|plugin| plugin.provisioner == name));
    let Some(plugin) = plugin else { return Ok(None) };
    let Some(driver) = drivers.iter().find(|driver| names(driver, plugin.to)) else { return Ok(None) };
    let mut parameters = Map::new();
    let mut zones = None;
    for (key, value) in storage_class::parameters(object)? {
        match key.to_ascii_lowercase().as_str() {
            "fstype" => drop(parameters.insert("csi.storage.k8s.io/fstype".to_owned(), value.into())),
            "zone" | "zones" if zones.is_some() => return wrong("it has both zone and zones", "remove one"),
            "zone" | "zones" => zones = Some(value),
            _ => drop(parameters.insert(key, value.into())),
        }
    }
    let Some(zones) = zones else {
        return storage_class::finish(object, driver, parameters, None, Vec::new());
    };
    let own = plugin.topology.0;
    let Some(own) = own.filter(|_| object.get("allowedTopologies").is_none_or(Value::is_null)) else {
        return wrong(
            "it says zones in two ways, or its driver has none",
            "remove zone, zones or allowedTopologies",
        );
    };
    let values: Vec<_> = zones.split(',').map(str::trim).filter(|zone| !zone.is_empty()).collect();
    let topologies = json!([{"matchLabelExpressions": [{"key": own, "values": values}]}]);
    storage_class::finish(object, driver, parameters, Some(topologies), Vec::new())
}
