//! The watch on directories that change.

use super::plugin_dir::{PluginDir, event_wait, remove_all};
use crate::support::skip;
use crate::support::wording::{wording, wording_of};
use flexvol::prober::{Habits, Watcher};
use std::fs::{self, File, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn noted(what: &str) -> String {
    format!("noted {what}")
}

#[test]
fn drivers_are_added_updated_failed_and_removed() {
    let dir = PluginDir::with(&["v~old"]);
    let mut watch = dir.watch();
    assert_eq!(watch.in_service(), ["v/old"]);
    dir.install("v~new", "good");
    let added = watch.event("added v/new");
    assert!(added.capabilities.is_some_and(|held| !held.attach && held.fs_group) && added.reason.is_none());
    dir.script("other", r#"echo '{"status":"Success"}'"#);
    dir.replace("v~new", "other");
    assert!(watch.event("updated v/new").capabilities.is_some_and(|held| held.attach));
    dir.replace("v~new", "bad");
    let failed = watch.event("failed v/new");
    assert_eq!(
        failed.reason.as_deref(),
        Some(
            "error creating Flexvolume plugin from directory v~new, skipping. Error: init command failed, status: Failure, reason: no luck"
        )
    );
    assert_eq!(failed.capabilities, None);
    assert_eq!(watch.in_service(), ["v/old"], "the old version is not used silently");
    dir.replace("v~new", "good");
    watch.event("added v/new");
    dir.remove("v~new");
    watch.event("removed v/new");
    assert_eq!(watch.in_service(), ["v/old"]);
}

#[test]
fn one_install_is_one_probe_and_one_init() {
    let dir = PluginDir::new();
    let mut watch = dir.watch();
    let before = watch.watcher.stats();
    dir.install("v~d", "good");
    assert_eq!(watch.settle(), ["added v/d"]);
    dir.replace("v~d", "good");
    assert_eq!(watch.settle(), ["updated v/d"]);
    dir.remove("v~d");
    assert_eq!(watch.settle(), ["removed v/d"]);
    let after = watch.watcher.stats();
    assert_eq!((after.probes - before.probes, dir.calls()), (3, 2));
}

#[test]
fn nobody_runs_a_driver_that_did_not_change() {
    let dir = PluginDir::with(&["v~a", "v~b"]);
    let mut watch = dir.watch();
    let calls = dir.calls();
    dir.replace("v~a", "good");
    watch.until("updated v/a");
    assert_eq!((watch.settle().len(), dir.calls(), watch.in_service().len()), (0, calls + 1, 2));
}

#[test]
fn names_with_a_dot_are_no_change_at_any_depth() {
    let dir = PluginDir::with(&["v~a"]);
    let mut watch = dir.watch();
    let before = watch.watcher.stats();
    for path in [".x", "v~a/.x"] {
        fs::create_dir_all(dir.at(path).join("y/.z")).unwrap();
        drop(File::create(dir.at(path).join("file")).unwrap());
        drop(File::create(dir.at(path).with_file_name(".file")).unwrap());
        fs::set_permissions(dir.at(path), Permissions::from_mode(0o700)).unwrap();
        fs::rename(dir.at(path), dir.at(path).with_file_name(".y")).unwrap();
    }
    assert_eq!(watch.settle(), [""; 0]);
    assert_eq!(watch.watcher.stats().probes, before.probes);
    fs::rename(dir.at(".y"), dir.at("seen")).unwrap();
    watch.until("failed seen");
}

#[test]
fn changes_at_any_depth_of_a_driver_directory_count() {
    let dir = PluginDir::with(&["v~a"]);
    let mut watch = dir.watch();
    let deep = dir.at("v~a/one/two");
    fs::create_dir_all(&deep).unwrap();
    watch.until("updated v/a");
    watch.settle();
    let mut file = File::create(deep.join("file")).unwrap();
    watch.until("updated v/a");
    watch.settle();
    file.write_all(b"x").unwrap();
    watch.until("updated v/a");
    watch.settle();
    drop(file);
    watch.until("updated v/a");
    watch.settle();
    fs::set_permissions(&deep, Permissions::from_mode(0o700)).unwrap();
    watch.until("updated v/a");
    watch.settle();
    fs::remove_file(deep.join("file")).unwrap();
    watch.until("updated v/a");
}

#[test]
fn a_file_that_is_written_in_place_is_good_once_it_is_closed() {
    let dir = PluginDir::with(&["v~a"]);
    let mut watch = dir.watch();
    fs::remove_file(dir.at("v~a/a")).unwrap();
    let mut file = File::create(dir.at("v~a/a")).unwrap();
    fs::set_permissions(dir.at("v~a/a"), Permissions::from_mode(0o755)).unwrap();
    file.write_all(format!("#!/bin/sh\n{}\n", super::plugin_dir::GOOD).as_bytes()).unwrap();
    watch.until("failed v/a");
    watch.settle();
    drop(file);
    watch.until("added v/a");
}

#[test]
fn symlinked_directories_and_files_are_no_drivers() {
    let dir = PluginDir::with(&["v~a"]);
    let mut watch = dir.watch();
    symlink("v~a", dir.at("v~l")).unwrap();
    drop(File::create(dir.at("README")).unwrap());
    assert_eq!(watch.settle(), [""; 0]);
    fs::rename(dir.at("v~a"), dir.beside("v~a")).unwrap();
    symlink(dir.beside("v~a"), dir.at("v~a")).unwrap();
    watch.until("removed v/a");
}

#[test]
fn names_kubernetes_refuses_are_told_and_never_in_service() {
    let dir = PluginDir::new();
    let mut watch = dir.watch();
    let long = format!("v~{}", "a".repeat(64));
    for name in ["Foo~x", "a~b~c", &long] {
        dir.install(name, "good");
        let failed = watch.event(&format!("failed {}", name.replace('~', "/")));
        assert!(failed.reason.is_some_and(|reason| reason.contains("volume plugin has invalid name")));
        assert!(failed.fix.is_some_and(|fix| fix.starts_with("driver name")));
    }
    assert_eq!((watch.in_service().len(), watch.settle().len()), (0, 0));
}

#[test]
fn a_driver_moved_or_swapped_is_followed_by_its_name() {
    let dir = PluginDir::with(&["v~a", "v~b"]);
    dir.script("other", r#"echo '{"status":"Success"}'"#);
    dir.install("w~a", "other");
    let mut watch = dir.watch();
    fs::rename(dir.at("v~b"), dir.beside("away")).unwrap();
    watch.until("removed v/b");
    drop(File::create(dir.beside("away/file")).unwrap());
    assert_eq!(watch.settle(), [""; 0], "it is not ours any more");
    let (here, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
    rustix::fs::renameat_with(here, dir.at("v~a"), here, dir.at("w~a"), flags).unwrap();
    let told = watch.settle();
    assert!(["updated v/a", "updated w/a"].iter().all(|event| told.iter().any(|told| told == event)));
    let attach: Vec<_> = watch.watcher.loaded().map(|loaded| loaded.capabilities.attach).collect();
    assert_eq!(attach, [true, false]);
}

#[test]
fn a_plugin_directory_that_disappears_is_made_again_and_watched() {
    let dir = PluginDir::with(&["v~a"]);
    let mut watch = dir.watch();
    remove_all(&dir.path);
    let told = watch.until(&noted(wording_of("directory-watched", ["made again"])));
    assert!(
        told.iter().any(|event| event == "removed v/a")
            && told.iter().any(|event| *event == noted(wording("directory-gone"))),
        "{told:?}"
    );
    assert_eq!(fs::metadata(&dir.path).unwrap().permissions().mode() & 0o7777, 0o755);
    dir.install("v~b", "good");
    watch.until("added v/b");
}

#[test]
fn another_directory_in_its_place_is_taken_as_it_is() {
    let dir = PluginDir::with(&["v~a", "v~b"]);
    let mut watch = dir.watch();
    fs::create_dir_all(dir.beside("next/v~c")).unwrap();
    symlink(dir.beside("good"), dir.beside("next/v~c/c")).unwrap();
    let start = Instant::now();
    fs::rename(&dir.path, dir.beside("before")).unwrap();
    let mut first = watch.watcher.next(Duration::ZERO).unwrap();
    first.extend(watch.watcher.next(Duration::ZERO).unwrap());
    let soon = start.elapsed() < Duration::from_millis(900);
    assert!(!soon || !dir.path.exists(), "whoever replaces it has a second");
    fs::rename(dir.beside("next"), &dir.path).unwrap();
    let mut told: Vec<_> = first.iter().map(super::plugin_dir::text).collect();
    told.extend(watch.until("added v/c"));
    told.extend(watch.settle());
    assert!(
        ["removed v/a", "removed v/b"].iter().all(|event| told.iter().any(|told| told == event)),
        "{told:?}"
    );
    dir.install("v~d", "good");
    watch.until("added v/d");
    assert_eq!(watch.in_service(), ["v/c", "v/d"]);
}

#[test]
fn a_file_in_its_place_is_told_and_waited_out() {
    let dir = PluginDir::with(&["v~a"]);
    let mut watch = dir.watch();
    remove_all(&dir.path);
    drop(File::create(&dir.path).unwrap());
    let why = noted(wording_of(
        "directory-not-made-again",
        [&format!("make {}: File exists (os error 17)", dir.path.display())],
    ));
    let start = Instant::now();
    let mut told = Vec::new();
    while !told.iter().any(|event: &String| event.starts_with(&why)) {
        assert!(start.elapsed() < event_wait(), "{told:?}");
        told.extend(watch.settle());
    }
    fs::remove_file(&dir.path).unwrap();
    fs::create_dir(&dir.path).unwrap();
    dir.install("v~b", "good");
    watch.until("added v/b");
}

#[test]
fn after_a_full_queue_everything_is_probed() {
    let dir = PluginDir::with(&["v~a", "v~b"]);
    let mut watch = dir.watch();
    flood(&dir);
    dir.remove("v~a");
    dir.install("v~c", "good");
    let mut told = watch.until("added v/c");
    told.extend(watch.settle());
    assert_eq!(watch.watcher.stats().overflows, 1, "{told:?}");
    assert_eq!(watch.in_service(), ["v/b", "v/c"]);
    dir.install("v~d", "good");
    watch.until("added v/d");
}

/// More changes than the kernel's queue holds, while nobody reads.
fn flood(dir: &PluginDir) {
    let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
    let files = [dir.at("v~b/one"), dir.at("v~b/two")];
    for _ in 0..=limit.trim().parse::<usize>().unwrap() / 4 {
        for file in &files {
            drop(File::create(file).unwrap());
            fs::remove_file(file).unwrap();
        }
    }
}

#[test]
fn a_missing_directory_is_an_error_unless_it_may_be_made() {
    let dir = PluginDir::new();
    let missing = dir.at("a/b");
    let error = Watcher::new(&missing, Habits::default()).unwrap_err().to_string();
    assert!(error.contains(wording("plugin-directory-missing")), "{error}");
    let file = dir.beside("good");
    let error = Watcher::new(&file, Habits::default()).unwrap_err().to_string();
    assert!(error.contains(wording("not-a-directory")), "{error}");
    Watcher::new(&missing, Habits { create: true, ..Habits::default() }).unwrap();
    assert!(missing.is_dir());
}

#[test]
fn a_symlinked_plugin_directory_is_followed() {
    let dir = PluginDir::with(&["v~a"]);
    let link = dir.beside("link");
    symlink(&dir.path, &link).unwrap();
    let mut watcher = Watcher::new(&link, Habits::default()).unwrap();
    assert_eq!(watcher.next(event_wait()).unwrap().len(), 1);
    dir.install("v~b", "good");
    assert_eq!(watcher.next(event_wait()).unwrap().len(), 1);
}

/// Set in the user namespace of the next test, where the limit is another one.
const LIMITED: &str = "FLEXVOL_TEST_LIMITED";

#[test]
fn with_too_few_watches_it_says_which_limit_and_looks_by_itself() {
    let name = "prober::design::with_too_few_watches_it_says_which_limit_and_looks_by_itself";
    if std::env::var_os(LIMITED).is_some() {
        return with_too_few_watches();
    }
    let script = r#"ulimit -c 0; echo 12 >/proc/sys/user/max_inotify_watches || exit 77; exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script, "sh"]);
    command.arg(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]).env(LIMITED, "1");
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.code() == Some(77) || String::from_utf8_lossy(&output.stderr).contains("unshare failed")
    {
        return skip(name, "needs a user namespace with a limit of its own");
    }
    assert!(output.status.success() && text.contains("1 passed"), "{text}{:?}", output.stderr);
}

fn with_too_few_watches() {
    let names: Vec<_> = (0..20).map(|number| format!("v~d{number}")).collect();
    let dir = PluginDir::with(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let (period, rescan) = (Duration::from_millis(50), Duration::from_millis(500));
    let habits = Habits { period, rescan, ..Habits::default() };
    let mut watcher = Watcher::new(&dir.path, habits).unwrap();
    let first = watcher.next(event_wait()).unwrap();
    let reason = first[0].reason.clone().unwrap();
    assert!(reason.contains("sysctl -w fs.inotify.max_user_watches"), "{reason}");
    for name in &names {
        fs::remove_file(dir.at(name).join(super::plugin_dir::last(name))).unwrap();
    }
    let start = Instant::now();
    while watcher.loaded().count() > 0 {
        assert!(start.elapsed() < event_wait());
        watcher.next(Duration::from_millis(100)).unwrap();
    }
    let path = Path::new("/proc/sys/user/max_inotify_watches");
    fs::OpenOptions::new().write(true).open(path).unwrap().write_all(b"1000").unwrap();
    let mut told = Vec::new();
    while !told.iter().any(|text: &String| text.contains("watches everything again")) {
        assert!(start.elapsed() < event_wait(), "{told:?}");
        told.extend(watcher.next(Duration::from_millis(100)).unwrap().iter().map(super::plugin_dir::text));
    }
}
