//! A process that is not our daemon and calls itself so, as who is root in a container can: nothing
//! of it is used, asked for long, or waited for.

use crate::support::pace::deadline;
use crate::support::{Node, has, isolated, sh, skip};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Child, Command};

const DRIVER: &str = "qcow2";

fn options() -> Value {
    json!({"file": "a.qcow2", "size": "16Mi", "kubernetes.io/pvOrVolumeName": "vol"})
}

fn staged(node: &Node) -> PathBuf {
    let path = node.root.join("plugins/kubernetes.io/flexvolume/example/qcow2/mounts/vol");
    fs::create_dir_all(&path).unwrap();
    path
}

/// The name of the volume's store, as it stands among its daemon's words.
fn name() -> String {
    let digest = sh("printf qcow2:/run/img/a.qcow2 | sha256sum | cut -c 1-40");
    format!("a_qcow2-{}", digest.trim())
}

/// It has at the daemon's places what `script` puts there, in a mount table of its own.
fn pose(script: &str) -> Child {
    let program = "/run/qemu-storage-daemon";
    let text = "#!/bin/sh\n# $1 is the export that it pretends to have.\nwhile :; do sleep 1; done\n";
    fs::write(program, text).unwrap();
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    let export = format!(r#"{{"id":"image-{}"}}"#, name());
    let script =
        format!("mount -t tmpfs x /var && {script} && touch /run/posing && exec {program} '{export}'");
    let child = Command::new("unshare").args(["--mount", "sh", "-ec", &script]).spawn().unwrap();
    assert!(crate::support::eventually(|| fs::exists("/run/posing").unwrap()));
    child
}

fn with_driver(name: &str, body: impl FnOnce(&Node)) {
    let name = format!("posed::{name}");
    if !["qemu-storage-daemon", "qemu-img"].iter().all(|program| has(program)) {
        return skip(&name, "needs qemu-storage-daemon and qemu-img");
    }
    isolated(&name, |node| {
        node.install(DRIVER, json!({"attach": true}));
        body(node);
    });
}

fn works_beside(node: &Node, mut poser: Child) {
    let mount = || {
        let mut command = Command::new(node.program(DRIVER));
        node.call(command.arg("mountdevice").arg(staged(node)).args(["", &options().to_string()]))
    };
    let answer = mount().success();
    assert!(answer.took < deadline(60), "{answer:?}");
    fs::write(staged(node).join("f"), "of a").unwrap();
    let map = sh(
        "sync -f /run/k/plugins/kubernetes.io/flexvolume/example/qcow2/mounts/vol; qemu-img map -U --output=json /run/img/a.qcow2",
    );
    assert!(map.contains("\"data\": true"), "it was written elsewhere: {map}");
    let answer = node.call(&mut node.command(DRIVER, "unmountdevice", &staged(node), None)).success();
    assert!(answer.took < deadline(60), "{answer:?}");
    mount().success();
    assert_eq!(fs::read(staged(node).join("f")).unwrap(), b"of a");
    node.call(&mut node.command(DRIVER, "unmountdevice", &staged(node), None)).success();
    let _ = poser.kill();
    poser.wait().unwrap();
}

/// With a device that has the name of the image's, and of one of an older version.
#[test]
fn who_shows_another_disk_is_not_believed() {
    with_driver("who_shows_another_disk_is_not_believed", |node| {
        sh("truncate -s 16M /run/other && mkfs.ext4 -q /run/other");
        let before = sh("sha256sum /run/other");
        for content in ["/var/flexvol.content".to_owned(), format!("/var/flexvol.content-{}", name())] {
            let poser = pose(&format!(
                "touch {content} && mount --bind /run/other {content} && losetup --find --show {content} >/run/device"
            ));
            let device = fs::read_to_string("/run/device").unwrap();
            let shown = device.trim().replace("/dev/", "/sys/block/") + "/loop/backing_file";
            assert_eq!(fs::read_to_string(shown).unwrap().trim(), content);
            works_beside(node, poser);
            assert_eq!(before, sh("sha256sum /run/other"), "written to the other's disk");
            sh(&format!("losetup -d {}; rm /run/posing /run/img/a.qcow2", device.trim()));
            node.assert_clean();
        }
    });
}

/// In the node's root, that link leads somewhere else than in the process's own.
#[test]
fn a_link_is_not_followed() {
    with_driver("a_link_is_not_followed", |node| {
        sh(
            "truncate -s 16M /run/other && mkfs.ext4 -q /run/other && touch /run/shown && mount --bind /run/other /run/shown",
        );
        let device = sh("losetup --find --show /run/other");
        let before = sh("sha256sum /run/other");
        let poser = pose("ln -s /run/shown /var/flexvol.content");
        works_beside(node, poser);
        assert_eq!(before, sh("sha256sum /run/other"), "written to the other's disk");
        sh(&format!("losetup -d {}; umount /run/shown", device.trim()));
        node.assert_clean();
    });
}

#[test]
fn a_fifo_is_not_waited_for() {
    with_driver("a_fifo_is_not_waited_for", |node| {
        let poser = pose("mkfifo /var/flexvol.content && touch /var/control");
        works_beside(node, poser);
        node.assert_clean();
    });
}

#[test]
fn who_says_nothing_holds_up_nobody() {
    with_driver("who_says_nothing_holds_up_nobody", |node| {
        let _listener = UnixListener::bind("/run/silent").unwrap();
        let poser = pose("touch /var/flexvol.content /var/control && mount --bind /run/silent /var/control");
        works_beside(node, poser);
        node.assert_clean();
    });
}
