//! `flexvol status` on volumes that are well, dead, hung and not there.

use crate::support::wording::{wording, wording_of};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use crate::support::fuse::Silent;
use crate::support::namespace::enter;
use crate::support::scripts::{MOUNT, Node};
use crate::support::stand_in::{Said, Site};

fn volumes(said: &Said) -> Vec<Value> {
    said.json()["volumes"].as_array().unwrap().clone()
}

fn by_name<'a>(volumes: &'a [Value], name: &str) -> &'a Value {
    volumes.iter().find(|volume| volume["volume"] == name).unwrap_or_else(|| panic!("{name}: {volumes:?}"))
}

#[test]
fn every_volume_is_shown_with_its_health() {
    if !enter("status::every_volume_is_shown_with_its_health") {
        return;
    }
    let site = Site::new();
    let target = |name: &str| -> PathBuf {
        let path = site.path(&format!("kubelet/pods/7/volumes/fstab~cifs/{name}"));
        fs::create_dir_all(&path).unwrap();
        path
    };
    nix::mount::mount(
        Some("//nas/a"),
        &target("well"),
        Some("tmpfs"),
        nix::mount::MsFlags::empty(),
        Some("size=1m"),
    )
    .unwrap();
    let _hung = Silent::mount(&target("hung"));
    let mut dead = Silent::mount(&target("dead"));
    dead.end();
    target("bare");
    fs::create_dir_all(site.path("kubelet/pods/7/volumes/kubernetes.io~secret/token")).unwrap();
    let root = site.path("kubelet");
    let line = ["status", "--kubelet-root", root.to_str().unwrap(), "--patience", "1"];
    let said = site.flexvol(&[&line[..], &["--json"]].concat());
    assert_eq!(said.status, 1);
    let volumes = volumes(&said);
    assert_eq!(volumes.len(), 4, "{volumes:?}");
    let health = |name: &str| by_name(&volumes, name)["health"].as_str().unwrap().to_owned();
    let all = ["well", "hung", "dead", "bare"].map(health);
    assert_eq!(all, ["alive", "hung", "dead", "not mounted"]);
    let well = by_name(&volumes, "well");
    assert_eq!((&well["driver"], &well["source"]), (&"fstab/cifs".into(), &"//nas/a".into()));
    assert_eq!((&well["podUid"], &well["sizeBytes"]), (&"7".into(), &(1 << 20).into()));
    let text = site.flexvol(&line).out;
    assert!(text.lines().next().unwrap().starts_with("POD"), "{text}");
    assert!(text.contains(&["dead: ", wording("endpoint-gone")].concat()), "{text}");
    assert!(text.ends_with("1 alive, 1 dead, 1 hung, 1 not mounted\n"), "{text}");
    let one = site.flexvol(&[&line[..], &["--volume", "well", "--pod", "7", "--driver", "cifs"]].concat());
    assert!(one.status == 0 && one.out.ends_with("1 alive\n"), "{one:?}");
    let others = [wording_of("no-volume-matches", ["4 flex volumes"]), "\n"].concat();
    for filter in [["--pod", "nosuch"], ["--volume", "nosuch"], ["--driver", "no/such"]] {
        let none = site.flexvol(&[&line[..], &filter].concat()).good();
        assert_eq!(none.out, others, "{filter:?}");
    }
    let empty = ["status", "--kubelet-root", "plugins", "--pod", "nosuch"];
    let none = site.flexvol(&empty).good().out;
    assert!(none.starts_with(wording("no-flex-volume")) && none.ends_with(" runs here\n"), "{none}");
    nix::mount::umount(&target("well")).unwrap();
}

