//! A volume of a CSI driver that a FlexVolume driver shows, as the node's agent is asked for it.

use crate::agent::HoldAccess;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the keys of the CO's own attributes begin with: a tenant's would be taken for kubelet's.
pub const RESERVED: &str = "csi.storage.k8s.io/";

/// A volume, and where it is to be shown. Its secrets go beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CsiVolume {
    /// The CSI driver's name.
    pub driver: String,
    /// What the CSI driver knows the volume by.
    pub handle: String,
    /// The directory it is to be shown at.
    pub target: String,
    /// Who may use it, and how.
    pub access_mode: AccessMode,
    /// Whether this pod only reads.
    pub access: HoldAccess,
    /// Empty leaves it to the CSI driver.
    pub fs_type: String,
    /// Options of its mounts.
    pub mount_flags: Vec<String>,
    /// `volume_context` of each call.
    pub attributes: BTreeMap<String, String>,
    /// What `NodePublishVolume` gets besides: about the pod.
    pub pod_info: BTreeMap<String, String>,
    /// Where the volume can be used; a node that is elsewhere is refused.
    pub topology: BTreeMap<String, String>,
    /// The pod's fsGroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<u32>,
    /// The FlexVolume driver whose options the attributes are, if they are not the CSI driver's:
    /// the agent translates them, and makes the handle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
}

/// Who may use a volume, in Kubernetes' words.
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
    /// Every one.
    pub const ALL: [Self; 4] =
        [Self::ReadWriteOnce, Self::ReadOnlyMany, Self::ReadWriteMany, Self::ReadWriteOncePod];

    /// As Kubernetes writes it.
    pub fn name(self) -> &'static str {
        match self {
            Self::ReadWriteOnce => "ReadWriteOnce",
            Self::ReadOnlyMany => "ReadOnlyMany",
            Self::ReadWriteMany => "ReadWriteMany",
            Self::ReadWriteOncePod => "ReadWriteOncePod",
        }
    }
}
