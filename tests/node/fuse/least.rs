//! Which of root's capabilities a driver needs: what SECURITY.md says is enough, and nothing in it
//! can be left out.
//!
//! `UPDATE=1 cargo test --test fuse least` measures again, from all capabilities down, and prints
//! the rows.

use crate::cephfs::Cluster;
use crate::glusterfs::{Gluster, of_gluster};
use crate::node::{Node, alone_for, mounts_at, sh};
use crate::subjects::{ALL, Subject};
use flexvol::protocol::StatusKind;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// All of them but those that only a node's own services have a use for: nobody could tell that
/// they are gone.
const CAPABILITIES: &[&str] = &[
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
];

/// Mount, look, mount again, unmount with these alone.
fn works(Subject { node, options, .. }: &Subject, held: &BTreeSet<String>) -> bool {
    let set = held.iter().fold("-all".to_owned(), |set, name| format!("{set},+{name}"));
    // davfs2 makes it once, and gives it to a user of its own.
    sh("rm -rf /run/mount.davfs");
    let wrapper = ["setpriv", "--bounding-set", &set, "--inh-caps", "-all"];
    // By hand: a pod's would have to be mounted for the node first, if its driver attaches.
    let (target, json) = (PathBuf::from(node.make("mnt")), options.to_string());
    let path = target.to_str().unwrap();
    let ok = |arguments: &[&str]| node.through(&wrapper, arguments).reply().outcome() == StatusKind::Success;
    let mounted = ok(&["mount", path, &json]) && mounts_at(&target) == 1 && ok(&["mount", path, &json]);
    let unmounted = ok(&["unmount", path]) && mounts_at(&target) == 0;
    if !(mounted && unmounted) {
        node.unmount(&target).success();
    }
    mounted && unmounted
}

/// The least set that is found by leaving out one after the other.
fn measured(subject: &Subject) -> BTreeSet<String> {
    let mut held: BTreeSet<_> = CAPABILITIES.iter().map(|name| (*name).to_owned()).collect();
    for name in CAPABILITIES {
        held.remove(*name);
        if !works(subject, &held) {
            held.insert((*name).to_owned());
        }
    }
    held
}

/// The row of SECURITY.md: `| sshfs | chown, sys_admin |`.
fn documented(name: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("SECURITY.md")).unwrap();
    let row = text.lines().find_map(|line| line.strip_prefix(&format!("| `{name}` | ")));
    let row = row.unwrap_or_else(|| panic!("SECURITY.md has no row for {name}"));
    let set = row.split(" |").next().unwrap();
    set.split(", ").filter(|name| !name.is_empty()).map(|name| name.trim_matches('`').to_owned()).collect()
}

/// The row of SECURITY.md is enough, and no more than that.
fn is_documented(name: &str, subject: &Subject) {
    if std::env::var_os("UPDATE").is_some() {
        let row = measured(subject).into_iter().map(|name| format!("`{name}`")).collect::<Vec<_>>();
        panic!("| `{name}` | {} |", row.join(", "));
    }
    let held = documented(name);
    assert!(works(subject, &held), "{name} needs more than {held:?}");
    for one in &held {
        let mut fewer = held.clone();
        fewer.remove(one);
        assert!(!works(subject, &fewer), "{name} does not need {one}");
    }
}

fn alone(name: &str, programs: &[&str], body: impl FnOnce()) {
    let programs = [programs, &["setpriv"]].concat();
    alone_for(&format!("least::{}", name.replace('-', "_")), 240, &programs, body);
}

fn needs(name: &str) {
    let (_, programs, make) = ALL.iter().find(|kind| kind.0 == name).unwrap();
    alone(name, programs, || {
        let Some(subject) = make("password0of0a0test0that0is0long") else { return };
        is_documented(name, &subject);
    });
}

/// A volume of servers that the test has started.
fn of(node: Node, options: Value) -> Subject {
    Subject { node, options, key: None, servers: Vec::new() }
}

#[test]
fn tmpfs() {
    needs("tmpfs");
}

#[test]
fn bind() {
    needs("bind");
}

#[test]
fn overlay() {
    needs("overlay");
}

#[test]
fn image() {
    needs("image");
}

#[test]
fn secretfiles() {
    needs("secretfiles");
}

#[test]
fn exec() {
    needs("exec");
}

#[test]
fn sshfs() {
    needs("sshfs");
}

#[test]
fn git() {
    needs("git");
}

#[test]
fn rclone() {
    needs("rclone");
}

#[test]
fn webdav() {
    needs("webdav");
}

#[test]
fn s3() {
    needs("s3");
}

#[test]
fn qcow2() {
    needs("qcow2");
}

#[test]
fn glusterfs() {
    alone("glusterfs", &crate::glusterfs::PROGRAMS, || {
        let node = Node::new("glusterfs");
        let _gluster = Gluster::start(&node);
        is_documented("glusterfs", &of(node, of_gluster()));
    });
}

#[test]
fn cephfs() {
    alone("cephfs", &crate::cephfs::PROGRAMS, || {
        let node = Node::new("cephfs");
        let cluster = Cluster::start(&node);
        is_documented("cephfs", &of(node, cluster.options()));
    });
}
