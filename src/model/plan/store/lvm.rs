//! Logical volumes of LVM.

use serde::{Deserialize, Serialize};

/// A logical volume in a volume group that the node sees. Both have names that LVM takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LogicalVolume {
    /// The volume group.
    pub group: String,
    /// The logical volume.
    pub volume: String,
    /// Make it with so many bytes if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The thin pool of the group that a new one is made in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thin_pool: Option<String>,
}

impl LogicalVolume {
    /// As LVM's programs take it.
    pub fn name(&self) -> String {
        format!("{}/{}", self.group, self.volume)
    }
}
