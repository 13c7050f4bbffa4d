//! A driver stays while volumes need it.

use super::node::{Node, answer, script};
use super::support::eventually;
use super::support::pace::slow_seconds;
use crate::support::wording::{wording, wording_of};
use nix::mount::{MsFlags, mount, umount};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A mounted volume of a driver, as kubelet would have it.
fn volume(node: &Node, directory: &str) -> PathBuf {
    let target = node.path(&format!("kubelet/pods/uid-7/volumes/{directory}/data"));
    fs::create_dir_all(&target).unwrap();
    mount(Some("tmpfs"), &target, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    target
}

#[test]
fn a_driver_with_a_mounted_volume_is_not_removed() {
    let Some(node) = Node::new("busy::a_driver_with_a_mounted_volume_is_not_removed") else { return };
    node.install(&["busy/tmpfs"]);
    node.install(&["idle/tmpfs"]);
    let target = volume(&node, "busy~tmpfs");
    let before = node.listing();
    let refused = node.uninstall(&["busy/tmpfs"]);
    let message = refused.error(6);
    assert!(message.contains("(pod uid-7)") && message.contains("--when-idle"), "{message}");
    assert!(message.contains(target.to_str().unwrap()), "{message}");
    assert_eq!(node.listing(), before);
    assert_eq!(node.uninstall(&["idle/tmpfs"]).action(), "removed");
    assert!(node.uninstall(&["busy/tmpfs", "--when-idle=0"]).error(6).contains("pod uid-7"));
    let waited = node.uninstall(&["busy/tmpfs", "--when-idle=1"]);
    let waited = waited.error(6);
    assert!(waited.contains("still mounted after 1 s") && !waited.contains("--when-idle"), "{waited}");
    let forced = node.uninstall(&["busy/tmpfs", "--force"]);
    assert_eq!(forced.action(), "removed");
    assert!(forced.json["warnings"][0].as_str().unwrap().contains("still mounted"), "{forced:?}");
    assert_eq!(node.listing(), [""; 0]);
}

#[test]
fn a_device_s_mount_counts_too() {
    let Some(node) = Node::new("busy::a_device_s_mount_counts_too") else { return };
    node.install(&["busy2/tmpfs"]);
    let target = node.path("kubelet/plugins/kubernetes.io/flexvolume/busy2/tmpfs/mounts/pv");
    fs::create_dir_all(&target).unwrap();
    mount(Some("tmpfs"), &target, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    assert!(node.uninstall(&["busy2/tmpfs"]).error(6).contains("mounts/pv"));
}

#[test]
fn who_is_put_back_gets_volumes_that_are_named() {
    let Some(node) = Node::new("busy::who_is_put_back_gets_volumes_that_are_named") else { return };
    node.file("plugins/v~tmpfs/tmpfs", &script("\"attach\":false"));
    node.install(&["v/tmpfs", "--take-over"]);
    let warnings = |more: &[&str]| {
        let told = node.install(&[&["v/tmpfs", "--roll-back"], more].concat());
        told.json["warnings"].as_array().cloned().unwrap_or_default()
    };
    assert!(warnings(&["--dry-run"]).is_empty());
    // Of the driver that was there before, which unmounts it as it always did.
    let others = volume(&node, "v~tmpfs");
    assert!(warnings(&["--dry-run"]).is_empty());
    let target = node.path("kubelet/pods/uid-8/volumes/v~tmpfs/data");
    fs::create_dir_all(&target).unwrap();
    let options = r#"{"kubernetes.io/pod.namespace":"shop","kubernetes.io/pod.name":"web",
        "kubernetes.io/pvOrVolumeName":"data","kubernetes.io/readwrite":"rw"}"#;
    let program = node.plugins().join("v~tmpfs/tmpfs");
    let said = Command::new(program).arg("mount").arg(&target).arg(options).output().unwrap();
    assert!(String::from_utf8_lossy(&said.stdout).contains("Success"), "{said:?}");
    for more in [&["--dry-run"][..], &[]] {
        let [warning] = &warnings(more)[..] else { panic!("{more:?}") };
        let text = warning.as_str().unwrap();
        assert!(
            text.contains("a volume mounted by flexvol is left") && text.contains(": data of shop/web: "),
            "{text}"
        );
        assert!(text.contains("--take-over") && !text.contains("uid-7"), "{text}");
    }
    for target in [target, others] {
        umount(&target).unwrap();
    }
}

/// What `flexvold csi` notes of a volume.
fn serve(node: &Node, csi: &str, driver: &str, target: &str) {
    let volumes = node.state().join("csi").join(csi).join("volumes");
    fs::create_dir_all(&volumes).unwrap();
    let done = serde_json::json!({"phase": "done", "readOnly": false, "exclusive": false});
    let entry = serde_json::json!({"driver": driver, "id": "fx1#pv", "targets": {target: done}});
    fs::write(volumes.join("7.json"), entry.to_string()).unwrap();
    // What is damaged is passed over.
    fs::write(volumes.join("8.json"), "{").unwrap();
}

#[test]
fn a_volume_in_use_over_csi_counts_for_the_driver_that_serves_it() {
    let Some(node) = Node::new("busy::a_volume_in_use_over_csi_counts_for_the_driver_that_serves_it") else {
        return;
    };
    node.install(&["served/tmpfs", "other/tmpfs"]);
    let target = node.path("kubelet/pods/uid-7/volumes/kubernetes.io~csi/data/mount");
    fs::create_dir_all(&target).unwrap();
    mount(Some("tmpfs"), &target, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
    // As kubelet calls it, which may be by another root.
    let named = "/elsewhere/pods/uid-7/volumes/kubernetes.io~csi/data/mount";
    serve(&node, "tmpfs.served.flex.flexvol.dev", "served/tmpfs", named);
    let before = node.listing();
    let refused = node.uninstall(&["served/tmpfs"]);
    let message = refused.error(6);
    assert!(message.contains("kubernetes.io~csi/data/mount (pod uid-7)"), "{message}");
    assert_eq!(node.listing(), before);
    assert_eq!(node.uninstall(&["other/tmpfs"]).action(), "removed");
    umount(&target).unwrap();
    // What is noted and not mounted needs no driver.
    assert_eq!(node.uninstall(&["served/tmpfs"]).action(), "removed");
}

/// A pod's own mount table has no volume of the node's, whatever is mounted there.
#[test]
fn who_sees_no_kubelet_in_a_pod_removes_nothing_unless_forced() {
    let name = "busy::who_sees_no_kubelet_in_a_pod_removes_nothing_unless_forced";
    let Some(node) = Node::new(name) else { return };
    node.install(&["pod/tmpfs"]);
    let plugins = node.plugins();
    mount(Some(&plugins), &plugins, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let before = node.listing();
    let in_pod = |words: &[&str]| {
        let uninstall = node.flexvol("uninstall", words);
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]).arg(uninstall.get_program());
        answer(command.args(uninstall.get_args()))
    };
    for more in [&[][..], &["--when-idle=600"]] {
        let refused = in_pod(&[&["pod/tmpfs"], more].concat());
        let message = refused.error(6);
        assert!(message.contains(wording("no-kubelet-seen")) && message.contains("--force"), "{message}");
    }
    assert_eq!(node.listing(), before);
    assert_eq!(in_pod(&["absent/tmpfs"]).action(), "not there");
    assert_eq!(in_pod(&["pod/tmpfs", "--force"]).action(), "removed");
}

#[test]
fn when_idle_waits_for_the_last_volume() {
    let Some(node) = Node::new("busy::when_idle_waits_for_the_last_volume") else { return };
    node.install(&["busy3/tmpfs"]);
    let target = volume(&node, "busy3~tmpfs");
    let mut uninstall =
        node.flexvol("uninstall", &["busy3/tmpfs", &format!("--when-idle={}", slow_seconds(60))]);
    let mut waiting = uninstall.stdout(Stdio::piped()).spawn().unwrap();
    // It sleeps in poll(2), for which x86_64 and aarch64 have these numbers.
    let syscall = format!("/proc/{}/syscall", waiting.id());
    let sleeps = || {
        fs::read_to_string(&syscall)
            .is_ok_and(|text| ["7 ", "271 ", "73 "].iter().any(|number| text.starts_with(number)))
    };
    eventually("it waits", sleeps);
    assert!(waiting.try_wait().unwrap().is_none() && node.plugins().join("busy3~tmpfs/tmpfs").exists());
    umount(&target).unwrap();
    let output = waiting.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(node.listing(), [""; 0]);
}

#[test]
fn what_flexvol_did_not_put_there_stays() {
    let Some(node) = Node::new("busy::what_flexvol_did_not_put_there_stays") else { return };
    node.install(&["v/tmpfs"]);
    node.file("plugins/v~tmpfs/notes", "mine");
    let before = node.listing();
    for more in [&[][..], &["--force"]] {
        let refused = node.uninstall(&[&["v/tmpfs"], more].concat());
        assert!(refused.error(4).contains(wording_of("foreign-entry", ["…", "notes"])), "{refused:?}");
    }
    assert_eq!(node.listing(), before);
    fs::remove_file(node.plugins().join("v~tmpfs/notes")).unwrap();
    node.file("plugins/v~tmpfs/tmpfs", "#!/bin/sh\n");
    assert!(node.uninstall(&["v/tmpfs"]).error(4).contains("holds tmpfs"));
}

/// Some drivers mount what their volumes share in a directory of their own.
#[test]
fn what_is_mounted_in_a_driver_s_directory_is_neither_copied_nor_removed() {
    let name = "busy::what_is_mounted_in_a_driver_s_directory_is_neither_copied_nor_removed";
    let Some(node) = Node::new(name) else { return };
    node.file("plugins/v~tmpfs/tmpfs", &script("\"attach\":false"));
    let shared = node.plugins().join("v~tmpfs/shared/data");
    fs::create_dir_all(&shared).unwrap();
    let data = node.path("data");
    fs::create_dir(&data).unwrap();
    // The same file system: only the mount table tells it from a directory.
    let bind = || mount(Some(&data), &shared, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    bind();
    node.file("data/precious", "x");
    let refused = node.install(&["v/tmpfs", "--take-over"]);
    assert!(refused.error(1).contains(wording("mounted-over")), "{refused:?}");
    umount(&shared).unwrap();
    assert_eq!(node.install(&["v/tmpfs", "--take-over"]).action(), "taken over");
    bind();
    for more in [&[][..], &["--force"]] {
        let refused = node.uninstall(&[&["v/tmpfs"], more].concat());
        assert!(refused.error(6).contains(wording("mounted-over")), "{refused:?}");
    }
    assert!(data.join("precious").exists() && node.listing().contains(&"v~tmpfs/tmpfs".to_owned()));
    umount(&shared).unwrap();
    assert_eq!(node.uninstall(&["v/tmpfs"]).action(), "removed");
    assert!(data.join("precious").exists());
}
