//! csi-sanity of kubernetes-csi/csi-test, every spec that applies. It is built by the tests of the
//! cluster; `FLEXVOL_CLUSTER_PROGRAMS` is the directory it is in.

use super::node::{Driver, IMAGES, Node, STRICT, write_executable, write_file};
use super::skip;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where a pod has its volume: some drivers look whether the path is kubelet's.
const POD: &str = "kubelet/pods/1/volumes/kubernetes.io~csi/data";

/// What opens the volumes of the drivers that want it.
const SECRETS: &str = "NodePublishVolumeSecret: {username: user, password: password-of-a-test}\n";

/// Runs all specs; how many ran and passed.
fn play(node: &mut Node, program: &Path, parameters: &str) -> (u32, u32) {
    node.start(&[]);
    let home = node.home.path().to_owned();
    write_file(&home.join("parameters.yaml"), &node.at_home(parameters), 0o644);
    write_file(&home.join("secrets.yaml"), SECRETS, 0o600);
    let at = |flag: &str, path: &str| format!("--csi.{flag}={}", home.join(path).display());
    let said = Command::new(program)
        .arg(format!("--csi.endpoint={}", node.socket().display()))
        .arg(at("mountdir", POD))
        .arg(at("stagingdir", "staging/volume"))
        .arg(at("testvolumeparameters", "parameters.yaml"))
        .arg(at("secrets", "secrets.yaml"))
        .args(["--ginkgo.no-color", "--ginkgo.seed=1"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.status.success(), "{text}\n{}\n{}", String::from_utf8_lossy(&said.stderr), node.said());
    let number = |start: &str, end: &str| {
        let line = text.lines().find(|line| line.starts_with(start))?;
        line[start.len()..].split_once(end)?.0.trim().parse().ok()
    };
    let played = number("Ran ", " of ").zip(number("SUCCESS! -- ", " Passed"));
    played.unwrap_or_else(|| panic!("csi-sanity said nothing: {text}"))
}

fn sanity(test: &str, name: &'static str, driver: &Driver<'_>, parameters: &str) -> Option<(u32, u32)> {
    let Some(programs) = std::env::var_os("FLEXVOL_CLUSTER_PROGRAMS").map(PathBuf::from) else {
        skip(&format!("sanity::{test}"), "FLEXVOL_CLUSTER_PROGRAMS names no directory with csi-sanity");
        return None;
    };
    let mut node = Node::new(test, name, driver)?;
    let home = node.home.path();
    for directory in [Path::new(POD).parent().unwrap(), Path::new("staging"), Path::new("images")] {
        std::fs::create_dir_all(home.join(directory)).unwrap();
    }
    write_executable(&home.join("mount.share"), &node.at_home(&at_images(HELPER)));
    write_executable(&home.join("images/disk"), DISK);
    let played = play(&mut node, &programs.join("csi-sanity"), parameters);
    node.is_clean();
    Some(played)
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

/// The kit's driver, whose volumes are attached and mounted for the node. With xfs: a mounted ext4
/// grows only for who has `CAP_SYS_RESOURCE`.
#[test]
fn an_attaching_script_passes() {
    let script = include_str!("../../src/kit/cli/check/template/loop.sh")
        .replace("/var/lib/loop-volumes", IMAGES)
        .replace("^(ext[234])?$", "^(xfs)?$")
        .replace(r#"type == "" ? "ext4""#, r#"type == "" ? "xfs""#)
        .replace(r#"resize2fs "$found""#, r#"xfs_growfs "$3""#);
    let driver = Driver::Whole(&script);
    passes("an_attaching_script_passes", "example.com/loop", &driver, "file: sanity.img\nsize: 320Mi\n", 49);
}

/// Commands of an admin: a file is a disk, which a node attaches as a loop device.
const DISK: &str = r#"#!/bin/sh
set -eu
disk=${0%/*}/disk.img
device() { losetup --noheadings --output NAME --associated "$disk"; }
case $1 in
attach)
    [ -e "$disk" ] || { truncate -s 320M "$disk" && mkfs.xfs -q "$disk"; }
    [ -n "$(device)" ] || losetup --find "$disk"
    device
    ;;
detach) [ -z "$(device)" ] || losetup --detach "$(device)" ;;
mount) mount "$(device)" "$2" ;;
esac
"#;

/// The same with commands of ours that attach: the executor looks for what it has staged.
#[test]
fn our_attaching_driver_passes() {
    let disk = |words: &str| format!(r#"["{IMAGES}/disk", {words}]"#);
    let [attach, detach, mount] = [r#""attach""#, r#""detach""#, r#""mount", "{target}""#].map(disk);
    let side_file = format!(
        r#"{{"driver":"exec","exec":{{"capabilities":{{"attach":true}},"options":["share"],"commands":
        {{"attach":{attach},"detach":{detach},"mountdevice":{mount},"mount":{mount}}}}}}}"#
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
        "file: sanity.img\nsize: 320Mi\nformat: ifBlank\nfsType: xfs\n",
        36,
    );
}

#[test]
fn bind_passes() {
    let side_file = format!(r#"{{"policy":{{"bindRoots":["{IMAGES}"]}}}}"#);
    let driver = Driver::Ours(&side_file);
    passes("bind_passes", "flexvol/bind", &driver, &format!("source: {IMAGES}\n"), 32);
}

/// What stands for the mount program of a share, and its share.
const HELPER: &str = include_str!("../node/kit/peers/mount.share");

/// A text of the peers, with all that it uses on the node of the test.
fn at_images(script: &str) -> String {
    script
        .replace("@SHARE@", &format!("{IMAGES}/../mount.share"))
        .replace("/var/lib/share", &format!("{IMAGES}/share"))
        .replace("/var/log/", &format!("{IMAGES}/"))
        .replace("/tmp/flex-dummy.log", &format!("{IMAGES}/dummy.log"))
}

/// A script under the name of a driver of others passes, with the habits that are known of that.
fn peer_passes(test: &str, name: &'static str, script: &str, parameters: &str, specs: u32) {
    passes(test, name, &Driver::Whole(&at_images(script)), parameters, specs);
}

/// Fails if it is mounted already, or not mounted any more, and does not grow.
#[test]
fn an_imitation_of_fstab_cifs_passes() {
    let script = include_str!("../node/kit/peers/fails-again.sh");
    peer_passes(
        "an_imitation_of_fstab_cifs_passes",
        "fstab/cifs",
        script,
        "networkPath: //server/share\n",
        32,
    );
}

/// Takes the failure of its mount for a success.
#[test]
fn an_imitation_of_juliohm_cifs_passes() {
    let script = include_str!("../node/kit/peers/swallows.sh");
    peer_passes(
        "an_imitation_of_juliohm_cifs_passes",
        "juliohm/cifs",
        script,
        "server: server\nshare: /share\n",
        36,
    );
}

/// Answers nothing, and twice.
#[test]
fn an_imitation_of_fq_lizardfs_passes() {
    let script = include_str!("../node/kit/peers/says-two-things.sh");
    peer_passes(
        "an_imitation_of_fq_lizardfs_passes",
        "fq/lizardfs",
        script,
        "host: server\nfolder: share\n",
        36,
    );
}

/// Removes what is in the directory, and the directory, and does not grow.
#[test]
fn an_imitation_of_microsoft_smb_passes() {
    let script = include_str!("../node/kit/peers/removes-all.sh");
    peer_passes(
        "an_imitation_of_microsoft_smb_passes",
        "microsoft.com/smb",
        script,
        "source: //server/share\n",
        32,
    );
}

/// Kubernetes' own, which mount a tmpfs: without attach, and with it.
#[test]
fn dummies_pass() {
    let Some(programs) = std::env::var_os("FLEXVOL_CLUSTER_PROGRAMS").map(PathBuf::from) else {
        return skip("sanity::dummies_pass", "FLEXVOL_CLUSTER_PROGRAMS names no directory with csi-sanity");
    };
    for (file, name, specs) in [("dummy", "k8s/dummy", 36), ("dummy-attachable", "k8s/dummy-attachable", 49)]
    {
        let script = std::fs::read_to_string(programs.join("drivers").join(file)).unwrap();
        peer_passes("dummies_pass", name, &script, "{}\n", specs);
    }
}
