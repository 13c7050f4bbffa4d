//! Which part of an object is translated, and PersistentVolumes.

use super::volume::{Csi, FlexVolume, Owner, is_subdomain, way};
use super::was::Change;
use super::words::Wrong;
use super::{Refusal, Translation, in_tree, pod, storage_class, targets_of};
use flexvol_protocol::text::one_line;
use serde_json::{Value, json};

/// What a translation comes to; `None`: nothing to translate.
pub(super) type Outcome = Result<Option<Translation>, Wrong>;

pub(super) fn translate(object: &Value, drivers: &[&str]) -> Result<Option<Translation>, Refusal> {
    let outcome = match kind(object) {
        "PersistentVolume" => persistent_volume(object, drivers),
        "StorageClass" => storage_class::translate(object, drivers),
        _ => pod::translate(object, drivers),
    };
    outcome.map_err(|wrong| refusal(object, wrong))
}

pub(super) fn kind(object: &Value) -> &str {
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn refusal(object: &Value, (reason, fix): Wrong) -> Refusal {
    let word = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
    let namespace = word("/metadata/namespace").map(|name| format!("{name}/")).unwrap_or_default();
    let name = format!("{} {namespace}{}", kind(object), word("/metadata/name").unwrap_or("without a name"));
    Refusal { object: one_line(&name, 200), reason: one_line(&reason, 400), fix: one_line(&fix, 400) }
}

/// An object that stays what it is, and why.
pub(super) fn left(object: &Value, why: String) -> Translation {
    Translation { object: object.clone(), warnings: vec![why], handle: None, secrets: Vec::new() }
}

/// Said of a volume that can go to none of the drivers that were named.
pub(super) fn no_way(driver: &str) -> String {
    let others: Vec<_> = targets_of(driver).map(|target| target.to).collect();
    let others =
        if others.is_empty() { String::new() } else { format!(" or --to {}", others.join(" or --to ")) };
    format!("left as it is: {driver} has no way to that driver: leave out --to{others}")
}

fn persistent_volume(object: &Value, drivers: &[&str]) -> Outcome {
    let spec = object.get("spec").unwrap_or(&Value::Null);
    let has = |key: &str| spec.get(key).is_some_and(|value| !value.is_null());
    if !has("flexVolume") {
        return in_tree::persistent_volume(object, drivers);
    }
    let name = sound(object, spec)?;
    if has("mountOptions") && spec["mountOptions"] != json!([]) {
        let reason = "it has mountOptions, with which kubelet mounts no FlexVolume";
        return Err((reason.to_owned(), "put them into flexVolume.options, where they work".to_owned()));
    }
    let flex = FlexVolume::read(&spec["flexVolume"])?;
    let Some(way) = way(&flex.driver, drivers) else {
        return Ok(Some(left(object, no_way(&flex.driver.to_string()))));
    };
    let claim = spec.pointer("/claimRef/namespace").and_then(Value::as_str).filter(|name| !name.is_empty());
    let csi = flex.to_csi(&way, &Owner::Volume { name, claim })?;
    let mut change = Change::new(object);
    change.set(&["spec"], "flexVolume", None);
    finish(change, csi).map(Some)
}

/// What every PersistentVolume must be, whatever its source; its name.
pub(super) fn sound<'a>(object: &'a Value, spec: &Value) -> Result<&'a str, Wrong> {
    let wrong = |reason: &str, fix: &str| Err((reason.to_owned(), fix.to_owned()));
    let name = object.pointer("/metadata/name").and_then(Value::as_str);
    let Some(name) = name.filter(|name| is_subdomain(name)) else {
        return wrong("metadata.name is no name", "write small letters, digits, '-' and '.'");
    };
    if spec.get("csi").is_some_and(|csi| !csi.is_null()) {
        return wrong("it has two sources, one of them csi", "remove one");
    }
    if spec.get("volumeMode").and_then(Value::as_str).is_some_and(|mode| mode != "Filesystem") {
        return wrong("it is a block device, which FlexVolume has none of", "remove volumeMode");
    }
    if object.pointer("/metadata/deletionTimestamp").is_some_and(|time| !time.is_null()) {
        return wrong("it is being deleted", "wait until it is gone, or take it from a backup");
    }
    Ok(name)
}

/// What every translated PersistentVolume gets.
pub(super) fn finish(mut change: Change, csi: Csi) -> Result<Translation, Wrong> {
    let Csi { source, mount_options, mut warnings, copy } = csi;
    let word = |key: &str| source.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let handle = (word("driver"), word("volumeHandle"));
    if let Some(spec) = change.object.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("csi".to_owned(), source);
    }
    if !mount_options.is_empty() {
        change.set(&["spec"], "mountOptions", Some(json!(mount_options)));
    }
    let policy = change.object.pointer("/spec/persistentVolumeReclaimPolicy").and_then(Value::as_str);
    // What the API server takes for absent.
    if policy.is_some_and(|policy| policy != "Retain") {
        warnings
            .push("the reclaim policy is now Retain: no driver may delete what it did not make".to_owned());
        change.set(&["spec"], "persistentVolumeReclaimPolicy", Some(json!("Retain")));
    }
    if change.forget_provisioner() {
        warnings.push("annotations of its provisioner are left out, so that none deletes it".to_owned());
    }
    let object = change.finish()?;
    Ok(Translation { object, warnings, handle: Some(handle), secrets: copy.into_iter().collect() })
}
