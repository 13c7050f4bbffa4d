//! The scenarios of the drivers with a server, for `tests/support/trust`.

use crate::cephfs::Cluster;
use crate::git::Repository;
use crate::glusterfs::Gluster;
use crate::node::{Node, alone_for};
use crate::sshd::Sshd;
use crate::stores::{of_rclone, of_store, of_webdav, serve, store, with};
use crate::trust::{Rung, Volume, Whole};
use serde_json::Value;
use std::fs;

/// Everything there is to try with the server's volume. What a pod wrote is on the server.
fn withstands(node: &Node, name: &str, options: &Value) {
    let target = node.pod("1");
    node.mount(&target, options).success();
    let is_clone = name.starts_with("git");
    if !is_clone {
        fs::write(target.join("data"), "precious").unwrap();
    }
    node.unmount(&target).success();
    let words = options.to_string();
    let call = |verb: &str, options: &[&str]| {
        // What is dead is neither there nor can it be made.
        let _ = fs::create_dir_all(node.place("1"));
        node.command(&[&[verb, node.place("1").to_str().unwrap()], options].concat())
    };
    let mount = Rung::new("mount", || call("mount", &[&words]));
    let unmount = Rung::new("unmount", || call("unmount", &[]));
    let kept = || {
        let (file, content) = if is_clone { ("file", "second\n") } else { ("data", "precious") };
        assert_eq!(fs::read_to_string(target.join(file)).unwrap(), content);
    };
    let volume = Volume {
        intact: &kept,
        sample: 1,
        whole: Whole::EachOnce,
        programs: false,
        ..Volume::new(name, vec![mount], vec![unmount])
    };
    volume.withstands([2, 2000]);
}

fn alone(name: &str, programs: &[&str], body: impl FnOnce()) {
    alone_for(name, 200, programs, body);
}

#[test]
fn sshfs() {
    alone("trust_scenarios::sshfs", &["sshfs", "sshd", "ssh-keygen"], || {
        let node = Node::new("sshfs");
        let sshd = Sshd::start(&node);
        withstands(&node, "sshfs", &sshd.options());
    });
}

#[test]
fn s3_by_s3fs() {
    const NAME: &str = "trust_scenarios::s3_by_s3fs";
    alone(NAME, &["s3fs", "curl"], || {
        let node = Node::new("s3");
        let Some(_server) = store(NAME) else { return };
        withstands(&node, "s3", &of_store());
    });
}

#[test]
fn s3_by_rclone() {
    const NAME: &str = "trust_scenarios::s3_by_rclone";
    alone(NAME, &["rclone", "curl"], || {
        let node = Node::new("s3");
        let Some(_server) = store(NAME) else { return };
        withstands(&node, "s3/rclone", &with(&of_store(), "mounter", "rclone"));
    });
}

#[test]
fn rclone() {
    alone("trust_scenarios::rclone", &["rclone"], || {
        let node = Node::new("rclone");
        let _server = serve("webdav", &node.make("srv"), 8080);
        withstands(&node, "rclone", &of_rclone());
    });
}

#[test]
fn webdav() {
    alone("trust_scenarios::webdav", &["mount.davfs", "rclone"], || {
        let node = Node::new("webdav");
        let _server = serve("webdav", &node.make("srv"), 8080);
        withstands(&node, "webdav", &of_webdav());
    });
}

#[test]
fn glusterfs() {
    alone("trust_scenarios::glusterfs", &crate::glusterfs::PROGRAMS, || {
        let node = Node::new("glusterfs");
        let _gluster = Gluster::start(&node);
        withstands(&node, "glusterfs", &crate::glusterfs::of_gluster());
    });
}

#[test]
fn cephfs() {
    alone("trust_scenarios::cephfs", &crate::cephfs::PROGRAMS, || {
        let node = Node::new("cephfs");
        let cluster = Cluster::start(&node);
        withstands(&node, "cephfs", &cluster.options());
    });
}

#[test]
fn git() {
    alone("trust_scenarios::git", &["git"], || {
        let node = Node::new("git");
        let _server = Repository::make(&node).serve();
        withstands(&node, "git", &crate::git::of_daemon());
        withstands(&node, "git/memory", &with(&crate::git::of_daemon(), "size", "16Mi"));
    });
}
