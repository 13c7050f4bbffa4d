//! `flexVolume` as it stands in an object, and what it is for a CSI driver.

use super::options::{self, Applied};
use super::words::Wrong;
use super::{Handle, Inline, Secret, SecretCopy, Target, credential, handle, names, targets_of};
use crate::csi;
use crate::profiles;
use flexvol_protocol::DriverName;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What `flexVolume` says.
pub(super) struct FlexVolume {
    pub(super) driver: DriverName,
    fs_type: Option<String>,
    read_only: Option<bool>,
    options: BTreeMap<String, String>,
    secret: Option<SecretRef>,
}

struct SecretRef {
    name: String,
    namespace: Option<String>,
}

/// Whose volume it is.
pub(super) enum Owner<'a> {
    /// A PersistentVolume: its name, and the namespace of its claim.
    Volume { name: &'a str, claim: Option<&'a str> },
    /// A pod's volume.
    Pod,
}

/// The volume for its CSI driver.
pub(super) struct Csi {
    /// `spec.csi`, or `csi` of the pod's volume.
    pub(super) source: Value,
    pub(super) mount_options: Vec<String>,
    pub(super) warnings: Vec<String>,
    pub(super) copy: Option<SecretCopy>,
}

/// Where a volume goes.
pub(super) enum Way<'a> {
    /// To `flexvold csi` over the same driver.
    Served(String),
    /// By a row of the table, under this driver's name.
    Table(&'static Target, &'a str),
}

/// `None` if none of `drivers` can have it.
pub(super) fn way<'a>(driver: &DriverName, drivers: &[&'a str]) -> Option<Way<'a>> {
    let served = csi::name::of_driver(driver);
    if drivers.is_empty() || drivers.contains(&served.as_str()) {
        return Some(Way::Served(served));
    }
    let full = driver.to_string();
    drivers.iter().find_map(|name| {
        targets_of(&full).find(|target| names(name, target.to)).map(|target| Way::Table(target, name))
    })
}

fn wrong<T>(reason: impl Into<String>, fix: impl Into<String>) -> Result<T, Wrong> {
    Err((reason.into(), fix.into()))
}

