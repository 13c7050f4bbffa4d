//! The watches of kubelet's releases, where they differ from the design.

use super::design::flood;
use super::plugin_dir::{PluginDir, event_wait, remove_all};
use crate::support::wording::{wording, wording_of};
use flexvol::prober::Behaviour::{Kubelet122, Kubelet136};
use flexvol::prober::Watcher;
use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

#[test]
fn from_1_23_the_old_version_stays_and_init_runs_at_every_look_up() {
    let dir = PluginDir::with(&["v~a"]);
    let mut watch = dir.watch(Kubelet136);
    let calls = dir.calls();
    dir.replace("v~a", "bad");
    for _ in 0..5 {
        assert!(watch.event("failed v/a").capabilities.is_some(), "still in service");
    }
    assert!(dir.calls() >= calls + 5);
    assert_eq!(watch.in_service(), ["v/a"]);
    dir.replace("v~a", "good");
    watch.until("updated v/a");
    assert_eq!(watch.settle(), [""; 0]);
}

#[test]
fn a_driver_moved_away_stays_in_service() {
    let dir = PluginDir::with(&["v~a"]);
    let mut watch = dir.watch(Kubelet136);
    fs::rename(dir.at("v~a"), dir.beside("away")).unwrap();
    watch.until("failed v/a");
    assert_eq!(watch.in_service(), ["v/a"]);
    dir.install("v~a", "good");
    watch.until("updated v/a");
    dir.remove("v~a");
    watch.until("removed v/a");
    assert_eq!(watch.settle(), [""; 0]);
}

#[test]
fn stray_files_and_files_in_dot_directories_are_executed() {
    let dir = PluginDir::with(&["v~a"]);
    fs::create_dir(dir.at(".x")).unwrap();
    let mut watch = dir.watch(Kubelet136);
    drop(File::create(dir.at("README")).unwrap());
    watch.until("failed README");
    symlink(dir.beside("good"), dir.at(".x/y")).unwrap();
    watch.until("failed .x");
    symlink(dir.beside("good"), dir.at(".x/.x")).unwrap();
    let refused = watch.event("failed .x");
    assert!(refused.reason.is_some_and(|reason| !reason.is_empty()));
    // One that is made while kubelet runs is not watched.
    fs::create_dir(dir.at(".later")).unwrap();
    symlink(dir.beside("good"), dir.at(".later/y")).unwrap();
    fs::remove_file(dir.at("README")).unwrap();
    watch.until("removed README");
    assert!(!watch.settle().iter().any(|event| event.contains(".later")));
}

#[test]
fn a_symlinked_directory_is_loaded_until_the_restart() {
    let dir = PluginDir::with(&["v~a"]);
    let mut watch = dir.watch(Kubelet136);
    fs::create_dir(dir.beside("elsewhere")).unwrap();
    symlink(dir.beside("good"), dir.beside("elsewhere/l")).unwrap();
    symlink(dir.beside("elsewhere"), dir.at("v~l")).unwrap();
    watch.until("added v/l");
    assert_eq!(dir.watch(Kubelet136).in_service(), ["v/a"]);
}

#[test]
fn lost_changes_are_noted_and_nothing_more() {
    let dir = PluginDir::with(&["v~a", "v~b"]);
    let mut watch = dir.watch(Kubelet136);
    flood(&dir);
    dir.install("v~c", "good");
    let told = watch.settle();
    assert!(
        told.iter().any(|event| event.starts_with(&["noted ", wording("queue-was-full")].concat())),
        "{told:?}"
    );
    assert_eq!(watch.in_service(), ["v/a", "v/b"]);
    assert_eq!(watch.watcher.stats().overflows, 1);
}

#[test]
fn before_1_23_a_failing_driver_costs_another_its_news() {
    let dir = PluginDir::with(&["v~a"]);
    let mut watch = dir.watch(Kubelet122);
    dir.install("v~bad", "bad");
    dir.install("v~new", "good");
    let dropped = watch.event("failed v/new");
    assert!(dropped.reason.is_some_and(|reason| reason.contains("that of v~bad failed")));
    assert_eq!(watch.in_service(), ["v/a"]);
    dir.remove("v~bad");
    watch.until("removed v/bad");
    watch.settle();
    assert_eq!(watch.in_service(), ["v/a"], "healthy, and still missing");
    dir.replace("v~new", "good");
    watch.until("added v/new");
}

#[test]
fn the_plugin_directory_is_made_again_at_once_but_a_renamed_one_is_lost() {
    let dir = PluginDir::with(&["v~a"]);
    let mut watch = dir.watch(Kubelet136);
    remove_all(&dir.path);
    watch.until(&["noted ", wording_of("directory-watched", ["made again"])].concat());
    dir.install("v~b", "good");
    watch.until("added v/b");
    watch.settle();
    fs::rename(&dir.path, dir.beside("away")).unwrap();
    watch.until(&["noted ", wording("directory-renamed")].concat());
    fs::create_dir(&dir.path).unwrap();
    dir.install("v~c", "good");
    assert_eq!(watch.settle(), [""; 0]);
}

#[test]
fn a_symlinked_plugin_directory_is_read_once_and_not_watched() {
    let dir = PluginDir::with(&["v~a"]);
    let link = dir.beside("link");
    symlink(&dir.path, &link).unwrap();
    let mut watcher = Watcher::new(&link, Kubelet136).unwrap();
    let (start, mut told) = (Instant::now(), Vec::new());
    while watcher.loaded().count() == 0 {
        assert!(start.elapsed() < event_wait(), "{told:?}");
        told.extend(watcher.next(Duration::from_millis(500)).unwrap());
    }
    assert!(told[0].reason.as_ref().is_some_and(|reason| reason.contains("a symlink")), "{told:?}");
    assert_eq!(watcher.loaded().count(), 1);
    dir.install("v~b", "good");
    assert!(watcher.next(Duration::from_millis(1500)).unwrap().is_empty());
}
