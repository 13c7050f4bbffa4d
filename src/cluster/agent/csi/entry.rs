//! What the journal has of a CSI driver's volume. No secret is in it, and of its attributes and
//! mount flags no more than a digest: the author of an old volume may have put a password there.

use crate::agent::journal::{Noted, VERSION};
use crate::csi::name::hash;
use crate::wire::csi::volume_capability::access_mode::Mode;
use flexvol_linux::proc::clock;
use flexvol_model::csi::volume::{AccessMode, CsiVolume};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// How far it has come with staging.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Staged {
    /// It is not, or the CSI driver has no such step.
    No,
    /// The CSI driver was asked, and no one knows the answer.
    Asked,
    /// It is.
    Yes,
}

/// How far it has come with a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Phase {
    /// The CSI driver was asked to publish, or will be: no one knows the answer.
    Publishing,
    /// It is published.
    Published,
    /// It is not wanted any more.
    Unpublishing,
}

impl Phase {
    /// As people read it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Publishing => "publishing",
            Self::Published => "published",
            Self::Unpublishing => "unpublishing",
        }
    }
}

/// A directory that shows it, or shall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Target {
    pub(super) phase: Phase,
    pub(super) read_only: bool,
    /// In which boot it was last asked for.
    pub(super) boot: String,
    /// When, in nanoseconds of that boot.
    pub(super) asked: u64,
}

impl Target {
    /// How long ago it was asked for; forever if that was in another boot.
    pub(super) fn age(&self, boot: &str) -> Duration {
        let age = Duration::from_nanos(clock::since_boot().saturating_sub(self.asked));
        if self.boot == boot { age } else { Duration::MAX }
    }
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Entry {
    version: u32,
    id: String,
    pub(super) driver: String,
    pub(super) handle: String,
    /// The access mode that the CSI driver was told, by its name in CSI.
    pub(super) mode: String,
    /// Whether it is one pod's alone: not every CSI driver has a mode of that meaning.
    pub(super) one_pod: bool,
    /// Of its attributes, mount flags and file system: two volumes of one handle have the same.
    pub(super) digest: String,
    /// Where it is staged; empty where it is not.
    pub(super) staging: String,
    pub(super) staged: Staged,
    /// In which boot it was staged.
    pub(super) boot: String,
    /// By path.
    pub(super) targets: BTreeMap<String, Target>,
}

impl Entry {
    /// Of one that this node has not seen.
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

    /// What it is called in the journal.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    pub(super) fn mode(&self) -> Mode {
        Mode::from_str_name(&self.mode).unwrap_or(Mode::Unknown)
    }

    /// Whether a further pod can have it as it is. One that only reads can, whatever the others may
    /// do.
    pub(super) fn suits(&self, volume: &CsiVolume, mode: Mode, read_only: bool) -> bool {
        self.digest == digest(volume) && (self.mode() == mode || read_only)
    }

    /// Whether the CSI driver may have something of it on this node.
    pub(super) fn is_staged(&self) -> bool {
        self.staged != Staged::No
    }

    /// Whether it was staged since the node has started.
    pub(super) fn is_staged_in(&self, boot: &str) -> bool {
        self.staged == Staged::Yes && self.boot == boot
    }

    /// Whether another directory than this shows it.
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

/// What a volume is called in the journal.
pub(super) fn id_of(driver: &str, handle: &str) -> String {
    hash(format!("{driver}\0{handle}").as_bytes())
}

fn digest(volume: &CsiVolume) -> String {
    let told = (&volume.attributes, &volume.mount_flags, &volume.fs_type);
    hash(&serde_json::to_vec(&told).unwrap_or_default())
}
