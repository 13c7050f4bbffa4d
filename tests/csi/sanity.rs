//! csi-sanity of kubernetes-csi/csi-test, every spec that applies. It is built by the tests of the
//! cluster; `FLEXVOL_CLUSTER_PROGRAMS` is the directory it is in.

use super::node::{Driver, IMAGES, Node, STRICT, write_file};
use super::skip;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs all specs; how many ran and passed. Nothing, if one failed that takes a capability which
/// this process lacks.
fn play(node: &mut Node, program: &Path, parameters: &str) -> Option<(u32, u32)> {
    node.start(&[]);
    let given = node.home.path().join("parameters.yaml");
    write_file(&given, &node.at_home(parameters), 0o644);
    let said = Command::new(program)
        .arg(format!("--csi.endpoint={}", node.socket().display()))
        .arg(format!("--csi.mountdir={}", node.home.path().join("mounts/pod").display()))
        .arg(format!("--csi.stagingdir={}", node.home.path().join("staging/volume").display()))
        .arg(format!("--csi.testvolumeparameters={}", given.display()))
        .args(["--ginkgo.no-color", "--ginkgo.seed=1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    if !said.status.success() {
        let failed: Vec<_> = text.lines().filter(|line| line.contains("[FAIL]")).collect();
        let errors = String::from_utf8_lossy(&said.stderr);
        let only_growing = failed.len() == 1 && failed[0].contains("NodeExpandVolume [It] should work");
        assert!(only_growing && !may_grow(), "{text}\n{errors}\n{}", node.said());
        skip("NodeExpandVolume", "ext4 cannot be grown without CAP_SYS_RESOURCE");
        return None;
    }
    let number = |start: &str, end: &str| {
        let line = text.lines().find(|line| line.starts_with(start))?;
        line[start.len()..].split_once(end)?.0.trim().parse().ok()
    };
    let played = number("Ran ", " of ").zip(number("SUCCESS! -- ", " Passed"));
    Some(played.unwrap_or_else(|| panic!("csi-sanity said nothing: {text}")))
}

/// Whether this process has `CAP_SYS_RESOURCE`, the 25th capability.
fn may_grow() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
    let own = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    u64::from_str_radix(own.trim(), 16).unwrap() >> 24 & 1 == 1
}

fn sanity(test: &str, name: &'static str, driver: &Driver<'_>, parameters: &str) -> Option<(u32, u32)> {
    let Some(programs) = std::env::var_os("FLEXVOL_CLUSTER_PROGRAMS").map(PathBuf::from) else {
        skip(&format!("sanity::{test}"), "FLEXVOL_CLUSTER_PROGRAMS names no directory with csi-sanity");
        return None;
    };
    let mut node = Node::new(test, name, driver)?;
    for directory in ["mounts", "staging", "images"] {
        std::fs::create_dir(node.home.path().join(directory)).unwrap();
    }
    let played = play(&mut node, &programs.join("csi-sanity"), parameters);
    node.is_clean();
    played
}

/// Every spec that applies ran and passed.
fn passes(test: &str, name: &'static str, driver: &Driver<'_>, parameters: &str, specs: u32) {
    if let Some(played) = sanity(test, name, driver, parameters) {
        assert_eq!(played, (specs, specs));
    }
}

/// Publishing, stats, provisioning.
#[test]
fn tmpfs_passes() {
    passes("tmpfs_passes", "flexvol/tmpfs", &Driver::Ours("{}"), "size: 1Mi\n", 32);
}

/// The same and growing.
#[test]
fn a_script_passes() {
    passes("a_script_passes", "example.com/strict", &Driver::Script(STRICT), "{}\n", 36);
}

/// The kit's driver, whose volumes are attached and mounted for the node.
#[test]
fn an_attaching_script_passes() {
    let script =
        include_str!("../../src/kit/check/self_test/loop.sh").replace("/var/lib/loop-volumes", IMAGES);
    let driver = Driver::Whole(&script);
    passes("an_attaching_script_passes", "example.com/loop", &driver, "file: sanity.img\nsize: 16Mi\n", 49);
}

/// The same with commands of ours that attach: the executor looks for what it has staged.
#[test]
fn our_attaching_driver_passes() {
    let mount = r#"["/bin/mount", "-t", "tmpfs", "{option.share}", "{target}"]"#;
    let side_file = format!(
        r#"{{"driver":"exec","exec":{{"capabilities":{{"attach":true}},"options":["share"],"commands":
        {{"attach":["/bin/echo","x"],"mountdevice":{mount},"mount":{mount},"unmountdevice":["/bin/true"]}}}}}}"#
    );
    passes("our_attaching_driver_passes", "flexvol/exec", &Driver::Ours(&side_file), "share: web\n", 45);
}

#[test]
fn an_image_that_mount_attaches_passes() {
    let side_file = format!(r#"{{"policy":{{"imageRoots":["{IMAGES}"]}}}}"#);
    let driver = Driver::Ours(&side_file);
    passes(
        "an_image_that_mount_attaches_passes",
        "flexvol/image",
        &driver,
        "file: sanity.img\nsize: 16Mi\nformat: ifBlank\n",
        36,
    );
}

#[test]
fn bind_passes() {
    let side_file = format!(r#"{{"policy":{{"bindRoots":["{IMAGES}"]}}}}"#);
    let driver = Driver::Ours(&side_file);
    passes("bind_passes", "flexvol/bind", &driver, &format!("source: {IMAGES}\n"), 32);
}
