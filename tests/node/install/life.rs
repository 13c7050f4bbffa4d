//! Install, upgrade, configure, take over, roll back, uninstall.

use super::node::{self, Node, command, script};
use crate::support::copy;
use crate::support::pace::slow_seconds;
use crate::support::wording::{wording, wording_of};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

#[test]
fn a_driver_comes_changes_and_goes() {
    let Some(node) = Node::new("life::a_driver_comes_changes_and_goes") else { return };
    assert_eq!(node.install(&["tmpfs"]).action(), "installed");
    assert_eq!(node.listing(), ["flexvol~tmpfs", "flexvol~tmpfs/.flexvol.json", "flexvol~tmpfs/tmpfs"]);
    let mode = |name: &str| fs::metadata(node.plugins().join(name)).unwrap().permissions().mode() & 0o7777;
    assert_eq!((mode("flexvol~tmpfs"), mode("flexvol~tmpfs/tmpfs")), (0o755, 0o755));
    assert_eq!(mode("flexvol~tmpfs/.flexvol.json"), 0o644);
    node.init("flexvol/tmpfs");
    assert_eq!(node.install(&["tmpfs"]).action(), "unchanged");
    assert_eq!(node.install(&["tmpfs", "--set", "size=1Mi"]).action(), "configured");
    assert_eq!(mode("flexvol~tmpfs/.flexvol.json"), 0o600);
    assert_eq!(node.install(&["tmpfs"]).action(), "unchanged");
    let text = fs::read_to_string(node.plugins().join("flexvol~tmpfs/.flexvol.json")).unwrap();
    assert!(text.contains("\"size\": \"1Mi\"") && text.contains("\"hash\""), "{text}");
    assert_eq!(node.uninstall(&["tmpfs"]).action(), "removed");
    assert_eq!(node.uninstall(&["tmpfs"]).action(), "not there");
    assert_eq!(node.listing(), [""; 0]);
    assert_eq!(node.litter(), [""; 0]);
}

#[test]
fn an_admin_s_own_spelling_of_the_side_file_is_no_change() {
    let Some(node) = Node::new("life::an_admin_s_own_spelling_of_the_side_file_is_no_change") else { return };
    node.install(&["tmpfs"]);
    let side_file = node.plugins().join("flexvol~tmpfs/.flexvol.json");
    let text = fs::read_to_string(&side_file).unwrap().replace('\n', " ").replace('}', ",\"deadlines\":{}}");
    fs::write(&side_file, &text).unwrap();
    assert_eq!(node.install(&["tmpfs"]).action(), "unchanged");
    assert_eq!(fs::read_to_string(&side_file).unwrap(), text);
}

#[test]
fn versions_go_up_unasked_and_down_when_asked() {
    let Some(node) = Node::new("life::versions_go_up_unasked_and_down_when_asked") else { return };
    let build = |version: &str| {
        let path = node.path(version);
        let append = "cp \"$1\" \"$2\" && printf 'flexvol-build-version=%s;' \"$3\" >> \"$2\"";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", append, "sh"]).arg(command()).arg(&path).arg(version);
        assert!(shell.status().unwrap().success());
        path.to_str().unwrap().to_owned()
    };
    let (old, new) = (build("7.9.9"), build("7.10.0"));
    let install =
        |binary: &str, more: &[&str]| node.install(&[&["tmpfs", "--binary", binary], more].concat());
    assert_eq!(install(&old, &[]).action(), "installed");
    assert_eq!(install(&new, &[]).action(), "upgraded");
    let refused = install(&old, &[]);
    assert!(refused.error(5).contains("7.10.0, newer than 7.9.9"), "{refused:?}");
    assert_eq!(install(&new, &[]).action(), "unchanged");
    assert_eq!(install(&old, &["--allow-downgrade"]).action(), "downgraded");
    node.init("flexvol/tmpfs");
}

