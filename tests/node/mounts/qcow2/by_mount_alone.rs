//! What each pod of the node is shown without `attach`, and what is left of a change while a pod
//! has the volume.

use super::*;
use crate::support::wording::{wording, wording_of};
use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;

fn with_plain_driver(name: &str, body: impl FnOnce(&Node)) {
    with_driver(&format!("qcow2::by_mount_alone::{name}"), |node| {
        node.install(DRIVER, json!({}));
        body(node);
    });
}

fn devices(paths: &[&PathBuf]) -> BTreeSet<u64> {
    paths.iter().map(|path| fs::metadata(path).unwrap().dev()).collect()
}

#[test]
fn pods_share_a_device_that_goes_with_the_last() {
    with_plain_driver("pods_share_a_device_that_goes_with_the_last", |node| {
        let [one, two, three] = ["p1", "p2", "p3"].map(|pod| node.volume(DRIVER, pod));
        mount_device(node, &options()).success();
        assert!(daemon().is_none() && mounts_at(&staged(node)).is_empty(), "nothing is staged");
        for _ in 0..2 {
            node.mount(DRIVER, &one, &options()).success();
        }
        assert_eq!(mounts_at(&one).len(), 1);
        fs::write(one.join("f"), "kept").unwrap();
        node.mount(DRIVER, &two, &options()).success();
        node.mount(DRIVER, &three, &with(&options(), &ro())).success();
        assert_eq!(devices(&[&one, &two, &three]).len(), 1);
        assert!(is_rofs(fs::write(three.join("g"), "")));
        for pod in [&one, &one, &three] {
            node.unmount(DRIVER, pod).success();
        }
        assert!(daemon().is_some());
        assert_eq!(fs::read(two.join("f")).unwrap(), b"kept");
        for _ in 0..2 {
            node.unmount(DRIVER, &two).success();
        }
        node.assert_clean();
    });
}

/// Inline volumes of one name in two namespaces: kubelet names both alike, and mounts each.
#[test]
fn volumes_of_one_name_do_not_meet() {
    with_plain_driver("volumes_of_one_name_do_not_meet", |node| {
        let (one, two) = (node.volume(DRIVER, "p1"), node.volume(DRIVER, "p2"));
        let other = with(&options(), &json!({"file": "b.qcow2"}));
        node.mount(DRIVER, &one, &options()).success();
        node.mount(DRIVER, &two, &other).success();
        fs::write(one.join("f"), "one").unwrap();
        assert!(!two.join("f").exists() && devices(&[&one, &two]).len() == 2);
        node.unmount(DRIVER, &one).success();
        assert!(!two.join("f").exists());
        node.unmount(DRIVER, &two).success();
        node.assert_clean();
    });
}

/// As after an upgrade that changes it: kubelet has the device mounted for the node, and a pod is
/// shown that.
#[test]
fn what_was_staged_goes_with_the_last_pod() {
    with_driver("qcow2::by_mount_alone::what_was_staged_goes_with_the_last_pod", |node| {
        let (one, two) = (node.volume(DRIVER, "p1"), node.volume(DRIVER, "p2"));
        for asked in [false, true] {
            node.install(DRIVER, json!({"attach": true}));
            mount_device(node, &options()).success();
            node.mount(DRIVER, &one, &options()).success();
            fs::write(one.join("f"), "kept").unwrap();
            node.install(DRIVER, json!({}));
            node.mount(DRIVER, &two, &options()).success();
            assert_eq!(devices(&[&one, &two]).len(), 1);
            node.unmount(DRIVER, &one).success();
            assert_eq!(fs::read(two.join("f")).unwrap(), b"kept");
            if asked {
                // One that has not heard of it yet asks for this while a pod has the volume, or
                // when none has.
                unmount_device(node).success();
                assert_eq!(fs::read(two.join("f")).unwrap(), b"kept");
            }
            node.unmount(DRIVER, &two).success();
            node.assert_clean();
            unmount_device(node).success();
        }
    });
}

/// The other way round.
#[test]
fn what_pods_brought_is_shared_by_what_is_staged_later() {
    with_plain_driver("what_pods_brought_is_shared_by_what_is_staged_later", |node| {
        let (one, two) = (node.volume(DRIVER, "p1"), node.volume(DRIVER, "p2"));
        node.mount(DRIVER, &one, &options()).success();
        node.install(DRIVER, json!({"attach": true}));
        mount_device(node, &options()).success();
        node.mount(DRIVER, &two, &options()).success();
        assert_eq!(devices(&[&one, &two]).len(), 1);
        for pod in [&one, &two] {
            node.unmount(DRIVER, pod).success();
        }
        assert!(daemon().is_some(), "kubelet still has it mounted");
        unmount_device(node).success();
        node.assert_clean();
    });
}

/// Nobody can tell whose the daemon is then; but that it is in use.
#[test]
fn a_daemon_that_nobody_knows_keeps_what_was_written() {
    with_plain_driver("a_daemon_that_nobody_knows_keeps_what_was_written", |node| {
        let (one, two) = (node.volume(DRIVER, "p1"), node.volume(DRIVER, "p2"));
        sh("mount -t tmpfs none /sys/fs/cgroup");
        node.mount(DRIVER, &one, &options()).success();
        fs::write(one.join("f"), "kept").unwrap();
        sh("rm -rf /run/flexvol");
        node.mount(DRIVER, &two, &options())
            .failure(&[wording_of("record-lost", ["…"]), wording("record-lost")]);
        sh(&format!("sync {}", one.join("f").display()));
        node.unmount(DRIVER, &one).success();
        // Unmount does not wait for the daemon to exit.
        assert!(eventually(|| daemon().is_none()));
        node.mount(DRIVER, &two, &options()).success();
        assert_eq!(fs::read(two.join("f")).unwrap(), b"kept");
        node.unmount(DRIVER, &two).success();
        sh("umount /sys/fs/cgroup");
    });
}
