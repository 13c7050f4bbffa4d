//! Process 1 of a mount pod: what it runs beside what drivers ask for.

use super::{Container, World, sh};
use nix::sys::signal::{Signal, kill};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;

/// Test 18: the main child.
#[test]
fn the_main_child_gets_the_signals_and_decides_how_the_pod_ends() {
    let test = "mounter::process_1::the_main_child_gets_the_signals_and_decides_how_the_pod_ends";
    let Some(world) = World::new(test) else { return };
    let told = world.path("told");
    let script = format!(
        "trap 'echo hup >>{0}' HUP; trap 'echo term >>{0}; exit 3' TERM; echo begun >>{0}
        while :; do sleep 0.05; done",
        told.display()
    );
    let is = |text: &str| fs::read_to_string(&told).is_ok_and(|told| told == text);
    let command = ["--", "sh", "-c", &script];
    let mut pod = Container::start_words(&world, "one", "unchanged", "", &command).registers(&world, "one");
    super::eventually("it begins", || is("begun\n"));
    kill(pod.init(), Signal::SIGHUP).unwrap();
    super::eventually("it is told", || is("begun\nhup\n"));
    assert_eq!((world.call("mount", "1"), world.call("unmount", "1")), (String::new(), String::new()));
    kill(pod.init(), Signal::SIGTERM).unwrap();
    assert_eq!(pod.exits(), Some(3), "{}", pod.log());
    assert!(is("begun\nhup\nterm\n") && !world.registration().exists());
    // One that ends by itself.
    let command = ["--", "sh", "-c", "sleep 0.3; exit 7"];
    let mut pod = Container::start_words(&world, "two", "unchanged", "", &command);
    assert_eq!(pod.exits(), Some(7), "{}", pod.log());
    assert!(!world.registration().exists());
    let mut pod = Container::start_words(&world, "three", "unchanged", "", &["--", "/nowhere/at/all"]);
    assert!(!pod.ends() && pod.log().contains("/nowhere/at/all"), "{}", pod.log());
    world.is_clean(&["1"]);
}

#[test]
fn kernel_modules_are_loaded_before_it_registers() {
    let test = "mounter::process_1::kernel_modules_are_loaded_before_it_registers";
    let Some(world) = World::new(test) else { return };
    let (fake, told) = (world.path("modprobe"), world.path("told"));
    let script = format!(
        "#!/bin/sh
        echo \"$*\" >>{}
        ls {} >&2
        [ \"$2\" != missing ]",
        told.display(),
        world.path("kubelet/plugin-containers").display()
    );
    fs::write(&fake, script).unwrap();
    fs::set_permissions(&fake, fs::Permissions::from_mode(0o755)).unwrap();
    let real = sh("for at in /usr/sbin /usr/bin /sbin /bin; do
        [ ! -e $at/modprobe ] || { realpath -s $at/modprobe; break; }; done");
    if real.is_empty() {
        return super::skip(test, "needs modprobe");
    }
    // A symlink to kmod: what is bound over it is bound over kmod.
    let inside = format!("mount --bind {} {}", fake.display(), real.trim());
    let start = |uid: &str, words: &[&str]| Container::start_words(&world, uid, "unchanged", &inside, words);
    let words = ["--module", "fuse", "--module", "nfs_acl"];
    let _pod = start("one", &words).registers(&world, "one");
    assert_eq!(fs::read_to_string(&told).unwrap(), "-- fuse\n-- nfs_acl\n");
    let mut lacking = start("two", &["--module", "missing"]);
    assert!(!lacking.ends() && lacking.log().contains("module missing"), "{}", lacking.log());
    assert!(fs::read_to_string(world.registration()).unwrap().contains("\"one\""));
    for bad in ["-r", "a b", "../a", ""] {
        assert!(!start("three", &["--module", bad]).ends(), "{bad}");
    }
    assert!(fs::read_to_string(&told).unwrap().ends_with("-- missing\n"));
}
