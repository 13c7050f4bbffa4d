//! Volumes that a program serves by FUSE. Of their root the kernel answers from memory, also when
//! the program has ended.

use crate::support::scripts::Node;
use crate::support::{eventually, processes_with, skip};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;

/// A directory, whose inode has another number than what FUSE calls a root at first.
const SERVE: &str = "mkdir -p \"$2/served\"; bindfs -o attr_timeout=600 \"$2/served\" \"$1\"";

/// A volume that was looked at, whose program is killed then.
fn dead(name: &str) -> Option<Node> {
    if !Path::new("/usr/bin/bindfs").exists() || !Path::new("/dev/fuse").exists() {
        skip(name, "needs bindfs and /dev/fuse");
        return None;
    }
    let node = Node::new(name, SERVE, None)?;
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

/// As in the container of a CSI driver that was started again, with the mounts of the one before.
#[test]
fn a_dead_one_is_known_in_another_mount_namespace() {
    let Some(node) = dead("served::a_dead_one_is_known_in_another_mount_namespace") else { return };
    let elsewhere = ["unshare", "--mount", "--propagation", "unchanged"];
    node.plugin.through(&elsewhere, &["unmount", node.target.to_str().unwrap()]).run().success();
    node.unmount().finish().success();
    node.is_clean();
}

#[test]
fn a_dead_one_is_no_success() {
    let Some(node) = dead("served::a_dead_one_is_no_success") else { return };
    let failure = node.start("{}").finish().failure();
    assert!(failure.contains("unmount it first"), "{failure}");
    node.unmount().finish().success();
    node.start("{}").finish().success();
    node.unmount().finish().success();
    node.is_clean();
}
