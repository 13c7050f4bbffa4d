//! `--wait`: kubelet itself has called the driver, or it says why not. A stand-in plays kubelet.

use super::node::{Node, answer, command, script};
use super::support::eventually;
use crate::support::wording::wording;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Watches a plugin directory as kubelet does, under its name, until dropped.
struct Kubelet(Child);

impl Kubelet {
    fn start(plugins: &Path) -> Self {
        let mut watch = Command::new(command());
        watch
            .arg0("kubelet")
            .args(["watch", "--plugin-dir"])
            .arg(plugins)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let kubelet = Self(watch.spawn().unwrap());
        let watches = || {
            let files = fs::read_dir(format!("/proc/{}/fdinfo", kubelet.0.id())).unwrap().flatten();
            let mut texts = files.filter_map(|file| fs::read_to_string(file.path()).ok());
            texts.any(|text| text.contains("inotify wd:"))
        };
        eventually("kubelet watches", watches);
        kubelet
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_kubelet_that_calls_is_proof() {
    let Some(node) = Node::new("proof::a_kubelet_that_calls_is_proof") else { return };
    let kubelet = Kubelet::start(&node.plugins());
    let (old, new) = (node.file("old", &script("")), node.file("new", &script("\"attach\":false")));
    for (binary, action) in [(&old, "installed"), (&new, "upgraded"), (&new, "unchanged")] {
        let done = node.install(&["v/d", "--wait=30", "--binary", binary.to_str().unwrap()]);
        assert_eq!(done.action(), action);
        let proof = done.json["proof"].as_str().unwrap();
        let by_name = proof.contains(&format!("kubelet (pid {})", kubelet.0.id()));
        assert!(by_name || proof.contains(wording("kubelet-watches")), "{proof}");
    }
}

#[test]
fn a_kubelet_that_does_not_call_in_time_is_told() {
    let Some(node) = Node::new("proof::a_kubelet_that_does_not_call_in_time_is_told") else { return };
    let kubelet = Kubelet::start(&node.plugins());
    // It watches on, and calls nobody.
    kill(Pid::from_raw(kubelet.0.id().cast_signed()), Signal::SIGSTOP).unwrap();
    let refused = node.install(&["tmpfs", "--wait=1"]);
    let message = refused.error(9);
    assert!(message.contains(wording("not-called-in-time")) && message.contains("start one"), "{message}");
    node.init("flexvol/tmpfs");
}

#[test]
fn a_directory_that_no_kubelet_watches_is_told_at_once() {
    let Some(node) = Node::new("proof::a_directory_that_no_kubelet_watches_is_told_at_once") else { return };
    fs::create_dir(node.path("other")).unwrap();
    let _kubelet = Kubelet::start(&node.path("other"));
    let refused = answer(&mut node.flexvol("install", &["tmpfs", "--wait=600"]));
    assert!(refused.error(9).contains(wording("unwatched")), "{refused:?}");
}
