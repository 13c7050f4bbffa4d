//! Unmount in every state a directory can be in.

use crate::support::pace::{deadline, slow_seconds};
use crate::support::wording::{wording, wording_of};
use crate::support::{Node, eventually, has, isolated, kernel_has, mounts_at, processes, sh, skip};
use crate::trust::{FaultInjection, Report, play};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn samples() -> [(&'static str, Value); 3] {
    fs::create_dir_all("/run/srv/a").unwrap();
    [
        ("tmpfs", json!({})),
        ("bind", json!({"source": "/run/srv/a"})),
        ("image", json!({"file": "a", "size": "2Mi"})),
    ]
}

/// A child that is killed and reaped when the test is over, or fails.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Held {
    /// A shell that did `script` and then waits.
    fn sh(script: &str) -> Self {
        let mut command = Command::new("sh");
        command
            .args(["-c", &format!("{script}; echo; exec sleep 100")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        std::io::Read::read_exact(&mut child.stdout.take().unwrap(), &mut [0]).unwrap();
        Self(child)
    }
}

/// The container of a CSI driver that is started again has the mounts of the one before, under
/// other ids.
#[test]
fn csi_s_volumes_are_known_in_another_mount_namespace() {
    isolated("unmount::csi_s_volumes_are_known_in_another_mount_namespace", |node| {
        for (driver, options) in samples() {
            let target = node.root.join("pods/p/volumes/kubernetes.io~csi/data/mount");
            fs::create_dir_all(&target).unwrap();
            let elsewhere = || {
                let unmount = node.command(driver, "unmount", &target, None);
                let mut command = Command::new("unshare");
                command.args(["--mount", "--propagation", "unchanged"]).arg(unmount.get_program());
                node.call(command.args(unmount.get_args()))
            };
            node.mount(driver, &target, &options).success();
            // What is on top is another's.
            sh(&format!("mount -t tmpfs another {}", target.display()));
            elsewhere().failure(&["is not a volume of this driver"]);
            sh(&format!("umount {}", target.display()));
            elsewhere().success();
            sh(&format!("umount {}", target.display()));
            fs::remove_dir_all(node.root.join("pods/p")).unwrap();
        }
    });
}

#[test]
fn what_is_not_mounted() {
    isolated("unmount::what_is_not_mounted", |node| {
        for (driver, options) in samples() {
            let target = node.volume(driver, "p");
            for _ in 0..20 {
                node.unmount(driver, &target).success();
            }
            assert!(target.exists());
            fs::remove_dir(&target).unwrap();
            node.unmount(driver, &target).success();
            fs::remove_dir(target.parent().unwrap()).unwrap();
            node.unmount(driver, &target).success();
            node.unmount(driver, Path::new("/run/none/pods/1/volumes/example~x/vol")).success();
            let target = node.volume(driver, "p");
            node.mount(driver, &target, &options).success();
            for _ in 0..20 {
                node.unmount(driver, &target).success();
            }
            fs::remove_dir(&target).unwrap();
            node.assert_clean();
        }
    });
}

#[test]
fn layers_and_mounts_of_others() {
    isolated("unmount::layers_and_mounts_of_others", |node| {
        for (driver, options) in samples() {
            let target = node.volume(driver, "p");
            node.mount(driver, &target, &options).success();
            let path = target.display();
            sh(&format!(
                "mkdir -p {path}/sub; mount -t tmpfs x {path}/sub; mkdir {path}/sub/s; mount -t tmpfs x {path}/sub/s"
            ));
            sh(&format!("mkdir -p /run/other; echo kept > /run/other/f; mount --bind /run/other {path}"));
            sh(&format!(
                "mkdir -p {path}/m; mount -t tmpfs x {path}/m; mount -t tmpfs x {path}; mount -t tmpfs x {path}"
            ));
            assert_eq!(mounts_at(&target).len(), 4);
            node.unmount(driver, &target).success();
            assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
            assert_eq!(fs::read_to_string("/run/other/f").unwrap(), "kept\n");
            node.assert_clean();
        }
    });
}

#[test]
fn a_volume_in_use() {
    isolated("unmount::a_volume_in_use", |node| {
        for (driver, options) in samples() {
            let target = node.volume(driver, "p");
            node.mount(driver, &target, &options).success();
            let path = target.display();
            for script in [format!("exec 5>{path}/f"), format!("cd {path}")] {
                let user = Held::sh(&script);
                let answer =
                    node.unmount(driver, &target).failure(&[&format!("(pid {})", user.0.id()), "in use"]);
                assert!(answer.took < deadline(25), "{answer:?}");
                assert_eq!(mounts_at(&target).len(), 1, "never lazily while somebody uses it");
            }
            // One that ends while it is waited for.
            let mut user = Held::sh(&format!("cd {path}"));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    assert!(eventually(|| processes().iter().any(|(_, name)| name == driver)));
                    // It waits for three seconds.
                    std::thread::sleep(Duration::from_millis(300));
                    user.0.kill()
                });
                node.unmount(driver, &target).success();
            });
            drop(user);
            node.assert_clean();
        }
    });
}

