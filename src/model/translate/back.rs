//! The way back, by what the object says that it was.

use super::object::{Outcome, kind, refusal};
use super::volume::FlexVolume;
use super::was::{self, PROVISIONED, WAS};
use super::words::Wrong;
use super::{Refusal, Translation, in_tree, pod};
use serde_json::{Map, Value};

/// Fields of a PersistentVolume that a translation changes, beside its source.
const FIELDS: &[&str] = &["accessModes", "mountOptions", "nodeAffinity", "persistentVolumeReclaimPolicy"];
/// Fields of a StorageClass.
const CLASS_FIELDS: &[&str] = &["allowedTopologies", "mountOptions", "parameters", "provisioner"];

pub(super) fn translate(object: &Value) -> Result<Option<Translation>, Refusal> {
    back(object).map_err(|wrong| refusal(object, wrong))
}

fn back(object: &Value) -> Outcome {
    let Some(was) = was::read(object)? else { return Ok(None) };
    let mut restored = object.clone();
    match kind(object) {
        "PersistentVolume" => persistent_volume(&mut restored, &was)?,
        "StorageClass" => fields(&mut restored, &[], CLASS_FIELDS, &was)?,
        _ => volumes(&mut restored, &was)?,
    }
    forget(&mut restored);
    Ok(Some(Translation {
        warnings: drift(object, &restored),
        object: restored,
        handle: None,
        secrets: Vec::new(),
    }))
}

fn foreign<T>() -> Result<T, Wrong> {
    let reason = format!("its annotation {WAS} is not one of this kind of object");
    Err((reason, "take the object from your backup of before the translation".to_owned()))
}

fn persistent_volume(object: &mut Value, was: &Map<String, Value>) -> Result<(), Wrong> {
    let is_source = |key: &str| key == "flexVolume" || in_tree::find(key).is_some();
    let sources: Vec<_> = was.keys().filter(|key| is_source(key)).map(String::as_str).collect();
    let [source] = sources[..] else { return foreign() };
    if source == "flexVolume" {
        FlexVolume::read(&was[source])?;
    }
    let spec = object.get_mut("spec").and_then(Value::as_object_mut);
    if spec.and_then(|spec| spec.remove("csi")).is_none() {
        let fix = format!("remove the annotation {WAS}: it is no CSI volume");
        return Err((format!("it has the annotation {WAS} and no csi"), fix));
    }
    let mut was = was.clone();
    if let Some(kept) = was.remove("annotations") {
        annotations(object, &kept)?;
    }
    fields(object, &["spec"], &[FIELDS, &[source]].concat(), &was)
}

fn annotations(object: &mut Value, kept: &Value) -> Result<(), Wrong> {
    let (Some(kept), Some(all)) = (kept.as_object(), was::annotations(object)) else { return foreign() };
    for (key, value) in kept {
        if !PROVISIONED.contains(&key.as_str()) || !value.is_string() {
            return foreign();
        }
        all.insert(key.clone(), value.clone());
    }
    Ok(())
}

/// Puts back each field that was noted; any other is none that a translation changes.
fn fields(object: &mut Value, part: &[&str], known: &[&str], was: &Map<String, Value>) -> Result<(), Wrong> {
    let part = part.iter().try_fold(object, |at, key| at.get_mut(*key)).and_then(Value::as_object_mut);
    let Some(part) = part else { return foreign() };
    for (key, value) in was {
        if !known.contains(&key.as_str()) {
            return foreign();
        }
        if value.is_null() {
            part.remove(key)
        } else {
            part.insert(key.clone(), value.clone())
        };
    }
    Ok(())
}

fn volumes(object: &mut Value, was: &Map<String, Value>) -> Result<(), Wrong> {
    let (Some(all), 1) = (was.get("volumes").and_then(Value::as_object), was.len()) else { return foreign() };
    let Some(place) = pod::place(object) else { return foreign() };
    for (name, flex) in all {
        FlexVolume::read(flex)?;
        let spec = place.iter().try_fold(&mut *object, |at, key| at.get_mut(*key));
        let list = spec.and_then(|spec| spec.get_mut("volumes")?.as_array_mut()).into_iter().flatten();
        let mut named = list.filter(|volume| volume.get("name").and_then(Value::as_str) == Some(name));
        let volume = named.next().and_then(Value::as_object_mut);
        let Some(volume) = volume.filter(|volume| volume.get("csi").is_some()) else {
            let fix = "give it its name and its csi back, or take the object from your backup";
            return Err((format!("volume {name} is not there any more, or no CSI volume"), fix.to_owned()));
        };
        volume.remove("csi");
        volume.insert("flexVolume".to_owned(), flex.clone());
    }
    Ok(())
}

/// Removes the note, and the annotations if it was the only one.
fn forget(object: &mut Value) {
    let Some(all) = was::annotations(object) else { return };
    all.remove(WAS);
    if all.is_empty()
        && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.remove("annotations");
    }
}

/// What was changed by hand since the translation goes with it: it is said.
fn drift(object: &Value, restored: &Value) -> Vec<String> {
    let drivers: Vec<_> = match (kind(object), pod::place(object)) {
        ("PersistentVolume", _) => object.pointer("/spec/csi/driver").into_iter().collect(),
        ("StorageClass", _) => object.get("provisioner").into_iter().collect(),
        (_, Some(place)) => {
            pod::volumes(object, place).filter_map(|(_, volume)| volume.pointer("/csi/driver")).collect()
        }
        _ => Vec::new(),
    };
    let drivers: Vec<_> = drivers.into_iter().filter_map(Value::as_str).collect();
    match super::to_csi(restored, &drivers) {
        Ok(Some(again)) if again.object == *object => Vec::new(),
        _ => {
            vec!["it was changed since it was translated: what was changed of the volume is lost".to_owned()]
        }
    }
}
