//! Images that several pods, the node's admin or kubelet's expandfs work on.

use super::image::{MEBIBYTE, capacity, expand, file, is_rofs, ro, with, writable};
use crate::support::pace::{deadline, slow_seconds};
use crate::support::{Answer, Node, eventually, has, isolated, mounts_at, sh, skip};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn two_pods_share_one_device() {
    isolated("shared::two_pods_share_one_device", |node| {
        for (kind, size) in writable() {
            let (one, two) = (node.volume("image", "one"), node.volume("image", "two"));
            let options = json!({"file": kind, "size": size, "fsType": kind});
            for (first, second) in [(&one, &two), (&two, &one)] {
                let read_only =
                    |target: &Path| if target == one { with(&options, &ro()) } else { options.clone() };
                if !file(kind).exists() {
                    node.mount("image", first, &options).success();
                    node.unmount("image", first).success();
                }
                for target in [first, second] {
                    node.mount("image", target, &read_only(target)).success();
                }
                assert_eq!(node.loops().len(), 1, "{kind}");
                fs::write(two.join("f"), "shared").unwrap();
                assert_eq!(fs::read_to_string(one.join("f")).unwrap(), "shared");
                assert!(is_rofs(fs::write(one.join("g"), "")), "{kind}");
                node.unmount("image", first).success();
                assert_eq!((mounts_at(first).len(), mounts_at(second).len()), (0, 1));
                let written = fs::write(second.join("h"), "");
                assert_eq!(written.is_ok(), second == &two, "{kind}");
                assert_eq!(fs::read_to_string(second.join("f")).unwrap(), "shared");
                node.unmount("image", second).success();
                node.assert_clean();
            }
            fs::remove_file(file(kind)).unwrap();
        }
    });
}

