//! Reads a tree of values; its errors name the object and the field, and never a value.

use super::rules;
use flexvol_protocol::failure::{Failure, Result};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Value of an absent field, as in Go.
static ABSENT: Value = Value::Null;

/// Value, and the path to it.
#[derive(Clone, Debug)]
pub(super) struct Field<'a> {
    value: &'a Value,
    /// Kind and name of the object.
    object: Cow<'a, str>,
    /// Path such as `spec.volumes[0].name`; empty for the object itself.
    path: String,
}

impl<'a> Field<'a> {
    /// Returns the field of a document, which must be a mapping.
    pub(super) fn of_object(value: &'a Value) -> Result<Self> {
        let field = Self { value, object: "a document".into(), path: String::new() };
        field.members().map(|_| field.clone())
    }

    /// Returns the same field, named in messages by kind and name of the object.
    pub(super) fn of_kind(self, kind: &str) -> Result<Self> {
        let name = self.get("metadata")?.get("name")?.text()?.unwrap_or_default();
        let object = if name.is_empty() { format!("a {kind}") } else { format!("{kind} {name}") };
        Ok(Self { object: object.into(), ..self })
    }

    pub(super) fn value(&self) -> &'a Value {
        self.value
    }

    /// Returns a member; an absent one if it does not exist.
    pub(super) fn get(&self, key: &str) -> Result<Self> {
        let value = self.members()?.and_then(|map| map.get(key)).unwrap_or(&ABSENT);
        let dot = if self.path.is_empty() { "" } else { "." };
        Ok(Self { value, object: self.object.clone(), path: format!("{}{dot}{key}", self.path) })
    }

    /// Returns the member at the end of several keys.
    pub(super) fn at(&self, keys: &[&str]) -> Result<Self> {
        keys.iter().try_fold(self.clone(), |field, key| field.get(key))
    }

    pub(super) fn is_absent(&self) -> bool {
        self.value.is_null()
    }

    /// Returns the entries of a list.
    pub(super) fn list(&self) -> Result<Vec<Self>> {
        let entries = match self.value {
            Value::Null => return Ok(Vec::new()),
            Value::Array(entries) => entries,
            _ => return Err(self.error("must be a list")),
        };
        let entry = |(index, value)| {
            let path = format!("{}[{index}]", self.path);
            Self { value, object: self.object.clone(), path }
        };
        Ok(entries.iter().enumerate().map(entry).collect())
    }

    fn members(&self) -> Result<Option<&'a Map<String, Value>>> {
        match self.value {
            Value::Null => Ok(None),
            Value::Object(map) => Ok(Some(map)),
            _ => Err(self.error("must be a mapping")),
        }
    }

    pub(super) fn text(&self) -> Result<Option<&'a str>> {
        match self.value {
            Value::Null => Ok(None),
            Value::String(text) => Ok(Some(text)),
            other => Err(self.error(&not_a_string(other))),
        }
    }

    /// Returns text that must exist.
    pub(super) fn required(&self) -> Result<&'a str> {
        self.text()?.filter(|text| !text.is_empty()).ok_or_else(|| self.error("is missing: it is required"))
    }

    /// Returns a boolean, false if absent.
    pub(super) fn flag(&self) -> Result<bool> {
        match self.value {
            Value::Null => Ok(false),
            Value::Bool(flag) => Ok(*flag),
            _ => Err(self.error("must be true or false, without quotes")),
        }
    }

    /// Returns the number of a group, within the range of the API server.
    pub(super) fn group(&self) -> Result<Option<u32>> {
        match self.value {
            Value::Null => Ok(None),
            value => {
                let gid = value.as_u64().and_then(|gid| i32::try_from(gid).ok()).map(i32::cast_unsigned);
                gid.map(Some)
                    .ok_or_else(|| self.error("must be a number from 0 to 2147483647, without quotes"))
            }
        }
    }

    /// Returns a mapping of strings.
    pub(super) fn texts(&self) -> Result<BTreeMap<String, String>> {
        let entries = self.members()?.into_iter().flatten();
        let entry = |(key, value): (&String, &Value)| match value {
            Value::String(text) => Ok((key.clone(), text.clone())),
            // Go reads null as an empty string.
            Value::Null => Ok((key.clone(), String::new())),
            other => Err(Failure::options(format!("{}[{key:?}] {}", self.place(), not_a_string(other)))),
        };
        entries.map(entry).collect()
    }

    /// Returns a list of strings.
    pub(super) fn words(&self) -> Result<Vec<String>> {
        self.list()?.iter().map(|entry| entry.required().map(str::to_owned)).collect()
    }

    /// Refuses members that are not `known`, as `kubectl apply` does.
    pub(super) fn only(&self, known: &[&str]) -> Result<()> {
        let Some(stranger) =
            self.members()?.and_then(|map| map.keys().find(|key| !known.contains(&key.as_str())))
        else {
            return Ok(());
        };
        let near = known.iter().map(|key| (strsim::damerau_levenshtein(key, stranger), key));
        let fix = match near.min().filter(|(distance, _)| *distance <= 2) {
            Some((_, key)) => format!("write {key}"),
            None => format!("remove it, there are {}", known.join(", ")),
        };
        Err(self.get(stranger)?.error(&format!("is no field: {fix}")))
    }

    /// Returns an error about this field.
    pub(super) fn error(&self, what: &str) -> Failure {
        Failure::options(format!("{} {what}", self.place()))
    }

    fn place(&self) -> String {
        if self.path.is_empty() { self.object.to_string() } else { format!("{}: {}", self.object, self.path) }
    }
}

fn not_a_string(value: &Value) -> String {
    let (what, fix) = match value {
        Value::Number(_) => ("a number", "quote it"),
        Value::Bool(_) => ("true or false for YAML", "quote it"),
        Value::Array(_) => ("a list", "write one text in quotes"),
        _ => ("a mapping", "write one text in quotes"),
    };
    format!("must be a string and is {what}: {fix}")
}

/// Name and namespace.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Identity {
    /// Reads the identity of an object in a namespace.
    pub(super) fn read(field: &Field<'_>) -> Result<Self> {
        let metadata = field.get("metadata")?;
        let name = metadata.get("name")?;
        is_subdomain(&name)?;
        Ok(Self { namespace: namespace(&metadata.get("namespace")?)?, name: name.required()?.to_owned() })
    }

    pub(super) fn key(&self) -> (String, String) {
        (self.namespace.clone(), self.name.clone())
    }
}

/// Returns the name of a namespace, `default` if absent.
pub(super) fn namespace(field: &Field<'_>) -> Result<String> {
    if field.text()?.is_none_or(str::is_empty) {
        return Ok("default".to_owned());
    }
    is_label(field)?;
    field.required().map(str::to_owned)
}

/// Checks the name of a pod's volume or of a namespace.
pub(super) fn is_label(field: &Field<'_>) -> Result<()> {
    if rules::is_label(field.required()?) { Ok(()) } else { Err(field.error(rules::LABEL)) }
}

/// Checks the name of most objects.
pub(super) fn is_subdomain(field: &Field<'_>) -> Result<()> {
    if rules::is_subdomain(field.required()?) { Ok(()) } else { Err(field.error(rules::SUBDOMAIN)) }
}
