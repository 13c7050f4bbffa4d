//! A daemon that does not answer, and what of others goes on.

use super::{DRIVER, daemon, daemons, mount_device, options, staged, unmount_device, with_driver};
use crate::image::with;
use crate::support::pace::deadline;
use crate::support::{eventually, sh};
use serde_json::json;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// Longer than what the daemon says of a file counts.
const ATTRIBUTES: Duration = Duration::from_millis(1100);

/// Whoever looks at a loop device asks who serves the file it shows, and would wait for ever.
#[test]
fn a_stopped_daemon_holds_up_no_other_image() {
    with_driver("qcow2::silent::a_stopped_daemon_holds_up_no_other_image", |node| {
        mount_device(node, &options()).success();
        let pid = daemon().unwrap();
        sh(&format!("kill -STOP {pid}"));
        let image = node.volume("image", "p1");
        let answer = node.mount("image", &image, &json!({"file": "b.img", "size": "16Mi"}));
        sh(&format!("kill -CONT {pid}"));
        assert!(answer.success().took < deadline(15));
        node.unmount("image", &image).success();
        unmount_device(node).success();
        node.assert_clean();
    });
}

#[test]
fn a_stopped_daemon_holds_up_no_other_volume_that_is_there() {
    with_driver("qcow2::silent::a_stopped_daemon_holds_up_no_other_volume_that_is_there", |node| {
        node.install(DRIVER, json!({}));
        let [before, hung, after, more] = ["p1", "p2", "p3", "p4"].map(|pod| node.volume(DRIVER, pod));
        let image = |name: &str| with(&options(), &json!({"file": name}));
        // Whatever order their devices are looked at in.
        node.mount(DRIVER, &before, &image("b.qcow2")).success();
        let others = daemons();
        node.mount(DRIVER, &hung, &options()).success();
        let pid = daemons().into_iter().find(|pid| !others.contains(pid)).unwrap();
        node.mount(DRIVER, &after, &image("c.qcow2")).success();
        // Longer than the kernel remembers what was last answered.
        std::thread::sleep(ATTRIBUTES);
        sh(&format!("kill -STOP {pid}"));
        // No call would end before.
        std::thread::spawn(move || {
            std::thread::sleep(deadline(30));
            sh(&format!("kill -CONT {pid} 2>/dev/null || :"));
        });
        let mut answers = Vec::new();
        for (pod, name) in [(&before, "b.qcow2"), (&after, "c.qcow2")] {
            answers.push(node.mount(DRIVER, &more, &image(name)));
            answers.push(node.unmount(DRIVER, &more));
            answers.push(node.unmount(DRIVER, pod));
        }
        sh(&format!("kill -CONT {pid}"));
        for answer in answers {
            assert!(answer.success().took < deadline(15));
        }
        node.unmount(DRIVER, &hung).success();
        node.assert_clean();
    });
}

/// The devices of a kernel are those of all its nodes, and only its own node has the record of one.
#[test]
fn a_stopped_daemon_of_another_node_holds_up_no_volume() {
    with_driver("qcow2::silent::a_stopped_daemon_of_another_node_holds_up_no_volume", |node| {
        node.install(DRIVER, json!({}));
        let [hung, own] = ["p1", "p2"].map(|pod| node.volume(DRIVER, pod));
        node.mount(DRIVER, &hung, &options()).success();
        let pid = daemon().unwrap();
        sh("mount -t tmpfs another /run/flexvol");
        std::thread::sleep(ATTRIBUTES);
        sh(&format!("kill -STOP {pid}"));
        std::thread::spawn(move || {
            std::thread::sleep(deadline(30));
            sh(&format!("kill -CONT {pid} 2>/dev/null || :"));
        });
        let mounted = node.mount(DRIVER, &own, &with(&options(), &json!({"file": "b.qcow2"})));
        let unmounted = node.unmount(DRIVER, &own);
        sh(&format!("kill -CONT {pid}"));
        for answer in [mounted, unmounted] {
            assert!(answer.success().took < deadline(15));
        }
        sh("umount /run/flexvol");
        node.unmount(DRIVER, &hung).success();
        node.assert_clean();
    });
}

/// Its loop device stays as long as its volume is mounted, and nobody answers for the file it
/// shows. The kernel remembers for a second what was last answered.
#[test]
fn a_killed_daemon_holds_up_no_other_volume() {
    with_driver("qcow2::silent::a_killed_daemon_holds_up_no_other_volume", |node| {
        mount_device(node, &options()).success();
        let pid = daemon().unwrap();
        sh(&format!("kill -9 {pid}"));
        assert!(eventually(|| daemon().is_none()));
        std::thread::sleep(ATTRIBUTES);
        let (image, other) = (node.volume("image", "p1"), staged(node).with_file_name("other"));
        for _ in 0..2 {
            node.mount("image", &image, &json!({"file": "b.img", "size": "16Mi"})).success();
        }
        node.unmount("image", &image).success();
        fs::create_dir(&other).unwrap();
        let volume = json!({"file": "b.qcow2", "size": "16Mi", "kubernetes.io/pvOrVolumeName": "other"});
        for _ in 0..2 {
            let mut command = Command::new(node.program(DRIVER));
            node.call(command.arg("mountdevice").arg(&other).args(["", &volume.to_string()])).success();
        }
        node.call(&mut node.command(DRIVER, "unmountdevice", &other, None)).success();
        unmount_device(node).success();
        node.assert_clean();
    });
}
