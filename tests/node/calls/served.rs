//! Volumes that a program serves by FUSE. Of their root the kernel answers from memory, also when
//! the program has ended.

use crate::support::scripts::Node;
use crate::support::{eventually, processes_with, skip};
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;

/// A directory, whose inode has another number than what FUSE calls a root at first.
const SERVE: &str = "mkdir -p \"$2/served\"; bindfs -o attr_timeout=600 \"$2/served\" \"$1\"";

/// A volume at `target` that was looked at, whose program is killed then.
fn dead(name: &str, target: &str) -> Option<Node> {
    if !Path::new("/usr/bin/bindfs").exists() || !Path::new("/dev/fuse").exists() {
        skip(name, "needs bindfs and /dev/fuse");
        return None;
    }
    let mut node = Node::new(name, SERVE, None)?;
    node.target = node.file(target);
    fs::create_dir_all(&node.target).unwrap();
    node.start("{}").finish().success();
    fs::metadata(&node.target).unwrap();
    let served = node.file("served");
    let daemons = || processes_with(served.to_str().unwrap());
    for daemon in daemons() {
        kill(Pid::from_raw(daemon), Signal::SIGKILL).unwrap();
    }
    eventually("the daemon ends", || daemons().is_empty());
    Some(node)
}

/// The container of a CSI driver is started again, with the mounts of the one before. CSI's path
/// does not name the driver.
#[test]
fn a_dead_one_is_known_in_another_mount_namespace() {
    let name = "served::a_dead_one_is_known_in_another_mount_namespace";
    let Some(node) = dead(name, "pods/1/volumes/kubernetes.io~csi/v/mount") else { return };
    let is_unmounted = "\"$@\"; ! grep -qF \" $3 \" /proc/self/mountinfo";
    let elsewhere = ["unshare", "--mount", "--propagation", "unchanged", "sh", "-ec", is_unmounted, "sh"];
    node.plugin.through(&elsewhere, &["unmount", node.target.to_str().unwrap()]).run().success();
    // The mount of the earlier container.
    umount2(&node.target, MntFlags::MNT_DETACH).unwrap();
    node.is_clean();
}

#[test]
fn a_dead_one_is_no_success() {
    let name = "served::a_dead_one_is_no_success";
    let Some(node) = dead(name, "pods/1/volumes/example~share/v") else { return };
    let failure = node.start("{}").finish().failure();
    assert!(failure.contains("unmount it first"), "{failure}");
    node.unmount().finish().success();
    node.start("{}").finish().success();
    node.unmount().finish().success();
    node.is_clean();
}
