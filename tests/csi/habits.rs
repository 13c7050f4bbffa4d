//! Drivers that do otherwise than CSI expects, and those who leave things to kubelet.

use super::node::{Driver, Node, STRICT, capability, refused, write_file};
use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::volume_capability::access_mode::Mode;
use tonic::Code;

/// Mounts nothing.
const WRITER: &str = r#"case $1 in
init) ok ',"capabilities":{"attach":false}';;
mount) echo x > "$2/file"; ok;;
unmount) rm -f "$2/file"; ok;;
*) no;;
esac"#;

/// Attaches nothing, and leaves all the rest to kubelet.
const LAZY: &str = r#"case $1 in
init) ok;;
attach|waitforattach) ok ",\"device\":\"$(cat "$here/device")\"";;
detach) ok;;
*) no;;
esac"#;

fn with_habits(test: &str, name: &'static str, driver: &str, habits: &str) -> Option<Node> {
    let mut node = Node::new(test, name, &Driver::Script(driver))?;
    let file = node.home.path().join("habits.json");
    write_file(&file, habits, 0o600);
    node.start(&["--habits", file.to_str().unwrap()]);
    Some(node)
}

#[test]
fn a_driver_without_mounts_needs_the_habit() {
    let Some(node) = Node::serving("without_mounts", "example.com/writer", &Driver::Script(WRITER)) else {
        return;
    };
    let status = node.publish("1", |_| ()).unwrap_err();
    assert!(status.code() == Code::Internal && status.message().contains("habit mountless"), "{status}");
    drop(node);
    let habits = r#"{"example.com/writer":{"mountless":true}}"#;
    let Some(mut node) = with_habits("without_mounts", "example.com/writer", WRITER, habits) else { return };
    node.publish("1", |_| ()).unwrap();
    assert!(node.target("1").join("file").exists() && node.stats("1").is_ok());
    node.restart();
    node.unpublish("1").unwrap();
    node.unpublish("1").unwrap();
    assert_eq!(node.called("unmount"), 1);
    node.is_clean();
}

#[test]
fn an_empty_directory_is_insisted_on() {
    let habits = r#"{"example.com/strict":{"emptyDirectory":true}}"#;
    let Some(node) = with_habits("an_empty_directory", "example.com/strict", STRICT, habits) else { return };
    std::fs::create_dir(node.target("1")).unwrap();
    std::fs::write(node.target("1").join("mine"), "x").unwrap();
    assert_eq!(refused(node.publish("1", |_| ())), Code::FailedPrecondition);
    assert!(node.target("1").join("mine").exists() && node.called("mount") == 0);
    std::fs::remove_file(node.target("1").join("mine")).unwrap();
    node.publish("1", |_| ()).unwrap();
    node.unpublish("1").unwrap();
    node.is_clean();
}

#[test]
fn a_failure_on_standard_error_is_heard() {
    let body = STRICT.replace(
        "mount) is_mounted",
        "mount) printf '{\"status\":\"Failure\",\"message\":\"no such share\"}' >&2; exit 1; is_mounted",
    );
    let habits = r#"{"example.com/strict":{"messages":[{"contains":"No such share","code":"NOT_FOUND"}]}}"#;
    let Some(node) = with_habits("on_standard_error", "example.com/strict", &body, habits) else { return };
    let status = node.publish("1", |_| ()).unwrap_err();
    assert_eq!(
        (status.code(), status.message().ends_with("reason: no such share")),
        (Code::NotFound, true),
        "{status}"
    );
    node.is_clean();
}

