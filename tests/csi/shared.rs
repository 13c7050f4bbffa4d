//! Whose a volume is, and whose not: one that only one pod may have, and paths of other volumes.

use super::namespace;
use super::node::{Driver, Node, STRICT, capability, eventually, refused};
use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::node_client::NodeClient;
use flexvol_cluster::wire::csi::volume_capability::access_mode::Mode;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;
use tonic::{Code, Status};

fn serving(test: &str, body: &str) -> Option<Node> {
    Node::serving(test, "example.com/strict", &Driver::Script(body))
}

/// `ReadWriteOncePod`.
fn alone(request: &mut csi::NodePublishVolumeRequest) {
    request.volume_capability = Some(capability(Mode::SingleNodeSingleWriter, &[]));
}

#[test]
fn one_pod_has_it_and_then_another() {
    let Some(node) = serving("one_pod_has_it", STRICT) else { return };
    node.publish("1", alone).unwrap();
    node.publish("1", alone).unwrap();
    assert_eq!(refused(node.publish("2", alone)), Code::FailedPrecondition);
    node.unpublish("1").unwrap();
    node.publish("2", alone).unwrap();
    node.unpublish("2").unwrap();
    node.is_clean();
}

/// Publishes a volume whose driver hangs. Then `flexvold` and its driver die together, as in a
/// container, and `flexvold` is started again.
fn die_together(node: &mut Node) {
    let pid = node.driver().with_file_name("pid");
    let mut request = node.publish_request("1");
    alone(&mut request);
    node.block_on(async {
        let mut client = NodeClient::new(node.channel().await);
        tokio::spawn(async move { client.node_publish_volume(request).await });
        while !fs::read_to_string(&pid).is_ok_and(|text| text.ends_with('\n')) {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    });
    node.kill();
    let driver = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    kill(Pid::from_raw(driver), Signal::SIGKILL).unwrap();
    node.restart_killed();
}

/// What `mount` begins with to hang once.
const HANGS_ONCE: &str =
    r#"[ -e "$here/once" ] || { touch "$here/once"; echo $$ >"$here/pid"; exec sleep 985; }"#;

/// kubelet never unpublishes what was not published.
#[test]
fn what_was_begun_is_undone_though_nobody_asks() {
    let body = STRICT.replace("|| fail \"mount\";", &format!("|| fail \"mount\"; {HANGS_ONCE};"));
    let Some(mut node) = serving("undone_though_nobody_asks", &body) else { return };
    die_together(&mut node);
    let volumes = fs::read_dir(node.state()).unwrap().next().unwrap().unwrap().path().join("volumes");
    eventually("it is undone", || fs::read_dir(&volumes).unwrap().next().is_none());
    node.is_clean();
    assert_eq!((node.called("mount"), node.called("unmount")), (1, 1));
}

#[test]
fn a_pod_that_never_had_it_does_not_keep_it() {
    let body = STRICT.replace("mount) is", &format!("mount) {HANGS_ONCE}; is"));
    let Some(mut node) = serving("a_pod_that_never_had_it", &body) else { return };
    die_together(&mut node);
    eventually("another pod has it", || node.publish("2", alone).is_ok());
    node.unpublish("2").unwrap();
    node.is_clean();
}

/// No mount outlives a boot, and a pod that is gone since then is never unpublished.
#[test]
fn a_pod_from_before_the_last_boot_does_not_keep_it() {
    let Some(mut node) = serving("a_pod_from_before", STRICT) else { return };
    node.publish("1", alone).unwrap();
    node.kill();
    umount2(&node.target("1"), MntFlags::MNT_DETACH).unwrap();
    node.restart_killed();
    node.publish("2", alone).unwrap();
    node.unpublish("1").unwrap();
    node.unpublish("2").unwrap();
    node.is_clean();
}

#[test]
fn no_volume_is_unpublished_by_the_name_of_another() {
    let Some(node) = serving("by_the_name_of_another", STRICT) else { return };
    node.publish("1", |_| ()).unwrap();
    let unpublish = || -> Result<(), Status> {
        let volume_id = "fx1#pv-2".to_owned();
        let target_path = node.target("1").to_string_lossy().into_owned();
        let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path };
        node.node(async move |mut it| it.node_unpublish_volume(request).await).map(drop)
    };
    assert_eq!(refused(unpublish()), Code::FailedPrecondition);
    assert!(node.is_mounted("1"));
    node.unpublish("1").unwrap();
    // What is not there may be unpublished by any name.
    unpublish().unwrap();
    node.is_clean();
}