/// Whoever cleans up after a worker that merely died leaves the volume to its users, and says so.
#[test]
fn a_volume_in_use_whose_unmount_is_killed() {
    isolated("unmount::a_volume_in_use_whose_unmount_is_killed", |node| {
        for (driver, options) in samples() {
            let target = node.volume(driver, "p");
            node.mount(driver, &target, &options).success();
            let user = Held::sh(&format!("cd {}", target.display()));
            for point in [1, 20] {
                let unmount = node.command(driver, "unmount", &target, None);
                let played = play(unmount, Some(FaultInjection::killing_the_worker(point)), false, true);
                assert!(played.struck, "{driver}: {point}");
                assert!(played.output.contains("Failure"), "{driver}: killed at {point}: {}", played.output);
                assert_eq!(mounts_at(&target).len(), 1, "{driver}: killed at {point}");
            }
            drop(user);
            node.unmount(driver, &target).success();
            node.assert_clean();
        }
    });
}

#[test]
fn lost_state() {
    isolated("unmount::lost_state", |node| {
        for (driver, options) in samples() {
            let target = node.volume(driver, "p");
            let mount = || drop(node.mount(driver, &target, &options).success());
            mount();
            sh("rm -rf /run/flexvol");
            mount();
            node.unmount(driver, &target).success();
            node.assert_clean();
            mount();
            sh("for f in /run/flexvol/volumes/*; do echo '{' > $f; done");
            mount();
            node.unmount(driver, &target).success();
            node.assert_clean();
            // Reboot: the mounts and /run are gone, kubelet's directories stay.
            mount();
            sh(&format!("umount {}; rm -rf /run/flexvol", target.display()));
            node.unmount(driver, &target).success();
            mount();
            sh(&format!("umount {}", target.display()));
            mount();
            sh(&format!("umount {}", target.display()));
            node.unmount(driver, &target).success();
            node.assert_clean();
        }
    });
}

#[test]
fn run_is_full_or_read_only() {
    isolated("unmount::run_is_full_or_read_only", |node| {
        for (driver, options) in samples() {
            for how in ["size=4k", "nr_inodes=1", "ro"] {
                let target = node.volume(driver, "p");
                node.mount(driver, &target, &options).success();
                sh(&format!(
                    "mkdir -p /run/flexvol; mount -t tmpfs -o {how} x /run/flexvol; head -c 9k /dev/zero > /run/flexvol/f 2>&1 || :"
                ));
                node.unmount(driver, &target).success();
                assert!(mounts_at(&target).is_empty(), "{how}");
                let answer = node.mount(driver, &target, &options);
                assert_eq!(answer.status == "Success", mounts_at(&target).len() == 1, "{how} {answer:?}");
                node.unmount(driver, &target).success();
                sh("umount /run/flexvol; rm -rf /run/flexvol");
            }
        }
    });
}

#[test]
fn what_is_not_ours() {
    isolated("unmount::what_is_not_ours", |node| {
        sh("mkdir /run/foreign; mount -t tmpfs x /run/foreign");
        for (driver, _) in samples() {
            let other = node.root.join("pods/p/volumes/vendor~other/vol");
            let in_plugins = node.root.join("plugins/kubernetes.io/flexvolume/vendor/other/mounts/vol");
            for dir in [&other, &in_plugins] {
                fs::create_dir_all(dir).unwrap();
                sh(&format!("mount -t tmpfs x {0}; touch {0}/f", dir.display()));
            }
            let before = crate::support::mounts();
            let all = [
                Path::new("/etc"),
                Path::new("/proc"),
                Path::new("/run"),
                Path::new("/run/foreign"),
                &other,
                &in_plugins,
            ];
            for target in all {
                node.unmount(driver, target).failure(&[wording("not-our-volume")]);
                node.mount(driver, target, &json!({"source": "/run/srv/a", "file": "a"})).failure(&[]);
            }
            node.unmount(driver, Path::new("/")).failure(&["root directory"]);
            // Whoever cleans up after a killed worker must know that, too.
            for target in [Path::new("/run/foreign"), &other] {
                for point in 1..60 {
                    let unmount = node.command(driver, "unmount", target, None);
                    let struck =
                        play(unmount, Some(FaultInjection::killing_the_worker(point)), false, true).struck;
                    assert!(
                        mounts_at(target).len() == 1,
                        "{driver}: {} is unmounted, killed at {point}",
                        target.display()
                    );
                    if !struck {
                        break;
                    }
                }
            }
            assert_eq!(crate::support::mounts(), before);
            sh(&format!("umount {} {}", other.display(), in_plugins.display()));
        }
        sh("umount /run/foreign");
        sh("rm -rf /run/flexvol");
    });
}

