//! A volume's life in pods, without attach and with it.

use super::node::{Driver, Node, STRICT, capability, refused, write_file};
use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::node_service_capability::Type;
use flexvol_cluster::wire::csi::node_service_capability::rpc::Type as Rpc;
use flexvol_cluster::wire::csi::volume_capability::access_mode::Mode;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use tonic::Code;

const TMPFS: Driver<'_> = Driver::Ours("{}");

fn options(pairs: &[(&str, &str)]) -> std::collections::HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

#[test]
fn a_pod_comes_and_goes() {
    let Some(node) = Node::serving("a_pod_comes_and_goes", "flexvol/tmpfs", &TMPFS) else { return };
    let of_one_megabyte = |it: &mut csi::NodePublishVolumeRequest| {
        it.volume_context = options(&[("size", "1Mi"), ("mode", "0750")]);
    };
    for _ in 0..2 {
        node.publish("1", of_one_megabyte).unwrap();
    }
    let about = node.target("1").metadata().unwrap();
    assert_eq!((about.mode() & 0o7777, node.is_mounted("1")), (0o750, true));
    let usage = node.stats("1").unwrap().usage;
    assert_eq!((usage[0].total, usage.len()), (1 << 20, 2));
    assert_eq!(refused(node.stats("2")), Code::NotFound);
    node.publish("2", of_one_megabyte).unwrap();
    node.unpublish("1").unwrap();
    node.unpublish("1").unwrap();
    assert!(node.is_mounted("2"));
    node.unpublish("2").unwrap();
    node.is_clean();
}

#[test]
fn readonly_holds_and_cannot_change() {
    let Some(node) = Node::serving("readonly_holds", "flexvol/tmpfs", &TMPFS) else { return };
    node.publish("1", |it| it.readonly = true).unwrap();
    assert!(std::fs::write(node.target("1").join("file"), "x").is_err());
    assert_eq!(refused(node.publish("1", |_| ())), Code::AlreadyExists);
    let reader = Some(capability(Mode::MultiNodeReaderOnly, &[]));
    node.publish("2", |it| it.volume_capability = reader).unwrap();
    assert!(std::fs::write(node.target("2").join("file"), "x").is_err());
    for pod in ["1", "2"] {
        node.unpublish(pod).unwrap();
    }
    node.is_clean();
}

#[test]
fn mount_flags_reach_the_driver_or_are_refused() {
    let Some(node) = Node::serving("mount_flags", "flexvol/tmpfs", &TMPFS) else { return };
    node.publish("1", |it| it.volume_capability = Some(capability(Mode::SingleNodeWriter, &["noexec"])))
        .unwrap();
    let table = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let target = node.target("1").display().to_string();
    assert!(table.lines().any(|line| line.contains(&target) && line.contains("noexec")), "{table}");
    node.unpublish("1").unwrap();
    node.is_clean();
}

#[test]
fn one_pod_alone_or_many() {
    let Some(node) = Node::serving("one_pod_alone", "example.com/strict", &Driver::Script(STRICT)) else {
        return;
    };
    let single = || Some(capability(Mode::SingleNodeSingleWriter, &[]));
    node.publish("1", |it| it.volume_capability = single()).unwrap();
    assert_eq!(refused(node.publish("2", |_| ())), Code::FailedPrecondition);
    node.unpublish("1").unwrap();
    node.publish("1", |_| ()).unwrap();
    assert_eq!(refused(node.publish("2", |it| it.volume_capability = single())), Code::FailedPrecondition);
    node.unpublish("1").unwrap();
    node.is_clean();
}

#[test]
fn an_inline_volume_is_named_by_its_path() {
    let Some(node) = Node::serving("an_inline_volume", "example.com/strict", &Driver::Script(STRICT)) else {
        return;
    };
    let id = format!("csi-{}", "7".repeat(64));
    let context = options(&[
        ("csi.storage.k8s.io/ephemeral", "true"),
        ("csi.storage.k8s.io/pod.name", "web"),
        ("csi.storage.k8s.io/pod.namespace", "shop"),
        ("csi.storage.k8s.io/pod.uid", "1"),
        ("share", "x"),
    ]);
    node.publish("1", |it| (it.volume_id, it.volume_context) = (id.clone(), context)).unwrap();
    let log = node.log();
    for part in [
        r#""kubernetes.io/pvOrVolumeName":"data""#,
        r#""kubernetes.io/pod.name":"web""#,
        r#""kubernetes.io/pod.namespace":"shop""#,
        r#""share":"x""#,
    ] {
        assert!(log.contains(part), "{part}: {log}");
    }
    assert!(!log.contains("ephemeral"), "{log}");
    let target_path = node.target("1").to_string_lossy().into_owned();
    let request = csi::NodeUnpublishVolumeRequest { volume_id: id, target_path };
    node.node(async move |mut node| node.node_unpublish_volume(request).await).unwrap();
    node.is_clean();
}

