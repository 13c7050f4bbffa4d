//! What is not the volume's stays mounted, whatever a pod does to the paths and whatever a record
//! says.

use crate::support::wording::wording;
use crate::support::{Node, isolated, mounts_at, run, sh};
use serde_json::json;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// A pod swaps the directory above a mount inside its volume for a symlink to another pod's
/// volumes.
#[test]
fn mounts_inside_are_not_found_by_path() {
    isolated("foreign::mounts_inside_are_not_found_by_path", |node| {
        let other = node.volume("tmpfs", "other");
        node.mount("tmpfs", &other, &json!({})).success();
        sh(&format!(
            "mkdir -p /run/srv/a/d/vol; ln -s {} /run/srv/a/link",
            other.parent().unwrap().display()
        ));
        let target = node.volume("bind", "p");
        let (stop, mut done) = (AtomicBool::new(false), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let exchange = rustix::fs::RenameFlags::EXCHANGE;
                let (cwd, d, link) = (rustix::fs::CWD, "/run/srv/a/d", "/run/srv/a/link");
                while !stop.load(Ordering::Relaxed) {
                    rustix::fs::renameat_with(cwd, d, cwd, link, exchange).unwrap();
                }
            });
            for _ in 0..150 {
                node.mount("bind", &target, &json!({"source": "/run/srv/a"})).success();
                let inside = |name: &str| target.join(name).join("vol");
                // In either of the two names, whichever is the directory now.
                let mount = |path: &Path| {
                    let mut command = Command::new("mount");
                    run(command.args(["-i", "-n", "-t", "tmpfs", "x"]).arg(path)).1.success()
                };
                let _ = mount(&inside("d")) || mount(&inside("link"));
                let answer = node.unmount("bind", &target);
                done += usize::from(answer.status == "Success");
                while mounts_at(&other).len() > 1 {
                    sh(&format!("umount {}", other.display()));
                }
                if mounts_at(&other).is_empty() {
                    stop.store(true, Ordering::Relaxed);
                    panic!("another pod's volume is unmounted: {answer:?}");
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert!(done > 100, "only {done} unmounts succeed");
        node.unmount("bind", &target).success();
        node.unmount("tmpfs", &other).success();
    });
}

fn admin(line: &[&str]) -> (String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexvol"));
    let (text, status, _) = run(command.arg("run").args(line));
    (text, status.code())
}

/// Outside kubelet's directories a record makes a mount ours: this driver's, of this very mount.
#[test]
fn a_record_is_of_one_driver_and_one_mount() {
    isolated("foreign::a_record_is_of_one_driver_and_one_mount", |_: &Node| {
        sh("mkdir /run/x");
        let (path, mounts) = (Path::new("/run/x"), || mounts_at(Path::new("/run/x")).len());
        let refused = |driver: &str| {
            let (text, status) = admin(&[driver, "unmount", "/run/x"]);
            assert!(status == Some(1) && text.contains(wording("not-our-volume")), "{driver}: {text}");
        };
        assert_eq!(admin(&["tmpfs", "mount", "/run/x"]).1, Some(0));
        refused("bind");
        assert_eq!(mounts(), 1);
        // A kernel without unique ids gives the next mount the same id again: let another one have
        // it.
        sh("mkdir /run/y; umount /run/x; grep -q 'uniqueId.:null' /run/flexvol/volumes/x-* && mount -t tmpfs y /run/y || :
            mount -t tmpfs foreign /run/x");
        for driver in ["bind", "tmpfs"] {
            refused(driver);
        }
        assert_eq!(mounts_at(path).len(), 1, "the foreign mount stays");
        sh("umount /run/x; umount /run/y 2>&1 || :");
        assert_eq!(admin(&["tmpfs", "mount", "/run/x"]), (String::from("mounted at /run/x\n"), Some(0)));
        assert_eq!(admin(&["tmpfs", "unmount", "/run/x"]).1, Some(0));
        assert_eq!(mounts(), 0);
    });
}

/// One rule for both verbs: another driver's directory is nobody else's, and an empty one elsewhere
/// is an admin's to name.
#[test]
fn what_cannot_be_unmounted_is_not_mounted() {
    isolated("foreign::what_cannot_be_unmounted_is_not_mounted", |node| {
        let other = Path::new("/run/k/pods/1/volumes/other~share/v");
        let staged = Path::new("/run/k/plugins/kubernetes.io/flexvolume/other/share/mounts/v");
        sh(&format!("mkdir -p /run/x /run/src {} {}", other.display(), staged.display()));
        let (memory, source) = (json!({"size": "1Mi"}), json!({"source": "/run/srv"}));
        for (driver, options) in [("tmpfs", &memory), ("bind", &source)] {
            for target in [other, staged] {
                node.mount(driver, target, options)
                    .failure(&["other~share", wording("volume-of-other-driver")]);
                assert!(mounts_at(target).is_empty());
                sh(&format!("mount -t tmpfs theirs {}", target.display()));
                node.mount(driver, target, options).failure(&["other~share"]);
                node.unmount(driver, target).failure(&[wording("not-our-volume")]);
                sh(&format!("umount {}", target.display()));
            }
            node.mount(driver, Path::new("/run/x"), options).success();
            node.unmount(driver, Path::new("/run/x")).success();
        }
        for target in [other, Path::new("/run/x")] {
            for verb in ["mount", "unmount"] {
                let (text, status) = admin(&["tmpfs", verb, target.to_str().unwrap()]);
                assert_eq!(status, Some(0), "{verb} {}: {text}", target.display());
            }
            assert!(mounts_at(target).is_empty());
        }
    });
}
