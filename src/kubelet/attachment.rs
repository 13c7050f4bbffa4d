//! What is attached to the node, as the controller keeps it in the Node object's status.
//!
//! ```text
//! <kubelet root>/attached/<vendor>~<driver>/<volume>     {"node": …, "device": …}
//! ```
//!
//! Without a cluster it is a file below kubelet's directory, so that whoever tears down finds what
//! another process set up. Written before `attach` is called, without a device: after a failed
//! `attach` no one knows whether the volume is attached, and it is detached all the same.

use super::lifecycle::PodVolume;
use anyhow::{Context as _, Result};
use flexvol_linux::fs::files;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A device's path and a node's name are short.
const SIZE_LIMIT: usize = 16 << 10;

/// One volume that is attached, or may be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attachment {
    /// The Node object's name.
    pub(super) node: String,
    /// What `attach` answered; `None` if it has not.
    pub(super) device: Option<String>,
}

impl Attachment {
    fn path(volume: &PodVolume) -> PathBuf {
        volume.kubelet_root.join("attached").join(volume.driver.directory()).join(&volume.name)
    }

    /// What is known of a volume.
    pub(super) fn of(volume: &PodVolume) -> Result<Option<Self>> {
        let path = Self::path(volume);
        let Some(text) = files::read_small(&path, SIZE_LIMIT)? else { return Ok(None) };
        let what = || format!("read {}: remove it if nothing is attached", path.display());
        serde_json::from_str(&text).with_context(what).map(Some)
    }

    /// Keeps it, in one step.
    pub(super) fn keep(&self, volume: &PodVolume) -> Result<()> {
        let path = Self::path(volume);
        files::make_private(path.parent().unwrap_or(&path))?;
        files::replace(&path, &serde_json::to_vec(self)?)
    }

    /// Drops it.
    pub(super) fn forget(volume: &PodVolume) -> Result<()> {
        let path = Self::path(volume);
        files::forget(&path).with_context(|| format!("remove {}", path.display()))
    }
}
