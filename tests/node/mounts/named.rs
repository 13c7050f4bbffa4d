//! Two volumes of one name. kubelet knows an attached volume by its driver and the name of its PV,
//! or the name that a pod gives it, across namespaces: what is mounted for the node may be another
//! tenant's.

use crate::image::with;
use crate::support::wording::{wording, wording_of};
use crate::support::{Answer, Node, has, isolated, mounts_at, sh, skip};
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// On a node whose qcow2 attaches.
fn with_driver(name: &str, body: impl FnOnce(&Node)) {
    let name = format!("named::{name}");
    if !["qemu-storage-daemon", "qemu-img"].iter().all(|program| has(program)) {
        return skip(&name, "needs qemu-storage-daemon and qemu-img");
    }
    isolated(&name, |node| {
        node.install("qcow2", json!({"attach": true}));
        body(node);
    });
}

fn staged(node: &Node, driver: &str) -> PathBuf {
    let path = node.root.join(format!("plugins/kubernetes.io/flexvolume/example/{driver}/mounts/vol"));
    fs::create_dir_all(&path).unwrap();
    path
}

fn image(name: &str) -> Value {
    json!({"file": format!("{name}.qcow2"), "size": "16Mi", "kubernetes.io/pvOrVolumeName": "vol"})
}

fn call(node: &Node, driver: &str, words: &[&str]) -> Answer {
    node.call(Command::new(node.program(driver)).args(words))
}

fn mount_device(node: &Node, driver: &str, options: &Value) -> Answer {
    let staged = staged(node, driver);
    call(node, driver, &["mountdevice", staged.to_str().unwrap(), "", &options.to_string()])
}

/// The names that every such refusal says: what is there, and what these options name.
fn both() -> [&'static str; 3] {
    [wording_of("other-volume-of-name", ["vol"]), "/run/img/a.qcow2", "name qcow2:/run/img/b.qcow2"]
}

#[test]
fn no_pod_is_shown_another_volume_of_the_same_name() {
    with_driver("no_pod_is_shown_another_volume_of_the_same_name", |node| {
        let (victim, other) = (node.volume("qcow2", "p1"), node.volume("qcow2", "p2"));
        let path = staged(node, "qcow2").display().to_string();
        mount_device(node, "qcow2", &image("a")).success();
        node.mount("qcow2", &victim, &image("a")).success();
        fs::write(victim.join("f"), "of a").unwrap();
        for (side, words) in [("rw", both()), ("ro", both())] {
            let options = with(&image("b"), &json!({"kubernetes.io/readwrite": side}));
            node.mount("qcow2", &other, &options).failure(&words);
            assert_eq!(mounts_at(&other).len(), 0);
        }
        mount_device(node, "qcow2", &image("b")).failure(&["/run/img/b.qcow2"]);
        // Grown would be the one, and its file system the other's.
        let options = image("b").to_string();
        call(node, "qcow2", &["expandfs", &options, "", &path, "50331648", "16777216"])
            .failure(&[wording_of("store-not-on-node", ["qcow2:/run/img/b.qcow2"])]);
        call(node, "qcow2", &["waitforattach", "qcow2:/run/img/a.qcow2", &options])
            .failure(&["qcow2:/run/img/a.qcow2 is attached", "name qcow2:/run/img/b.qcow2"]);
        // What another driver has called it is nobody's name.
        call(node, "qcow2", &["waitforattach", "/dev/nbd0", &options]).success();
        node.unmount("qcow2", &other).success();
        assert_eq!(fs::read(victim.join("f")).unwrap(), b"of a");
        // Nor without the record.
        sh("rm /run/flexvol/volumes/*");
        node.mount("qcow2", &other, &image("b"))
            .failure(&["another volume \"vol\"", "name qcow2:/run/img/b.qcow2"]);
        node.mount("qcow2", &victim, &image("a")).success();
        node.unmount("qcow2", &victim).success();
        node.unmount("qcow2", &other).success();
        call(node, "qcow2", &["unmountdevice", &path]).success();
        node.assert_clean();
    });
}

