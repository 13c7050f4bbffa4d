use super::held::{Held, State, bound_volume, held, held_for, waiting};
use super::objects::Objects;
use super::volumes::{FORGOTTEN, UNUSED, rows};
use crate::fence::contract::holder;
use crate::fence::record::{Holder, Record};
use crate::fence::store::kubernetes::OUT_OF_SERVICE;
use serde_json::{Value, json};
use std::time::Instant;

fn node(uid: &str, boot: &str, ready: &str, off: bool) -> Value {
    let taints = if off { json!([{"key": OUT_OF_SERVICE, "effect": "NoExecute"}]) } else { json!([]) };
    json!({"metadata": {"name": "a", "uid": uid}, "spec": {"taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": ready}], "nodeInfo": {"bootID": boot}}})
}

fn lock(handle: &str, pod: &str, volume: &str) -> Value {
    let mut holder = holder("a", pod);
    holder.target = format!("/var/lib/kubelet/pods/{pod}/volumes/flexvol~image/{volume}");
    (holder.pod.namespace, holder.pod.name) = ("shop".to_owned(), format!("name-{pod}"));
    json!({"spec": Record { holders: vec![holder], epoch: 3, ..Record::free(handle) }.to_json()})
}

fn pod(name: &str, uid: &str, claim: &str) -> Value {
    json!({"metadata": {"name": name, "uid": uid, "namespace": "shop"},
        "spec": {"nodeName": "b", "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]}})
}

fn volume(name: &str, claim: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"flexVolume": {"driver": "flexvol/image"},
        "claimRef": {"namespace": "shop", "name": claim}}})
}

fn state(node: Option<&Value>) -> State {
    let mut objects = Objects::default();
    objects.add_lock(&lock("file:/x", "1", "pv"));
    if let Some(node) = node {
        objects.add_node(node);
    }
    held(&objects, |_| false)[0].node
}

/// Judges a node like `flexvold controller`: a node that is not off keeps what it holds.
#[test]
fn a_node_is_shown_as_it_counts() {
    let same = |boot, ready, off| state(Some(&node("uid-a", boot, ready, off)));
    assert_eq!(same("boot-a", "True", false), State::Ready);
    assert_eq!(same("boot-a", "Unknown", false), State::Silent);
    assert_eq!(same("boot-a", "Unknown", true), State::Off);
    assert_eq!(same("boot-a", "True", true), State::Marked);
    assert_eq!(same("later", "True", false), State::StartedAgain);
    assert_eq!(same("later", "False", true), State::Off);
    assert_eq!(same("", "True", false), State::Silent);
    assert_eq!(state(None), State::Gone);
    assert_eq!(state(Some(&node("other", "later", "True", false))), State::Gone);
}

#[test]
fn a_claims_holders_are_known_by_its_volume_and_its_pods() {
    let mut objects = Objects::default();
    for lock in [
        lock("file:/its", "1", "pv"),
        lock("file:/of-its-pod", "2", "inline"),
        lock("file:/others", "3", "other"),
    ] {
        objects.add_lock(&lock);
    }
    for pod in [pod("db-0", "new", "data"), pod("db-1", "2", "data"), pod("web", "3", "web")] {
        objects.add_pod(&pod);
    }
    let held = held_for(&objects, "shop", "data", "pv");
    let storages: Vec<_> = held.iter().map(|held| &*held.record.handle).collect();
    assert_eq!(storages, ["file:/its", "file:/of-its-pod"]);
    let names: Vec<_> = waiting(&objects, "shop", "data", &held).iter().map(|pod| &*pod.name).collect();
    assert_eq!(names, ["db-0"]);
    assert_eq!(held.iter().map(|held| held.pod_is_gone).collect::<Vec<_>>(), [true, false]);
    assert_eq!(held_for(&objects, "shop", "data", "").len(), 1, "it is not bound");
    assert!(held_for(&objects, "other", "data", "").is_empty(), "a claim of another namespace");
}

/// A tenant chooses the names of the volumes in its pods, and may name any volume in a claim.
#[test]
fn nothing_of_a_stranger_is_meant_by_a_name() {
    let mut objects = Objects::default();
    objects.add_volume(&volume("pv", "data"));
    objects.add_lock(&lock("file:/its", "1", "pv"));
    let mut stranger = holder("a", "2");
    stranger.target = "/var/lib/kubelet/pods/2/volumes/flexvol~image/pv".to_owned();
    stranger.pod.namespace = "tenants".to_owned();
    let record = Record { holders: vec![stranger.clone()], epoch: 3, ..Record::free("file:/own") };
    objects.add_lock(&json!({"spec": record.to_json()}));
    objects.add_lock(&lock("file:/inline", "3", "pv"));
    let mut inline = pod("in", "3", "none");
    inline["spec"]["volumes"] = json!([{"name": "pv", "flexVolume": {"driver": "flexvol/image"}}]);
    objects.add_pod(&inline);
    let storages =
        |held: Vec<Held<'_>>| held.iter().map(|held| held.record.handle.clone()).collect::<Vec<_>>();
    assert_eq!(storages(held_for(&objects, "shop", "data", "pv")), ["file:/its"]);
    let certain = held(&objects, |_| false);
    let certain: Vec<_> = certain.into_iter().filter(|held| held.persistent(&objects).is_some()).collect();
    assert_eq!(storages(certain), ["file:/its"]);
    let claim = |phase: &str| json!({"spec": {"volumeName": "pv"}, "status": {"phase": phase}});
    assert_eq!(
        ["Bound", "Pending", "Lost"].map(|phase| bound_volume(&claim(phase)).to_owned()),
        ["pv", "", ""]
    );
}