#[test]
fn mount_flags_without_an_option_are_refused_and_with_one_passed_on() {
    let flags = || Some(capability(Mode::SingleNodeWriter, &["noatime", "vers=3"]));
    let Some(node) = Node::serving("flags_without", "example.com/strict", &Driver::Script(STRICT)) else {
        return;
    };
    assert_eq!(refused(node.publish("1", |it| it.volume_capability = flags())), Code::InvalidArgument);
    assert!(!node.target("1").exists() && node.called("mount") == 0);
    drop(node);
    let habits = r#"{"example.com/strict":{"mountOptions":{"option":"opts"}}}"#;
    let Some(node) = with_habits("flags_with", "example.com/strict", STRICT, habits) else { return };
    node.publish("1", |it| it.volume_capability = flags()).unwrap();
    assert!(node.log().contains(r#""opts":"noatime,vers=3""#), "{}", node.log());
    node.unpublish("1").unwrap();
    node.is_clean();
}

#[test]
fn without_unmount_kubelet_s_way_is_gone() {
    let body = STRICT.replace("unmount) is_mounted", "never) is_mounted");
    let Some(node) = Node::serving("without_unmount", "example.com/strict", &Driver::Script(&body)) else {
        return;
    };
    node.publish("1", |_| ()).unwrap();
    node.unpublish("1").unwrap();
    node.is_clean();
    let body = STRICT.replace("\nmount)", "\nnever)");
    node.write_driver(&body);
    assert_eq!(refused(node.publish("1", |_| ())), Code::Unimplemented);
    node.is_clean();
}

/// A careful driver mounts and unmounts only where FlexVolume has its volumes.
#[test]
fn a_driver_that_goes_by_its_path_gets_one() {
    const GUARD: &str = r#"case $1:$2 in
mount:*/pods/*/volumes/example.com~guard/*|unmount:*/pods/*/volumes/example.com~guard/*) ;;
mount:*|unmount:*) fail "$2 is no path of mine";;
esac
"#;
    let (test, name, driver) = ("goes_by_its_path", "example.com/guard", [GUARD, STRICT].concat());
    let Some(node) = Node::serving(test, name, &Driver::Script(&driver)) else { return };
    let status = node.publish("1", |_| ()).unwrap_err();
    assert!(status.message().contains("is no path of mine"), "{status}");
    drop(node);
    let Some(mut node) = with_habits(test, name, &driver, r#"{"example.com/guard":{"ownTree":true}}"#) else {
        return;
    };
    node.publish("1", |_| ()).unwrap();
    node.publish("2", |it| it.readonly = true).unwrap();
    std::fs::write(node.target("1").join("file"), "text").unwrap();
    assert!(std::fs::write(node.target("2").join("file"), "text").is_err() && node.stats("2").is_ok());
    node.restart();
    for pod in ["1", "2"] {
        node.unpublish(pod).unwrap();
        node.unpublish(pod).unwrap();
    }
    node.is_clean();
    let id = format!("csi-{}", "0".repeat(64));
    node.publish("1", |it| {
        it.volume_id.clone_from(&id);
        let pod = [("ephemeral", "true"), ("pod.uid", "1")];
        it.volume_context =
            pod.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.into())).into();
    })
    .unwrap();
    assert!(node.is_mounted("1") && node.log().contains("/volumes/example.com~guard/data"), "{}", node.log());
    let target_path = node.target("1").display().to_string();
    let request = csi::NodeUnpublishVolumeRequest { volume_id: id, target_path };
    node.node(async move |mut it| it.node_unpublish_volume(request).await).unwrap();
    node.is_clean();
    let table = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    assert!(!table.contains(node.home.path().to_str().unwrap()), "{table}");
}

/// What `flexvol install --binary` puts beside it says what was installed, and no driver of ours.
#[test]
fn what_was_installed_by_binary_is_served() {
    let (test, name) = ("installed_by_binary", "example.com/strict");
    let Some(mut node) = Node::new(test, name, &Driver::Script(STRICT)) else { return };
    let (Some(program), file) = (super::node::flexvol(), node.home.path().join("strict")) else {
        return super::skip(test, "flexvol is not built");
    };
    std::fs::rename(node.driver().parent().unwrap(), node.home.path().join("before")).unwrap();
    std::fs::rename(node.home.path().join("before/strict"), &file).unwrap();
    let mut install = std::process::Command::new(program);
    install
        .args(["install", name, "--binary"])
        .arg(&file)
        .arg("--plugin-dir")
        .arg(node.home.path().join("plugins"));
    let installed = install.arg("--state-dir").arg(node.home.path().join("installed")).output().unwrap();
    assert!(installed.status.success(), "{installed:?}");
    node.start(&[]);
    node.publish("1", |_| ()).unwrap();
    node.unpublish("1").unwrap();
    node.is_clean();
}

/// The device is formatted because it is blank, mounted for the node, bound for each pod.
#[test]
fn a_driver_that_only_attaches_is_served_as_kubelet_would() {
    let Some(node) = Node::serving("only_attaches", "example.com/lazy", &Driver::Script(LAZY)) else {
        return;
    };
    let Some(device) = Loop::of(&node, 32 << 20) else {
        return super::skip("only_attaches", "no loop device");
    };
    std::fs::write(node.driver().with_file_name("device"), &device.0).unwrap();
    let context = attached(&node, &device);
    let staging = node.kubelet().join("plugins/kubernetes.io/csi/x/0/globalmount").display().to_string();
    std::fs::create_dir_all(&staging).unwrap();
    assert_eq!(
        refused(node.publish("1", |it| it.staging_target_path.clone_from(&staging))),
        Code::FailedPrecondition
    );
    let stage = csi::NodeStageVolumeRequest {
        volume_id: "fx1#pv-1".into(),
        staging_target_path: staging.clone(),
        publish_context: context,
        volume_capability: Some(capability(Mode::MultiNodeMultiWriter, &[])),
        ..csi::NodeStageVolumeRequest::default()
    };
    for _ in 0..2 {
        let stage = stage.clone();
        node.node(async move |mut it| it.node_stage_volume(stage).await).unwrap();
    }
    node.publish("1", |it| it.staging_target_path.clone_from(&staging)).unwrap();
    node.publish("2", |it| (it.staging_target_path, it.readonly) = (staging.clone(), true)).unwrap();
    std::fs::write(node.target("1").join("file"), "text").unwrap();
    assert_eq!(std::fs::read_to_string(node.target("2").join("file")).unwrap(), "text");
    assert!(std::fs::write(node.target("2").join("file"), "x").is_err());
    grown(&node, &device);
    let unstage =
        csi::NodeUnstageVolumeRequest { volume_id: "fx1#pv-1".into(), staging_target_path: staging.clone() };
    let early = unstage.clone();
    assert_eq!(
        refused(node.node(async move |mut it| it.node_unstage_volume(early).await)),
        Code::FailedPrecondition
    );
    for pod in ["1", "2"] {
        node.unpublish(pod).unwrap();
    }
    node.node(async move |mut it| it.node_unstage_volume(unstage).await).unwrap();
    let detach = csi::ControllerUnpublishVolumeRequest { volume_id: "fx1#pv-1".into(), ..Default::default() };
    node.controller(async move |mut it| it.controller_unpublish_volume(detach).await).unwrap();
    assert!(node.log().contains("detach pv-1 node-1"), "{}", node.log());
    node.is_clean();
}

/// Mounted read-only, too, the kernel would replay the journal of whatever device is named.
#[test]
fn a_device_that_names_another_one_is_not_mounted() {
    let test = "names_another_one";
    let Some(node) = Node::serving(test, "example.com/lazy", &Driver::Script(LAZY)) else { return };
    let Some(device) = Loop::of(&node, 32 << 20) else { return super::skip(test, "no loop device") };
    std::fs::write(node.driver().with_file_name("device"), &device.0).unwrap();
    let make = "mkfs.ext4 -q -F -O ^has_journal \"$1\" && debugfs -w -R 'ssv journal_dev 0x702' \"$1\" \\
        && debugfs -w -R 'feature has_journal' \"$1\" && sync";
    assert!(
        std::process::Command::new("sh").args(["-ec", make, "sh", &device.0]).status().unwrap().success()
    );
    let context = attached(&node, &device);
    let staging = node.kubelet().join("plugins/kubernetes.io/csi/x/0/globalmount");
    std::fs::create_dir_all(&staging).unwrap();
    for mode in [Mode::MultiNodeReaderOnly, Mode::MultiNodeMultiWriter] {
        let stage = csi::NodeStageVolumeRequest {
            volume_id: "fx1#pv-1".into(),
            staging_target_path: staging.display().to_string(),
            publish_context: context.clone(),
            volume_capability: Some(capability(mode, &[])),
            ..csi::NodeStageVolumeRequest::default()
        };
        let status = node.node(async move |mut it| it.node_stage_volume(stage).await).unwrap_err();
        assert!(status.message().contains("another device"), "{mode:?}: {status}");
    }
    let table = std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    assert!(!table.contains(&device.0), "{table}");
}

/// What `ControllerPublishVolume` answers.
fn attached(node: &Node, device: &Loop) -> std::collections::HashMap<String, String> {
    let attach = csi::ControllerPublishVolumeRequest {
        volume_id: "fx1#pv-1".into(),
        node_id: "node-1".into(),
        volume_capability: Some(capability(Mode::MultiNodeMultiWriter, &[])),
        ..csi::ControllerPublishVolumeRequest::default()
    };
    let other = csi::ControllerPublishVolumeRequest { node_id: "node-2".into(), ..attach.clone() };
    assert_eq!(
        refused(node.controller(async move |mut it| it.controller_publish_volume(other).await)),
        Code::NotFound
    );
    let context = node
        .controller(async move |mut it| it.controller_publish_volume(attach).await)
        .unwrap()
        .publish_context;
    assert_eq!(context["flex/device"], device.0);
    context
}

fn grown(node: &Node, device: &Loop) {
    let before = node.stats("1").unwrap().usage[0].total;
    device.grow(node, 64 << 20);
    let request = csi::NodeExpandVolumeRequest {
        volume_id: "fx1#pv-1".into(),
        volume_path: node.target("1").display().to_string(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 64 << 20, limit_bytes: 0 }),
        ..csi::NodeExpandVolumeRequest::default()
    };
    match node.node(async move |mut it| it.node_expand_volume(request).await) {
        Err(status) if status.message().contains("CAP_SYS_RESOURCE") => {
            super::skip("grown", "ext4 cannot be grown without CAP_SYS_RESOURCE");
        }
        done => assert!(node.stats("1").unwrap().usage[0].total > before * 3 / 2, "{done:?}"),
    }
}

/// A loop device that goes with the test.
struct Loop(String);

impl Loop {
    fn of(node: &Node, size: u64) -> Option<Self> {
        let file = node.home.path().join("disk");
        std::fs::File::create(&file).unwrap().set_len(size).unwrap();
        let said =
            std::process::Command::new("losetup").args(["--find", "--show"]).arg(&file).output().ok()?;
        said.status.success().then(|| Self(String::from_utf8(said.stdout).unwrap().trim().to_owned()))
    }

    fn grow(&self, node: &Node, size: u64) {
        std::fs::File::options()
            .write(true)
            .open(node.home.path().join("disk"))
            .unwrap()
            .set_len(size)
            .unwrap();
        assert!(
            std::process::Command::new("losetup")
                .args(["--set-capacity", &self.0])
                .status()
                .unwrap()
                .success()
        );
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = std::process::Command::new("losetup").args(["--detach", &self.0]).status();
    }
}
