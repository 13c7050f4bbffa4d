//! Journal entry of a CSI driver's volume. It contains no secret, and only a digest of attributes
//! and mount flags: the author of an old volume may have put a password there.

use crate::agent::journal::{Noted, VERSION};
use crate::csi::name::hash;
use crate::wire::csi::volume_capability::access_mode::Mode;
use flexvol_linux::proc::clock;
use flexvol_model::csi::volume::{AccessMode, CsiVolume};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Staging state of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Staged {
    /// Not staged, or the CSI driver has no such step.
    No,
    /// The CSI driver was asked; its answer is unknown.
    Asked,
    /// Staged.
    Yes,
}

/// Lifecycle phase of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Phase {
    /// The CSI driver was asked to publish, or will be; its answer is unknown.
    Publishing,
    /// Published.
    Published,
    /// No longer wanted.
    Unpublishing,
}

impl Phase {
    /// Returns the name for people.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Publishing => "publishing",
            Self::Published => "published",
            Self::Unpublishing => "unpublishing",
        }
    }
}

/// Directory where the volume is published, or will be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Target {
    pub(super) phase: Phase,
    pub(super) read_only: bool,
    /// Boot in which the target was last requested.
    pub(super) boot: String,
    /// Time of that request, in nanoseconds of that boot.
    pub(super) asked: u64,
}

impl Target {
    /// Returns the time since the request; the maximum if it was in another boot.
    pub(super) fn age(&self, boot: &str) -> Duration {
        let age = Duration::from_nanos(clock::since_boot().saturating_sub(self.asked));
        if self.boot == boot { age } else { Duration::MAX }
    }
}

/// Journal entry of one volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    version: u32,
    id: String,
    pub(super) driver: String,
    pub(super) handle: String,
    /// Access mode that the CSI driver was given, by its name in CSI.
    pub(super) mode: String,
    /// True if a single pod has exclusive access. Some CSI drivers have no mode for that.
    pub(super) one_pod: bool,
    /// Digest of attributes, mount flags and file system: equal for all volumes of one handle.
    pub(super) digest: String,
    /// Staging path; empty if not staged.
    pub(super) staging: String,
    pub(super) staged: Staged,
    /// Boot in which the volume was staged.
    pub(super) boot: String,
    /// Targets, by path.
    pub(super) targets: BTreeMap<String, Target>,
}

impl Entry {
    /// Creates the entry of a volume that this node has not seen.
    pub(super) fn new(volume: &CsiVolume, mode: Mode) -> Self {
        Self {
            version: VERSION,
            id: id_of(&volume.driver, &volume.handle),
            driver: volume.driver.clone(),
            handle: volume.handle.clone(),
            mode: mode.as_str_name().to_owned(),
            one_pod: volume.access_mode == AccessMode::ReadWriteOncePod,
            digest: digest(volume),
            staging: String::new(),
            staged: Staged::No,
            boot: String::new(),
            targets: BTreeMap::new(),
        }
    }

    /// Returns the id in the journal.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn mode(&self) -> Mode {
        Mode::from_str_name(&self.mode).unwrap_or(Mode::Unknown)
    }

    /// Reports whether a further pod can use the volume as it is published. The access mode of the
    /// others does not matter for a pod that only reads.
    pub(super) fn suits(&self, volume: &CsiVolume, mode: Mode, read_only: bool) -> bool {
        self.digest == digest(volume) && (self.mode() == mode || read_only)
    }

    /// Reports whether the CSI driver may have something staged on this node.
    pub(super) fn is_staged(&self) -> bool {
        self.staged != Staged::No
    }

    /// Reports whether the volume was staged in this boot.
    pub(super) fn is_staged_in(&self, boot: &str) -> bool {
        self.staged == Staged::Yes && self.boot == boot
    }

    /// Reports whether the volume has a target other than this one.
    pub(super) fn has_others(&self, target: &str) -> bool {
        self.targets.keys().any(|other| other != target)
    }
}

impl Noted for Entry {
    fn id(&self) -> &str {
        &self.id
    }

    fn version(&self) -> u32 {
        self.version
    }
}

/// Returns the id of a volume in the journal.
pub(super) fn id_of(driver: &str, handle: &str) -> String {
    hash(format!("{driver}\0{handle}").as_bytes())
}

fn digest(volume: &CsiVolume) -> String {
    let told = (&volume.attributes, &volume.mount_flags, &volume.fs_type);
    hash(&serde_json::to_vec(&told).unwrap_or_default())
}