/// What a container that outlived its volume wrote on the node's disk.
#[test]
fn files_under_the_volume() {
    isolated("unmount::files_under_the_volume", |node| {
        for (driver, options) in samples() {
            let target = node.volume(driver, "p");
            sh(&format!("mkdir -p {0}/dir; echo x > {0}/dir/precious; echo y > {0}/other", target.display()));
            node.unmount(driver, &target).failure(&["dir", "other", "move that away"]);
            node.mount(driver, &target, &options).success();
            node.unmount(driver, &target).failure(&[
                "dir",
                "other",
                wording_of("unmounted-but-holds", ["…"]),
            ]);
            assert!(mounts_at(&target).is_empty());
            assert_eq!(fs::read_to_string(target.join("dir/precious")).unwrap(), "x\n");
            sh(&format!("rm -r {}/*", target.display()));
            node.unmount(driver, &target).success();
        }
    });
}

#[test]
fn data_is_never_deleted() {
    isolated("unmount::data_is_never_deleted", |node| {
        for (driver, options) in samples().into_iter().skip(1) {
            let target = node.volume(driver, "p");
            node.mount(driver, &target, &options).success();
            sh(&format!("mkdir -p {0}/a/b; echo kept > {0}/a/b/f", target.display()));
            for _ in 0..3 {
                node.unmount(driver, &target).success();
                node.mount(driver, &target, &options).success();
                assert_eq!(fs::read_to_string(target.join("a/b/f")).unwrap(), "kept\n");
            }
            node.unmount(driver, &target).success();
        }
    });
}

/// A FUSE file system on top of a volume's directory, as an older driver may have left it.
fn fuse(node: &Node, name: &str) -> Option<(std::path::PathBuf, Held)> {
    if !has("bindfs") || !Path::new("/dev/fuse").exists() || !kernel_has("fuse") {
        skip(name, "no bindfs or fuse");
        return None;
    }
    let target = node.volume("bind", "p");
    fs::create_dir_all("/run/srv/a").unwrap();
    let daemon = Command::new("bindfs").args(["-f", "/run/srv/a"]).arg(&target).spawn().unwrap();
    let daemon = Held(daemon);
    assert!(eventually(|| !mounts_at(&target).is_empty()));
    Some((target, daemon))
}

fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

#[test]
fn a_dead_daemon() {
    isolated("unmount::a_dead_daemon", |node| {
        let mut report = Report::begin("dead", "bind", "killed-daemon", 2);
        for busy in [false, true] {
            let Some((target, mut daemon)) = fuse(node, "unmount::a_dead_daemon") else { return };
            let user = busy.then(|| Held::sh(&format!("cd {}", target.display())));
            daemon.0.kill().unwrap();
            daemon.0.wait().unwrap();
            // The kernel may still know the attributes that `cd` has asked for.
            assert!(eventually(
                || fs::metadata(&target).is_err_and(|error| error.raw_os_error() == Some(107))
            ));
            node.mount("bind", &target, &json!({"source": "/run/srv/a"})).failure(&["unmount it first"]);
            let answer = node.unmount("bind", &target).success();
            assert!(answer.took < deadline(25), "{answer:?}");
            assert!(mounts_at(&target).is_empty());
            drop(user);
            node.assert_clean();
            report.tried(None);
        }
        report.end();
    });
}

