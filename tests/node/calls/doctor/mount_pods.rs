//! Registrations without a pod, and directories with programs. What is said of pods that run, the
//! tests of mount pods have: `mounter::doctor` of the test program `csi`.

use super::Sick;
use crate::support::wording::{wording, wording_of};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

const GOOD: &str = r#"{"podNamespace":"storage","podName":"tools","podUID":"u-1","containerName":"mounter"}"#;

/// A node with this driver, whose programs it lacks.
fn node(test: &str, side_file: &str) -> Option<Sick> {
    let node = Sick::new(test)?;
    node.site.own("example~blobfuse", side_file);
    Some(node)
}

fn settings(node: &Sick, side_file: &str) {
    node.site.file("plugins/example~blobfuse/.flexvol.json", side_file);
}

fn found(node: &Sick) -> Vec<Value> {
    let findings = node.findings(&["--check", "needs", "--check", "mount-pods"]);
    let is_kernel = |finding: &Value| finding["id"] == "kernel-lacks";
    findings.into_iter().filter(|finding| !is_kernel(finding)).collect()
}

fn ids(node: &Sick) -> Vec<String> {
    found(node).iter().map(|finding| finding["id"].as_str().unwrap().to_owned()).collect()
}

fn place(node: &Sick) -> PathBuf {
    let place = node.site.path("kubelet/plugin-containers");
    fs::create_dir_all(&place).unwrap();
    place
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Torn, forged, of nobody: each is an error where nothing else is used, and what the node lacks is
/// an error where the node is.
#[test]
fn a_registration_that_drivers_do_not_believe() {
    let test = "doctor::mount_pods::a_registration_that_drivers_do_not_believe";
    let Some(node) = node(test, r#"{"driver":"blobfuse"}"#) else { return };
    assert_eq!(ids(&node), ["helper-missing"]);
    let place = place(&node);
    let file = place.join("example~blobfuse.json");
    let put = |text: &str, mode: u32, owner: u32| {
        fs::write(&file, text).unwrap();
        set_mode(&file, mode);
        chown(&file, Some(owner), None).unwrap();
    };
    for (text, mode, owner, said) in [
        (&GOOD[..20], 0o600, 0, "no registration"),
        ("[]", 0o600, 0, "no registration"),
        (GOOD, 0o666, 0, "chown root"),
        (GOOD, 0o600, 65_534, "chown root"),
        (GOOD, 0o600, 0, wording("mount-pod-unusable")),
    ] {
        put(text, mode, owner);
        let found = found(&node);
        assert_eq!((found.len(), &found[0]["id"]), (1, &Value::from("mount-pod-broken")), "{found:#?}");
        assert_eq!(found[0]["severity"], "error");
        assert!(found[0]["evidence"].as_str().unwrap().contains(said), "{found:#?}");
        settings(&node, r#"{"driver":"blobfuse","mounterFallback":"host"}"#);
        assert_eq!(ids(&node), ["helper-missing", "mount-pod-broken"]);
        settings(&node, r#"{"driver":"blobfuse"}"#);
    }
    let fix = found(&node)[0]["fix"].as_str().unwrap().to_owned();
    assert!(
        fix.contains("kubectl -n storage describe pod tools") && fix.contains(file.to_str().unwrap()),
        "{fix}"
    );
    fs::remove_file(&file).unwrap();
    symlink("/etc/passwd", &file).unwrap();
    assert_eq!(ids(&node), ["mount-pod-broken"]);
    fs::remove_file(&file).unwrap();
    // Whoever may write there could say anything.
    set_mode(&place, 0o777);
    let found = found(&node);
    assert_eq!((found.len(), &found[0]["id"]), (1, &Value::from("mount-pod-broken")), "{found:#?}");
    assert!(found[0]["fix"].as_str().unwrap().ends_with("example~blobfuse"), "{found:#?}");
}

#[test]
fn a_registration_that_no_driver_reads() {
    let test = "doctor::mount_pods::a_registration_that_no_driver_reads";
    let Some(node) = node(test, r#"{"driver":"tmpfs"}"#) else { return };
    let place = place(&node);
    for name in ["example~blobfuse", "example~blobfus", "flexvolume-example~other"] {
        fs::write(place.join(format!("{name}.json")), GOOD).unwrap();
    }
    fs::write(place.join("example~x.sock"), "").unwrap();
    assert_eq!(ids(&node), ["mount-pod-unused"; 3]);
}

#[test]
fn a_directory_that_has_the_programs_or_lacks_them() {
    let test = "doctor::mount_pods::a_directory_that_has_the_programs_or_lacks_them";
    let Some(node) = node(test, "{}") else { return };
    let root = node.site.path("tools");
    settings(&node, &format!(r#"{{"driver":"blobfuse","mounter":"chroot:{}"}}"#, root.display()));
    let said = |said: &str| {
        let found = found(&node);
        assert_eq!((found.len(), &found[0]["id"]), (1, &Value::from("tools-root-broken")), "{found:#?}");
        assert!(found[0]["evidence"].as_str().unwrap().contains(said), "{found:#?}");
    };
    said(wording_of("tools-root-gone", [&*root.to_string_lossy()]));
    fs::create_dir_all(root.join("usr/bin")).unwrap();
    said(wording_of("tools-root-lacks", ["example~blobfuse", "blobfuse2", &root.to_string_lossy()]));
    let program = root.join("usr/bin/blobfuse2");
    fs::write(&program, "").unwrap();
    set_mode(&program, 0o755);
    assert_eq!(ids(&node), [""; 0]);
    set_mode(&root, 0o777);
    said("chown root");
}
