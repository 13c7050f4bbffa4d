//! Fields of `PersistentVolume` and `VolumeAttachment` that CSI reads and writes.
//!
//! Kubernetes' own types have the sources of two dozen volume plugins. Each cached object would
//! contain them, and their code would be a fortieth of the program.

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

/// Volume of the cluster.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PersistentVolume {
    /// Name and other metadata.
    pub metadata: ObjectMeta,
    /// Specification.
    pub spec: Option<PersistentVolumeSpec>,
    /// State that Kubernetes reports.
    pub status: Option<PersistentVolumeStatus>,
}

/// Omits the status, which only the API server writes.
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

/// Specification of a volume.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PersistentVolumeSpec {
    /// Access modes that it supports; a claim takes some of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_modes: Option<Vec<String>>,
    /// Its size.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacity: Option<BTreeMap<String, Quantity>>,
    /// Claim that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim_ref: Option<ObjectReference>,
    /// Parameters for its CSI driver; a volume without them is not a CSI volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub csi: Option<CSIPersistentVolumeSource>,
    /// Mount options.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mount_options: Option<Vec<String>>,
    /// Nodes from which it can be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_affinity: Option<VolumeNodeAffinity>,
    /// Action when its claim is deleted: `Delete` or `Retain`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persistent_volume_reclaim_policy: Option<String>,
    /// Name of its StorageClass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_class_name: Option<String>,
    /// `Block` or `Filesystem`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mode: Option<String>,
}

/// State of a volume, as Kubernetes reports it.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct PersistentVolumeStatus {
    /// `Available`, `Bound`, `Released`, `Failed` or `Pending`.
    pub phase: Option<String>,
}

/// Request to attach a volume to a node.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct VolumeAttachment {
    /// Name and other metadata.
    pub metadata: ObjectMeta,
    /// Desired state.
    pub spec: VolumeAttachmentSpec,
    /// Actual state.
    pub status: Option<VolumeAttachmentStatus>,
}

impl VolumeAttachment {
    /// Returns the names of the volume and of the node.
    pub fn names(&self) -> [Option<&str>; 2] {
        [self.spec.source.persistent_volume_name.as_deref(), Some(&self.spec.node_name)]
    }
}

/// Desired state of an attachment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachmentSpec {
    /// Name of the driver.
    pub attacher: String,
    /// Name of the node.
    pub node_name: String,
    /// Volume to attach.
    pub source: VolumeAttachmentSource,
}

/// Volume to attach, given by one of the two fields.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachmentSource {
    /// Name of a volume of the cluster.
    pub persistent_volume_name: Option<String>,
    /// Specification of a volume that only the pod has.
    pub inline_volume_spec: Option<PersistentVolumeSpec>,
}

/// Actual state of an attachment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VolumeAttachmentStatus {
    /// True if it is attached.
    pub attached: bool,
    /// Metadata that the driver has returned for it.
    pub attachment_metadata: Option<BTreeMap<String, String>>,
}
