//! What an object was before it was translated, kept in it.
//!
//! ```json
//! {"sha256": "…", "v": 1, "was": {"flexVolume": {…}, "persistentVolumeReclaimPolicy": "Delete"}}
//! ```
//!
//! `was` has each field that changed; null for one that was not there. The digest is over its JSON
//! without blanks, keys in order: not against forgers, who could write it too, but against hands.

use super::words::Wrong;
use crate::csi::name::hash;
use serde_json::{Map, Value, json};

/// The annotation.
pub const WAS: &str = "flexvol.dev/flex-source";
/// What the API server takes of all annotations of an object together.
const ANNOTATIONS_LIMIT: usize = 256 << 10;
/// Annotations by which a provisioner knows what to delete.
pub(super) const PROVISIONED: &[&str] = &[
    "pv.kubernetes.io/migrated-to",
    "pv.kubernetes.io/provisioned-by",
    "volume.kubernetes.io/provisioner-deletion-secret-name",
    "volume.kubernetes.io/provisioner-deletion-secret-namespace",
];

/// An object that is being changed.
pub(super) struct Change {
    pub(super) object: Value,
    was: Map<String, Value>,
}

impl Change {
    pub(super) fn new(object: &Value) -> Self {
        Self { object: object.clone(), was: Map::new() }
    }

    /// Notes what something was.
    pub(super) fn note(&mut self, key: &str, value: Value) {
        self.was.insert(key.to_owned(), value);
    }

    /// Sets or removes a field of a part of the object, and notes what it was, if it changes.
    pub(super) fn set(&mut self, part: &[&str], key: &str, value: Option<Value>) {
        let found = part.iter().try_fold(&mut self.object, |at, key| at.get_mut(*key));
        let Some(fields) = found.and_then(Value::as_object_mut) else { return };
        let before = fields.get(key).filter(|value| !value.is_null()).cloned();
        if before != value {
            self.was.insert(key.to_owned(), before.unwrap_or_default());
        }
        match value {
            Some(value) => fields.insert(key.to_owned(), value),
            None => fields.remove(key),
        };
    }

    /// Removes what a provisioner would know the volume by; whether there was any.
    pub(super) fn forget_provisioner(&mut self) -> bool {
        let Some(all) = annotations(&mut self.object) else { return false };
        let mut kept = Map::new();
        for key in PROVISIONED {
            if let Some(value) = all.remove(*key) {
                kept.insert((*key).to_owned(), value);
            }
        }
        let found = !kept.is_empty();
        if found {
            self.note("annotations", kept.into());
        }
        found
    }

    /// The object, with what it was.
    pub(super) fn finish(mut self) -> Result<Value, Wrong> {
        let was = Value::Object(self.was);
        let kept = json!({"sha256": hash(was.to_string().as_bytes()), "v": 1, "was": was}).to_string();
        let metadata = self.object.get_mut("metadata").and_then(Value::as_object_mut);
        let Some(metadata) = metadata else {
            return Err(("it has no metadata".to_owned(), "write metadata.name".to_owned()));
        };
        let all = metadata.entry("annotations").or_insert_with(|| json!({}));
        if all.is_null() {
            *all = json!({});
        }
        let Some(all) = all.as_object_mut() else {
            return Err(("metadata.annotations is no mapping".to_owned(), "write key: value".to_owned()));
        };
        all.insert(WAS.to_owned(), kept.into());
        let size: usize = all.iter().map(|(key, value)| key.len() + value.as_str().map_or(0, str::len)).sum();
        if size > ANNOTATIONS_LIMIT {
            let reason = "with what it was its annotations are larger than the API server takes, 256 KiB";
            return Err((reason.to_owned(), "remove annotations, or shorten its options".to_owned()));
        }
        Ok(self.object)
    }
}

/// What the object was; `None` if it was not translated.
pub(super) fn read(object: &Value) -> Result<Option<Map<String, Value>>, Wrong> {
    let Some(kept) = object.pointer("/metadata/annotations").and_then(|all| all.get(WAS)) else {
        return Ok(None);
    };
    let touched = || {
        let reason = format!("its annotation {WAS} is not as it was written");
        (reason, "take the volume from your backup of before the translation".to_owned())
    };
    let kept: Value = kept.as_str().and_then(|text| serde_json::from_str(text).ok()).ok_or_else(touched)?;
    let digest = kept.get("was").map(|was| hash(was.to_string().as_bytes()));
    if kept.get("v") != Some(&json!(1)) || kept.get("sha256").and_then(Value::as_str) != digest.as_deref() {
        return Err(touched());
    }
    kept.get("was").and_then(Value::as_object).cloned().map(Some).ok_or_else(touched)
}

/// `metadata.annotations`, if there are any.
pub(super) fn annotations(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.pointer_mut("/metadata/annotations")?.as_object_mut()
}