#[test]
fn another_root_has_the_directory_that_locate_finds_there() {
    let Some(node) = Node::new("life::another_root_has_the_directory_that_locate_finds_there") else {
        return;
    };
    // kubelet's container sees it as /var/lib/kubelet/volumeplugins.
    fs::create_dir_all(node.path("host/opt/rke")).unwrap();
    node.file("host/etc/os-release", "ID=rancheros\n");
    let run = |words: &[&str]| {
        let mut command = std::process::Command::new(command());
        let output = command.args(words).arg("--root").arg(node.path("host")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run(&["install", "tmpfs"]);
    let located = run(&["locate", "-q"]);
    assert!(located.trim().ends_with("host/opt/rke/var/lib/kubelet/volumeplugins"), "{located}");
    node::init(&std::path::Path::new(located.trim()).join("flexvol~tmpfs/tmpfs"));
    assert!(run(&["list"]).contains("flexvol~tmpfs"));
}

#[test]
fn damage_is_repaired() {
    let Some(node) = Node::new("life::damage_is_repaired") else { return };
    let binary = node.file("driver", &script(""));
    let words = ["v/d", "--binary", binary.to_str().unwrap()];
    assert_eq!(node.install(&words).action(), "installed");
    let (home, program) = (node.plugins().join("v~d"), node.plugins().join("v~d/d"));
    fs::remove_file(&program).unwrap();
    assert_eq!(node.install(&words).action(), "repaired");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(node.install(&words).action(), "repaired");
    fs::write(&program, "other").unwrap();
    assert_eq!(node.install(&words).action(), "repaired");
    fs::remove_file(home.join(".flexvol.json")).unwrap();
    assert_eq!(node.install(&words).action(), "repaired");
    fs::remove_file(home.join(".flexvol.json")).unwrap();
    fs::remove_file(&program).unwrap();
    assert_eq!(node.install(&words).action(), "installed");
    node.init("v/d");
}

#[test]
fn a_foreign_driver_is_kept_and_put_back() {
    let Some(node) = Node::new("life::a_foreign_driver_is_kept_and_put_back") else { return };
    let foreign = script("\"attach\":true");
    node.file("plugins/v~tmpfs/tmpfs", &foreign);
    node.file("plugins/v~tmpfs/.bin/jq", "helper");
    symlink("tmpfs", node.plugins().join("v~tmpfs/alias")).unwrap();
    let before = node.listing();
    assert!(node.install(&["v/tmpfs"]).error(4).contains("--take-over"));
    assert!(node.uninstall(&["v/tmpfs"]).error(4).contains(wording("foreign-entry")));
    assert_eq!(node.listing(), before);
    for _ in 0..2 {
        assert_eq!(node.install(&["v/tmpfs", "--take-over"]).action(), "taken over");
        assert!(node.listing().contains(&"v~tmpfs/.bin/jq".to_owned()), "a call may still need it");
        assert!(!node.init("v/tmpfs").capabilities.unwrap().attach);
        assert_eq!(node.install(&["v/tmpfs"]).action(), "unchanged");
        assert_eq!(node.install(&["v/tmpfs", "--roll-back"]).action(), "rolled back");
        assert_eq!(node.install(&["v/tmpfs", "--roll-back"]).action(), "unchanged");
        assert_eq!(node.listing(), before);
        assert!(node.init("v/tmpfs").capabilities.unwrap().attach);
    }
    assert_eq!(fs::read_dir(node.state().join("replaced/v~tmpfs")).unwrap().count(), 1);
    node.install(&["v/tmpfs", "--take-over"]);
    let removed = node.uninstall(&["v/tmpfs"]);
    assert!(
        removed.action() == "removed"
            && removed.json["warnings"][0].as_str().unwrap().contains("--roll-back")
    );
    assert_eq!(node.listing(), [""; 0]);
    assert_eq!(node.install(&["v/tmpfs", "--roll-back"]).action(), "rolled back");
    assert_eq!(node.listing(), before);
    assert_eq!(node.litter(), [""; 0]);
}

/// Versions of somebody's driver are nowhere else, so each that `--binary` replaces is kept, and
/// comes back as flexvol's.
#[test]
fn versions_that_binary_replaced_come_back_one_by_one() {
    let Some(node) = Node::new("life::versions_that_binary_replaced_come_back_one_by_one") else { return };
    let driver = |version: u32| format!("{}# {version}\n", script(""));
    let files = [0, 1, 2, 3, 4, 5].map(|version| node.file(&format!("files/{version}"), &driver(version)));
    let install = |version: usize| {
        node.install(&["v/d", "--binary", files[version].to_str().unwrap(), "--set", "fsGroup=false"])
    };
    let back = || node.install(&["v/d", "--roll-back"]);
    let is_there = |version| fs::read_to_string(node.plugins().join("v~d/d")).unwrap() == driver(version);
    let kept = || fs::read_dir(node.state().join("replaced/v~d")).unwrap().count();
    assert_eq!(install(1).action(), "installed");
    assert!(!back().error(1).is_empty());
    assert_eq!(install(2).action(), "upgraded");
    assert_eq!(install(2).action(), "unchanged");
    assert_eq!(back().action(), "rolled back");
    assert!(is_there(1) && kept() == 0);
    let text = fs::read_to_string(node.plugins().join("v~d/.flexvol.json")).unwrap();
    assert!(text.contains("fsGroup") && text.contains("hash"), "{text}");
    assert_eq!(install(1).action(), "unchanged");
    back().error(1);
    assert_eq!(node.uninstall(&["v/d"]).action(), "removed");
    // What was taken over is kept for good, of versions the last three.
    node.file("plugins/v~d/d", &driver(0));
    assert_eq!(
        node.install(&["v/d", "--take-over", "--binary", files[1].to_str().unwrap()]).action(),
        "taken over"
    );
    for version in 2..=5 {
        assert_eq!(install(version).action(), "upgraded");
    }
    assert_eq!(kept(), 4);
    for version in [4, 3, 2] {
        assert_eq!(back().action(), "rolled back");
        assert!(is_there(version), "{version}");
    }
    assert_eq!(back().action(), "rolled back");
    assert!(is_there(0) && !node.plugins().join("v~d/.flexvol.json").exists());
    assert_eq!(back().action(), "unchanged");
    assert_eq!((kept(), node.litter()), (1, vec![]));
}

#[test]
fn a_symlinked_executable_is_a_foreign_one_and_comes_back_as_it_was() {
    let name = "life::a_symlinked_executable_is_a_foreign_one_and_comes_back_as_it_was";
    let Some(node) = Node::new(name) else { return };
    let target = node.file("elsewhere", &script(""));
    fs::create_dir(node.plugins().join("v~tmpfs")).unwrap();
    symlink(&target, node.plugins().join("v~tmpfs/tmpfs")).unwrap();
    assert!(node.install(&["v/tmpfs"]).error(4).contains("a symlink to"));
    assert_eq!(node.install(&["v/tmpfs", "--take-over"]).action(), "taken over");
    assert_eq!(fs::read_to_string(&target).unwrap(), script(""));
    assert_eq!(node.install(&["v/tmpfs", "--roll-back"]).action(), "rolled back");
    assert_eq!(fs::read_link(node.plugins().join("v~tmpfs/tmpfs")).unwrap(), target);
}

#[test]
fn settings_of_a_driver_installed_by_hand_are_taken_over() {
    let Some(node) = Node::new("life::settings_of_a_driver_installed_by_hand_are_taken_over") else { return };
    node.file("plugins/v~scratch/scratch", "#!/bin/sh\n");
    node.file("plugins/v~scratch/.flexvol.json", r#"{"driver":"tmpfs","options":{"size":"3Mi"}}"#);
    assert_eq!(node.install(&["v/scratch", "--take-over"]).action(), "taken over");
    let text = fs::read_to_string(node.plugins().join("v~scratch/.flexvol.json")).unwrap();
    assert!(text.contains("3Mi") && text.contains("tmpfs") && text.contains("hash"), "{text}");
}

#[test]
fn a_dry_run_says_what_would_be_done_and_does_nothing() {
    let Some(node) = Node::new("life::a_dry_run_says_what_would_be_done_and_does_nothing") else { return };
    fs::remove_dir(node.plugins()).unwrap();
    let told = node.install(&["tmpfs", "--dry-run"]);
    assert_eq!((told.action(), told.json["steps"].as_array().unwrap().len()), ("installed", 1));
    assert!(!node.plugins().exists());
    node.install(&["tmpfs"]);
    let (before, home) = (node.listing(), node.plugins().join("flexvol~tmpfs"));
    let changed = fs::metadata(&home).unwrap().ctime_nsec();
    let told = node.install(&["tmpfs", "--dry-run", "--set", "size=2Mi"]);
    assert_eq!(told.json["steps"][0], wording("side-file-renamed"));
    assert_eq!((node.listing(), fs::metadata(&home).unwrap().ctime_nsec()), (before, changed));
}

#[test]
fn a_setting_is_for_one_driver_and_goes_again() {
    let Some(node) = Node::new("life::a_setting_is_for_one_driver_and_goes_again") else { return };
    let size = |directory: &str| {
        let text = fs::read_to_string(node.plugins().join(directory).join(".flexvol.json")).unwrap();
        let side_file: serde_json::Value = serde_json::from_str(&text).unwrap();
        side_file["options"]["size"].as_str().map(str::to_owned)
    };
    let words = ["tmpfs", "v/image", "--set", "flexvol/tmpfs:size=2Mi", "--set", "v/image:size=3Gi"];
    assert!(node.flexvol("install", &words).status().unwrap().success());
    assert_eq!((size("flexvol~tmpfs").as_deref(), size("v~image").as_deref()), (Some("2Mi"), Some("3Gi")));
    assert!(
        node.flexvol("install", &["tmpfs", "v/image", "--unset", "tmpfs:size"]).status().unwrap().success()
    );
    assert_eq!((size("flexvol~tmpfs"), size("v~image").as_deref()), (None, Some("3Gi")));
    assert_eq!(node.install(&["tmpfs", "--unset", "size"]).action(), "unchanged");
}

#[test]
fn another_driver_than_the_name_says_is_told() {
    let Some(node) = Node::new("life::another_driver_than_the_name_says_is_told") else { return };
    let warned = |words: &[&str]| node.install(words).json["warnings"].to_string();
    let stays = wording_of("stays-the-driver", ["ex/cifs", "nfs"]);
    assert!(!warned(&["ex/cifs=nfs"]).contains(stays));
    let told = warned(&["ex/cifs"]);
    assert!(told.contains(stays), "{told}");
    assert!(!warned(&["ex/cifs=nfs"]).contains(stays) && !warned(&["ex/cifs=cifs"]).contains(stays));
    assert!(!warned(&["ex/cifs"]).contains(stays));
}

#[test]
fn another_root_is_worked_on_and_never_left() {
    let Some(node) = Node::new("life::another_root_is_worked_on_and_never_left") else { return };
    let root = node.path("root");
    fs::create_dir_all(root.join("data/plugins")).unwrap();
    fs::create_dir_all(root.join("usr")).unwrap();
    symlink("/data", root.join("usr/libexec")).unwrap();
    let root_text = root.to_str().unwrap().to_owned();
    let mut command = std::process::Command::new(command());
    command.args([
        "install",
        "--json",
        "--root",
        &root_text,
        "--plugin-dir",
        "/usr/libexec/plugins",
        "tmpfs",
    ]);
    let installed = node::answer(&mut command);
    assert_eq!(installed.action(), "installed");
    node::init(&root.join("data/plugins/flexvol~tmpfs/tmpfs"));
}

#[test]
fn several_drivers_are_all_tried_and_the_worst_counts() {
    let Some(node) = Node::new("life::several_drivers_are_all_tried_and_the_worst_counts") else { return };
    node.file("plugins/v~bind/bind", "#!/bin/sh\n");
    let output = node.flexvol("install", &["v/frob", "v/bind", "v/tmpfs"]).output().unwrap();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let reasons = [0, 1, 2].map(|index| json[index]["reason"].as_str().unwrap_or("none").to_owned());
    assert_eq!(reasons, ["usage", "foreign", "none"]);
    assert_eq!((output.status.code(), json[2]["action"].as_str()), (Some(4), Some("installed")));
}

/// A foreign driver with a file, a helper of somebody else and a directory beside it, taken over.
fn taken_over(node: &Node) -> std::path::PathBuf {
    node.file("plugins/v~d/d", &script(""));
    node.file("plugins/v~d/data/one", "1");
    node.file("plugins/v~d/settings", "old");
    assert_eq!(node.install(&["v/d=tmpfs", "--take-over"]).action(), "taken over");
    node.plugins().join("v~d")
}

#[test]
fn what_was_written_after_a_take_over_is_not_removed() {
    let Some(node) = Node::new("life::what_was_written_after_a_take_over_is_not_removed") else { return };
    let home = taken_over(&node);
    fs::write(home.join("settings"), "new").unwrap();
    assert!(node.uninstall(&["v/d"]).error(4).contains("settings"));
    assert_eq!(fs::read_to_string(home.join("settings")).unwrap(), "new");
    fs::write(home.join("settings"), "old").unwrap();
    fs::write(home.join("data/two"), "2").unwrap();
    assert!(node.uninstall(&["v/d"]).error(4).contains("data"));
    assert_eq!(fs::read_to_string(home.join("data/two")).unwrap(), "2");
    node.init("v/d");
    fs::remove_file(home.join("data/two")).unwrap();
    assert_eq!(node.uninstall(&["v/d"]).action(), "removed");
    assert_eq!(node.listing(), [""; 0]);
}

/// kubelet unmounts no device of a driver that attaches no more, so what attaches goes on until an
/// admin says otherwise.
#[test]
fn what_attaches_goes_on_attaching() {
    let Some(node) = Node::new("life::what_attaches_goes_on_attaching") else { return };
    let attaches = || node.init("v/qcow2").capabilities.unwrap().attach;
    let side_file = || fs::read_to_string(node.plugins().join("v~qcow2/.flexvol.json")).unwrap();
    node.file("plugins/v~qcow2/qcow2", &script("\"attach\":true"));
    let taken = node.install(&["v/qcow2", "--take-over"]);
    assert_eq!(taken.action(), "taken over");
    let warned = taken.json["warnings"].as_array().unwrap().iter().filter_map(serde_json::Value::as_str);
    assert!({ warned }.any(|it| it.contains(wording("attaches-as-before"))), "{taken:?}");
    assert!(attaches() && side_file().contains("\"attach\": true"), "{}", side_file());
    // A side file in its place that says nothing of it, and one that does.
    node.file_quietly("settings", r#"{"driver":"qcow2","policy":{"imageRoots":["/srv"]}}"#);
    let settings = node.path("settings").display().to_string();
    let replaced = node.install(&["v/qcow2", "--settings", &settings]);
    assert!(replaced.status == 0 && attaches() && side_file().contains("/srv"), "{replaced:?}");
    let told = node.install(&["v/qcow2", "--set", "attach=false"]);
    assert!(told.status == 0 && !attaches(), "{told:?} {}", side_file());
    assert!(!told.json["warnings"].to_string().contains("as before"), "{told:?}");
    assert_eq!(node.install(&["v/qcow2"]).action(), "unchanged");
    // What is new, or never attached, does not begin to.
    node.file("plugins/w~qcow2/qcow2", &script("\"attach\":false"));
    for words in [&["w/qcow2", "--take-over"][..], &["x/qcow2"]] {
        assert_eq!(node.install(words).status, 0);
        assert!(!node.init(words[0]).capabilities.unwrap().attach, "{words:?}");
    }
}

#[test]
fn who_owned_files_owns_them_after_a_roll_back() {
    let Some(node) = Node::new("life::who_owned_files_owns_them_after_a_roll_back") else { return };
    let helper = node.file("plugins/v~d/helper", "#!/bin/sh\n");
    std::os::unix::fs::chown(&helper, Some(1234), Some(2345)).unwrap();
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o6755)).unwrap();
    let directory = node.file("plugins/v~d/lib/names", "x\n").parent().unwrap().to_owned();
    std::os::unix::fs::chown(&directory, Some(1234), Some(2345)).unwrap();
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o2750)).unwrap();
    let home = taken_over(&node);
    assert_eq!(node.uninstall(&["v/d"]).action(), "removed");
    assert!(!home.exists());
    assert_eq!(node.install(&["v/d", "--roll-back"]).action(), "rolled back");
    // Set-uid and somebody's own: as root's it would be root's.
    for (name, mode) in [("helper", 0o6755), ("lib", 0o2750)] {
        let found = fs::metadata(home.join(name)).unwrap();
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o7777), (1234, 2345, mode), "{name}");
    }
}

