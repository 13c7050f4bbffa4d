//! What runs in a mount pod to its end: what it is given, and what it must not be given.

use super::{Container, World};
use crate::wording::wording_of;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

/// Of the volume's Secret, and what rclone makes of it.
const SECRET: &str = "c4nary-of-a-tenant";
const OBSCURED: &str = "c4nary-obscured";

/// In place of rclone: writes down the arguments and environments of all processes of the pod, and
/// what it reads itself.
fn rclone(world: &World) -> String {
    let (at, fake) = (world.home.path().display().to_string(), world.path("rclone"));
    let script = format!(
        "#!/bin/sh
        cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' >>{at}/seen
        echo \"ran $1\" >>{at}/seen
        case $1 in
        obscure) cat >{at}/read; echo {OBSCURED} ;;
        mount) exit 3 ;;
        esac"
    );
    fs::write(&fake, script).unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    format!("mount --bind {} /usr/bin/rclone", fake.display())
}

/// Test 22.
#[test]
fn a_secret_is_in_no_argument_and_no_environment_of_a_mount_pod() {
    let test = "mounter::exec::a_secret_is_in_no_argument_and_no_environment_of_a_mount_pod";
    let Some(world) = World::new(test) else { return };
    if !super::needs(test, "/usr/bin/rclone") {
        return;
    }
    let pod = Container::start_with(&world, "one", "unchanged", &rclone(&world)).registers(&world, "one");
    world.settings(r#""driver": "rclone","#);
    let options = json!({"remote": "webdav", "backend.url": format!("http://127.0.0.1:{}/", world.port),
        "backend.user": "somebody", "kubernetes.io/secret/pass": STANDARD.encode(SECRET)});
    let output = world.command_with("mount", "1", &options).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let seen = fs::read_to_string(world.path("seen"));
    let seen = seen.unwrap_or_else(|_| panic!("rclone did not run: {said}"));
    for verb in ["obscure", "lsd", "mount"] {
        assert!(seen.contains(&format!("ran {verb}\n")), "{said}\n{seen}");
    }
    assert_eq!(fs::read_to_string(world.path("read")).unwrap(), SECRET);
    for secret in [SECRET, &STANDARD.encode(SECRET), OBSCURED, &STANDARD.encode(OBSCURED)] {
        for (place, text) in [("pod", &seen), ("answer", &said), ("log", &pod.log())] {
            assert!(!text.contains(secret), "{secret} in {place}: {text}");
        }
    }
    world.is_clean(&["1"]);
}

/// Test 25: an image that was unpacked, say, with the directories of the node that it needs.
#[test]
fn a_directory_of_the_node_has_the_programs() {
    let Some(world) = World::new("mounter::exec::a_directory_of_the_node_has_the_programs") else { return };
    let (root, kubelet) = (world.path("tools"), world.path("kubelet"));
    for from in ["/usr", "/etc", "/dev", "/proc", "/run/flexvol", &*kubelet.to_string_lossy()] {
        super::sh(&format!("mkdir -p {0}{from}; mount --bind {from} {0}{from}", root.display()));
    }
    super::sh(&format!(
        "cd {}; for each in bin sbin lib lib64; do ln -s usr/$each $each; done",
        root.display()
    ));
    world.has_no_sshfs();
    let settings = format!(r#""mounter": "chroot:{}","#, root.display());
    world.settings(&settings);
    assert_eq!(world.call("mount", "1"), "");
    fs::write(world.target("1").join("hello"), "world").unwrap();
    assert_eq!(fs::read_to_string(world.path("srv/hello")).unwrap(), "world");
    let serving = world.sshfs();
    assert_eq!(serving.len(), 1);
    assert_eq!(fs::read_link(format!("/proc/{}/root", serving[0])).unwrap(), root);
    assert_eq!(world.call("unmount", "1"), "");
    world.is_clean(&["1"]);
    // Whoever may write there would be root.
    fs::set_permissions(&root, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(world.call("mount", "1").contains("chown root"));
    fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
    super::sh(&format!("mount --bind /dev/null {}{}", root.display(), super::SSHFS));
    assert_eq!(world.call("mount", "1"), wording_of("not-in-tools-root", ["sshfs", &root.to_string_lossy()]));
    world.settings(r#""mounter": "chroot:/no/such/directory","#);
    assert!(world.call("mount", "1").contains("/no/such/directory"));
    world.is_clean(&["1"]);
}
