//! Logical volumes of LVM.

use serde::{Deserialize, Serialize};

/// Logical volume in a volume group that the node sees. LVM accepts both names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogicalVolume {
    /// Name of the volume group.
    pub group: String,
    /// Name of the logical volume.
    pub volume: String,
    /// Size in bytes of the volume to make if it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Thin pool of the group for a new volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thin_pool: Option<String>,
}

impl LogicalVolume {
    /// Returns the name in the notation of LVM's programs.
    pub fn name(&self) -> String {
        format!("{}/{}", self.group, self.volume)
    }
}
