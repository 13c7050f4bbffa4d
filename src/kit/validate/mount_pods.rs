//! Checks pods whose first process is `flexvold mounter init`: drivers of their node must find
//! them, and their mounts must appear on the node.

use super::finding::{Findings, MOUNT_POD, MOUNT_POD_DRIVER, MOUNT_POD_END, MOUNT_POD_NAME};
use super::known::KnownDrivers;
use super::node::Node;
use super::object::Object;
use flexvol_model::driver::Driver;
use flexvol_model::mounter::{Lack, Process1, file_name};
use flexvol_protocol::DriverName;

/// Environment variables that process 1 needs, each with the field path of its value.
const NAMES: [(&str, &str); 3] =
    [("POD_NAMESPACE", "metadata.namespace"), ("POD_NAME", "metadata.name"), ("POD_UID", "metadata.uid")];

/// Returns the first container of a pod that runs process 1, with this process.
fn process_1(pod: Node<'_>) -> Option<(Node<'_>, Process1)> {
    let mut containers = pod.at(&["spec", "containers"]).entries();
    containers.find_map(|container| Some((container, Process1::of_container(container.value())?.1)))
}

/// Reports whether an object is a mount pod or creates mount pods.
pub(super) fn is_one(object: &Object<'_>) -> bool {
    object.pod().and_then(process_1).is_some()
}

pub(super) fn check(object: &Object<'_>, installed: &KnownDrivers, findings: &mut Findings) {
    let Some(pod) = object.pod() else { return };
    let Some((container, process_1)) = process_1(pod) else { return };
    let spec = pod.get("spec");
    check_mounts(object, spec, container, &process_1, findings);
    check_names(object, container, findings);
    let serves = check_drivers(object, container, &process_1, installed, findings);
    if serves {
        check_end(object, spec, container, findings);
    }
}

fn check_mounts(
    object: &Object<'_>,
    spec: Node<'_>,
    container: Node<'_>,
    process_1: &Process1,
    findings: &mut Findings,
) {
    let root = &process_1.root;
    let (at, fix) = match process_1.lacks(spec.value(), container.value()) {
        None => return,
        Some(Lack::Privilege) => (
            "securityContext",
            "set privileged: true, without which no container mounts for its node".to_owned(),
        ),
        Some(Lack::Directory) => (
            "volumeMounts",
            format!("mount the node's {root} at the same path with mountPropagation: Bidirectional"),
        ),
    };
    let text = format!("what this mount pod mounts stays in it: {fix}");
    findings.add(object, container.nearest(at), MOUNT_POD, text);
}

fn check_names(object: &Object<'_>, container: Node<'_>, findings: &mut Findings) {
    if !container.get("envFrom").is_absent() {
        return;
    }
    let given: Vec<_> = container.get("env").entries().filter_map(|entry| entry.get("name").text()).collect();
    let is_missing = |(name, _): &(&str, &str)| !given.contains(name);
    if let Some((name, path)) = NAMES.into_iter().find(is_missing) {
        let text = format!(
            "process 1 of a mount pod registers with {name}, which is not in its env: \
            valueFrom: {{fieldRef: {{fieldPath: {path}}}}}"
        );
        findings.add(object, container.nearest("env"), MOUNT_POD_NAME, text);
    }
}

/// Checks the drivers of a mount pod. Returns true if it serves volumes, or if that is unknown.
fn check_drivers(
    object: &Object<'_>,
    container: Node<'_>,
    process_1: &Process1,
    installed: &KnownDrivers,
    findings: &mut Findings,
) -> bool {
    let at = ["args", "command"].map(|key| container.get(key)).into_iter().find(|node| !node.is_absent());
    let at = at.unwrap_or(container);
    if process_1.plugins.is_empty() {
        findings.add(object, at, MOUNT_POD_DRIVER, "a mount pod is for a driver: add --plugin=VENDOR/DRIVER");
    }
    let mut serves = process_1.plugins.is_empty();
    for plugin in &process_1.plugins {
        let name = DriverName::parse(plugin).ok().filter(|name| name.vendor().is_some());
        let Some(name) = name.filter(|name| file_name(&name.directory()).is_some()) else {
            let text = format!("--plugin {plugin:?} is no driver: write VENDOR/DRIVER");
            findings.add(object, at, MOUNT_POD_DRIVER, text);
            continue;
        };
        let driver = installed.known(&name).map(|known| known.installed.driver);
        serves |= driver.is_none_or(Driver::serves);
        if driver.is_some_and(|driver| !driver.serves()) {
            let text =
                format!("{name} runs no program that serves a volume, and asks no mount pod: leave it out");
            findings.suspect(object, at, MOUNT_POD_DRIVER, text);
        }
    }
    serves
}

/// Warns of events that end a mount pod, and with it the volumes that it serves.
fn check_end(object: &Object<'_>, spec: Node<'_>, container: Node<'_>, findings: &mut Findings) {
    let probe = container.get("livenessProbe");
    if !probe.is_absent() {
        let text = "a container that its livenessProbe restarts takes the volumes that it serves along: \
            use a readinessProbe";
        findings.add(object, probe, MOUNT_POD_END, text);
    }
    let tolerates = |toleration: Node<'_>| {
        let is = |key: &str, all: &[&str]| all.contains(&toleration.get(key).text().unwrap_or_default());
        is("operator", &["Exists"]) && is("key", &[""]) && is("effect", &["", "NoExecute"])
    };
    if !spec.get("tolerations").entries().any(tolerates) {
        let text = "a taint evicts this mount pod with the volumes that it serves: \
            tolerations: [{operator: Exists}]";
        findings.add(object, spec.nearest("tolerations"), MOUNT_POD_END, text);
    }
    if object.kind == "DaemonSet" {
        let strategy = object.node.at(&["spec", "updateStrategy", "type"]);
        if strategy.text() != Some("OnDelete") {
            let text = "a new image replaces these mount pods, which ends all volumes that they serve: \
                updateStrategy: {type: OnDelete}";
            findings.add(object, object.node.nearest("spec.updateStrategy.type"), MOUNT_POD_END, text);
        }
    }
}
