//! Checks the fields of a `PersistentVolume` around its `flexVolume`.

use super::finding::{
    ACCESS_MODES, CAPACITY, Findings, INLINE_ATTACHED, MOUNT_OPTIONS, READ_ONLY, RECLAIM, SHARED, VOLUME_MODE,
};
use super::flex::{Flex, Owner};
use super::known::Known;
use crate::objects::{Used, rules};
use flexvol_protocol::Access;
use serde_json::Value;

/// Drivers whose volumes cannot be written to by several nodes, with the reason.
const NOT_SHARED: &[(&[&str], &str)] = &[
    (&["iscsi", "lvm", "nbd", "qcow2", "rbd"], "two nodes that write to one device destroy its file system"),
    (&["tmpfs"], "each pod has a memory of its own"),
];

impl Flex<'_> {
    /// Checks a PV, or reports an inline volume that should be a PV.
    pub(super) fn check_volume(&self, known: Option<&Known>, used: &[&Used], findings: &mut Findings) {
        if self.owner == Owner::Volume {
            self.check_mount_options(findings);
            self.check_sizes(known, findings);
            self.check_access(used, findings);
            self.check_promises(known, findings);
        } else {
            self.check_inline(known, findings);
        }
    }

    /// Reports an inline volume of a driver with `attach: true`. Kubelet identifies it by driver
    /// and name alone (`GetUniqueVolumeNameFromSpec`), and takes it for a PV if a second pod of the
    /// node has a volume of that name (`GenerateMountVolumeFunc`).
    fn check_inline(&self, known: Option<&Known>, findings: &mut Findings) {
        if let (Some(driver), true) =
            (&self.driver, known.is_some_and(|known| known.installed.capabilities().attach))
        {
            let text = format!(
                "{driver} attaches, and kubelet knows an attached inline volume by its name alone: a second pod of the \
                 node with a volume {:?} gets the first one's or makes kubelet panic: use a PersistentVolume and its claim",
                self.name
            );
            findings.add(self.object, self.node, INLINE_ATTACHED, text);
        }
    }

    fn check_mount_options(&self, findings: &mut Findings) {
        let list = self.object.node.at(&["spec", "mountOptions"]);
        let annotation = self.object.node.at(&["metadata", "annotations", rules::MOUNT_OPTIONS]);
        let is_empty = list.is_absent() || list.value().as_array().is_some_and(Vec::is_empty);
        let given = [(list, !is_empty), (annotation, annotation.text().is_some())];
        for (node, _) in given.into_iter().filter(|(_, given)| *given) {
            let text = "FlexVolume does not support mountOptions, and kubelet refuses the volume: \
                put them into flexVolume.options";
            findings.add(self.object, node, MOUNT_OPTIONS, text);
        }
    }

    fn check_sizes(&self, known: Option<&Known>, findings: &mut Findings) {
        let spec = self.object.node.get("spec");
        let (capacity, mode) = (spec.at(&["capacity", "storage"]), spec.get("volumeMode"));
        if capacity.is_absent() {
            let grows = known.filter(|known| known.installed.capabilities().requires_fs_resize);
            let grows = grows.map_or(String::new(), |known| {
                format!(", and {} would never learn that it has to grow", known.installed.driver.name())
            });
            let text = format!(
                "spec.capacity.storage is missing: the API server refuses the volume{grows}: add capacity: {{storage: 1Gi}}"
            );
            findings.add(self.object, spec, CAPACITY, text);
        }
        if mode.text() == Some("Block") {
            let text = "FlexVolume has no volumeMode: Block, and kubelet refuses the volume: remove it";
            findings.add(self.object, mode, VOLUME_MODE, text);
        }
        // A value that is not a list is reported as a wrong type.
        let modes = spec.get("accessModes");
        if modes.is_absent() || modes.value().as_array().is_some_and(Vec::is_empty) {
            let text = "spec.accessModes is missing: the API server refuses the volume: add one such as ReadWriteOnce";
            findings.add(self.object, spec, ACCESS_MODES, text);
        }
    }

    /// Warns of promises in its fields that neither Kubernetes nor the driver keeps.
    fn check_promises(&self, known: Option<&Known>, findings: &mut Findings) {
        let spec = self.object.node.get("spec");
        let (modes, policy) = (spec.get("accessModes"), spec.get("persistentVolumeReclaimPolicy"));
        if policy.text() == Some("Delete") {
            let text = "nothing deletes a FlexVolume, and the PersistentVolume ends as Failed: write Retain";
            findings.add(self.object, policy, RECLAIM, text);
        }
        let driver = known.map(|known| known.installed.driver.name()).unwrap_or_default();
        let Some((_, how)) = NOT_SHARED.iter().find(|(names, _)| names.contains(&driver)) else { return };
        if modes.entries().any(|mode| mode.text() == Some("ReadWriteMany")) {
            let text = format!("ReadWriteMany, but {how}: write ReadWriteOnce");
            findings.add(self.object, modes, SHARED, text);
        }
    }

    /// Warns of a PV that only looks read-only: kubelet reads `readOnly` of the pod alone.
    fn check_access(&self, used: &[&Used], findings: &mut Findings) {
        // Volumes that kubelet refuses do not count: once fixed, they are mounted read-write.
        let mut volumes = used.iter().filter_map(|used| used.volume.as_ref().ok()).peekable();
        let is_used = volumes.peek().is_some();
        if is_used && volumes.all(|volume| volume.options.access() == Access::ReadOnly) {
            return;
        }
        let fix = "say persistentVolumeClaim: {claimName: …, readOnly: true} in the pod";
        let (read_only, modes) = (self.node.get("readOnly"), self.object.node.at(&["spec", "accessModes"]));
        if read_only.value() == &Value::Bool(true) {
            let text = format!(
                "kubelet never reads readOnly of a PersistentVolume, it is mounted read-write: {fix}"
            );
            findings.add(self.object, read_only, READ_ONLY, text);
        } else if modes.value() == &serde_json::json!(["ReadOnlyMany"]) {
            let text = format!("ReadOnlyMany does not make it read-only, it is mounted read-write: {fix}");
            findings.add(self.object, modes, READ_ONLY, text);
        }
    }
}