/// As kubelet leaves it: the first pod is gone, and its volume is still there when the second
/// comes.
#[test]
fn nor_the_one_that_a_pod_before_has_left() {
    with_driver("nor_the_one_that_a_pod_before_has_left", |node| {
        let target = node.volume("qcow2", "p1");
        mount_device(node, "qcow2", &image("a")).success();
        node.mount("qcow2", &target, &image("a")).success();
        node.unmount("qcow2", &target).success();
        let second = node.volume("qcow2", "p2");
        node.mount("qcow2", &second, &image("b")).failure(&both());
        call(node, "qcow2", &["unmountdevice", staged(node, "qcow2").to_str().unwrap()]).success();
        mount_device(node, "qcow2", &image("b")).success();
        node.mount("qcow2", &second, &image("b")).success();
        node.mount("qcow2", &second, &image("a")).failure(&["already shows"]);
        node.unmount("qcow2", &second).success();
        call(node, "qcow2", &["unmountdevice", staged(node, "qcow2").to_str().unwrap()]).success();
        node.assert_clean();
    });
}

fn share(name: &str) -> Value {
    json!({"share": name, "mode": "x", "kubernetes.io/pvOrVolumeName": "vol"})
}

/// On a node with a command for a mount once for the node, and this `identity`.
fn with_command(name: &str, identity: Option<&str>, body: impl FnOnce(&Node)) {
    isolated(&format!("named::{name}"), |node| {
        let mount = json!(["/bin/mount", "-t", "tmpfs", "{option.share}", "{target}"]);
        let nothing = json!(["/bin/true"]);
        let commands = json!({"attach": ["/bin/echo", "x"], "mountdevice": mount, "mount": mount, "unmountdevice": nothing, "expandfs": nothing});
        let mut exec = json!({"capabilities": {"attach": true, "requiresFSResize": true}, "options": ["share", "mode"], "commands": commands});
        if let Some(identity) = identity {
            exec["identity"] = json!(identity);
        }
        node.install("exec", json!({"driver": "exec", "exec": exec}));
        body(node);
    });
}

#[test]
fn a_command_s_volume_is_what_the_admin_says() {
    with_command("a_command_s_volume_is_what_the_admin_says", Some("nas:{option.share}"), |node| {
        let (one, other) = (node.volume("exec", "p1"), node.volume("exec", "p2"));
        let path = staged(node, "exec").display().to_string();
        mount_device(node, "exec", &share("web")).success();
        node.mount("exec", &one, &with(&share("web"), &json!({"mode": "y"}))).success();
        let both = ["another volume \"vol\"", "shows nas:web", "name nas:db"];
        node.mount("exec", &other, &share("db")).failure(&both);
        assert_eq!(mounts_at(&other).len(), 0);
        mount_device(node, "exec", &share("db")).failure(&["nas:db"]);
        let grow =
            |options: &Value| call(node, "exec", &["expandfs", &options.to_string(), "", &path, "2", "1"]);
        grow(&share("web")).success();
        grow(&share("db")).failure(&both);
        node.unmount("exec", &one).success();
        call(node, "exec", &["unmountdevice", &path]).success();
        node.mount("exec", &other, &share("db")).success();
        node.unmount("exec", &other).success();
        node.assert_clean();
    });
}

#[test]
fn or_else_all_its_options() {
    with_command("or_else_all_its_options", None, |node| {
        let (one, other) = (node.volume("exec", "p1"), node.volume("exec", "p2"));
        mount_device(node, "exec", &share("web")).success();
        node.mount("exec", &one, &share("web")).success();
        node.mount("exec", &other, &share("db"))
            .failure(&["another volume \"vol\"", wording("digest-of-volume")]);
        // What an older version has mounted has no name.
        sh("sed -i 's/\"identity\":\"[^\"]*\",//' /run/flexvol/volumes/*");
        node.mount("exec", &other, &share("web")).success();
        for target in [&one, &other] {
            node.unmount("exec", target).success();
        }
        call(node, "exec", &["unmountdevice", staged(node, "exec").to_str().unwrap()]).success();
        node.assert_clean();
    });
}
