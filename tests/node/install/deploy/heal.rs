//! What a deployment puts back by what was noted of it, and what it leaves alone.

use super::node::{Node, eventually};
use crate::support::wording::wording;
use std::fs::{self, File};

/// Who damaged it while nobody looked finds it as it was, policy and all.
#[test]
fn what_was_damaged_before_the_start_comes_back_with_its_policy() {
    let Some(node) = Node::new("deploy::heal::what_was_damaged_before_the_start_comes_back_with_its_policy")
    else {
        return;
    };
    let policy = node.root.path().join("policy");
    fs::write(&policy, r#"{"maxSize":"7Mi"}"#).unwrap();
    node.deploy(&["example/tmpfs", "--policy", policy.to_str().unwrap()]).says("ready");
    let side_file = node.plugins.join("example~tmpfs/.flexvol.json");
    fs::remove_file(&side_file).unwrap();
    File::options().write(true).open(node.driver()).unwrap().set_len(4096).unwrap();
    // Two at once, which do not disturb each other.
    let ready = node.root.path().join("ready");
    let both = [
        node.deploy(&["example/tmpfs"]),
        node.deploy(&["example/tmpfs", "--ready-file", ready.to_str().unwrap()]),
    ];
    for deployment in &both {
        deployment.says("ready");
    }
    assert!(node.answers() && fs::read_to_string(&side_file).unwrap().contains("7Mi"));
    assert!(!both.iter().any(|deployment| deployment.events().contains(&"failed".to_owned())));
}

/// Where nothing can be noted on disk, the deployment itself knows.
#[test]
fn what_was_installed_is_known_without_a_disk_for_it() {
    let Some(node) = Node::new("deploy::heal::what_was_installed_is_known_without_a_disk_for_it") else {
        return;
    };
    fs::write(node.root.path().join("state"), "a file").unwrap();
    let deployment = node.deploy(&["example/tmpfs", "--set", "size=7Mi"]);
    deployment.says("ready");
    let told = deployment.lines().iter().any(|line| line.to_string().contains(wording("not-noted")));
    assert!(told, "{:?}", deployment.lines());
    let side_file = node.plugins.join("example~tmpfs/.flexvol.json");
    fs::remove_file(&side_file).unwrap();
    File::options().write(true).open(node.driver()).unwrap().set_len(4096).unwrap();
    eventually("its return", || node.answers() && side_file.exists());
    assert!(fs::read_to_string(&side_file).unwrap().contains("7Mi"));
}

/// What somebody else put there in the meantime is theirs.
#[test]
fn what_is_foreign_stays_foreign() {
    let Some(node) = Node::new("deploy::heal::what_is_foreign_stays_foreign") else { return };
    node.deploy(&["example/tmpfs"]).says("ready");
    let side_file = node.plugins.join("example~tmpfs/.flexvol.json");
    fs::remove_file(&side_file).unwrap();
    let foreign = node.root.path().join("foreign");
    fs::write(&foreign, "#!/bin/sh\necho mine\n").unwrap();
    fs::rename(&foreign, node.driver()).unwrap();
    let deployment = node.deploy(&["example/tmpfs"]);
    deployment.says("failed");
    assert!(deployment.lines().iter().any(|line| line.to_string().contains("--take-over")));
    assert_eq!(fs::read_to_string(node.driver()).unwrap(), "#!/bin/sh\necho mine\n");
    assert!(!side_file.exists());
}
