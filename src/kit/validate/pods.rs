//! Checks names, and references from pods to volumes and claims.

use super::finding::{CLAIM_MISSING, Findings, NAME, SUB_PATH, VOLUME_MOUNT};
use super::node::Node;
use super::object::Object;
use super::read::missing;
use super::slips::containers;
use crate::objects::{Key, rules};
use flexvol_model::schema::did_you_mean;
use std::collections::BTreeSet;

/// Checks the names in an object, as far as volumes depend on them.
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
    // The claim templates of a StatefulSet are volumes of its pods.
    let templates = object.node.at(&["spec", "volumeClaimTemplates"]).entries();
    names.extend(templates.filter_map(|template| template.at(&["metadata", "name"]).text()));
    check_mounts(object, pod.get("spec"), &names, findings);
}

fn check_mounts(object: &Object<'_>, spec: Node<'_>, volumes: &BTreeSet<&str>, findings: &mut Findings) {
    let mounts = || containers(spec).flat_map(|container| container.get("volumeMounts").entries());
    for path in mounts().flat_map(|mount| ["subPath", "subPathExpr"].map(|key| mount.get(key))) {
        if path.text().is_some_and(|text| text.starts_with('/') || text.split('/').any(|part| part == "..")) {
            let text = "a subPath is below its volume, and the API server refuses another: write it without / in front \
                and without ..";
            findings.add(object, path, SUB_PATH, text);
        }
    }
    for name in mounts().map(|mount| mount.get("name")) {
        let Some(text) = name.text().filter(|text| !volumes.contains(text)) else { continue };
        let fix = match did_you_mean(text, volumes.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => "add it to spec.volumes".to_owned(),
        };
        let text = format!("volumeMounts names {text:?}, and the pod has no such volume: {fix}");
        findings.add(object, name, VOLUME_MOUNT, text);
    }
}

/// Checks that the claims of pods exist. Skipped if the files hold no claim: they are elsewhere.
pub(super) fn check_claims(all: &[Object<'_>], findings: &mut Findings) {
    let of_kind = |kind| all.iter().filter(move |object| object.kind == kind);
    let claims: Vec<_> = of_kind("PersistentVolumeClaim").map(|claim| &claim.key).collect();
    if claims.is_empty() {
        return;
    }
    let reserved: Vec<_> = of_kind("PersistentVolume").filter_map(reserved_for).collect();
    for (object, pod) in all.iter().filter_map(|object| Some((object, object.pod()?))) {
        for volume in pod.at(&["spec", "volumes"]).entries() {
            let node = volume.at(&["persistentVolumeClaim", "claimName"]);
            let Some(name) = node.text().filter(|name| rules::is_subdomain(name)) else { continue };
            let key = (object.key.0.clone(), name.to_owned());
            if !claims.contains(&&key) && !reserved.contains(&key) {
                let here = claims.iter().copied().filter(|claim| claim.0 == key.0);
                let text = missing(node, ("PersistentVolumeClaim", &key), claims.iter().copied(), here);
                findings.add(object, node, CLAIM_MISSING, text);
            }
        }
    }
}

/// Returns the claim that a volume is reserved for.
fn reserved_for(volume: &Object<'_>) -> Option<Key> {
    let reference = volume.node.at(&["spec", "claimRef"]);
    let namespace = reference.get("namespace").text().unwrap_or("default");
    Some((namespace.to_owned(), reference.get("name").text()?.to_owned()))
}