/// The mount table has the path behind the symlink, and records have kubelet's.
#[test]
fn a_volume_below_a_symlink_is_shown_once() {
    let test = "status::a_volume_below_a_symlink_is_shown_once";
    let Some(mut node) = Node::new(test, MOUNT, Some("umount \"$1\"")) else { return };
    symlink(".", node.file("kubelet")).unwrap();
    node.target = node.file("kubelet/pods/1/volumes/example~share/v");
    node.start(r#"{"kubernetes.io/pvOrVolumeName":"pv1"}"#).finish().success();
    let root = node.file("kubelet");
    for line in [&["status", "--json"][..], &["status", "--json", "--kubelet-root", root.to_str().unwrap()]] {
        let found = volumes(&Site::new().flexvol(line));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((&found[0]["volume"], &found[0]["byFlexvol"]), (&"pv1".into(), &true.into()), "{found:?}");
        assert_eq!((&found[0]["health"], &found[0]["layers"]), (&"alive".into(), &1.into()), "{found:?}");
    }
    node.unmount().finish().success();
    node.is_clean();
}

#[test]
fn a_volume_of_ours_has_its_pod_and_its_time() {
    let Some(node) =
        Node::new("status::a_volume_of_ours_has_its_pod_and_its_time", MOUNT, Some("umount \"$1\""))
    else {
        return;
    };
    let options = r#"{"kubernetes.io/pod.name":"web","kubernetes.io/pod.namespace":"shop","kubernetes.io/pvOrVolumeName":"pv1"}"#;
    node.start(options).finish().success();
    let said = Site::new().flexvol(&["status", "--json"]);
    let found = volumes(&said);
    let volume = by_name(&found, "pv1");
    assert_eq!((&volume["pod"], &volume["byFlexvol"]), (&"shop/web".into(), &true.into()));
    assert_eq!((&volume["health"], &volume["layers"]), (&"alive".into(), &1.into()));
    assert!(volume["since"].as_str().unwrap().starts_with("20"), "{volume}");
    node.unmount().finish().success();
    let found = volumes(&Site::new().flexvol(&["status", "--json"]));
    assert!(found.iter().all(|volume| volume["volume"] != "pv1"), "{found:?}");
    node.is_clean();
}

/// kubelet has removed the volume's directory, and not the pod's.
#[test]
fn what_pods_wait_for_comes_first_with_since_when_and_how_often() {
    if !enter("status::what_pods_wait_for_comes_first_with_since_when_and_how_often") {
        return;
    }
    let site = Site::new();
    let well = site.path("kubelet/pods/1/volumes/fstab~cifs/well");
    fs::create_dir_all(&well).unwrap();
    let waits = site.path("kubelet/pods/7/volumes/example~tmpfs/data");
    fs::create_dir_all(waits.parent().unwrap()).unwrap();
    let over_csi = site.path("kubelet/pods/8/volumes/kubernetes.io~csi/pv1/mount");
    fs::create_dir_all(site.path("kubelet/pods/8")).unwrap();
    fs::create_dir_all("/run/flexvol/log").unwrap();
    let line = |target: &PathBuf, pod: &str, time: &str| {
        let entry = serde_json::json!({
            "time": time, "driver": "example~tmpfs", "verb": "mount", "target": target, "pod": pod,
            "volume": "data", "outcome": "Failure", "message": "unknown option \"sise\"", "tookMs": 3, "pid": 7
        });
        format!("{entry}\n")
    };
    let log = [
        line(&waits, "shop/web", "2026-11-21T10:00:00.000Z"),
        line(&waits, "shop/web", "2026-11-21T10:00:02.000Z"),
        line(&over_csi, "shop/csi", "2026-11-21T10:00:03.000Z"),
    ];
    fs::write("/run/flexvol/log/drivers.jsonl", log.concat()).unwrap();
    let root = site.path("kubelet");
    let line = ["status", "--kubelet-root", root.to_str().unwrap()];
    let found = volumes(&site.flexvol(&[&line[..], &["--json"]].concat()));
    let pods: Vec<_> = found.iter().map(|volume| volume["pod"].as_str().unwrap_or("-")).collect();
    assert_eq!(pods, ["shop/web", "shop/csi", "-"], "{found:?}");
    let failed = &found[0]["failed"];
    assert_eq!((&failed["count"], &failed["verb"]), (&2.into(), &"mount".into()));
    assert_eq!(failed["since"], "2026-11-21T10:00:00.000Z");
    assert!(failed["fix"].as_str().unwrap().contains("correct the option"), "{failed}");
    let text = site.flexvol(&[&line[..], &["--pod", "shop/web"]].concat()).out;
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let counted = "mount failed 2 times since 2026-11-21T10:00:00, last at 2026-11-21T10:00:02";
    assert!(flat.contains("not mounted: unknown option \"sise\"") && flat.contains(counted), "{text}");
}
