//! Where flexvol keeps what it keeps on a node: no other file spells these paths.
//!
//! What kubelet and other programs have where is known by those who look for it.

use std::path::{Path, PathBuf};

/// What is known of volumes that are mounted now: root's alone, and gone with the next boot.
pub const RUN: &str = "/run/flexvol";

/// What outlives a boot: what was installed and replaced; `--state-dir` names another.
pub const STATE: &str = "/var/lib/flexvol";

/// Where images lie when the admin says nothing (`policy.imageRoots`).
pub const IMAGES: &str = "/var/lib/flexvol/images";

/// What volumes have on disk while they are mounted: caches and clones.
pub const SCRATCH: &str = "/var/lib/flexvol/scratch";

/// What `flexvold csi` notes: a directory for each driver it serves; `--state` names another.
pub const CSI: &str = "/var/lib/flexvol/csi";

/// The same, in [`STATE`].
pub const CSI_PART: &str = "csi";

/// In a driver's directory in [`CSI`]: a file for each volume
/// ([`csi_journal`](crate::csi_journal)).
pub const CSI_VOLUMES: &str = "volumes";

/// Where the node's agent listens, and drivers look for it, when nobody says otherwise.
pub const AGENT_SOCKET: &str = "/run/flexvol/agent.sock";

/// What `flexvold agent` notes of the storage that this node holds; `--state` names another.
pub const AGENT: &str = "/var/lib/flexvol/agent";

/// Where `flexvold agent` keeps the locks of storage that no other node reaches.
pub const STORAGE_LOCKS: &str = "/var/lib/flexvol/storage-locks";

/// In [`RUN`]: what the node's agent was asked to hold, and was not told yet that it is released.
pub const HOLDS: &str = "holds";

/// In [`RUN`]: the targets for which the node's agent was asked to publish a CSI driver's volume.
pub const PUBLISHED: &str = "published";

/// What `pod` takes for kubelet's directory when nobody names one.
pub const POD_ROOT: &str = "/var/lib/flexvol/kubelet";

/// The file of `deploy` that says that every driver is in place, when no one names one. Two
/// deployments on one node need two.
pub const READY: &str = "/run/flexvol/deploy/ready";

/// In [`RUN`]: a record of each mounted volume.
pub const VOLUMES: &str = "volumes";

/// In [`RUN`]: the locks of targets, attached volumes and devices.
pub const LOCKS: &str = "locks";

/// In [`RUN`]: the private files of the programs that serve volumes.
pub const DAEMONS: &str = "daemons";

/// In [`RUN`]: a record of each attached device.
pub const ATTACHMENTS: &str = "stores";

/// In [`RUN`]: the private files of the daemons that show disk images.
pub const IMAGE_DAEMONS: &str = "images";

/// In [`RUN`]: the private files of clients of a Ceph cluster.
pub const CLUSTERS: &str = "clusters";

/// In [`RUN`]: how far a device was found blank.
pub const BLANK: &str = "blank";

/// In [`RUN`]: what an mkfs that did not finish has left.
pub const UNFINISHED: &str = "unfinished";

/// In [`RUN`]: what drivers were asked for.
pub const LOG: &str = "log";

/// In [`RUN`]: the directories in which installers try a driver.
pub const CHECK: &str = "check";

/// In [`STATE`]: the receipts of what was installed.
pub const RECEIPTS: &str = "installed";

/// In [`STATE`]: drivers of others that were replaced.
pub const REPLACED: &str = "replaced";

/// A directory in [`RUN`].
pub fn run(part: &str) -> PathBuf {
    Path::new(RUN).join(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_in_two_directories() {
        for path in [IMAGES, SCRATCH, CSI, POD_ROOT, AGENT, STORAGE_LOCKS] {
            assert!(Path::new(path).starts_with(STATE), "{path}");
        }
        assert_eq!(Path::new(STATE).join(CSI_PART), Path::new(CSI));
        assert!(Path::new(READY).starts_with(RUN) && Path::new(AGENT_SOCKET).starts_with(RUN));
        assert_eq!(run(LOCKS), Path::new("/run/flexvol/locks"));
    }
}
