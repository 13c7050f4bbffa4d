//! What the author of a driver tells about it.

use crate::sandbox::Network;
use flexvol_kubelet::PodVolume;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// A driver, a volume of it, and how thoroughly to look.
#[derive(Clone, Debug)]
pub struct Given {
    /// Absolute.
    pub driver: PathBuf,
    /// The volume to mount; without one only what needs none is checked. Its kubelet root and pod
    /// are replaced.
    pub volume: Option<PodVolume>,
    /// What lies in the driver's nature.
    pub natures: BTreeSet<Nature>,
    /// Options whose value is a list of mount options, separated by commas.
    pub lists: BTreeSet<String>,
    /// What the driver reaches of the network. `init` never reaches any.
    pub network: Network,
    /// Directories and files of the machine, below /run for example, that the driver shall see.
    pub exposed: Vec<PathBuf>,
    /// Whether its programs make nodes and links in /dev, as LVM's do where udev does not run.
    pub makes_nodes: bool,
    /// How often what is worth repeating is repeated; also scales kill points, storms and cycles.
    pub repeat: usize,
    /// How long one call may take before it counts as hanging.
    pub patience: Duration,
    /// Decides whatever is decided by chance: the same seed does the same.
    pub seed: u64,
    /// How many cases are played at the same time.
    pub jobs: usize,
}

/// What would be a fault in most drivers, and is the point of some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Nature {
    /// Nothing can be written to the volume (an image that is only read, a config).
    ReadOnly,
    /// What is written is gone after the unmount (tmpfs).
    Ephemeral,
    /// One pod at a time has the volume (a block device).
    Exclusive,
    /// All mounts of a volume on a node share one mode, read-only or not (one superblock).
    Shared,
}

impl Given {
    /// With the usual thoroughness, without a volume.
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

    /// Whether it lies in the driver's nature.
    pub fn is(&self, nature: Nature) -> bool {
        self.natures.contains(&nature)
    }
}
