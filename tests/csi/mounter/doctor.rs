//! What `flexvol doctor` says of mount pods that run: what comes from them, and what is wrong with
//! them.

use super::{Container, NAME, World, of, sh};
use crate::node::{eventually, flexvol};
use crate::wording::{wording, wording_of};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// What it finds: id, severity and evidence of each, of two checks.
fn found(world: &World) -> Vec<[String; 3]> {
    let mut doctor = Command::new(flexvol().unwrap());
    doctor.args(["doctor", "--json", "--check", "needs", "--check", "mount-pods"]);
    doctor.arg("--plugin-dir").arg(world.path("plugins")).arg("--kubelet-root").arg(world.path("kubelet"));
    let said: Value = serde_json::from_slice(&doctor.output().unwrap().stdout).unwrap();
    assert!(said["checks"].as_array().unwrap().iter().all(|check| check["unable"].is_null()), "{said:#}");
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let findings = said["findings"].as_array().unwrap().iter();
    findings.map(|finding| ["id", "severity", "evidence"].map(|key| text(finding, key))).collect()
}

/// The one thing that it finds.
fn only(world: &World) -> [String; 3] {
    let mut found = found(world);
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

#[test]
fn what_comes_from_where() {
    let Some(world) = World::new("mounter::doctor::what_comes_from_where") else { return };
    assert_eq!(found(&world), Vec::<[String; 3]>::new(), "the node has its own");
    let mut pod = Container::start(&world, "one").registers(&world, "one");
    world.has_no_sshfs();
    let [id, severity, evidence] = only(&world);
    assert_eq!((&*id, &*severity), ("mount-pod", "note"));
    assert_eq!(evidence, wording_of("comes-from-mount-pod", [NAME, "sshfs, ssh", &of("one")]));
    // Who asks the node is told what that lacks, and who reads the registration then: nobody.
    world.settings(r#""mounter": "host","#);
    let ids: Vec<_> = found(&world).into_iter().map(|[id, ..]| id).collect();
    assert_eq!(ids, ["helper-missing", "mount-pod-unused"]);
    world.settings("");
    // It has gone, and its registration stayed: nothing is mounted, or by the node if that is said.
    pod.crash();
    let [id, severity, evidence] = only(&world);
    assert_eq!((&*id, &*severity), ("mount-pod-broken", "error"));
    assert!(evidence.contains(&of("one")) && evidence.contains("refused"), "{evidence}");
    world.settings(r#""mounterFallback": "host","#);
    let ids: Vec<_> = found(&world).into_iter().map(|[id, severity, _]| id + &severity).collect();
    assert_eq!(ids, ["helper-missingerror", "mount-pod-brokenwarning"]);
}

#[test]
fn a_mount_pod_that_lacks_a_program() {
    let Some(world) = World::new("mounter::doctor::a_mount_pod_that_lacks_a_program") else { return };
    world.has_no_sshfs();
    let _pod = Container::start(&world, "one").registers(&world, "one");
    let [id, severity, evidence] = only(&world);
    assert_eq!((&*id, &*severity), ("mount-pod-lacks", "error"));
    assert_eq!(evidence, wording_of("mount-pod-lacks", [NAME, "sshfs", &of("one")]));
}

/// A symlink of the image leads to what the image has there, whatever the node has.
#[test]
fn a_mount_pod_s_symlinks_are_those_of_its_image() {
    let test = "mounter::doctor::a_mount_pod_s_symlinks_are_those_of_its_image";
    let Some(world) = World::new(test) else { return };
    let tools = world.path("tools");
    fs::create_dir(&tools).unwrap();
    world.has_no_sshfs();
    let pod = Container::start(&world, "one").registers(&world, "one");
    let (init, tools) = (pod.init(), tools.display().to_string());
    let inside = |script: &str| sh(&format!("nsenter --target {init} --mount sh -ec '{script}'"));
    inside(&format!("mount -t tmpfs tmpfs {tools}; cp /bin/true {tools}/sshfs"));
    inside(&format!("mount -t tmpfs tmpfs /usr/local/sbin; ln -s {tools}/sshfs /usr/local/sbin/sshfs"));
    assert_eq!(only(&world)[0], "mount-pod");
    inside(&format!("rm {tools}/sshfs"));
    sh(&format!("cp /bin/true {tools}/sshfs"));
    assert_eq!(only(&world)[0], "mount-pod-lacks");
}

/// Its registration came while its mounts went to the node, or by hand.
#[test]
fn a_mount_pod_whose_mounts_stay_in_it() {
    let Some(world) = World::new("mounter::doctor::a_mount_pod_whose_mounts_stay_in_it") else { return };
    let pod = Container::start(&world, "one").registers(&world, "one");
    for kind in ["private", "slave"] {
        let (init, kubelet) = (pod.init(), world.path("kubelet"));
        sh(&format!("nsenter --target {init} --mount mount --make-{kind} {}", kubelet.display()));
        let found = found(&world);
        let ids: Vec<_> = found.iter().map(|[id, severity, _]| (&**id, &**severity)).collect();
        assert_eq!(ids, [("mount-pod-private", "error"), ("mount-pod", "note")], "{kind}");
        assert!(found[0][2].contains(&of("one")), "{found:?}");
        sh(&format!("nsenter --target {init} --mount mount --make-shared {}", kubelet.display()));
    }
}

#[test]
fn two_mount_pods_for_one_driver() {
    let Some(world) = World::new("mounter::doctor::two_mount_pods_for_one_driver") else { return };
    let first = Container::start(&world, "one").registers(&world, "one");
    let second = Container::start(&world, "two").registers(&world, "two");
    let ids = |found: &[[String; 3]]| found.iter().map(|[id, ..]| id.clone()).collect::<Vec<_>>();
    let both = found(&world);
    assert_eq!(ids(&both), ["mount-pod-twice", "mount-pod"]);
    assert!(both[0][2].contains("storage/tools-one (pid ") && both[0][2].contains(&of("two")), "{both:?}");
    drop(first);
    assert_eq!(ids(&found(&world)), ["mount-pod"]);
    // A file of the older kind that somebody has left, and a registration for whom nobody listens.
    let (file, text) = (world.registration(), fs::read_to_string(world.registration()).unwrap());
    let other = file.with_file_name(format!("flexvolume-{NAME}.json"));
    fs::write(&other, text.replace("\"two\"", "\"zero\"")).unwrap();
    let said = found(&world);
    assert_eq!(ids(&said), ["mount-pod-twice", "mount-pod"]);
    assert!(said[0][2].starts_with(&*other.to_string_lossy()), "{said:?}");
    fs::remove_file(&other).unwrap();
    fs::write(&file, text.replace("\"two\"", "\"zero\"")).unwrap();
    let [id, severity, evidence] = only(&world);
    assert_eq!((&*id, &*severity), ("mount-pod-twice", "error"));
    assert!(evidence.ends_with(wording_of("pod-listens", ["two"])), "{evidence}");
    drop(second);
    eventually("it is silent", || only(&world)[0] == "mount-pod-broken");
    assert!(only(&world)[2].contains(wording("mount-pod-unusable")));
}
