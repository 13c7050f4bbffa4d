//! A server that has forgotten the volume: whoever asks for anything gets ESTALE, as from NFS after
//! its export is gone.

use crate::stale::Stale;
use crate::support::pace::deadline;
use crate::support::{isolated, mounts_at, sh, skip};
use crate::trust::Report;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// No call here has to wait for anybody.
fn soon() -> Duration {
    deadline(30)
}

/// ESTALE.
const STALE: i32 = 116;

fn kinds() -> [(&'static str, Value); 3] {
    [
        ("tmpfs", json!({"size": "1Mi"})),
        ("bind", json!({"source": "/run/srv/a"})),
        ("image", json!({"file": "a.img", "size": "2Mi"})),
    ]
}

fn stale(at: &Path) -> Stale {
    let stale = Stale::mount(at);
    assert_eq!(fs::metadata(at).unwrap_err().raw_os_error(), Some(STALE));
    stale
}

/// At a volume's place: it is not mounted over, taken off when kubelet asks for that, and no other
/// volume notices it.
#[test]
fn a_stale_mount_at_the_target() {
    const NAME: &str = "dead::a_stale_mount_at_the_target";
    if !Path::new("/dev/fuse").exists() {
        return skip(NAME, "no /dev/fuse");
    }
    isolated(NAME, |node| {
        sh("mkdir /run/srv/a");
        for (driver, options) in kinds() {
            let mut report = Report::begin("dead", driver, "stale", 5);
            let [target, other] = ["p", "q"].map(|pod| node.volume(driver, pod));
            let server = stale(&target);
            let calls = [
                node.mount(driver, &target, &options).failure(&["unmount it first"]),
                node.mount(driver, &other, &options).success(),
                node.unmount(driver, &other).success(),
                node.unmount(driver, &target).success(),
            ];
            assert!(mounts_at(&target).is_empty());
            drop(server);
            for call in calls.into_iter().chain([node.mount(driver, &target, &options).success()]) {
                assert!(call.took < soon(), "{driver}: {call:?}");
                report.tried(None);
            }
            node.unmount(driver, &target).success();
            node.assert_clean();
            report.end();
        }
    });
}

/// Below what a volume is to be mounted from.
#[test]
fn a_stale_source() {
    const NAME: &str = "dead::a_stale_source";
    if !Path::new("/dev/fuse").exists() {
        return skip(NAME, "no /dev/fuse");
    }
    isolated(NAME, |node| {
        sh("mkdir /run/srv/gone; mkdir -p /run/img/gone");
        for (driver, options, place) in [
            ("bind", json!({"source": "/run/srv/gone"}), "/run/srv/gone"),
            ("bind", json!({"source": "/run/srv/gone/a", "create": "true"}), "/run/srv/gone"),
            ("image", json!({"file": "gone/a.img", "size": "2Mi"}), "/run/img/gone"),
        ] {
            let target = node.volume(driver, "p");
            let server = stale(Path::new(place));
            let mount = node.mount(driver, &target, &options).failure(&["Stale file handle"]);
            let unmount = node.unmount(driver, &target).success();
            assert!(mount.took < soon() && unmount.took < soon(), "{mount:?} {unmount:?}");
            drop(server);
            node.assert_clean();
        }
    });
}