/// What each of several simultaneous mounts got.
fn at_once(node: &Node, calls: &[(PathBuf, Value)]) -> Vec<Answer> {
    std::thread::scope(|scope| {
        let start = |(target, options)| scope.spawn(move || node.mount("image", target, options));
        let threads: Vec<_> = calls.iter().map(|(target, options)| start((target, options))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn ten_first_mounts_at_once() {
    isolated("shared::ten_first_mounts_at_once", |node| {
        for round in 0..4 {
            let options = json!({"file": format!("{round}/a"), "size": "16Mi"});
            let calls: Vec<_> =
                (0..10).map(|pod| (node.volume("image", &format!("{pod}")), options.clone())).collect();
            for answer in at_once(node, &calls) {
                answer.success();
            }
            assert_eq!(node.loops().len(), 1);
            fs::write(calls[0].0.join("f"), "x").unwrap();
            for (target, _) in &calls {
                assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "x");
                node.unmount("image", target).success();
            }
            node.assert_clean();
        }
    });
}

/// One of two pods that start at once on a new file must fail; its undo must not take the file from
/// the other.
#[test]
fn a_failing_pod_does_not_hurt_the_other() {
    isolated("shared::a_failing_pod_does_not_hurt_the_other", |node| {
        let good: Vec<_> = (0..3).map(|pod| node.volume("image", &format!("good{pod}"))).collect();
        let bad: Vec<_> = (0..3).map(|pod| node.volume("image", &format!("bad{pod}"))).collect();
        let options = json!({"file": "a", "size": "1Mi"});
        // The kernel refuses it, after everything else was done.
        let wrong = with(&options, &json!({"fsType": "ext4", "mountOptions": "stripe=99999999999"}));
        for round in 0..30 {
            let mut calls: Vec<_> = good.iter().map(|target| (target.clone(), options.clone())).collect();
            calls.extend(bad.iter().map(|target| (target.clone(), wrong.clone())));
            calls.rotate_left(round % 6);
            let answers = at_once(node, &calls);
            let mounted: Vec<_> = good.iter().filter(|target| !mounts_at(target).is_empty()).collect();
            for ((target, options), answer) in calls.iter().zip(&answers) {
                assert!(options != &wrong || answer.status == "Failure", "{answer:?}");
                assert_eq!(answer.status == "Success", mounted.contains(&target), "{round}: {answer:?}");
            }
            if !mounted.is_empty() {
                assert!(
                    file("a").exists(),
                    "round {round}: the file of a mounted volume is gone: {answers:?}"
                );
            }
            assert!(node.loops().len() <= 1, "round {round}: {answers:?}");
            for target in &good {
                node.mount("image", target, &options).success();
                assert_eq!(node.loops().len(), 1, "round {round}");
            }
            for target in &good {
                node.unmount("image", target).success();
            }
            node.assert_clean();
            fs::remove_file(file("a")).unwrap();
        }
    });
}

/// The call with this pause before the given system call.
fn slowed(node: &Node, target: &Path, options: &Value, pause: &str) -> Answer {
    let plain = node.command("image", "mount", target, Some(options));
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-o", "/dev/null", "-E", "LD_LIBRARY_PATH", "-e", &format!("inject={pause}")]);
    node.call(traced.arg(plain.get_program()).args(plain.get_args()))
}

/// The races of the test above, one by one. The first flock of a call is the target's, the second
/// the image's.
#[test]
fn the_undo_of_one_and_the_start_of_another() {
    isolated("shared::the_undo_of_one_and_the_start_of_another", |node| {
        if !has("strace") {
            return skip("shared::the_undo_of_one_and_the_start_of_another", "no strace");
        }
        let (good, bad) = (node.volume("image", "good"), node.volume("image", "bad"));
        let options = json!({"file": "a", "size": "1Mi"});
        let wrong = with(&options, &json!({"fsType": "ext4", "mountOptions": "stripe=99999999999"}));
        let delay = slow_seconds(1) * 1_000_000;
        let (is_made, is_locked) = (|| file("a").exists(), || !node.loops().is_empty());
        let pauses: [(_, &dyn Fn() -> bool); 2] = [
            // Has made the file, but not locked it, when the other comes.
            (format!("flock:delay_enter={delay}:when=2"), &is_made),
            // Fails and removes the file while the other waits for its lock.
            (format!("fsopen:delay_enter={delay}"), &is_locked),
        ];
        for (pause, comes) in &pauses {
            std::thread::scope(|scope| {
                scope.spawn(|| slowed(node, &bad, &wrong, pause).failure(&["stripe"]));
                assert!(eventually(comes), "{pause}");
                node.mount("image", &good, &options).success();
            });
            assert!(file("a").exists(), "{pause}: the file of a mounted volume is gone");
            assert_eq!(node.loops().len(), 1);
            node.unmount("image", &good).success();
            node.assert_clean();
            fs::remove_file(file("a")).unwrap();
        }
    });
}

/// As a mkfs does that was killed with its call, but takes a moment to die.
#[test]
fn a_device_that_is_being_let_go() {
    isolated("shared::a_device_that_is_being_let_go", |node| {
        let target = node.volume("image", "p");
        let options = json!({"file": "a", "size": "1Mi"});
        let mut holder = Command::new("sh");
        holder.args([
            "-ec",
            "truncate -s 1M /run/img/a; device=$(losetup -f --show /run/img/a)
            exec 5<$device; losetup -d $device; touch /run/held; sleep 0.3",
        ]);
        let mut holder = holder.spawn().unwrap();
        assert!(eventually(|| Path::new("/run/held").exists()));
        assert_eq!(node.loops().len(), 1);
        node.mount("image", &target, &options).success();
        holder.wait().unwrap();
        node.unmount("image", &target).success();
        // One that stays is somebody's.
        fs::remove_file(file("a")).unwrap();
        let device = sh("truncate -s 1M /run/img/a; losetup -f --show /run/img/a");
        let answer = node.mount("image", &target, &options);
        sh(&format!("losetup -d {device}"));
        answer.failure(&["attached to", device.trim()]);
    });
}

#[test]
fn on_a_read_only_file_system() {
    isolated("shared::on_a_read_only_file_system", |node| {
        let target = node.volume("image", "p");
        let options = json!({"file": "a", "size": "16Mi"});
        node.mount("image", &target, &options).success();
        fs::write(target.join("f"), "x").unwrap();
        node.unmount("image", &target).success();
        sh("mount --bind /run/img /run/img; mount -o remount,ro,bind /run/img");
        for options in [json!({"file": "a"}), options] {
            node.mount("image", &target, &options).failure(&["readOnly: true"]);
            node.mount("image", &target, &with(&options, &ro())).success();
            assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "x");
            assert!(is_rofs(fs::write(target.join("g"), "")));
            node.unmount("image", &target).success();
        }
        node.mount("image", &target, &json!({"file": "new", "size": "16Mi"})).failure(&["Read-only"]);
        sh("umount /run/img");
    });
}

#[test]
fn expandfs_grows_online() {
    isolated("shared::expandfs_grows_online", |node| {
        for (kind, size) in writable() {
            let target = node.volume("image", kind);
            let options = json!({"file": kind, "size": size, "fsType": kind});
            expand(node, &target, &options, 600 * MEBIBYTE, 0).failure(&[]);
            assert!(!file(kind).exists());
            node.mount("image", &target, &options).success();
            fs::write(target.join("f"), "x").unwrap();
            let (old, before) = (fs::metadata(file(kind)).unwrap().len(), capacity(&target));
            expand(node, &target, &options, old / 2, old).failure(&["shrink"]);
            let new = 2 * old;
            let answer = expand(node, &target, &options, new, old);
            if kind == "ext4" && answer.message.contains("CAP_SYS_RESOURCE") {
                skip("shared::expandfs_grows_online", "ext4 grows online only with CAP_SYS_RESOURCE");
            } else {
                answer.success();
                expand(node, &target, &options, new, 0).success();
                expand(node, &target, &options, old, 0).success();
                assert!(capacity(&target) > before + before / 2, "{kind}");
                assert_eq!(fs::metadata(file(kind)).unwrap().len(), new);
            }
            assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "x");
            node.mount("image", &target, &options).success();
            node.unmount("image", &target).success();
            node.assert_clean();
            node.mount("image", &target, &options).success();
            assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "x");
            node.unmount("image", &target).success();
            fs::remove_file(file(kind)).unwrap();
        }
    });
}

