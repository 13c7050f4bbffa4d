//! Record of the volumes attached to the node; a controller keeps it in the Node object's status.
//!
//! ```text
//! <kubelet root>/attached/<vendor>~<driver>/<volume>     {"node": …, "device": …}
//! ```
//!
//! Without a cluster the record is a file below kubelet's directory, so that one process can tear
//! down what another one set up. It is written before the call of `attach`, without a device: after
//! a failed `attach` the volume may or may not be attached, so it is detached in both cases.

use super::lifecycle::PodVolume;
use anyhow::{Context as _, Result};
use flexvol_linux::fs::files;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Limit for a record, in bytes: the path of a device and the name of a node are short.
const SIZE_LIMIT: usize = 16 << 10;

/// One volume that is attached, or may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attachment {
    /// Name of the Node object.
    pub(super) node: String,
    /// Device from the answer to `attach`; `None` before that answer.
    pub(super) device: Option<String>,
}

impl Attachment {
    fn path(volume: &PodVolume) -> PathBuf {
        volume.kubelet_root.join("attached").join(volume.driver.directory()).join(&volume.name)
    }

    /// Reads the record of a volume; `None` if it is missing.
    pub(super) fn of(volume: &PodVolume) -> Result<Option<Self>> {
        let path = Self::path(volume);
        let Some(text) = files::read_small(&path, SIZE_LIMIT)? else { return Ok(None) };
        let what = || format!("read {}: remove it if nothing is attached", path.display());
        serde_json::from_str(&text).with_context(what).map(Some)
    }

    /// Writes the record atomically.
    pub(super) fn keep(&self, volume: &PodVolume) -> Result<()> {
        let path = Self::path(volume);
        files::make_private(path.parent().unwrap_or(&path))?;
        files::replace(&path, &serde_json::to_vec(self)?)
    }

    /// Removes the record.
    pub(super) fn forget(volume: &PodVolume) -> Result<()> {
        let path = Self::path(volume);
        files::forget(&path).with_context(|| format!("remove {}", path.display()))
    }
}
