//! Input from the author of a driver.

use crate::sandbox::Network;
use flexvol_kubelet::PodVolume;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// A driver, one of its volumes, and the thoroughness of the check.
#[derive(Clone, Debug)]
pub struct Given {
    /// Absolute path of the driver.
    pub driver: PathBuf,
    /// Volume to mount. Without one, only cases that need no volume are checked. Its kubelet root
    /// and pod are replaced.
    pub volume: Option<PodVolume>,
    /// Traits of the driver.
    pub natures: BTreeSet<Nature>,
    /// Options whose value is a list of mount options, separated by commas.
    pub lists: BTreeSet<String>,
    /// Network that the driver can reach. `init` never reaches any.
    pub network: Network,
    /// Directories and files of the machine that the driver can see, for example below /run.
    pub exposed: Vec<PathBuf>,
    /// True if its programs make nodes and links in /dev, as LVM's do if udev does not run.
    pub makes_nodes: bool,
    /// Number of repetitions, where useful; also scales kill points, storms and cycles.
    pub repeat: usize,
    /// Deadline for one call, after which it counts as hanging.
    pub patience: Duration,
    /// Seed of all random decisions: the same seed leads to the same decisions.
    pub seed: u64,
    /// Number of cases that are played at the same time.
    pub jobs: usize,
}

/// Trait that is a fault in most drivers, but the purpose of some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nature {
    /// Nothing can be written to the volume (a read-only image, a config).
    ReadOnly,
    /// Written data is gone after the unmount (tmpfs).
    Ephemeral,
    /// A single pod at a time has the volume (a block device).
    Exclusive,
    /// All mounts of a volume on a node share one mode, read-only or not (one superblock).
    Shared,
}

impl Given {
    /// Returns an input with the usual thoroughness and without a volume.
    pub fn new(driver: impl Into<PathBuf>) -> Self {
        Self {
            driver: driver.into(),
            volume: None,
            natures: BTreeSet::new(),
            lists: BTreeSet::new(),
            network: Network::Loopback,
            exposed: Vec::new(),
            makes_nodes: false,
            repeat: 10,
            patience: Duration::from_secs(30),
            seed: 0,
            jobs: 1,
        }
    }

    /// Reports whether the driver has a trait.
    pub fn is(&self, nature: Nature) -> bool {
        self.natures.contains(&nature)
    }
}
