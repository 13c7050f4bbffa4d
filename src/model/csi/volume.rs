//! Volume of a CSI driver behind a FlexVolume driver, in the form of a request to the node's agent.

use crate::agent::HoldAccess;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Prefix of the CO's own attributes. A tenant's attribute with it would be taken for kubelet's.
pub const RESERVED: &str = "csi.storage.k8s.io/";

/// Volume, and the directory to publish it in. Its secrets are sent separately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CsiVolume {
    /// Name of the CSI driver.
    pub driver: String,
    /// Handle of the volume for the CSI driver.
    pub handle: String,
    /// Directory to publish the volume in.
    pub target: String,
    /// Access mode.
    pub access_mode: AccessMode,
    /// Access of this pod: read-only or read-write.
    pub access: HoldAccess,
    /// File system; empty leaves it to the CSI driver.
    pub fs_type: String,
    /// Options of its mounts.
    pub mount_flags: Vec<String>,
    /// `volume_context` of each call.
    pub attributes: BTreeMap<String, String>,
    /// Additional attributes for `NodePublishVolume`: data about the pod.
    pub pod_info: BTreeMap<String, String>,
    /// Topology in which the volume can be used; a node outside of it is refused.
    pub topology: BTreeMap<String, String>,
    /// The pod's fsGroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// FlexVolume driver whose options the attributes are, if they are not the CSI driver's. The
    /// agent then translates them and makes the handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Access mode of a volume, in Kubernetes' terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AccessMode {
    /// One node writes.
    ReadWriteOnce,
    /// Any node reads.
    ReadOnlyMany,
    /// Any node writes.
    ReadWriteMany,
    /// One pod writes.
    ReadWriteOncePod,
}

impl AccessMode {
    /// All access modes.
    pub const ALL: [Self; 4] =
        [Self::ReadWriteOnce, Self::ReadOnlyMany, Self::ReadWriteMany, Self::ReadWriteOncePod];

    /// Returns the name that Kubernetes uses.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadOnlyMany => "ReadOnlyMany",
            Self::ReadWriteMany => "ReadWriteMany",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
        }
    }
}