#[test]
fn a_stopped_daemon() {
    isolated("unmount::a_stopped_daemon", |node| {
        let mut report = Report::begin("dead", "bind", "stopped-daemon", 2);
        for busy in [false, true] {
            let Some((target, daemon)) = fuse(node, "unmount::a_stopped_daemon") else { return };
            let user = busy.then(|| Held::sh(&format!("cd {}", target.display())));
            signal(&daemon.0, nix::sys::signal::Signal::SIGSTOP);
            node.install("bind", json!({"deadlines": {"unmount": slow_seconds(4)}}));
            let answer = node.unmount("bind", &target).success();
            assert!(answer.took < deadline(20), "{answer:?}");
            assert!(mounts_at(&target).is_empty());
            signal(&daemon.0, nix::sys::signal::Signal::SIGCONT);
            drop((user, daemon));
            assert!(eventually(|| processes().is_empty()));
            report.tried(None);
        }
        report.end();
    });
}

/// Thaws whatever happens: a frozen file system would keep the whole node of this test for ever.
struct Frozen(&'static str);

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("fsfreeze").args(["-u", self.0]).status();
    }
}

#[test]
fn a_disk_that_does_not_answer() {
    isolated("unmount::a_disk_that_does_not_answer", |node| {
        if !has("fsfreeze") {
            return skip("unmount::a_disk_that_does_not_answer", "no fsfreeze");
        }
        sh("truncate -s 16M /run/disk; mkfs.ext4 -q /run/disk; mount -o loop /run/disk /run/srv");
        let seconds = slow_seconds(1);
        let deadlines = json!({"deadlines": {"mount": seconds, "unmount": seconds}, "policy": {"bindRoots": ["/run/srv"], "imageRoots": ["/run/srv"]}});
        node.install("bind", deadlines.clone());
        node.install("image", deadlines);
        let target = node.volume("bind", "p");
        let on_image = node.volume("image", "p");
        let mut report = Report::begin("dead", "bind+image", "fsfreeze", 4);
        let frozen = Frozen("/run/srv");
        sh("fsfreeze -f /run/srv");
        for (driver, target, options) in [
            ("bind", &target, json!({"source": "/run/srv/new", "create": "true"})),
            ("image", &on_image, json!({"file": "new.img", "size": "1Mi"})),
        ] {
            let late = format!("no end after {seconds} s");
            let answer = node.mount(driver, target, &options).failure(&[&late, "process"]);
            assert!(answer.took > Duration::from_millis(900) && answer.took < deadline(30), "{answer:?}");
            // Not held up by the one that hangs: that would take ten seconds more.
            let answer = node.unmount(driver, target);
            assert!(answer.took < deadline(8), "{answer:?}");
            report.tried(None);
        }
        drop(frozen);
        assert!(eventually(|| processes().is_empty()));
        for (driver, target) in [("bind", &target), ("image", &on_image)] {
            node.unmount(driver, target).success();
            report.tried(None);
        }
        report.end();
        node.mount("bind", &target, &json!({"source": "/run/srv/new", "create": "true"})).success();
        node.unmount("bind", &target).success();
        sh("umount /run/srv");
    });
}

#[test]
fn mounts_and_unmounts_at_once() {
    isolated("unmount::mounts_and_unmounts_at_once", |node| {
        for (driver, options) in samples() {
            let target = &node.volume(driver, "p");
            for round in 0..12 {
                std::thread::scope(|scope| {
                    for caller in 0..6 {
                        let mount = (caller + round) % 2 == 0;
                        let options = &options;
                        scope.spawn(move || {
                            if mount {
                                node.mount(driver, target, options)
                            } else {
                                node.unmount(driver, target)
                            }
                            .success()
                        });
                    }
                });
                assert!(mounts_at(target).len() <= 1);
                node.mount(driver, target, &options).success();
                node.unmount(driver, target).success();
                node.assert_clean();
            }
        }
    });
}

#[test]
fn fifty_at_once() {
    isolated("unmount::fifty_at_once", |node| {
        for (driver, options) in samples() {
            let targets: Vec<_> = (0..50).map(|pod| node.volume(driver, &format!("p{pod}"))).collect();
            let all = |call: &(dyn Fn(&Path) + Sync)| {
                std::thread::scope(|scope| {
                    for target in &targets {
                        scope.spawn(|| call(target));
                    }
                });
            };
            all(&|target| drop(node.mount(driver, target, &options).success()));
            assert!(targets.iter().all(|target| mounts_at(target).len() == 1));
            assert!(node.loops().len() <= 1);
            // One leaves while another comes: neither may notice.
            all(&|target| {
                let file = File::create(target.join("f")).map(drop);
                assert!(file.is_ok() && target.join("f").exists());
                node.unmount(driver, target).success();
            });
            node.assert_clean();
        }
    });
}
