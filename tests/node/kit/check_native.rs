//! Our own drivers under our own conformance kit: every case that concerns them holds, must and
//! should, and the whole takes no longer than promised.

use crate::support::pace::{deadline, slow_seconds};
use crate::support::{BINARY, release, skip};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Four times what is promised of a whole run where nothing else runs on two cores: a minute.
fn everything() -> Duration {
    deadline(240)
}

/// The same for the musts: 20 seconds.
fn must() -> Duration {
    deadline(80)
}

/// The release binary if there is one: what people run.
fn flexvol() -> Command {
    Command::new(release().unwrap_or_else(|| BINARY.into()))
}

/// A plugin directory, and below it what the drivers work on.
struct Node(TempDir);

impl Node {
    fn new() -> Self {
        let node = Self(tempfile::tempdir().unwrap());
        for directory in ["plugins", "images", "shared"] {
            fs::create_dir(node.path(directory)).unwrap();
        }
        node
    }

    fn path(&self, below: &str) -> PathBuf {
        self.0.path().join(below)
    }

    /// Installs a driver; where it is then.
    fn install(&self, driver: &str, settings: Option<&str>) -> PathBuf {
        let mut command = flexvol();
        command.args(["install", "--plugin-dir"]).arg(self.path("plugins")).arg(driver);
        command.arg("--state-dir").arg(self.path("state"));
        if let Some(settings) = settings {
            let file = self.path(&format!("{driver}.json"));
            fs::write(&file, settings).unwrap();
            command.arg("--settings").arg(file);
        }
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        self.path("plugins").join(format!("flexvol~{driver}")).join(driver)
    }
}

/// The report as JSON; SKIP and nothing where no sandbox can be had.
fn check(name: &str, driver: &Path, options: &str, further: &[&str]) -> Option<Value> {
    if !rustix::process::geteuid().is_root() {
        skip(name, "needs root for mounts");
        return None;
    }
    let output = flexvol()
        .args(["check", "--format", "json", "--seed", "1", "--options", options])
        .args(["--timeout", &slow_seconds(30).to_string()])
        .args(further)
        .arg(driver)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let report: Value = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    Some(report)
}

/// What there is at least of what concerns a driver: of all cases, and of those that must hold.
const CASES: usize = 100;
const MUSTS: usize = 90;

/// Everything that was played holds, and it was more than so many cases. What does not concern the
/// driver may only be skipped for that reason.
fn all_hold(report: &Value, more_than: usize) {
    let cases = report["cases"].as_array().unwrap();
    let ended = |how: &str| cases.iter().filter(|case| case["result"] == how).collect::<Vec<_>>();
    let bad: Vec<_> =
        cases.iter().filter(|case| case["result"] != "passed" && case["result"] != "skipped").collect();
    assert!(bad.is_empty(), "{bad:#?}");
    for case in ended("skipped") {
        println!("NOTE {}: {}", case["id"], case["why"]);
    }
    assert!(ended("passed").len() > more_than, "only {} cases hold", ended("passed").len());
}

#[test]
fn tmpfs() {
    let node = Node::new();
    let driver = node.install("tmpfs", None);
    let start = Instant::now();
    let options = r#"{"size":"4Mi","mode":"0777"}"#;
    let Some(report) = check("check_native::tmpfs", &driver, options, &["--ephemeral-ok"]) else { return };
    all_hold(&report, CASES);
    assert!(start.elapsed() < everything(), "{:?}", start.elapsed());
}