impl FlexVolume {
    pub(super) fn read(value: &Value) -> Result<Self, Wrong> {
        let known = ["driver", "fsType", "options", "readOnly", "secretRef"];
        let fields = value.as_object();
        let Some(fields) = fields.filter(|fields| fields.keys().all(|key| known.contains(&key.as_str())))
        else {
            return wrong("flexVolume has fields that no API server takes", "see flexvol validate");
        };
        let driver = text(fields, "driver")?.unwrap_or_default();
        let driver = DriverName::parse(&driver).map_err(|_| {
            ("flexVolume.driver is no driver's name".to_owned(), "write vendor/driver".to_owned())
        })?;
        let read_only = match fields.get("readOnly") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(flag)) => Some(*flag),
            Some(_) => return wrong("flexVolume.readOnly is no boolean", "write true or false"),
        };
        Ok(Self {
            driver,
            fs_type: text(fields, "fsType")?,
            read_only,
            options: texts(fields)?,
            secret: secret(fields)?,
        })
    }

    /// For a CSI driver of one's own or another's.
    pub(super) fn to_csi(&self, way: &Way<'_>, owner: &Owner<'_>) -> Result<Csi, Wrong> {
        let held = self.options.iter().find(|(key, value)| credential::is_held_by(key, value));
        if let Some((key, _)) = held {
            return wrong(
                format!(
                    "option {key:?} holds a credential, which everybody who may read the object could read"
                ),
                format!(
                    "put it into a Secret of type {}, name that as secretRef, and remove the option",
                    self.driver
                ),
            );
        }
        match way {
            Way::Served(name) => self.served(name, owner),
            Way::Table(target, name) => self.by_table(target, name, owner),
        }
    }

    /// The options are the attributes, and the Secret is the Secret.
    fn served(&self, name: &str, owner: &Owner<'_>) -> Result<Csi, Wrong> {
        let mut source = self.source(name, true);
        if let Owner::Volume { name, .. } = owner {
            source.insert("volumeHandle".to_owned(), csi::handle::of_name(name).into());
        } else if profiles::find(&self.driver.to_string()).is_some_and(|profile| profile.attach.is_some()) {
            return wrong(
                format!("{} attaches its volumes, and CSI attaches none that stands in a pod", self.driver),
                "make a PersistentVolume and a claim of it",
            );
        }
        if !self.options.is_empty() {
            source.insert("volumeAttributes".to_owned(), json!(self.options));
        }
        if let Some(secret) = &self.secret {
            source.insert("nodePublishSecretRef".to_owned(), secret.reference(owner)?);
        }
        Ok(Csi { source: source.into(), mount_options: Vec::new(), warnings: Vec::new(), copy: None })
    }

    fn by_table(&self, target: &Target, name: &str, owner: &Owner<'_>) -> Result<Csi, Wrong> {
        let Applied { mut attributes, mut mount_options, parts, mut warnings } =
            options::apply(&self.options, target.options, target.any_case)?;
        for (key, template) in target.attributes {
            attributes.insert((*key).to_owned(), options::filled(template, &parts));
        }
        if let Some(key) = target.needs.iter().find(|key| !attributes.contains_key(**key)) {
            let theirs = target.options.iter().find(|(_, becomes)| becomes.is_attribute(key));
            let theirs = theirs.map_or(*key, |(theirs, _)| *theirs);
            return wrong(
                format!("option {theirs:?} is missing"),
                format!("{} needs it: write it", target.to),
            );
        }
        mount_options.splice(0..0, target.mount_options.iter().map(|word| (*word).to_owned()));
        if self.fs_type.is_some() && !target.fs_type {
            warnings.push(format!("fsType is left out: {} does not look at it", target.to));
        }
        let mut source = self.source(name, target.fs_type);
        let mut copy = None;
        match owner {
            Owner::Volume { name, .. } => {
                source.insert("volumeHandle".to_owned(), own_handle(target, name, &parts)?.into());
                copy = self.give_secret(target, &mut source, owner, &parts)?;
            }
            Owner::Pod => self.inline(target, &mut attributes, &mut mount_options)?,
        }
        source.insert("volumeAttributes".to_owned(), json!(attributes));
        Ok(Csi { source: source.into(), mount_options, warnings, copy })
    }

    fn source(&self, driver: &str, with_fs_type: bool) -> Map<String, Value> {
        let mut source = Map::new();
        source.insert("driver".to_owned(), driver.into());
        if let Some(fs_type) = self.fs_type.as_ref().filter(|_| with_fs_type) {
            source.insert("fsType".to_owned(), fs_type.clone().into());
        }
        if let Some(flag) = self.read_only {
            source.insert("readOnly".to_owned(), flag.into());
        }
        source
    }

    fn give_secret(
        &self,
        target: &Target,
        source: &mut Map<String, Value>,
        owner: &Owner<'_>,
        parts: &BTreeMap<&'static str, String>,
    ) -> Result<Option<SecretCopy>, Wrong> {
        let (field, keys) = match (target.secret, &self.secret) {
            (Secret::Deployed(name, namespace), _) => {
                let reference = json!({"name": name, "namespace": options::filled(namespace, parts)});
                source.insert("nodeStageSecretRef".to_owned(), reference);
                return Ok(None);
            }
            (Secret::None, Some(_)) => {
                return wrong(
                    format!("{} takes no Secret, and the volume names one", target.to),
                    "remove secretRef if the storage asks for no login; else leave out --to",
                );
            }
            (Secret::Stage(keys), Some(_)) => ("nodeStageSecretRef", keys),
            (Secret::Publish(keys), Some(_)) => ("nodePublishSecretRef", keys),
            (_, None) => return Ok(None),
        };
        let Some(secret) = &self.secret else { return Ok(None) };
        let mut reference = secret.reference(owner)?;
        let same = keys.iter().all(|(before, after)| before == after);
        let copy = (!same).then(|| secret.copy(&reference, keys)).transpose()?;
        if let Some(copy) = &copy {
            reference["name"] = copy.to.clone().into();
        }
        source.insert(field.to_owned(), reference);
        Ok(copy)
    }

    /// Such a driver reads the Secret itself, in the pod's namespace.
    fn inline(
        &self,
        target: &Target,
        attributes: &mut BTreeMap<String, String>,
        mount_options: &mut Vec<String>,
    ) -> Result<(), Wrong> {
        let Inline::Attributes(secret_name, list) = target.inline else {
            return wrong(
                format!("{} takes no volume that stands in a pod", target.to),
                "make a PersistentVolume and a claim of it, or leave out --to",
            );
        };
        if let Some(secret) = &self.secret {
            attributes.insert(secret_name.to_owned(), secret.name.clone());
        }
        if !mount_options.is_empty() {
            attributes.insert(list.to_owned(), std::mem::take(mount_options).join(","));
        }
        Ok(())
    }
}