/// A PVC of 128Mi that wants 192Mi waits for ever, and says what for.
#[test]
fn a_small_btrfs_grows_to_256_mebibytes() {
    isolated("shared::a_small_btrfs_grows_to_256_mebibytes", |node| {
        let btrfs = writable().into_iter().find(|(kind, _)| *kind == "btrfs");
        let Some((kind, size)) = btrfs else { return };
        let target = node.volume("image", "small");
        let options = json!({"file": "small", "size": size, "fsType": kind});
        node.mount("image", &target, &options).success();
        expand(node, &target, &options, 192 * MEBIBYTE, 128 * MEBIBYTE).failure(&["256 MiB or more"]);
        expand(node, &target, &options, 256 * MEBIBYTE, 128 * MEBIBYTE).success();
        assert!(capacity(&target) > 200 * MEBIBYTE);
        node.unmount("image", &target).success();
        fs::remove_file(file("small")).unwrap();
    });
}

#[test]
fn only_regular_files_below_the_root() {
    isolated("shared::only_regular_files_below_the_root", |node| {
        let target = node.volume("image", "p");
        sh(
            "cd /run/img; mkdir dir; mkfifo fifo; mknod disk b 7 200; mknod null c 1 3
            truncate -s 16M /run/outside; mkfs.ext4 -q /run/outside; ln -s /run/outside link; ln -s /run out",
        );
        let before = sh("sha256sum /run/outside");
        for name in [
            "dir",
            "fifo",
            "disk",
            "null",
            "link",
            "out/outside",
            "../outside",
            "/run/outside",
            "dir/",
            "/run/img",
        ] {
            for options in [
                json!({"file": name}),
                json!({"file": name, "size": "1Mi"}),
                with(&json!({"file": name}), &ro()),
            ] {
                let answer = node.mount("image", &target, &options).failure(&[]);
                assert!(answer.took < deadline(20), "{name} {answer:?}");
                node.assert_clean();
            }
        }
        assert_eq!(sh("sha256sum /run/outside"), before);
        assert_eq!(sh("ls /run/img").split_whitespace().count(), 6);
    });
}

#[test]
fn a_device_of_someone_else_is_shared_and_left() {
    isolated("shared::a_device_of_someone_else_is_shared_and_left", |node| {
        let target = node.volume("image", "p");
        sh(
            "truncate -s 16M /run/img/a; mkfs.ext4 -q /run/img/a; mkdir /run/theirs; mount -o loop /run/img/a /run/theirs",
        );
        node.mount("image", &target, &json!({"file": "a"})).success();
        assert_eq!(node.loops().len(), 1);
        fs::write(target.join("f"), "x").unwrap();
        assert_eq!(fs::read_to_string("/run/theirs/f").unwrap(), "x");
        node.unmount("image", &target).success();
        if has("strace") {
            // Closing a device that was open for writing makes udev read it again: only one's own
            // is opened so.
            let theirs = sh("findmnt -fno SOURCE /run/theirs");
            let plain = node.command("image", "mount", &target, Some(&json!({"file": "b", "size": "1Mi"})));
            let mut traced = Command::new("strace");
            traced.args([
                "-f",
                "-qq",
                "-o",
                "/run/trace",
                "-e",
                "trace=open,openat",
                "-E",
                "LD_LIBRARY_PATH",
            ]);
            node.call(traced.arg(plain.get_program()).args(plain.get_args())).success();
            let trace = fs::read_to_string("/run/trace").unwrap();
            let name = format!("\"{}\"", theirs.trim());
            let opened: Vec<_> = trace.lines().filter(|line| line.contains(&name)).collect();
            assert!(!opened.is_empty() && opened.iter().all(|line| line.contains("O_RDONLY")), "{opened:?}");
            node.unmount("image", &target).success();
        }
        assert_eq!(node.loops().len(), 1);
        sh("umount /run/theirs");
        assert!(eventually(|| node.loops().is_empty()));
    });
}