#[test]
fn the_musts_of_tmpfs_are_quick() {
    let node = Node::new();
    let driver = node.install("tmpfs", None);
    let start = Instant::now();
    let further = ["--ephemeral-ok", "--level", "must"];
    let Some(report) = check("check_native::must", &driver, r#"{"size":"4Mi"}"#, &further) else { return };
    all_hold(&report, MUSTS);
    assert!(start.elapsed() < must(), "{:?}", start.elapsed());
}

#[test]
fn bind() {
    let node = Node::new();
    let shared = node.path("shared");
    // What is bound keeps its mode, and pods run as anybody.
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    let settings = serde_json::json!({"driver": "bind", "policy": {"bindRoots": [shared]}});
    let driver = node.install("bind", Some(&settings.to_string()));
    let options = serde_json::json!({"source": shared}).to_string();
    let Some(report) = check("check_native::bind", &driver, &options, &[]) else { return };
    all_hold(&report, CASES);
}

#[test]
fn image() {
    let node = Node::new();
    let settings = serde_json::json!({"driver": "image", "policy": {"imageRoots": [node.path("images")]}});
    let driver = node.install("image", Some(&settings.to_string()));
    let options = r#"{"file":"volume.img","size":"16Mi","fsType":"ext4","format":"ifBlank"}"#;
    let Some(report) = check("check_native::image", &driver, options, &[]) else { return };
    all_hold(&report, CASES);
}

#[test]
fn secretfiles() {
    let node = Node::new();
    let driver = node.install("secretfiles", None);
    let options =
        r#"{"kubernetes.io/secret/tls.key":"aHVudGVyMi1zZWNyZXQ=","kubernetes.io/secret/ca":"bm9ib2R5"}"#;
    let further = ["--ephemeral-ok", "--read-only-ok", "--repeat", "3"];
    let Some(report) = check("check_native::secretfiles", &driver, options, &further) else { return };
    all_hold(&report, CASES);
}

#[test]
fn overlay() {
    let node = Node::new();
    let settings = serde_json::json!({"driver": "overlay", "policy": {"bindRoots": [node.path("shared")]}});
    let driver = node.install("overlay", Some(&settings.to_string()));
    let options = serde_json::json!({"lower": node.path("shared"), "size": "4Mi"}).to_string();
    let further = ["--ephemeral-ok", "--repeat", "3"];
    let Some(report) = check("check_native::overlay", &driver, &options, &further) else { return };
    all_hold(&report, CASES);
}

#[test]
fn exec() {
    let node = Node::new();
    let mount = ["/bin/mount", "-t", "tmpfs", "-o", "{access},size=4m", "share", "{target}"];
    let settings =
        serde_json::json!({"driver": "exec", "exec": {"commands": {"mount": mount}, "fileSystem": "tmpfs"}});
    let driver = node.install("exec", Some(&settings.to_string()));
    let Some(report) = check("check_native::exec", &driver, "{}", &["--ephemeral-ok"]) else { return };
    all_hold(&report, CASES);
}

#[test]
fn qcow2() {
    let Some(report) = image_on_a_device("check_native::qcow2", true) else { return };
    all_hold(&report, CASES);
}

/// Each pod's mount brings the device: whoever comes first says whether it can be written.
#[test]
fn qcow2_by_mount_alone() {
    let Some(report) = image_on_a_device("check_native::qcow2_by_mount_alone", false) else { return };
    all_hold(&report, CASES);
}

fn image_on_a_device(name: &str, attach: bool) -> Option<Value> {
    if !["qemu-storage-daemon", "qemu-img"].iter().all(|program| Path::new("/usr/bin").join(program).exists())
    {
        skip(name, "needs qemu-storage-daemon and qemu-img");
        return None;
    }
    let node = Node::new();
    // The kit waits three times as long for an answer.
    let settings = serde_json::json!({"driver": "qcow2", "attach": attach, "deadlines": {"unmount": slow_seconds(10)},
        "policy": {"imageRoots": [node.path("images")]}});
    let driver = node.install("qcow2", Some(&settings.to_string()));
    let options = r#"{"file":"volume.qcow2","size":"16Mi","fsType":"ext4"}"#;
    // A sandbox has its own processes and the kernel's loop devices: one whose daemon is stopped
    // holds up the others.
    check(name, &driver, options, &["--repeat", "3", "--jobs", "1"])
}
