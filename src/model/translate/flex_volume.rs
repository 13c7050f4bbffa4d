//! `flexVolume` in a `PersistentVolume` or in a pod, and the `csi` that it becomes.

use super::{Reason, credential};
use crate::csi::name;
use flexvol_protocol::DriverName;
use serde_json::{Map, Value, json};

const FIELDS: [&str; 5] = ["driver", "fsType", "options", "readOnly", "secretRef"];
/// Limit for the options that `flexvold csi` passes to a driver: an argument has at most 128 KiB.
const OPTIONS_LIMIT: usize = 120 << 10;

/// Checked content of `flexVolume`.
pub(super) struct FlexVolume<'a> {
    pub(super) driver: DriverName,
    pub(super) fs_type: Option<&'a str>,
    pub(super) read_only: Option<bool>,
    /// Texts by their keys.
    pub(super) options: Option<&'a Map<String, Value>>,
    secret: Option<SecretRef<'a>>,
}

struct SecretRef<'a> {
    name: &'a str,
    namespace: Option<&'a str>,
}

impl<'a> FlexVolume<'a> {
    pub(super) fn read(value: &'a Value) -> Result<Self, Reason> {
        let fields = value.as_object().ok_or_else(|| field("", "a mapping"))?;
        if let Some(key) = fields.keys().find(|key| !FIELDS.contains(&key.as_str())) {
            return Err(Reason::UnknownField(key.clone()));
        }
        let driver = text(fields, "driver")?.unwrap_or_default();
        let options = mapping(fields, "options")?;
        check_options(options)?;
        Ok(Self {
            driver: DriverName::parse(driver).map_err(|_| Reason::Driver)?,
            fs_type: text(fields, "fsType")?,
            read_only: given(fields, "readOnly")
                .map(|flag| flag.as_bool().ok_or_else(|| field(".readOnly", "true or false")))
                .transpose()?,
            options,
            secret: secret(fields)?,
        })
    }

    /// Returns `csi` without the parts that only a `PersistentVolume` has. The options are the
    /// attributes, and the Secret is passed to `mount`, as before.
    pub(super) fn source(&self) -> Map<String, Value> {
        let mut source = Map::new();
        let mut set = |key: &str, value: Value| drop(source.insert(key.to_owned(), value));
        set("driver", name::of_driver(&self.driver).into());
        if let Some(fs_type) = self.fs_type {
            set("fsType", fs_type.into());
        }
        if let Some(flag) = self.read_only {
            set("readOnly", flag.into());
        }
        if let Some(options) = self.options.filter(|options| !options.is_empty()) {
            set("volumeAttributes", options.clone().into());
        }
        source
    }

    pub(super) fn has_secret(&self) -> bool {
        self.secret.is_some()
    }

    /// Returns the Secret; `claim` is the namespace of the volume's claim.
    pub(super) fn secret(&self, claim: Option<&str>) -> Result<Option<Value>, Reason> {
        let Some(SecretRef { name, namespace }) = &self.secret else { return Ok(None) };
        // FlexVolume looks for the Secret in the pod's namespace, which is that of the claim.
        let namespace = namespace.or(claim).ok_or(Reason::SecretNamespace)?;
        if is_subdomain(name) && is_subdomain(namespace) {
            Ok(Some(json!({"name": name, "namespace": namespace})))
        } else {
            Err(Reason::SecretName)
        }
    }

    /// Does the same for a pod's own volume, whose Secret is in the pod's namespace.
    pub(super) fn local_secret(&self) -> Result<Option<Value>, Reason> {
        match &self.secret {
            Some(SecretRef { namespace: Some(_), .. }) => Err(Reason::SecretName),
            Some(SecretRef { name, .. }) if !is_subdomain(name) => Err(Reason::SecretName),
            secret => Ok(secret.as_ref().map(|SecretRef { name, .. }| json!({"name": name}))),
        }
    }
}

fn check_options(options: Option<&Map<String, Value>>) -> Result<(), Reason> {
    let mut size = 0;
    for (key, value) in options.into_iter().flatten() {
        let value = value.as_str().ok_or_else(|| field(&format!(".options[{key:?}]"), "text: quote it"))?;
        if is_reserved(key) {
            return Err(Reason::ReservedOption(key.clone()));
        }
        if credential::is_held_by(key, value) {
            return Err(Reason::CredentialInOption(key.clone()));
        }
        size += key.len() + value.len();
    }
    if size > OPTIONS_LIMIT { Err(Reason::OptionsTooLarge) } else { Ok(()) }
}

fn field(path: &str, must: &'static str) -> Reason {
    Reason::Field(format!("spec.flexVolume{path}"), must)
}

/// Returns a field that is set; null counts as absent.
fn given<'a>(fields: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    fields.get(key).filter(|value| !value.is_null())
}

fn text<'a>(fields: &'a Map<String, Value>, key: &str) -> Result<Option<&'a str>, Reason> {
    let text = |value: &'a Value| value.as_str().ok_or_else(|| field(&format!(".{key}"), "text"));
    given(fields, key).map(text).transpose()
}

fn mapping<'a>(fields: &'a Map<String, Value>, key: &str) -> Result<Option<&'a Map<String, Value>>, Reason> {
    let mapping = |value: &'a Value| value.as_object().ok_or_else(|| field(&format!(".{key}"), "a mapping"));
    given(fields, key).map(mapping).transpose()
}

/// Reads `secretRef`. As for kubelet, a reference without a name counts as absent.
fn secret(fields: &Map<String, Value>) -> Result<Option<SecretRef<'_>>, Reason> {
    let Some(fields) = mapping(fields, "secretRef")? else { return Ok(None) };
    let word = |key: &str| {
        let value = given(fields, key).map(|value| value.as_str().ok_or(Reason::SecretName)).transpose()?;
        Ok(value.filter(|text| !text.is_empty()))
    };
    let namespace = word("namespace")?;
    Ok(word("name")?.map(|name| SecretRef { name, namespace }))
}

/// Reports whether the API server accepts the name for an object.
pub(super) fn is_subdomain(name: &str) -> bool {
    let edge = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let label = |label: &str| {
        let bytes = label.as_bytes();
        bytes.first().is_some_and(edge)
            && bytes.last().is_some_and(edge)
            && bytes.iter().all(|byte| edge(byte) || *byte == b'-')
    };
    name.len() <= 253 && name.split('.').all(label)
}

/// Reports whether a key is reserved: kubelet writes such keys, and the API server refuses them in
/// options; or `flexvol csi` uses them itself.
fn is_reserved(key: &str) -> bool {
    let domain = key.split('/').next().unwrap_or_default().to_ascii_lowercase();
    let of = |own: &str| domain == own || domain.strip_suffix(own).is_some_and(|rest| rest.ends_with('.'));
    ["kubernetes.io", "k8s.io", "flexvol.dev"].into_iter().any(of)
}
