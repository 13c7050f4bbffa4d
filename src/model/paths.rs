//! Paths of flexvol's own files on a node. No other file spells them out.
//!
//! Paths of kubelet and of other programs are in the code that looks for them.

use std::path::{Path, PathBuf};

/// State of the volumes that are mounted now. Only root has access, and the next boot removes it.
pub const RUN: &str = "/run/flexvol";

/// State that survives a boot: what was installed and replaced. `--state-dir` names another.
pub const STATE: &str = "/var/lib/flexvol";

/// Default directory of images, if the admin does not set `policy.imageRoots`.
pub const IMAGES: &str = "/var/lib/flexvol/images";

/// Disk space of volumes while they are mounted: caches and clones.
pub const SCRATCH: &str = "/var/lib/flexvol/scratch";

/// State of `flexvold csi`: a directory for each driver it serves. `--state` names another.
pub const CSI: &str = "/var/lib/flexvol/csi";

/// Name of [`CSI`] in [`STATE`].
pub const CSI_PART: &str = "csi";

/// In a driver's directory in [`CSI`]: one file per volume ([`csi_journal`](crate::csi_journal)).
pub const CSI_VOLUMES: &str = "volumes";

/// Default socket of the node's agent, on which it listens and to which drivers connect.
pub const AGENT_SOCKET: &str = "/run/flexvol/agent.sock";

/// State of `flexvold agent`: the storage that this node holds. `--state` names another.
pub const AGENT: &str = "/var/lib/flexvol/agent";

/// Locks of `flexvold agent` on storage that no other node reaches.
pub const STORAGE_LOCKS: &str = "/var/lib/flexvol/storage-locks";

/// In [`RUN`]: holds requested from the node's agent whose release it has not confirmed yet.
pub const HOLDS: &str = "holds";

/// In [`RUN`]: the targets for which the node's agent was asked to publish a CSI driver's volume.
pub const PUBLISHED: &str = "published";

/// Default for kubelet's directory in `pod`.
pub const POD_ROOT: &str = "/var/lib/flexvol/kubelet";

/// Default for the ready file of `deploy`, which reports that every driver is in place. Two
/// deployments on one node need two files.
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

/// In [`RUN`]: progress of the check that a device is blank.
pub const BLANK: &str = "blank";

/// In [`RUN`]: notes on what an unfinished mkfs has left on a device.
pub const UNFINISHED: &str = "unfinished";

/// In [`RUN`]: log of the calls of drivers.
pub const LOG: &str = "log";

/// In [`RUN`]: directories in which installers test a driver.
pub const CHECK: &str = "check";

/// In [`STATE`]: receipts of installed drivers.
pub const RECEIPTS: &str = "installed";

/// In [`STATE`]: other vendors' drivers that were replaced.
pub const REPLACED: &str = "replaced";

/// Returns the path of a directory in [`RUN`].
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
