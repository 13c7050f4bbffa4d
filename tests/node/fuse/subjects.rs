//! Drivers that run here with whatever they need, each as one volume with one secret.

use crate::git::{Repository, of_daemon};
use crate::node::{Node, Server, sh};
use crate::sshd::{Sshd, base64};
use crate::stores::{of_rclone, of_store, of_webdav, serve_with, store, with};
use serde_json::{Value, json};

/// A volume that can be mounted, as long as its servers are there.
pub(crate) struct Subject {
    pub(crate) node: Node,
    pub(crate) options: Value,
    /// The key of its Secret that holds the password, if it has one.
    pub(crate) key: Option<&'static str>,
    pub(crate) servers: Vec<Server>,
}

/// What a subject is called, the programs it needs, and how it is made with a password.
pub(crate) type Kind = (&'static str, &'static [&'static str], fn(&str) -> Option<Subject>);

/// All that run without a kernel module that few kernels have.
pub(crate) const ALL: &[Kind] = &[
    ("tmpfs", &[], |_| Some(own("tmpfs", &json!({}), json!({"size": "1Mi"})))),
    ("bind", &[], |_| {
        sh("mkdir -p /run/srv/a");
        Some(own("bind", &json!({"policy": {"bindRoots": ["/run/srv"]}}), json!({"source": "/run/srv/a"})))
    }),
    ("overlay", &[], |_| {
        sh("mkdir -p /run/srv/a");
        Some(own("overlay", &json!({"policy": {"bindRoots": ["/run/srv"]}}), json!({"lower": "/run/srv/a"})))
    }),
    ("image", &["mkfs.ext4"], |_| {
        sh("mkdir -p /run/img; rm -f /run/img/disk");
        let options = json!({"file": "/run/img/disk", "size": "8Mi", "fsType": "ext4"});
        Some(own("image", &json!({"policy": {"imageRoots": ["/run/img"]}}), options))
    }),
    ("qcow2", &["qemu-storage-daemon", "qemu-img", "mkfs.ext4"], |_| {
        sh("mkdir -p /run/img; rm -f /run/img/disk");
        let options = json!({"file": "/run/img/disk", "size": "16Mi", "fsType": "ext4"});
        Some(own("qcow2", &json!({"policy": {"imageRoots": ["/run/img"]}}), options))
    }),
    ("secretfiles", &[], |password| {
        let options = json!({"kubernetes.io/secret/password": base64(password)});
        Some(own("secretfiles", &json!({}), options))
    }),
    ("exec", &[], |password| {
        let script = "cat \"$1\" >/dev/null; cat >/dev/null; exec mount -t tmpfs x \"$0\"";
        let mount = ["/bin/sh", "-c", script, "{target}", "{secret.password}"];
        let commands = json!({"mount": mount, "unmount": ["/bin/umount", "{target}"]});
        let side_file = json!({"exec": {"commands": commands, "secretsOnStdin": true}});
        let options = json!({"kubernetes.io/secret/password": base64(password)});
        Some(own("exec", &side_file, options))
    }),
    ("sshfs", &["sshfs", "sshd", "ssh-keygen"], |_| {
        let node = Node::new("sshfs");
        let sshd = Sshd::start(&node);
        let options = sshd.options();
        Some(Subject { node, options, key: None, servers: vec![sshd.server] })
    }),
    ("git", &["git"], |_| {
        let node = Node::new("git");
        let server = Repository::make(&node).serve();
        Some(Subject { node, options: of_daemon(), key: None, servers: vec![server] })
    }),
    ("git-web", &["git", "rclone"], |password| {
        let node = Node::new("git");
        let directory = node.make("srv");
        Repository::make(&node);
        let server = serve_with("webdav", &directory, 8080, password);
        let options = json!({"repository": "http://127.0.0.1:8080/web.git", "depth": "0", "user": "web",
            "kubernetes.io/secret/password": base64(password)});
        Some(Subject { node, options, key: Some("password"), servers: vec![server] })
    }),
    ("sshfs-password", &["sshfs", "rclone"], |password| {
        let node = Node::new("sshfs");
        let server = serve_with("sftp", &node.make("srv"), 2022, password);
        let options = json!({"server": "127.0.0.1", "port": "2022", "user": "web", "hostKeyCheck": "off",
            "kubernetes.io/secret/password": base64(password)});
        Some(Subject { node, options, key: Some("password"), servers: vec![server] })
    }),
    ("rclone", &["rclone"], |password| {
        let node = Node::new("rclone");
        let server = serve_with("webdav", &node.make("srv"), 8080, password);
        let options = with(&of_rclone(), "kubernetes.io/secret/pass", &base64(password));
        Some(Subject { node, options, key: Some("pass"), servers: vec![server] })
    }),
    ("webdav", &["rclone", "mount.davfs"], |password| {
        let node = Node::new("webdav");
        let server = serve_with("webdav", &node.make("srv"), 8080, password);
        let options = with(&of_webdav(), "kubernetes.io/secret/password", &base64(password));
        Some(Subject { node, options, key: Some("password"), servers: vec![server] })
    }),
    ("s3", &["s3fs", "curl"], |password| {
        let node = Node::new("s3");
        let server = store("subjects::s3")?;
        let options = with(&of_store(), "kubernetes.io/secret/secretAccessKey", &base64(password));
        Some(Subject { node, options, key: Some("secretAccessKey"), servers: vec![server] })
    }),
];

/// Without a server.
fn own(driver: &'static str, side_file: &Value, options: Value) -> Subject {
    let key = options.get("kubernetes.io/secret/password").map(|_| "password");
    Subject { node: Node::installed(driver, side_file), options, key, servers: Vec::new() }
}
