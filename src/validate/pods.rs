//! Names, and what volumes of different pods mean to each other.

use super::finding::{Findings, NAME, SAME_NAME};
use super::flex::{Flex, Owner};
use super::installed::Installed;
use super::node::Node;
use super::object::Object;
use crate::kubelet::rules;
use std::collections::{BTreeMap, BTreeSet};

/// The names in an object, as far as volumes depend on them.
pub(super) fn check_names(object: &Object<'_>, findings: &mut Findings) {
    let metadata = object.node.get("metadata");
    let known = ["PersistentVolume", "PersistentVolumeClaim", "Secret"].contains(&object.kind);
    let pod = object.pod();
    if !known && pod.is_none() {
        return;
    }
    let (name, namespace) = (metadata.get("name"), metadata.get("namespace"));
    if object.key.1.is_empty() {
        findings.add(object, metadata, NAME, "metadata.name is missing: it is required");
    } else if !name.is_absent() {
        subdomain(object, name, "metadata.name", findings);
    }
    if namespace.text().is_some_and(|name| !rules::is_label(name)) {
        findings.add(object, namespace, NAME, format!("metadata.namespace {}", rules::LABEL));
    }
    if let Some(pod) = pod {
        check_pod(object, pod, findings);
    }
}

fn subdomain(object: &Object<'_>, name: Node<'_>, field: &str, findings: &mut Findings) {
    if !name.text().is_some_and(rules::is_subdomain) {
        findings.add(object, name, NAME, format!("{field} {}", rules::SUBDOMAIN));
    }
}

fn check_pod(object: &Object<'_>, pod: Node<'_>, findings: &mut Findings) {
    let mut names = BTreeSet::new();
    for volume in pod.at(&["spec", "volumes"]).entries() {
        let name = volume.get("name");
        match name.text() {
            Some(text) if rules::is_label(text) => {
                if !names.insert(text) {
                    let text = "the name of a volume is there twice in one pod: rename one";
                    findings.add(object, name, NAME, text);
                }
            }
            _ => findings.add(object, name, NAME, format!("the name of a volume {}", rules::LABEL)),
        }
        let claim = volume.get("persistentVolumeClaim");
        if !claim.is_absent() {
            subdomain(object, claim.get("claimName"), "claimName", findings);
        }
    }
}

/// With `attach: true`, kubelet knows a volume by driver and name alone.
pub(super) fn check_collisions(all: &[Flex<'_>], installed: &Installed, findings: &mut Findings) {
    let mut seen: BTreeMap<(String, &str), &Flex<'_>> = BTreeMap::new();
    for flex in all {
        let Some(known) = flex.known(installed) else { continue };
        let (Some(driver), true) = (&flex.driver, known.capabilities().attach) else {
            continue;
        };
        let Some(first) = seen.insert((driver.to_string(), flex.name), flex) else { continue };
        if first.owner == Owner::Volume && flex.owner == Owner::Volume {
            continue;
        }
        let same = first.node.value() == flex.node.value();
        let (object, name) = (flex.object, flex.name);
        let why = format!(
            "{driver} attaches, so kubelet knows a volume of a node by its name, and {:?} is also one of {}",
            name,
            first.object.title()
        );
        if same {
            let text = format!("{why}: they are one and the same to it: rename one if they are not");
            findings.suspect(object, flex.node, SAME_NAME, text);
        } else {
            findings.add(object, flex.node, SAME_NAME, format!("{why}, with other options: rename one"));
        }
    }
}