/// Nothing would attach it: the API server knows no such volume of a driver whose `CSIDriver` says
/// that it attaches.
#[test]
fn an_inline_volume_of_a_driver_that_attaches_is_refused() {
    let body = STRICT.replace(r#""attach":false"#, r#""attach":true"#);
    let Some(node) = Node::serving("an_inline_volume_attaches", "example.com/strict", &Driver::Script(&body))
    else {
        return;
    };
    let id = format!("csi-{}", "7".repeat(64));
    let context = options(&[("csi.storage.k8s.io/ephemeral", "true"), ("csi.storage.k8s.io/pod.uid", "1")]);
    let status = node.publish("1", |it| (it.volume_id, it.volume_context) = (id, context)).unwrap_err();
    assert!(
        status.code() == Code::InvalidArgument && status.message().contains("PersistentVolume"),
        "{status}"
    );
    assert!(node.called("mount") == 0 && !node.target("1").exists(), "{}", node.log());
}

#[test]
fn the_journal_outlives_the_process_and_its_loss_is_survived() {
    let Some(mut node) = Node::serving("the_journal", "example.com/strict", &Driver::Script(STRICT)) else {
        return;
    };
    node.publish("1", |_| ()).unwrap();
    node.restart();
    node.publish("1", |_| ()).unwrap();
    assert!(node.stats("1").is_ok() && node.called("mount") == 1);
    // The journal is lost: what is mounted is found, and nothing is claimed about the rest.
    node.kill();
    std::fs::remove_dir_all(node.state()).unwrap();
    node.start(&[]);
    assert_eq!(refused(node.stats("1")), Code::NotFound);
    node.publish("1", |_| ()).unwrap();
    assert!(node.stats("1").is_ok() && node.called("mount") == 1);
    // Lost again: it is unmounted all the same.
    node.kill();
    std::fs::remove_dir_all(node.state()).unwrap();
    node.start(&[]);
    node.unpublish("1").unwrap();
    node.is_clean();
}

/// After a reboot no process runs, nothing is mounted and /run is empty; the journal says that the
/// volume is published.
#[test]
fn a_reboot_is_survived() {
    let Some(mut node) = Node::serving("a_reboot", "example.com/strict", &Driver::Script(STRICT)) else {
        return;
    };
    let reboot = |node: &mut Node| {
        node.kill();
        umount(&node.target("1"));
        for left in std::fs::read_dir("/run").unwrap().map(|left| left.unwrap().path()) {
            std::fs::remove_dir_all(&left).or_else(|_| std::fs::remove_file(&left)).unwrap();
        }
        node.restart_killed();
    };
    node.publish("1", |_| ()).unwrap();
    reboot(&mut node);
    assert_eq!(refused(node.stats("1")), Code::NotFound);
    node.publish("1", |_| ()).unwrap();
    assert!(node.is_mounted("1") && node.called("mount") == 2);
    reboot(&mut node);
    node.unpublish("1").unwrap();
    node.is_clean();
}

#[test]
fn a_failed_mount_leaves_nothing() {
    let half = STRICT.replace("ok;;\nunmount", "fail 'and then it went wrong';;\nunmount");
    let Some(node) = Node::serving("a_failed_mount", "example.com/strict", &Driver::Script(&half)) else {
        return;
    };
    let status = node.publish("1", |_| ()).unwrap_err();
    assert_eq!(status.code(), Code::Internal);
    assert!(status.message().ends_with("reason: and then it went wrong"), "{status}");
    assert_eq!((node.called("mount"), node.called("unmount")), (1, 1));
    node.is_clean();
}

#[test]
fn a_driver_that_is_gone_or_broken_says_so_and_comes_back() {
    let Some(node) = Node::serving("a_driver_that_is_gone", "example.com/strict", &Driver::Script(STRICT))
    else {
        return;
    };
    let probe = || node.identity(async |mut identity| identity.probe(csi::ProbeRequest {}).await);
    assert_eq!(probe().unwrap().ready, Some(true));
    std::fs::remove_file(node.driver()).unwrap();
    assert_eq!(refused(probe()), Code::FailedPrecondition);
    assert_eq!(refused(node.publish("1", |_| ())), Code::FailedPrecondition);
    node.write_driver("fail 'not today'");
    assert!(probe().unwrap_err().message().contains("not today"));
    node.write_driver(STRICT);
    assert_eq!(probe().unwrap().ready, Some(true));
    node.is_clean();
}

#[test]
fn capabilities_follow_init() {
    for (says, group, stage, grows) in [
        (r#"{"attach":false}"#, false, false, true),
        (r#"{"attach":false,"fsGroup":false,"requiresFSResize":false}"#, true, false, false),
        ("{}", false, true, true),
    ] {
        let body = format!("case $1 in init) ok ',\"capabilities\":{says}';; *) no;; esac");
        let Some(node) = Node::serving("capabilities", "example.com/x", &Driver::Script(&body)) else {
            return;
        };
        let request = csi::NodeGetCapabilitiesRequest {};
        let found = node.node(async |mut node| node.node_get_capabilities(request).await).unwrap();
        let has = |kind: Rpc| {
            found
                .capabilities
                .iter()
                .any(|each| matches!(&each.r#type, Some(Type::Rpc(rpc)) if rpc.r#type() == kind))
        };
        assert!(has(Rpc::SingleNodeMultiWriter) && has(Rpc::GetVolumeStats), "{says}");
        assert_eq!(
            (has(Rpc::VolumeMountGroup), has(Rpc::StageUnstageVolume), has(Rpc::ExpandVolume)),
            (group, stage, grows),
            "{says}"
        );
    }
}

/// external-resizer asks the controller, beside which there is no node.
#[test]
fn the_controller_says_whether_nodes_grow_volumes() {
    for (resize, grows) in [("", true), (",\"requiresFSResize\":false", false)] {
        let body = STRICT.replace("\"attach\":false", &format!("\"attach\":false{resize}"));
        let Some(mut node) = Node::new("the_controller", "example.com/x", &Driver::Script(&body)) else {
            return;
        };
        node.start(&["--role", "controller"]);
        let request = csi::NodeGetCapabilitiesRequest {};
        let found = node.node(async |mut node| node.node_get_capabilities(request).await).unwrap();
        let is_growth = |kind: &Type| matches!(kind, Type::Rpc(rpc) if rpc.r#type() == Rpc::ExpandVolume);
        assert_eq!(found.capabilities.iter().any(|each| each.r#type.as_ref().is_some_and(is_growth)), grows);
        assert_eq!(refused(node.publish("1", |_| ())), Code::Unimplemented);
    }
}

#[test]
fn the_provisioner_makes_options_of_parameters() {
    let Some(node) = Node::serving("the_provisioner", "flexvol/tmpfs", &TMPFS) else { return };
    let create = |name: &str| {
        let request = csi::CreateVolumeRequest {
            name: name.into(),
            volume_capabilities: vec![capability(Mode::SingleNodeWriter, &[])],
            parameters: options(&[("size", "2Mi"), ("csi.storage.k8s.io/pv/name", "x")]),
            ..csi::CreateVolumeRequest::default()
        };
        node.controller(async move |mut controller| controller.create_volume(request).await)
            .unwrap()
            .volume
            .unwrap()
    };
    let volume = create("pvc-1");
    assert_eq!((volume.volume_id.as_str(), volume.capacity_bytes), ("fx1#pvc-1", 0));
    assert_eq!(volume.volume_context, options(&[("size", "2Mi")]));
    assert_eq!(create("pvc-1"), volume);
    let long = create(&"x".repeat(128));
    node.publish("1", |it| (it.volume_id, it.volume_context) = (long.volume_id.clone(), long.volume_context))
        .unwrap();
    let target_path = node.target("1").to_string_lossy().into_owned();
    let request = csi::NodeUnpublishVolumeRequest { volume_id: long.volume_id, target_path };
    node.node(async move |mut node| node.node_unpublish_volume(request).await).unwrap();
    node.is_clean();
}

#[test]
fn an_admin_s_attributes_are_laid_under() {
    let Some(mut node) = Node::new("attributes", "flexvol/tmpfs", &TMPFS) else { return };
    let file = node.home.path().join("attributes.json");
    write_file(&file, r#"{"size":"3Mi"}"#, 0o600);
    node.start(&["--attributes-from", file.to_str().unwrap()]);
    let total = |node: &Node, pod| node.stats(pod).unwrap().usage[0].total;
    node.publish("2", |it| it.volume_context = options(&[("size", "1Mi")])).unwrap();
    assert_eq!(total(&node, "2"), 1 << 20);
    node.unpublish("2").unwrap();
    node.publish("1", |_| ()).unwrap();
    // It is the same volume, whatever the default is.
    write_file(&file, r#"{"size":"2Mi"}"#, 0o600);
    node.restart();
    node.publish("2", |_| ()).unwrap();
    assert_eq!((total(&node, "1"), total(&node, "2")), (3 << 20, 2 << 20));
    for pod in ["1", "2"] {
        node.unpublish(pod).unwrap();
    }
    node.is_clean();
}

fn umount(target: &Path) {
    nix::mount::umount(target).unwrap();
}
