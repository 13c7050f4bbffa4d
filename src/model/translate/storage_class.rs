//! StorageClasses of provisioners that made FlexVolumes.

use super::object::{Outcome, left};
use super::was::Change;
use super::{TARGETS, Target, Translation, in_tree, names, options};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

pub(super) fn translate(object: &Value, drivers: &[&str]) -> Outcome {
    let provisioner = object.get("provisioner").and_then(Value::as_str).unwrap_or_default();
    let mut rows = TARGETS.iter().filter(|target| {
        target.class.as_ref().is_some_and(|class| class.provisioners.contains(&provisioner))
    });
    let first = rows.clone().next();
    let row = rows.find_map(|target| Some((*target, *drivers.iter().find(|name| names(name, target.to))?)));
    match (first, row) {
        (None, _) => in_tree::storage_class(object, provisioner, drivers),
        (Some(target), None) => {
            let why = format!("left as it is: flexvold csi makes no volumes: write --to {}", target.to);
            Ok(Some(left(object, why)))
        }
        (Some(_), Some((target, name))) => by_table(object, target, name),
    }
}

fn by_table(object: &Value, target: &Target, name: &str) -> Outcome {
    let Some(class) = &target.class else { return Ok(None) };
    let applied = options::apply(&parameters(object)?, class.parameters, true)?;
    let mut changed: Map<String, Value> =
        applied.attributes.into_iter().map(|(key, value)| (key, value.into())).collect();
    for (key, template) in class.set {
        changed.insert((*key).to_owned(), options::filled(template, &applied.parts).into());
    }
    finish(object, name, changed, None, applied.warnings)
}

/// Provisioner and parameters are others; what was there before is kept.
pub(super) fn finish(
    object: &Value,
    provisioner: &str,
    parameters: Map<String, Value>,
    topologies: Option<Value>,
    warnings: Vec<String>,
) -> Outcome {
    let mut change = Change::new(object);
    change.set(&[], "provisioner", Some(json!(provisioner)));
    change.set(&[], "parameters", (!parameters.is_empty()).then(|| parameters.into()));
    if topologies.is_some() {
        change.set(&[], "allowedTopologies", topologies);
    }
    Ok(Some(Translation { object: change.finish()?, warnings, handle: None, secrets: Vec::new() }))
}

/// `parameters`: texts, or the class is none.
pub(super) fn parameters(object: &Value) -> Result<BTreeMap<String, String>, (String, String)> {
    let all = object.get("parameters").and_then(Value::as_object).into_iter().flatten();
    all.map(|(key, value)| match value.as_str() {
        Some(value) if !super::credential::is_held_by(key, value) => Ok((key.clone(), value.to_owned())),
        Some(_) => Err((
            format!("parameter {key:?} holds a credential, which everybody may read"),
            "put it into a Secret and name that".to_owned(),
        )),
        None => Err((format!("parameter {key:?} is no text"), "quote its value".to_owned())),
    })
    .collect()
}
