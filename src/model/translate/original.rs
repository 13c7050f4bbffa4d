//! Original of a translated object, kept in the object itself, so that the way back is exact.
//!
//! ```json
//! {"absent": ["/spec/csi"], "of": "PersistentVolume/web", "sha256": "…", "v": 1,
//!  "was": {"/spec/flexVolume": {…}, "/spec/persistentVolumeReclaimPolicy": "Delete"}}
//! ```
//!
//! Each path is that of a field that was changed; a list entry is addressed by its name. `was` has
//! the old values, `absent` the fields that did not exist. So null, an empty mapping and an absent
//! field stay distinct. The digest covers the JSON of the rest, without blanks and with sorted
//! keys. Anyone who can write the annotation can write the digest too. The digest detects edits and
//! copies; which paths are restored is decided here.

use super::Reason;
use crate::csi::name::hash;
use serde_json::{Map, Value, json};

/// Name of the annotation.
pub const ORIGINAL: &str = "flexvol.dev/flex-source";
/// Limit of the API server for all annotations of an object together.
const ANNOTATIONS_LIMIT: usize = 256 << 10;

const ANNOTATIONS: &str = "/metadata/annotations";

/// Object under translation.
pub(super) struct Rewrite {
    pub(super) object: Value,
    was: Map<String, Value>,
    absent: Vec<Value>,
}

impl Rewrite {
    pub(super) fn new(object: Value) -> Self {
        Self { object, was: Map::new(), absent: Vec::new() }
    }

    /// Records the value at a path before the first change.
    pub(super) fn note(&mut self, path: &str) {
        if self.was.contains_key(path) || self.absent.contains(&path.into()) {
            return;
        }
        match at(&self.object, path).cloned() {
            Some(value) => drop(self.was.insert(path.to_owned(), value)),
            None => self.absent.push(path.into()),
        }
    }

    /// Records the value at a path, and writes another one there.
    pub(super) fn set(&mut self, path: &str, value: Option<Value>) {
        self.note(path);
        put(&mut self.object, path, value);
    }

    /// Reports whether an existing field was changed.
    pub(super) fn is_changed(&self) -> bool {
        !self.was.is_empty()
    }

    /// Returns the object with the record of its original.
    pub(super) fn finish(mut self) -> Result<Value, Reason> {
        let no_mapping = |path: &str| Reason::Field(path.to_owned(), "a mapping");
        let before = self.object.pointer(ANNOTATIONS);
        if !before.is_some_and(Value::is_object) {
            if before.is_some_and(|before| !before.is_null()) {
                return Err(no_mapping("metadata.annotations"));
            }
            self.set(ANNOTATIONS, Some(json!({})));
        }
        let kept = json!({"absent": self.absent, "of": of(&self.object), "v": 1, "was": self.was});
        let kept = sealed(kept);
        let all = self.object.pointer_mut(ANNOTATIONS).and_then(Value::as_object_mut);
        let all = all.ok_or_else(|| no_mapping("metadata"))?;
        all.insert(ORIGINAL.to_owned(), kept.into());
        let size = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
        let fits = all.iter().map(size).sum::<usize>() <= ANNOTATIONS_LIMIT;
        fits.then_some(self.object).ok_or(Reason::AnnotationsTooLarge)
    }
}

/// Reports whether an object has the annotation, whatever it contains.
pub(super) fn is_in(object: &Value) -> bool {
    object.pointer(ANNOTATIONS).is_some_and(|all| all.get(ORIGINAL).is_some())
}

/// Returns the original of an object that has the annotation. `may_restore` reports which paths a
/// translation can have changed.
pub(super) fn restored(object: &Value, may_restore: impl Fn(&str) -> bool) -> Result<Option<Value>, Reason> {
    let Some(text) = object.pointer(ANNOTATIONS).and_then(|all| all.get(ORIGINAL)) else { return Ok(None) };
    let kept = opened(text).ok_or(Reason::OriginalChanged)?;
    if kept["of"].as_str() != Some(&of(object)) {
        return Err(Reason::OriginalForeign);
    }
    let mut restored = object.clone();
    if let Some(all) = restored.pointer_mut(ANNOTATIONS).and_then(Value::as_object_mut) {
        all.remove(ORIGINAL);
    }
    let mut set = |path: &str, value: Option<Value>| {
        if path == ANNOTATIONS {
            // Other annotations may have been added since.
            let is_empty = restored.pointer(ANNOTATIONS).is_some_and(|all| *all == json!({}));
            return !is_empty || put(&mut restored, path, value);
        }
        may_restore(path) && put(&mut restored, path, value)
    };
    for (path, value) in kept["was"].as_object().into_iter().flatten() {
        if !set(path, Some(value.clone())) {
            return Err(Reason::OriginalForeign);
        }
    }
    for path in kept["absent"].as_array().into_iter().flatten() {
        if !set(path.as_str().unwrap_or_default(), None) {
            return Err(Reason::OriginalForeign);
        }
    }
    Ok(Some(restored))
}

/// Writes or removes a field. Reports whether there is a mapping that can hold it.
pub(super) fn put(object: &mut Value, path: &str, value: Option<Value>) -> bool {
    let (parent, key) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = steps(parent).try_fold(object, |at, step| match at {
        Value::Object(fields) => fields.get_mut(&step),
        Value::Array(entries) => entries.iter_mut().find(|entry| entry["name"].as_str() == Some(&step)),
        _ => None,
    });
    let Some(fields) = parent.and_then(Value::as_object_mut) else { return false };
    let key = unescaped(key);
    match value {
        Some(value) => fields.insert(key, value),
        None => fields.remove(&key),
    };
    true
}

/// Sets a field.
pub(super) fn set(fields: &mut Map<String, Value>, key: &str, value: Value) {
    fields.insert(key.to_owned(), value);
}

/// Returns the value at a path: a JSON pointer, but with a list entry addressed by its name.
pub(super) fn at<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    steps(path).try_fold(object, |at, step| match at {
        Value::Object(fields) => fields.get(&step),
        Value::Array(entries) => entries.iter().find(|entry| entry["name"].as_str() == Some(&step)),
        _ => None,
    })
}

fn steps(path: &str) -> impl Iterator<Item = String> {
    path.split('/').skip(1).map(unescaped)
}

fn unescaped(step: &str) -> String {
    step.replace("~1", "/").replace("~0", "~")
}

/// Returns the value at a path, without what the API server leaves out: null, false and empty
/// values.
pub(super) fn given(object: &Value, path: &str) -> Option<Value> {
    let mut value = at(object, path).filter(|value| is_given(value))?.clone();
    if let Some(fields) = value.as_object_mut() {
        fields.retain(|_, value| is_given(value));
    }
    Some(value)
}

fn is_given(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
    }
}

/// Returns the path of an annotation.
pub(super) fn annotation(key: &str) -> String {
    format!("{ANNOTATIONS}/{}", key.replace('~', "~0").replace('/', "~1"))
}

/// Returns kind and name, which detect an annotation that was copied to another object.
fn of(object: &Value) -> String {
    let word = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    format!("{}/{}", word("/kind"), word("/metadata/name"))
}

fn sealed(mut kept: Value) -> String {
    kept["sha256"] = hash(kept.to_string().as_bytes()).into();
    kept.to_string()
}

fn opened(text: &Value) -> Option<Value> {
    let mut kept: Value = serde_json::from_str(text.as_str()?).ok()?;
    let digest = kept.as_object_mut()?.remove("sha256")?;
    let is_whole = kept["v"] == 1 && digest.as_str()? == hash(kept.to_string().as_bytes());
    is_whole.then_some(kept)
}