fn own_handle(
    target: &Target,
    volume: &str,
    parts: &BTreeMap<&'static str, String>,
) -> Result<String, Wrong> {
    let Handle::Own(template, start) = target.handle else { return Ok(handle::of_volume(volume)) };
    let own = options::filled(&template.replace("{name}", volume), parts);
    if handle::is_safe(&own) && own.starts_with(start) {
        return Ok(own);
    }
    wrong(
        format!("the storage's name {own:?} is no handle of {}, or could be another volume's", target.to),
        if start.is_empty() {
            "leave out --to, or rename the storage".to_owned()
        } else {
            format!("leave out --to, or give the whole name, which begins with {start}")
        },
    )
}

impl SecretRef {
    fn reference(&self, owner: &Owner<'_>) -> Result<Value, Wrong> {
        let Owner::Volume { claim, .. } = owner else { return Ok(json!({"name": self.name})) };
        let namespace = self.namespace.as_deref().or(*claim);
        let Some(namespace) = namespace else {
            return wrong(
                "nothing says in which namespace its Secret is: FlexVolume takes the pod's",
                "write flexVolume.secretRef.namespace",
            );
        };
        Ok(json!({"name": self.name, "namespace": namespace}))
    }

    fn copy(
        &self,
        reference: &Value,
        keys: &'static [(&'static str, &'static str)],
    ) -> Result<SecretCopy, Wrong> {
        let to = format!("{}-csi", self.name);
        if to.len() > 253 {
            return wrong(
                "the name of its Secret leaves no room for that of a copy",
                "use a Secret with a shorter name",
            );
        }
        let namespace = reference["namespace"].as_str().unwrap_or_default().to_owned();
        Ok(SecretCopy { namespace, from: self.name.clone(), to, keys })
    }
}

/// A text that is not empty.
fn text(fields: &Map<String, Value>, key: &str) -> Result<Option<String>, Wrong> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => wrong(format!("{key} of flexVolume is no text"), "quote it"),
    }
}

fn texts(fields: &Map<String, Value>) -> Result<BTreeMap<String, String>, Wrong> {
    let map = match fields.get("options") {
        None | Some(Value::Null) => return Ok(BTreeMap::new()),
        Some(Value::Object(map)) => map,
        Some(_) => return wrong("flexVolume.options is no mapping", "write key: value"),
    };
    let mut all = BTreeMap::new();
    for (key, value) in map {
        let Some(value) = value.as_str() else {
            return wrong(format!("option {key:?} is no text"), "quote its value");
        };
        if is_reserved(key) {
            let fix = "rename it: kubernetes.io and k8s.io are Kubernetes' own";
            return wrong(format!("option {key:?} is one that no volume may have"), fix);
        }
        all.insert(key.clone(), value.to_owned());
    }
    Ok(all)
}

/// Keys that kubelet writes, and with them those of a CSI driver's context.
fn is_reserved(key: &str) -> bool {
    let domain = key.split('/').next().unwrap_or_default().to_ascii_lowercase();
    let of = |own: &str| domain == own || domain.strip_suffix(own).is_some_and(|rest| rest.ends_with('.'));
    of("kubernetes.io") || of("k8s.io") || of("flexvol.dev")
}

fn secret(fields: &Map<String, Value>) -> Result<Option<SecretRef>, Wrong> {
    let fields = match fields.get("secretRef") {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Object(fields)) => fields,
        Some(_) => return wrong("flexVolume.secretRef is no mapping", "write secretRef: {name: NAME}"),
    };
    let Some(name) = text(fields, "name")?.filter(|name| !name.is_empty()) else { return Ok(None) };
    let namespace = text(fields, "namespace")?.filter(|name| !name.is_empty());
    if [Some(&name), namespace.as_ref()].into_iter().flatten().all(|name| is_subdomain(name)) {
        return Ok(Some(SecretRef { name, namespace }));
    }
    wrong("flexVolume.secretRef names no object", "write names of small letters, digits, '-' and '.'")
}

/// A name that the API server takes.
pub(super) fn is_subdomain(name: &str) -> bool {
    let edge =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let label = |label: &str| {
        let bytes = label.as_bytes();
        edge(bytes.first())
            && edge(bytes.last())
            && bytes.iter().all(|byte| edge(Some(byte)) || *byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(label)
}