/// The API shows a static pod as a mirror pod, which has another uid.
#[test]
fn a_pod_that_a_kubelet_runs_by_itself_is_there() {
    let mut objects = Objects::default();
    objects.add_lock(&lock("file:/x", "1", "pv"));
    let mut shown = pod("db-0", "of-the-object", "data");
    shown["metadata"]["annotations"] = json!({"kubernetes.io/config.hash": "1"});
    objects.add_pod(&shown);
    assert!(!held(&objects, |_| true)[0].pod_is_gone);
}

fn cells(objects: &Objects, of: Option<&str>) -> Vec<String> {
    rows(objects, of).into_iter().map(|row| row.cells().join(" | ")).collect()
}

#[test]
fn each_volume_is_shown_with_its_pod_node_and_lock() {
    let mut objects = Objects::default();
    objects.add_lock(&lock("file:/held", "1", "pv-1"));
    objects.add_lock(&lock("file:/forgotten", "9", "pv-2"));
    objects.add_node(&node("uid-a", "boot-a", "Unknown", false));
    let mut b = node("uid-b", "boot-b", "True", false);
    b["metadata"]["name"] = json!("b");
    objects.add_node(&b);
    for volume in [volume("pv-1", "one"), volume("pv-2", "two"), volume("pv-3", "three")] {
        objects.add_volume(&volume);
    }
    objects.add_volume(&json!({"metadata": {"name": "other"}, "spec": {"csi": {"driver": "x"}}}));
    let mut first = pod("db-1", "1", "one");
    first["spec"]["nodeName"] = json!("a");
    let mut inline = pod("in", "4", "none");
    inline["spec"]["volumes"] = json!([{"name": "v", "flexVolume": {"driver": "flexvol/tmpfs"}}]);
    let mut ended = pod("job", "5", "three");
    ended["status"] = json!({"phase": "Succeeded"});
    for pod in [first, pod("db-2", "new", "two"), inline, ended] {
        objects.add_pod(&pod);
    }
    let expected = [
        "shop/db-1 | pv-1 | flexvol/image | a (not ready) | file:/held | held",
        "shop/db-2 | pv-2 | flexvol/image | b | - | pod shop/name-9 on node a (not ready) has it",
        &format!("- | pv-3 | flexvol/image | - | - | {UNUSED}"),
        "shop/in | v | flexvol/tmpfs | b | - | -",
        &format!("shop/name-9 | pv-2 | - | a (not ready) | file:/forgotten | {FORGOTTEN}"),
    ];
    assert_eq!(cells(&objects, None), expected);
    assert_eq!(cells(&objects, Some("shop")), expected);
    assert!(cells(&objects, Some("other")).is_empty());
}

/// Text for a shell contains a valid node name only, whatever the record contains.
#[test]
fn advice_is_no_trap() {
    let mut record = Record { holders: vec![holder("a", "1")], ..Record::free("file:/x") };
    let advice = |record: &Record| {
        let mut objects = Objects::default();
        objects.add_lock(&json!({"spec": record.to_json()}));
        let mut silent = node("uid-a", "boot-a", "Unknown", false);
        silent["metadata"]["name"] = json!(record.holders[0].node.name);
        objects.add_node(&silent);
        held(&objects, |_| false)[0].advice()
    };
    assert!(advice(&record).contains(&format!("taint node a {OUT_OF_SERVICE}=")));
    for name in ["a;reboot", "$(reboot)", "-a b", "a\u{1b}[2J"] {
        record.holders[0].node.name = name.to_owned();
        let advice = advice(&record);
        assert!(advice.contains(&format!("taint node NODE {OUT_OF_SERVICE}=")), "{advice}");
    }
}

/// Output of kubectl may contain any JSON.
#[test]
fn what_means_nothing_holds_nothing() {
    let mut objects = Objects::default();
    for strange in [json!(null), json!(7), json!({"spec": {"holders": [1]}}), json!({"spec": []})] {
        objects.add_lock(&strange);
        objects.add_task(&strange);
        objects.add_node(&strange);
        objects.add_pod(&strange);
        objects.add_volume(&strange);
    }
    assert_eq!((held(&objects, |_| true).len(), objects.strange), (0, 8));
    assert!(cells(&objects, None).is_empty());
}

/// A thousand nodes with fifty volumes each: no list is scanned once per entry of another list.
#[test]
fn a_large_cluster_is_shown_soon() {
    let mut objects = Objects::default();
    for number in 0..50_000 {
        let (uid, name) = (number.to_string(), format!("pv-{number}"));
        let holder = Holder { target: format!("/t/{name}"), ..holder(&format!("n{}", number % 1000), &uid) };
        objects.locks.push(Record { holders: vec![holder], ..Record::free(&format!("rbd:/k/{number}")) });
        objects.add_pod(&pod(&name, &uid, &name));
        objects.add_volume(&volume(&name, &name));
    }
    let begun = Instant::now();
    let rows = rows(&objects, None);
    assert_eq!(rows.len(), 50_000);
    assert!(rows.iter().all(|row| row.state == "held"));
    // A debug build takes half a second; comparing each with each would take hours.
    assert!(begun.elapsed() < crate::pace::deadline(30), "{:?}", begun.elapsed());
    let held = held(&objects, |_| true);
    assert!(held.iter().all(|held: &Held<'_>| !held.pod_is_gone));
}
