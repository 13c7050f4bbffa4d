//! `PersistentVolume` and `VolumeAttachment`, as far as CSI reads and writes them.
//!
//! Kubernetes' own types have the sources of two dozen volume plugins, which would be in each
//! object that is kept, and be a fortieth of the program.

use super::kinds::kind;
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, ObjectReference, VolumeNodeAffinity};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{ClusterResourceScope, Resource};
use serde::ser::SerializeStruct as _;
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;

kind!(PersistentVolume, "PersistentVolume", "persistentvolumes", "", "v1", "v1", ClusterResourceScope);
kind!(
    VolumeAttachment,
    "VolumeAttachment",
    "volumeattachments",
    "storage.k8s.io",
    "storage.k8s.io/v1",
    "v1",
    ClusterResourceScope
);

/// A volume of the cluster.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PersistentVolume {
    /// Who it is.
    pub metadata: ObjectMeta,
    /// What it is.
    pub spec: Option<PersistentVolumeSpec>,
    /// What Kubernetes says of it.
    pub status: Option<PersistentVolumeStatus>,
}

/// Without what only the API server reads: what it says of itself.
impl Serialize for PersistentVolume {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_struct(Self::KIND, 4)?;
        object.serialize_field("apiVersion", Self::API_VERSION)?;
        object.serialize_field("kind", Self::KIND)?;
        object.serialize_field("metadata", &self.metadata)?;
        object.serialize_field("spec", &self.spec)?;
        object.end()
    }
}

/// What a volume is.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PersistentVolumeSpec {
    /// What may be done with it, of which a claim takes some.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_modes: Option<Vec<String>>,
    /// Its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<BTreeMap<String, Quantity>>,
    /// Whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_ref: Option<ObjectReference>,
    /// What its driver is told; a volume without it is none of CSI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csi: Option<CSIPersistentVolumeSource>,
    /// Options of the mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount_options: Option<Vec<String>>,
    /// From where it is reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<VolumeNodeAffinity>,
    /// What becomes of it when its claim goes: `Delete` or `Retain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_reclaim_policy: Option<String>,
    /// Its StorageClass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// `Block` or `Filesystem`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
}

/// What Kubernetes says of a volume.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PersistentVolumeStatus {
    /// `Available`, `Bound`, `Released`, `Failed` or `Pending`.
    pub phase: Option<String>,
}

/// That a volume is wanted on a node.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct VolumeAttachment {
    /// Who it is.
    pub metadata: ObjectMeta,
    /// What is wanted.
    pub spec: VolumeAttachmentSpec,
    /// What there is.
    pub status: Option<VolumeAttachmentStatus>,
}

impl VolumeAttachment {
    /// The names of the volume and of the node.
    pub fn names(&self) -> [Option<&str>; 2] {
        [self.spec.source.persistent_volume_name.as_deref(), Some(&self.spec.node_name)]
    }
}

/// What is wanted.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachmentSpec {
    /// The driver.
    pub attacher: String,
    /// The node.
    pub node_name: String,
    /// The volume.
    pub source: VolumeAttachmentSource,
}

/// A volume that is wanted, by one of both.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachmentSource {
    /// That of the cluster.
    pub persistent_volume_name: Option<String>,
    /// One that only the pod has.
    pub inline_volume_spec: Option<PersistentVolumeSpec>,
}

/// What there is of an attachment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachmentStatus {
    /// Whether it is attached.
    pub attached: bool,
    /// What the driver has said of it.
    pub attachment_metadata: Option<BTreeMap<String, String>>,
}
