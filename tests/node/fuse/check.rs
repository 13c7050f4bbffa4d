//! The conformance kit on every driver that has a live server here: whatever is played must hold.
//!
//! A few cases about mounts, daemons, crashes and secrets; `FULL=1` plays all of them, must and
//! should, which takes minutes for each driver: every mount logs in to a server.

use crate::cephfs::Cluster;
use crate::git::Repository;
use crate::glusterfs::Gluster;
use crate::node::{Node, alone_for};
use crate::sshd::Sshd;
use crate::stores::{of_rclone, of_store, of_webdav, serve, store, with};
use crate::support::{BINARY, release};
use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// Some of those that are about what a server and a program can do to a volume.
const CASES: [&str; 10] = [
    "mount::works",
    "mount::usable_at_once",
    "mount::two_pods",
    "mount::nosuid_nodev",
    "unmount::works",
    "unmount::dead",
    "daemon::descriptors",
    "daemon::survives_kill",
    "secrets::mount_table",
    "crash::killed_mount_then_mount",
];

/// What davfs2 does itself: it names a directory after the whole path of the mount, which may be
/// too long for one, and leaves that and a line of /run/mount/utab behind.
const OF_DAVFS: [&str; 3] = ["mount::awkward_root", "log::bounded", "storm::cycles"];

fn full() -> bool {
    std::env::var_os("FULL").is_some()
}

/// The release binary if there is one: what people run.
fn flexvol() -> Command {
    Command::new(release().unwrap_or_else(|| PathBuf::from(BINARY)))
}

fn alone(name: &str, programs: &[&str], body: impl FnOnce()) {
    alone_for(name, if full() { 1500 } else { 300 }, programs, body);
}

/// Every case that is played holds; one may only be skipped because it does not concern the driver.
fn holds(node: &Node, driver: &str, options: &Value, further: &[&str]) {
    let plugins = node.make("plugins");
    let mut install = flexvol();
    install.args(["install", "--plugin-dir", &plugins, driver]);
    // The others give the files to the pod's group by themselves.
    if ["glusterfs", "cephfs"].contains(&driver) {
        install.args(["--set", "fsGroup=true"]);
    }
    let installed = install
        .args(["--set", "policy.servers=[\"*\",\"127.0.0.0/8\",\"::1\",\"localhost\"]"])
        .output()
        .unwrap();
    assert!(installed.status.success(), "{installed:?}");
    let mut command = flexvol();
    command.args(["check", "--format", "json", "--seed", "1", "--network", "host", "--repeat", "1"]);
    command.args(["--options", &options.to_string()]).args(further);
    if !full() {
        command.args(CASES.iter().flat_map(|case| ["-t", case]));
    }
    let output = command.arg(format!("{plugins}/flexvol~{driver}")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    let cases = report["cases"].as_array().unwrap();
    let excused = |case: &Value| {
        let id = case["id"].as_str().unwrap();
        // A program of a test is not static, and nobody installs it.
        (id == "install::self_contained" && release().is_none())
            || (driver == "webdav" && OF_DAVFS.contains(&id))
    };
    let bad: Vec<_> = cases
        .iter()
        .filter(|case| case["result"] != "passed" && case["result"] != "skipped" && !excused(case))
        .collect();
    assert!(bad.is_empty(), "{bad:#?}");
    let passed = cases.iter().filter(|case| case["result"] == "passed").count();
    assert!(passed >= if full() { 140 } else { 6 }, "only {passed} cases hold");
    println!("{driver}: {passed} hold, {} s", report["seconds"]);
    node.is_clean(&[]);
}

#[test]
fn sshfs() {
    alone("check::sshfs", &["sshfs", "sshd", "ssh-keygen"], || {
        let node = Node::new("sshfs");
        let sshd = Sshd::start(&node);
        holds(&node, "sshfs", &sshd.options(), &[]);
    });
}

#[test]
fn s3() {
    const NAME: &str = "check::s3";
    alone(NAME, &["s3fs", "curl"], || {
        let node = Node::new("s3");
        let Some(_server) = store(NAME) else { return };
        holds(&node, "s3", &of_store(), &[]);
    });
}

#[test]
fn rclone() {
    alone("check::rclone", &["rclone"], || {
        let node = Node::new("rclone");
        let _server = serve("webdav", &node.make("srv"), 8080);
        holds(&node, "rclone", &of_rclone(), &[]);
    });
}

#[test]
fn webdav() {
    alone("check::webdav", &["mount.davfs", "rclone"], || {
        let node = Node::new("webdav");
        let _server = serve("webdav", &node.make("srv"), 8080);
        holds(&node, "webdav", &of_webdav(), &[]);
    });
}

#[test]
fn glusterfs() {
    alone("check::glusterfs", &crate::glusterfs::PROGRAMS, || {
        let node = Node::new("glusterfs");
        let _gluster = Gluster::start(&node);
        holds(&node, "glusterfs", &crate::glusterfs::of_gluster(), &[]);
    });
}

#[test]
fn cephfs() {
    alone("check::cephfs", &crate::cephfs::PROGRAMS, || {
        let node = Node::new("cephfs");
        let cluster = Cluster::start(&node);
        holds(&node, "cephfs", &cluster.options(), &[]);
    });
}

#[test]
fn git() {
    alone("check::git", &["git"], || {
        let node = Node::new("git");
        let _server = Repository::make(&node).serve();
        // On disk a clone goes with its unmount, also from under who still looks at it from
        // elsewhere.
        let options = with(&crate::git::of_daemon(), "size", "16Mi");
        holds(&node, "git", &options, &["--ephemeral-ok"]);
    });
}
