//! Finds misspelt fields around a volume: `flexvolume` for `flexVolume`. The API server refuses
//! such a field, or drops it with its content.

use super::finding::{ACCESS_MODES, Findings, UNKNOWN_FIELD};
use super::node::Node;
use super::object::Object;
use flexvol_model::schema::did_you_mean;

/// Fields of a `PersistentVolume`'s spec that a volume depends on.
const VOLUME: &[&str] =
    &["accessModes", "capacity", "claimRef", "flexVolume", "mountOptions", "storageClassName", "volumeMode"];

/// Fields of a claim's spec that a volume depends on.
const CLAIM: &[&str] =
    &["accessModes", "resources", "selector", "storageClassName", "volumeMode", "volumeName"];

/// Fields of a `flexVolume`; with too little indentation they end up beside it.
const OF_FLEX: &[&str] = &["driver", "fsType", "options", "readOnly", "secretRef"];

const MODES: [&str; 4] = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod"];

/// Returns the containers of a pod's spec, of all kinds.
pub(super) fn containers(spec: Node<'_>) -> impl Iterator<Item = Node<'_>> {
    ["containers", "initContainers", "ephemeralContainers"]
        .into_iter()
        .flat_map(move |kind| spec.get(kind).entries())
}

/// Checks the fields of one object that do not depend on the driver.
pub(super) fn check(object: &Object<'_>, findings: &mut Findings) {
    let spec = object.node.get("spec");
    match object.kind {
        "PersistentVolume" => {
            check_fields(object, "spec", spec, VOLUME, findings);
            check_indent(object, "spec", spec, findings);
        }
        "PersistentVolumeClaim" => check_fields(object, "spec", spec, CLAIM, findings),
        "Secret" => check_fields(object, "a Secret", object.node, &["data", "stringData", "type"], findings),
        _ => {}
    }
    if ["PersistentVolume", "PersistentVolumeClaim"].contains(&object.kind) {
        check_modes(object, spec.get("accessModes"), findings);
    }
    if let Some(pod) = object.pod() {
        check_pod(object, pod.get("spec"), findings);
    }
}

fn check_pod(object: &Object<'_>, spec: Node<'_>, findings: &mut Findings) {
    check_fields(object, "a pod's spec", spec, &["securityContext", "volumes"], findings);
    check_fields(object, "securityContext", spec.get("securityContext"), &["fsGroup"], findings);
    for volume in spec.get("volumes").entries() {
        check_fields(object, "a volume", volume, &["flexVolume", "persistentVolumeClaim"], findings);
        check_indent(object, "a volume", volume, findings);
    }
    for container in containers(spec) {
        check_fields(object, "a container", container, &["volumeMounts"], findings);
    }
}

fn check_fields(object: &Object<'_>, what: &str, of: Node<'_>, fields: &[&str], findings: &mut Findings) {
    for (key, node) in of.members().filter(|(key, _)| !fields.contains(key)) {
        if let Some(near) = near(key, fields) {
            let text = format!("{what} has no field {key:?}: did you mean {near:?}?");
            findings.add(object, node, UNKNOWN_FIELD, text);
        }
    }
}

fn check_indent(object: &Object<'_>, what: &str, of: Node<'_>, findings: &mut Findings) {
    if !of.members().any(|(key, _)| key == "flexVolume") {
        return;
    }
    for (key, node) in of.members().filter(|(key, _)| OF_FLEX.contains(key)) {
        let text = format!("{what} has no field {key:?}: indent it further, so that it is below flexVolume");
        findings.add(object, node, UNKNOWN_FIELD, text);
    }
}

/// Returns the field that was probably meant: it differs in one or two letters, or in case.
pub(super) fn near<'a>(key: &str, fields: &[&'a str]) -> Option<&'a str> {
    let key = key.to_lowercase();
    let distance = |field: &str| strsim::damerau_levenshtein(&key, &field.to_lowercase());
    let nearest = fields.iter().map(|field| (distance(field), *field)).min()?;
    Some(nearest)
        .filter(|(distance, field)| *distance <= 2 && distance * 3 <= field.len())
        .map(|(_, field)| field)
}

fn check_modes(object: &Object<'_>, modes: Node<'_>, findings: &mut Findings) {
    for (node, mode) in modes.entries().filter_map(|node| Some((node, node.text()?))) {
        if MODES.contains(&mode) {
            continue;
        }
        let fix = match did_you_mean(mode, MODES.into_iter()) {
            Some(near) => format!("did you mean {near}?"),
            None => format!("write one of {}", MODES.join(", ")),
        };
        findings.add(object, node, ACCESS_MODES, format!("{mode:?} is no access mode: {fix}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_near_and_other_fields_are_not() {
        for (key, meant) in [
            ("flexvolume", Some("flexVolume")),
            ("flexVolumes", Some("flexVolume")),
            ("mountoptions", Some("mountOptions")),
            ("accessMode", Some("accessModes")),
            ("nodeAffinity", None),
            ("csi", None),
            ("persistentVolumeReclaimPolicy", None),
        ] {
            assert_eq!(near(key, VOLUME), meant, "{key}");
        }
        assert_eq!(near("fsGroupChangePolicy", &["fsGroup"]), None);
        assert_eq!(near("kind", &["data", "type"]), None);
        assert_eq!(near("Data", &["data", "type"]), Some("data"));
    }
}