#[test]
fn a_copy_that_fails_leaves_nothing() {
    let Some(node) = Node::new("life::a_copy_that_fails_leaves_nothing") else { return };
    node.file("plugins/v~d/d", &script(""));
    let large = fs::File::create(node.plugins().join("v~d/large")).unwrap();
    large.set_len((1 << 30) + 1).unwrap();
    // Less than that may be written at all, so that it is over soon.
    let mut limited = std::process::Command::new("sh");
    limited.args(["-c", "ulimit -f 102400; trap '' XFSZ; exec \"$@\"", "sh"]).arg(command());
    limited.args(["install", "--json", "v/d=tmpfs", "--take-over", "--plugin-dir"]).arg(node.plugins());
    let answer = node::answer(limited.arg("--state-dir").arg(node.state()));
    assert!(answer.error(1).contains("large"));
    assert_eq!(node.litter(), [""; 0]);
    assert_eq!(fs::read_dir(node.state().join("replaced/v~d")).unwrap().count(), 0);
}

#[test]
fn one_bad_entry_does_not_hide_the_others_from_a_list() {
    let Some(node) = Node::new("life::one_bad_entry_does_not_hide_the_others_from_a_list") else { return };
    node.file("plugins/a~a/a", &script(""));
    node.file("plugins/b~b/b", &script(""));
    // Nobody can read to the end of it in time.
    fs::File::create(node.plugins().join("a~a/a")).unwrap().set_len(1 << 42).unwrap();
    let mut list = std::process::Command::new("timeout");
    list.args(["--signal=KILL", &slow_seconds(60).to_string()]).arg(command()).args([
        "list",
        "--json",
        "--no-init",
        "--plugin-dir",
    ]);
    let answer = node::answer(list.arg(node.plugins()));
    let drivers = answer.json["drivers"].as_array().unwrap();
    assert_eq!((answer.status, drivers.len()), (1, 2), "{answer:?}");
    assert!(drivers[0]["problems"][0].as_str().unwrap().contains("larger than 1 GiB"), "{answer:?}");
    assert_eq!(drivers[1]["owner"], "foreign");
}

#[test]
fn a_side_file_does_not_speak_to_the_terminal() {
    let Some(node) = Node::new("life::a_side_file_does_not_speak_to_the_terminal") else { return };
    let home = node.plugins().join("v~d");
    fs::create_dir(&home).unwrap();
    copy(command(), &home.join("d"));
    fs::write(home.join(".flexvol.json"), r#"{"driver":"x\u001b]0;y\u0007\nz"}"#).unwrap();
    let mut list = std::process::Command::new(command());
    let output = list.args(["list", "--no-init", "--plugin-dir"]).arg(node.plugins()).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("x?]0;y"), "{text:?}");
    assert!(!text.contains(['\x1b', '\x07']), "{text:?}");
}
