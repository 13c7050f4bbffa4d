//! Checks sources of volumes: each volume has one, and no StorageClass expects a FlexVolume driver
//! to provision volumes.

use super::finding::{CLASS, Findings, TWO_SOURCES};
use super::known::KnownDrivers;
use super::node::Node;
use super::object::Object;
use flexvol_protocol::DriverName;

/// Names of volume sources, of pods and of a `PersistentVolume`.
const SOURCES: &str = " awsElasticBlockStore azureDisk azureFile cephfs cinder configMap csi downwardAPI emptyDir \
    ephemeral fc flexVolume flocker gcePersistentDisk gitRepo glusterfs hostPath image iscsi local nfs \
    persistentVolumeClaim photonPersistentDisk portworxVolume projected quobyte rbd scaleIO secret storageos \
    vsphereVolume ";

pub(super) fn check(object: &Object<'_>, installed: &KnownDrivers, findings: &mut Findings) {
    if object.kind == "PersistentVolume" {
        check_source(object, object.node.get("spec"), findings);
    }
    for volume in object.pod().into_iter().flat_map(|pod| pod.at(&["spec", "volumes"]).entries()) {
        check_source(object, volume, findings);
    }
    if object.kind == "StorageClass" {
        check_class(object, installed, findings);
    }
}

fn check_source(object: &Object<'_>, volume: Node<'_>, findings: &mut Findings) {
    let is_source =
        |(key, node): &(&str, Node<'_>)| !node.is_absent() && SOURCES.contains(&format!(" {key} "));
    let given: Vec<_> = volume.members().filter(is_source).collect();
    let is_flex = given.iter().any(|(key, _)| *key == "flexVolume");
    if let (true, Some((other, node))) = (is_flex, given.iter().find(|(key, _)| *key != "flexVolume")) {
        let text = format!("a volume has one source, and here are flexVolume and {other}: remove one");
        findings.add(object, *node, TWO_SOURCES, text);
    }
}

fn check_class(object: &Object<'_>, installed: &KnownDrivers, findings: &mut Findings) {
    let node = object.node.get("provisioner");
    let name = node.text().and_then(|text| DriverName::parse(text).ok());
    let is_flex = |name: &DriverName| name.vendor().is_some() && installed.known(name).is_some();
    if let Some(name) = name.filter(|name| is_flex(name) || name.to_string() == "kubernetes.io/flexvolume") {
        let text = format!(
            "{name} makes no volumes, as no FlexVolume driver does, so claims of this class wait for ever: write the \
             PersistentVolumes yourself, with provisioner: kubernetes.io/no-provisioner if a class is wanted"
        );
        findings.add(object, node, CLASS, text);
    }
}
