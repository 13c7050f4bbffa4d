//! Whatever is wrong with the plugin directory or the driver: one line with the fix, and nothing is
//! touched.

use super::node::{Node, answer, command, script};
use super::support::skip;
use crate::support::wording::{wording, wording_of};
use nix::mount::{MsFlags, mount};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

/// A tmpfs over the plugin directory.
fn file_system(node: &Node, flags: MsFlags, data: &str) {
    mount(Some("tmpfs"), &node.plugins(), Some("tmpfs"), flags, Some(data)).unwrap();
}

#[test]
fn a_missing_directory_is_made_and_an_empty_one_is_fine() {
    let Some(node) = Node::new("bad_input::a_missing_directory_is_made_and_an_empty_one_is_fine") else {
        return;
    };
    fs::remove_dir(node.plugins()).unwrap();
    assert_eq!(node.uninstall(&["tmpfs"]).action(), "not there");
    assert_eq!(node.install(&["tmpfs"]).action(), "installed");
    fs::create_dir(node.plugins().join("flexvol~bind")).unwrap();
    assert_eq!(node.install(&["bind"]).action(), "installed");
    fs::create_dir(node.plugins().join("flexvol~image")).unwrap();
    assert_eq!(node.uninstall(&["image"]).action(), "removed");
}

#[test]
fn a_file_or_symlink_in_the_way_stays() {
    let Some(node) = Node::new("bad_input::a_file_or_symlink_in_the_way_stays") else { return };
    node.file("plugins/flexvol~tmpfs", "file");
    assert!(
        node.install(&["tmpfs"])
            .error(7)
            .contains(wording_of("driver-directory-is-no-directory", ["flexvol~tmpfs"]))
    );
    assert!(node.uninstall(&["tmpfs"]).error(4).contains(wording("foreign-entry")));
    fs::create_dir(node.path("home")).unwrap();
    symlink(node.path("home"), node.plugins().join("flexvol~bind")).unwrap();
    assert!(node.install(&["bind"]).error(7).contains(wording("directory-is-skipped-symlink")));
    assert!(fs::read_dir(node.path("home")).unwrap().next().is_none());
    fs::remove_dir_all(node.plugins()).unwrap();
    node.file("plugins", "file");
    assert!(node.install(&["tmpfs"]).error(7).contains(wording("not-a-directory")));
    fs::remove_file(node.plugins()).unwrap();
    symlink(node.path("home"), node.plugins()).unwrap();
    let warned = node.install(&["tmpfs"]);
    assert_eq!(warned.action(), "installed");
    assert!(warned.json["warnings"][0].as_str().unwrap().contains(wording("directory-is-unwatched-symlink")));
}