/// The journal may be lost; what can be written is not handed to who may only read.
#[test]
fn a_writable_mount_is_not_adopted_for_reading() {
    let Some(mut node) = serving("not_adopted_for_reading", STRICT) else { return };
    node.publish("1", |_| ()).unwrap();
    node.kill();
    fs::remove_dir_all(node.state()).unwrap();
    node.restart_killed();
    assert_eq!(refused(node.publish("1", |request| request.readonly = true)), Code::AlreadyExists);
    node.publish("1", |_| ()).unwrap();
    assert_eq!((node.called("mount"), namespace::mounts_at(&node.target("1")).len()), (1, 1));
    node.unpublish("1").unwrap();
    node.is_clean();
}

/// A program served the volume and has ended; the kernel answers about its root from its cache. The
/// volume counts neither as published already nor as published by an earlier process.
#[test]
fn a_dead_mount_is_no_success() {
    let test = "a_dead_mount_is_no_success";
    if !Path::new("/usr/bin/bindfs").exists() || !Path::new("/dev/fuse").exists() {
        return super::skip(test, "needs bindfs and /dev/fuse");
    }
    let serve = r#"mkdir -p "$here/served"; bindfs -o attr_timeout=600 "$here/served" "$2" >/dev/null 2>&1
        pgrep -f "bindfs.*$here/served" >"$here/pid""#;
    let body =
        STRICT.replace("mount -t tmpfs strict \"$2\"", serve).replace("umount \"$2\"", "umount -cl \"$2\"");
    let Some(mut node) = serving(test, &body) else { return };
    node.publish("1", |_| ()).unwrap();
    fs::metadata(node.target("1")).unwrap();
    let pid = fs::read_to_string(node.driver().with_file_name("pid")).unwrap();
    kill(Pid::from_raw(pid.trim().parse().unwrap()), Signal::SIGKILL).unwrap();
    eventually("it is gone", || !Path::new("/proc").join(pid.trim()).exists());
    for _ in 0..2 {
        let status = node.publish("1", |_| ()).unwrap_err();
        assert!(status.message().contains("is dead"), "{status}");
        node.kill();
        fs::remove_dir_all(node.state()).unwrap();
        node.restart_killed();
    }
    node.unpublish("1").unwrap();
    node.publish("1", |_| ()).unwrap();
    node.unpublish("1").unwrap();
    node.is_clean();
}

/// A second PersistentVolume with its volumeHandle, and with options that name other data.
#[test]
fn the_handle_of_another_volume_brings_nothing_of_it() {
    let Some(mut node) = serving("the_handle_of_another", STRICT) else { return };
    let with = |path: &'static str| {
        move |request: &mut csi::NodePublishVolumeRequest| {
            request.volume_context.insert("path".into(), path.into());
        }
    };
    node.publish("1", with("a")).unwrap();
    assert_eq!(refused(node.publish("2", with("b"))), Code::FailedPrecondition);
    assert_eq!(refused(node.publish("2", |_| ())), Code::FailedPrecondition);
    assert!(node.is_mounted("1") && !node.target("2").exists());
    node.stats("1").unwrap();
    assert_eq!(refused(node.stats("2")), Code::NotFound);
    node.publish("2", with("a")).unwrap();
    node.unpublish("1").unwrap();
    node.unpublish("2").unwrap();
    node.publish("2", with("b")).unwrap();
    // What a reboot has ended does not count.
    node.kill();
    umount2(&node.target("2"), MntFlags::MNT_DETACH).unwrap();
    node.restart_killed();
    node.publish("1", with("a")).unwrap();
    node.unpublish("1").unwrap();
    node.unpublish("2").unwrap();
    node.is_clean();
}
