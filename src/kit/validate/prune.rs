//! Reduces objects to the parts that concern volumes. The rest of a pod is twenty times as large.

use crate::objects::rules;
use crate::yaml::Lines;
use flexvol_model::mounter::Process1;
use flexvol_protocol::DriverName;
use serde_json::{Map, Value};

/// Types of Secrets that belong to no driver.
const OF_KUBERNETES: [&str; 8] = [
    "bootstrap.kubernetes.io/token",
    "helm.sh/release.v1",
    "kubernetes.io/basic-auth",
    "kubernetes.io/dockercfg",
    "kubernetes.io/dockerconfigjson",
    "kubernetes.io/service-account-token",
    "kubernetes.io/ssh-auth",
    "kubernetes.io/tls",
];

const CONTAINERS: [&str; 3] = ["containers", "initContainers", "ephemeralContainers"];

/// Fields that are kept of a container with process 1 of a mount pod.
const OF_PROCESS_1: [&str; 8] =
    ["name", "command", "args", "env", "envFrom", "livenessProbe", "securityContext", "volumeMounts"];

/// Removes fields that no rule reads. Returns true if anything is left.
pub(super) fn prune(object: &mut Value, lines: &mut Lines) -> bool {
    let Some(members) = object.as_object_mut() else { return false };
    let kind = members.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    members.remove("status");
    prune_metadata(members.get_mut("metadata"), kind == "PersistentVolume");
    match kind.as_str() {
        "PersistentVolume" | "PersistentVolumeClaim" | "StorageClass" => true,
        "Secret" => {
            let own = members.get("type").and_then(Value::as_str).is_some_and(is_of_a_driver);
            if !own {
                // Rules only need to know that its type is another one.
                members.retain(|key, _| ["kind", "metadata", "type"].contains(&key.as_str()));
            }
            true
        }
        "Pod" => prune_pod(members, lines),
        _ => rules::TEMPLATES.iter().any(|path| {
            let template = path.iter().try_fold(&mut *members, |map, key| map.get_mut(*key)?.as_object_mut());
            let lines = path.iter().try_fold(&mut *lines, |lines, key| lines.member_mut(key));
            let has_claims = kind == "StatefulSet";
            template.zip(lines).is_some_and(|(template, lines)| prune_pod(template, lines) || has_claims)
        }),
    }
}

fn is_of_a_driver(kind: &str) -> bool {
    !OF_KUBERNETES.contains(&kind) && DriverName::parse(kind).is_ok_and(|name| name.vendor().is_some())
}

fn prune_metadata(metadata: Option<&mut Value>, with_labels: bool) {
    let Some(metadata) = metadata.and_then(Value::as_object_mut) else { return };
    metadata.retain(|key, _| {
        ["name", "namespace", "generateName", "uid", "annotations"].contains(&key.as_str())
            || with_labels && key == "labels"
    });
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.retain(|key, _| rules::ANNOTATIONS.contains(&key.as_str()));
    }
}

/// Reports whether a pod with this `spec` is a mount pod.
pub(super) fn has_process_1(spec: &Value) -> bool {
    let containers = spec.get("containers").and_then(Value::as_array);
    containers.into_iter().flatten().any(|container| Process1::of_container(container).is_some())
}

/// Prunes a pod or a pod template. Returns true if it has volumes that may belong to a
/// `FlexVolume`, or is a mount pod.
fn prune_pod(pod: &mut Map<String, Value>, lines: &mut Lines) -> bool {
    let mounts = pod.get("spec").is_some_and(has_process_1);
    let (Some(spec), Some(lines)) =
        (pod.get_mut("spec").and_then(Value::as_object_mut), lines.member_mut("spec"))
    else {
        return false;
    };
    let fields = ["volumes", "securityContext", "serviceAccount", "serviceAccountName"];
    spec.retain(|key, _| {
        fields.contains(&key.as_str()) || CONTAINERS.contains(&key.as_str()) || mounts && key == "tolerations"
    });
    let is_ours = |volume: &Value| {
        let given = |key: &str| volume.get(key).is_some_and(|source| !source.is_null());
        given("flexVolume") || given("persistentVolumeClaim") || mounts && given("hostPath")
    };
    let name = |of: &Value| of.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let Some(volumes) = keep(spec.get_mut("volumes"), lines.member_mut("volumes"), &is_ours) else {
        return false;
    };
    let names: Vec<_> = volumes.iter().map(name).collect();
    for kind in CONTAINERS {
        let (Some(containers), Some(lines)) =
            (spec.get_mut(kind).and_then(Value::as_array_mut), lines.member_mut(kind))
        else {
            continue;
        };
        for (index, container) in containers.iter_mut().enumerate() {
            let is_process_1 = Process1::of_container(container).is_some();
            let Some(members) = container.as_object_mut() else { continue };
            if is_process_1 {
                members.retain(|key, _| OF_PROCESS_1.contains(&key.as_str()));
                let env = members.get_mut("env").and_then(Value::as_array_mut).into_iter().flatten();
                // Values of environment variables are private; no rule reads them.
                env.filter_map(Value::as_object_mut).for_each(|entry| entry.retain(|key, _| key == "name"));
            } else {
                members.retain(|key, _| ["name", "volumeMounts"].contains(&key.as_str()));
            }
            let lines = lines.entry_mut(index).and_then(|lines| lines.member_mut("volumeMounts"));
            keep(members.get_mut("volumeMounts"), lines, &|mount| names.contains(&name(mount)));
        }
    }
    mounts || !names.is_empty()
}

/// Keeps the chosen entries of a list, with their lines, and returns them.
fn keep<'a>(
    list: Option<&'a mut Value>,
    lines: Option<&mut Lines>,
    is_kept: &dyn Fn(&Value) -> bool,
) -> Option<&'a Vec<Value>> {
    let list = list?.as_array_mut()?;
    let kept: Vec<_> = list.iter().map(is_kept).collect();
    let mut each = kept.iter();
    list.retain(|_| each.next().copied().unwrap_or_default());
    if let Some(lines) = lines {
        lines.keep_entries(&kept);
    }
    Some(list)
}