#[test]
fn names_that_kubernetes_refuses_are_wrong_usage() {
    let Some(node) = Node::new("bad_input::names_that_kubernetes_refuses_are_wrong_usage") else { return };
    let long = format!("v/{}", "a".repeat(64));
    for name in ["Foo~x", "Foo/x", "a~b~c", "a/b/c", &long, "v/.x", "../x", "v/"] {
        let output = node.flexvol("install", &[name]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {output:?}");
    }
    assert!(node.install(&["v/frob"]).error(2).contains(wording_of("name-driver", ["v/frob", "tmpfs"])));
    assert_eq!(node.listing(), [""; 0]);
    fs::remove_dir(node.plugins()).unwrap();
    assert!(
        node.install(&["tmpfs", "--set", "deadlines.mount=soon"])
            .error(2)
            .contains(wording("expected-seconds"))
    );
    assert!(!node.plugins().exists());
}

#[test]
fn what_is_in_the_way_of_the_plugin_directory_is_named() {
    let Some(node) = Node::new("bad_input::what_is_in_the_way_of_the_plugin_directory_is_named") else {
        return;
    };
    fs::remove_dir(node.plugins()).unwrap();
    symlink("nowhere", node.plugins()).unwrap();
    assert!(
        node.install(&["tmpfs"])
            .error(7)
            .contains(wording_of("directory-is-dangling-symlink", ["plugins", "nowhere"]))
    );
    fs::remove_file(node.plugins()).unwrap();
    node.file("plugins", "");
    let below = |name: &str| {
        let mut command = Command::new(command());
        command.args([name, "tmpfs", "--json", "--plugin-dir"]).arg(node.plugins().join("below"));
        answer(&mut command)
    };
    for name in ["install", "uninstall"] {
        assert!(below(name).error(7).contains(wording_of("path-is-no-directory", ["plugins"])));
    }
    fs::remove_file(node.plugins()).unwrap();
    fs::create_dir(node.plugins()).unwrap();
    // A directory that would have to be made is looked at beforehand, by where it would be.
    file_system(&node, MsFlags::MS_NOEXEC, "");
    let below = below("install");
    assert!(
        below.error(7).contains(wording_of("place-does-not-exist", ["below"]))
            && below.error(7).contains("noexec"),
        "{below:?}"
    );
    assert_eq!(node.listing(), [""; 0]);
    let missing = node.install(&["tmpfs", "--root", "/no/such/root"]);
    assert!(missing.error(2).contains(wording_of("no-root", ["/no/such/root"])));
}

#[test]
fn settings_no_volume_could_use_are_wrong_usage() {
    let Some(node) = Node::new("bad_input::settings_no_volume_could_use_are_wrong_usage") else { return };
    assert_eq!(node.install(&["tmpfs", "--set", "size=1Mi"]).action(), "installed");
    let side_file = node.plugins().join("flexvol~tmpfs/.flexvol.json");
    let before = fs::read(&side_file).unwrap();
    for (set, told) in [
        ("sise=2Mi", "did you mean \"size\"?"),
        ("size=much", "option \"size\""),
        ("policy.maxSise=1Gi", "maxSize"),
        ("policy.maxSize=much", "fix --set policy.maxSize"),
    ] {
        let refused = node.install(&["tmpfs", "--set", set]);
        assert!(refused.error(2).contains(told), "{refused:?}");
        assert_eq!(fs::read(&side_file).unwrap(), before);
    }
    for (set, told) in [
        (["--set", "deadlines.mount=0"], wording_of("deadline-zero", ["mount"])),
        (["--unset", "sise"], wording_of("nothing-to-unset", ["sise"])),
        (["--set", "image:size=2Mi"], wording_of("key-of-no-driver", ["image:size", "flexvol/tmpfs"])),
        (["--unset", "v/image:size"], wording_of("key-of-no-driver", ["v/image:size", "flexvol/tmpfs"])),
        (["--set", "agent.fence=pod"], "\"agent\""),
    ] {
        let refused = node.install(&["tmpfs", set[0], set[1]]);
        assert!(refused.error(2).contains(told), "{refused:?}");
        assert_eq!(fs::read(&side_file).unwrap(), before);
    }
    assert!(node.install(&["v/x=exec"]).error(2).contains("exec"));
    // What is wrong already does not keep a repair from being made.
    fs::write(&side_file, String::from_utf8(before).unwrap().replace("size", "sise")).unwrap();
    fs::remove_file(node.plugins().join("flexvol~tmpfs/tmpfs")).unwrap();
    assert_eq!(node.install(&["tmpfs"]).action(), "repaired");
}

#[test]
fn a_relative_plugin_directory_is_wrong_usage() {
    let Some(node) = Node::new("bad_input::a_relative_plugin_directory_is_wrong_usage") else { return };
    for name in ["install", "uninstall", "deploy"] {
        let mut command = Command::new(command());
        command.args([name, "tmpfs", "--plugin-dir", "plugins"]).current_dir(node.path(""));
        let output = command.output().unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(told.contains(wording_of("relative-plugin-dir", ["plugins"])), "{name}: {told}");
        assert_eq!(output.status.code(), Some(2), "{name}");
    }
    assert_eq!(node.listing(), [""; 0]);
}

#[test]
fn a_driver_that_fails_its_own_init_is_never_seen() {
    let Some(node) = Node::new("bad_input::a_driver_that_fails_its_own_init_is_never_seen") else { return };
    let good = node.file("good", &script("\"attach\":false"));
    let install = |path: &Path| node.install(&["v/d", "--binary", path.to_str().unwrap()]);
    for (name, text, told) in [
        ("silent", "#!/bin/sh\n", "unexpected end of JSON input"),
        ("failing", "#!/bin/sh\necho '{\"status\":\"Failure\",\"message\":\"no disk\"}'\n", "no disk"),
        ("crashing", "#!/bin/sh\nkill -9 $$\n", "signal 9"),
        ("null", "#!/bin/sh\necho '{\"status\":\"Success\",\"capabilities\":null}'\n", "kubelet crashes"),
    ] {
        let bad = node.file(name, text);
        let before = node.listing();
        assert!(install(&bad).error(8).contains(told), "{name}");
        assert_eq!((node.listing(), node.litter()), (before, vec![]), "{name}");
        assert!(matches!(install(&good).action(), "installed" | "unchanged"));
    }
    for (name, text, told) in [
        ("lost", "#!/nowhere/sh\n", wording_of("interpreter-lacking", ["/nowhere/sh"])),
        ("text", "echo\n", wording("neither-program-nor-script")),
    ] {
        let bad = node.file(name, text);
        assert!(install(&bad).error(7).contains(told), "{name}");
    }
    node.init("v/d");
}

#[test]
fn a_program_for_another_machine_is_refused() {
    let Some(node) = Node::new("bad_input::a_program_for_another_machine_is_refused") else { return };
    let path = node.path("foreign");
    let mut bytes = fs::read(command()).unwrap();
    // e_machine: s390x.
    bytes[18] = 22;
    fs::write(&path, bytes).unwrap();
    let refused = node.install(&["tmpfs", "--binary", path.to_str().unwrap()]);
    assert!(refused.error(7).contains(wording_of("foreign-machine", ["s390x"])), "{refused:?}");
    assert_eq!(node.listing(), [""; 0]);
}

#[test]
fn an_unreadable_side_file_is_told_and_kept() {
    let Some(node) = Node::new("bad_input::an_unreadable_side_file_is_told_and_kept") else { return };
    node.install(&["tmpfs"]);
    let side_file = node.plugins().join("flexvol~tmpfs/.flexvol.json");
    fs::write(&side_file, "{\"options\":{\"password\":[\"hunter2\"]}}").unwrap();
    let refused = node.install(&["tmpfs"]);
    assert!(
        refused.error(4).contains(wording("side-file-unreadable")) && !refused.error(4).contains("hunter2")
    );
    fs::remove_file(&side_file).unwrap();
    nix::unistd::mkfifo(&side_file, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert!(node.install(&["tmpfs"]).error(4).contains(wording("not-a-regular-file")));
    assert_eq!(node.install(&["tmpfs", "--take-over"]).action(), "taken over");
}

#[test]
fn a_directory_that_kubelet_cannot_use_is_refused_with_the_fix() {
    let name = "bad_input::a_directory_that_kubelet_cannot_use_is_refused_with_the_fix";
    let Some(node) = Node::new(name) else { return };
    file_system(&node, MsFlags::MS_NOEXEC, "");
    let refused = node.install(&["tmpfs"]);
    assert!(
        refused.error(7).contains("is mounted noexec") && refused.error(7).contains("exec"),
        "{refused:?}"
    );
    assert_eq!(node.listing(), [""; 0]);
    file_system(&node, MsFlags::MS_RDONLY | MsFlags::MS_NOEXEC, "");
    let refused = node.install(&["tmpfs"]);
    let message = refused.error(7);
    assert!(
        message.contains("read-only file system") && message.contains("noexec"),
        "all at once: {message}"
    );
    nix::mount::umount(&node.plugins()).unwrap();
    nix::mount::umount(&node.plugins()).unwrap();
    fs::remove_dir(node.plugins()).unwrap();
    let above = node.path(".");
    mount(Some(&above), &above, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    mount(None::<&str>, &above, None::<&str>, flags, None::<&str>).unwrap();
    let refused = node.install(&["tmpfs"]);
    assert!(refused.error(7).contains(wording("place-does-not-exist")), "{refused:?}");
    nix::mount::umount(&above).unwrap();
}

#[test]
fn a_full_disk_leaves_what_is_installed() {
    let Some(node) = Node::new("bad_input::a_full_disk_leaves_what_is_installed") else { return };
    file_system(&node, MsFlags::empty(), "size=64k");
    let binary = node.file("driver", &script(""));
    let refused = node.install(&["v/d", "--binary", binary.to_str().unwrap()]);
    assert!(refused.error(7).contains("free and") && refused.error(7).contains("make room"), "{refused:?}");
    file_system(&node, MsFlags::empty(), "size=8m,nr_inodes=8");
    assert_eq!(node.install(&["v/d", "--binary", binary.to_str().unwrap()]).action(), "installed");
    for count in 0..8 {
        let _ = fs::create_dir(node.plugins().join(format!(".{count}")));
    }
    let before = node.listing();
    let newer = node.file("newer", &script("\"attach\":false"));
    let refused = node.install(&["v/d", "--binary", newer.to_str().unwrap()]);
    assert!(refused.error(7).contains("no inodes left"), "{refused:?}");
    assert_eq!(node.listing(), before);
    node.init("v/d");
}

#[test]
fn a_disk_that_fills_up_meanwhile_leaves_nothing_behind() {
    let name = "bad_input::a_disk_that_fills_up_meanwhile_leaves_nothing_behind";
    let Some(node) = Node::new(name) else { return };
    if !Path::new("/usr/bin/strace").exists() {
        return skip(name, "needs strace");
    }
    let (old, new) = (node.file("old", &script("")), node.file("new", &script("\"attach\":false")));
    node.install(&["v/d", "--binary", old.to_str().unwrap()]);
    let before = node.listing();
    for call in ["fsync", "fchmod", "renameat", "write"] {
        let mut strace = Command::new("strace");
        strace.args(["-qq", "-o", "/dev/null", "-e", &format!("inject={call}:error=ENOSPC:when=1")]);
        let install = node.flexvol("install", &["v/d", "--binary", new.to_str().unwrap()]);
        strace.arg(install.get_program()).args(install.get_args());
        let failed = answer(&mut strace);
        assert!(failed.error(1).contains("No space left"), "{call}: {failed:?}");
        assert_eq!((node.listing(), node.litter()), (before.clone(), vec![]), "{call}");
        assert_eq!(fs::read_to_string(node.plugins().join("v~d/d")).unwrap(), script(""));
    }
}

#[test]
fn who_is_not_root_is_told_so() {
    let Some(node) = Node::new("bad_input::who_is_not_root_is_told_so") else { return };
    let install = node.flexvol("install", &["tmpfs"]);
    fs::set_permissions(node.path("."), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    nobody.arg(install.get_program()).args(install.get_args());
    if !nobody.output().is_ok_and(|output| !output.stdout.is_empty()) {
        return skip(
            "bad_input::who_is_not_root_is_told_so",
            "needs setpriv and a binary that nobody may run",
        );
    }
    assert!(answer(&mut nobody).error(7).contains(wording("cannot-be-written")));
    node.install(&["tmpfs"]);
    let home = node.plugins().join("flexvol~tmpfs");
    fs::set_permissions(&home, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    assert!(answer(&mut nobody).error(1).ends_with(wording("run-as-root")));
    // A side file with options is root's alone: that is no fault of the driver's.
    fs::set_permissions(&home, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    node.install(&["tmpfs", "--set", "size=1Mi"]);
    for words in [&["install", "tmpfs"][..], &["uninstall", "tmpfs"]] {
        let full = node.flexvol(words[0], &words[1..]);
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        nobody.arg(full.get_program()).args(full.get_args());
        assert!(answer(&mut nobody).error(1).ends_with(wording("run-as-root")), "{words:?}");
    }
}

#[test]
fn labels_of_siblings_are_copied() {
    let Some(node) = Node::new("bad_input::labels_of_siblings_are_copied") else { return };
    let set = |path: &Path, label: &str| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(path, "security.selinux", label.as_bytes(), flags)
    };
    let label = |path: &Path| {
        let mut buffer = [0; 200];
        let length = rustix::fs::lgetxattr(path, "security.selinux", buffer.as_mut_slice()).unwrap_or(0);
        String::from_utf8(buffer[..length].to_vec()).unwrap()
    };
    let sibling = node.file("plugins/a~sibling/sibling", &script(""));
    if let Err(errno) = set(&sibling, "system_u:object_r:bin_t:s0") {
        return skip(
            "bad_input::labels_of_siblings_are_copied",
            &format!("security.selinux cannot be set ({errno})"),
        );
    }
    set(sibling.parent().unwrap(), "system_u:object_r:usr_t:s0").unwrap();
    node.install(&["tmpfs"]);
    let home = node.plugins().join("flexvol~tmpfs");
    assert_eq!(label(&home.join("tmpfs")), "system_u:object_r:bin_t:s0");
    assert_eq!(label(&home), "system_u:object_r:usr_t:s0");
    assert_eq!(label(&home.join(".flexvol.json")), "system_u:object_r:usr_t:s0");
}

#[test]
fn any_patience_is_a_patience() {
    let Some(node) = Node::new("bad_input::any_patience_is_a_patience") else { return };
    assert_eq!(node.install(&["tmpfs", "--dry-run", "--wait=18446744073709551615"]).action(), "installed");
}
