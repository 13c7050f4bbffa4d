//! Disk images on a block device: real ones, by qemu-storage-daemon, FUSE and a loop device.

use crate::image::{capacity, file, is_rofs, ro, with};
use crate::support::pace::{deadline, slow_seconds};
use crate::support::wording::{wording, wording_of};
use crate::support::{Answer, Node, eventually, has, isolated, kernel_has, mounts_at, processes, sh, skip};
use flexvol::sys::mount::mount_health::{Vitals, with_devices};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) const DRIVER: &str = "qcow2";

/// One test on a node with the driver, which attaches, unless QEMU's programs are missing.
pub(crate) fn with_driver(name: &str, body: impl FnOnce(&Node)) {
    let name = if name.contains("::") { name.to_owned() } else { format!("qcow2::{name}") };
    if !["qemu-storage-daemon", "qemu-img"].iter().all(|program| has(program)) {
        return skip(&name, "needs qemu-storage-daemon and qemu-img");
    }
    isolated(&name, |node| {
        node.install(DRIVER, json!({"attach": true}));
        body(node);
    });
}

/// Where kubelet has the device mounted for the node.
fn staged(node: &Node) -> PathBuf {
    let path = node.root.join("plugins/kubernetes.io/flexvolume/example/qcow2/mounts/vol");
    fs::create_dir_all(&path).unwrap();
    path
}

pub(crate) fn options() -> Value {
    json!({"file": "a.qcow2", "size": "16Mi", "kubernetes.io/pvOrVolumeName": "vol"})
}

fn stage(node: &Node, options: &Value) -> Command {
    let mut command = Command::new(node.program(DRIVER));
    command.arg("mountdevice").arg(staged(node)).args(["", &options.to_string()]);
    command
}

pub(crate) fn mount_device(node: &Node, options: &Value) -> Answer {
    node.call(&mut stage(node, options))
}

pub(crate) fn unmount_device(node: &Node) -> Answer {
    node.call(&mut node.command(DRIVER, "unmountdevice", &staged(node), None))
}

fn daemons() -> Vec<i32> {
    let is_daemon = |(_, name): &(i32, String)| name.starts_with("qemu-storage");
    processes().into_iter().filter(is_daemon).map(|(pid, _)| pid).collect()
}

fn daemon() -> Option<i32> {
    daemons().first().copied()
}

#[test]
fn mounted_once_for_the_node_and_shown_to_its_pods() {
    with_driver("mounted_once_for_the_node_and_shown_to_its_pods", |node| {
        let (one, two) = (node.volume(DRIVER, "p1"), node.volume(DRIVER, "p2"));
        node.mount(DRIVER, &one, &options())
            .failure(&[wording_of("nothing-mounted-here", []), "mountdevice before mount"]);
        for _ in 0..2 {
            mount_device(node, &options()).success();
        }
        node.mount(DRIVER, &one, &options()).success();
        node.mount(DRIVER, &one, &options()).success();
        assert_eq!(mounts_at(&one).len(), 1);
        node.mount(DRIVER, &two, &with(&options(), &ro())).success();
        fs::write(one.join("f"), "kept").unwrap();
        assert_eq!(fs::read(two.join("f")).unwrap(), b"kept");
        assert!(is_rofs(fs::write(two.join("g"), "")));
        for pod in [&one, &two, &one] {
            node.unmount(DRIVER, pod).success();
        }
        assert!(daemon().is_some(), "kubelet still has it mounted");
        for _ in 0..2 {
            unmount_device(node).success();
        }
        node.assert_clean();
        mount_device(node, &with(&options(), &ro())).success();
        assert_eq!(fs::read(staged(node).join("f")).unwrap(), b"kept");
        unmount_device(node).success();
        node.assert_clean();
    });
}

#[test]
fn grows_with_its_file_system() {
    with_driver("grows_with_its_file_system", |node| {
        mount_device(node, &options()).success();
        let before = capacity(&staged(node));
        let grow = || {
            let mut command = Command::new(node.program(DRIVER));
            command.arg("expandfs").arg(options().to_string()).arg("").arg(staged(node));
            node.call(command.args(["50331648", "16777216"]))
        };
        let (first, again) = (grow(), grow());
        let info = sh(&format!("qemu-img info -U --output=json {}", file("a.qcow2").display()));
        assert!(info.contains("\"virtual-size\": 50331648"), "{info}");
        if first.message.contains("CAP_SYS_RESOURCE") {
            skip("qcow2::grows_with_its_file_system", "ext4 grows with CAP_SYS_RESOURCE alone");
        } else {
            first.success();
            again.success();
            assert!(capacity(&staged(node)) > 2 * before);
        }
        unmount_device(node).success();
        node.assert_clean();
    });
}

#[test]
fn only_whole_images_that_nobody_uses() {
    with_driver("only_whole_images_that_nobody_uses", |node| {
        fs::write(file("secret"), "of the node").unwrap();
        let make = |words: &str| sh(&format!("cd /run/img && qemu-img create -q -f qcow2 {words}"));
        make("-b secret -F raw backed.qcow2");
        make("-o data_file=secret.raw external.qcow2 16M");
        sh("truncate -s 16M /run/img/raw.qcow2");
        let refused = |name: &str, words: &[&str]| {
            let volume = json!({"file": name, "kubernetes.io/pvOrVolumeName": "vol"});
            mount_device(node, &volume).failure(words);
            node.assert_clean();
        };
        refused("backed.qcow2", &[wording("backing-file"), "qemu-img convert"]);
        refused("external.qcow2", &[wording("data-in-another-file")]);
        refused("raw.qcow2", &[wording("no-qcow2-image")]);
        refused("none.qcow2", &[wording("image-not-made")]);
        refused("../etc/shadow", &[wording("not-a-plain-path")]);
        make("used.qcow2 16M");
        let mut user = Command::new("qemu-storage-daemon")
            .args(["--blockdev", "driver=file,node-name=f,filename=/run/img/used.qcow2,locking=on"])
            .args(["--blockdev", "driver=qcow2,node-name=q,file=f"])
            .args([
                "--export",
                "type=vhost-user-blk,id=e,node-name=q,writable=on,addr.type=unix,addr.path=/run/s",
            ])
            .spawn()
            .unwrap();
        assert!(eventually(|| Path::new("/run/s").exists()));
        let volume = json!({"file": "used.qcow2", "kubernetes.io/pvOrVolumeName": "vol"});
        mount_device(node, &volume).failure(&["lock"]);
        user.kill().unwrap();
        user.wait().unwrap();
        mount_device(node, &volume).success();
        unmount_device(node).success();
        node.assert_clean();
    });
}

/// Whoever writes the image changes its header between our look at it and the daemon's, again and
/// again: the daemon cannot open what that names.
#[test]
fn a_header_that_changes_after_the_look_opens_nothing() {
    with_driver("a_header_that_changes_after_the_look_opens_nothing", |node| {
        sh(
            "cd /run/img && qemu-img create -q -f qcow2 -o data_file=/run/img/victim,data_file_raw=on a.qcow2 16M && mkfs.ext4 -q victim",
        );
        let before = sh("sha256sum /run/img/victim");
        // The bit of data in another file, of the image's incompatible features.
        let flip = "import os,time\nf=os.open('/run/img/a.qcow2',os.O_RDWR)\n\
            while True:\n os.pwrite(f,b'\\0',79); time.sleep(0.0007)\n os.pwrite(f,b'\\4',79); time.sleep(0.0007)\n";
        let mut flipping = Command::new("python3").args(["-c", flip]).spawn().unwrap();
        for _ in 0..25 {
            let answer =
                mount_device(node, &json!({"file": "a.qcow2", "kubernetes.io/pvOrVolumeName": "vol"}));
            let shown = mounts_at(&staged(node));
            if answer.status == "Success" {
                unmount_device(node).success();
            }
            assert!(shown.is_empty(), "what is in another file was shown: {shown:?}");
        }
        flipping.kill().unwrap();
        flipping.wait().unwrap();
        assert_eq!(before, sh("sha256sum /run/img/victim"));
        node.assert_clean();
    });
}

/// kubelet's mountdevice says what the first pod may do.
#[test]
fn a_writer_comes_after_a_reader() {
    with_driver("a_writer_comes_after_a_reader", |node| {
        let (reader, writer) = (node.volume(DRIVER, "p1"), node.volume(DRIVER, "p2"));
        mount_device(node, &options()).success();
        unmount_device(node).success();
        for attach in [true, false] {
            node.install(DRIVER, json!({"attach": attach}));
            if attach {
                mount_device(node, &with(&options(), &ro())).success();
                assert!(is_rofs(fs::write(staged(node).join("f"), "")));
            }
            node.mount(DRIVER, &reader, &with(&options(), &ro())).success();
            node.mount(DRIVER, &writer, &options()).success();
            fs::write(writer.join("f"), attach.to_string()).unwrap();
            assert_eq!(fs::read_to_string(reader.join("f")).unwrap(), attach.to_string());
            assert!(is_rofs(fs::write(reader.join("f"), "")));
            node.unmount(DRIVER, &writer).success();
            node.unmount(DRIVER, &reader).success();
            if attach {
                unmount_device(node).success();
            }
            node.assert_clean();
        }
        // An image that may be elsewhere, or cannot be written, is still only read.
        sh("mount --bind /run/img /run/img && mount -o remount,bind,ro /run/img");
        node.mount(DRIVER, &reader, &with(&options(), &ro())).success();
        node.mount(DRIVER, &writer, &options()).failure(&["read-only"]);
        node.unmount(DRIVER, &reader).success();
        sh("umount /run/img");
        node.assert_clean();
    });
}

/// Its file system answers from memory.
#[test]
fn a_volume_whose_daemon_died_is_dead() {
    with_driver("a_volume_whose_daemon_died_is_dead", |node| {
        let vitals = || with_devices(&[staged(node)], deadline(20)).unwrap();
        let btrfs = json!({"file": "b.qcow2", "size": "128Mi", "kubernetes.io/fsType": "btrfs"});
        for options in [options(), with(&options(), &btrfs)] {
            if options["kubernetes.io/fsType"] == "btrfs" && !(has("mkfs.btrfs") && kernel_has("btrfs")) {
                skip("qcow2::a_volume_whose_daemon_died_is_dead", "btrfs");
                continue;
            }
            mount_device(node, &options).success();
            assert!(matches!(vitals()[..], [Vitals::Alive(_)]), "{:?}", vitals());
            sh(&format!("kill -9 {}", daemon().unwrap()));
            assert!(eventually(|| vitals() == [Vitals::Dead(5)]), "{:?}: {options}", vitals());
            unmount_device(node).success();
            node.assert_clean();
        }
    });
}

/// As a qemu-img leaves one that is killed on the way.
#[test]
fn an_image_that_was_never_finished_is_made_anew() {
    with_driver("an_image_that_was_never_finished_is_made_anew", |node| {
        for point in 2..5 {
            let killed = format!("inject=pwrite64:signal=KILL:when={point}");
            let make = format!(
                "strace -f -qq -o /dev/null -e trace=pwrite64 -e {killed} qemu-img create -q -f qcow2"
            );
            sh(&format!("! {make} /run/img/a.qcow2 16M; test -s /run/img/a.qcow2"));
            mount_device(node, &options()).success();
            fs::write(staged(node).join("f"), "kept").unwrap();
            unmount_device(node).success();
            mount_device(node, &options()).success();
            assert_eq!(fs::read(staged(node).join("f")).unwrap(), b"kept");
            unmount_device(node).success();
            sh("rm /run/img/a.qcow2");
        }
    });
}

#[test]
fn what_holds_data_is_not_formatted() {
    with_driver("what_holds_data_is_not_formatted", |node| {
        sh("head -c 1M /dev/urandom > /run/data && truncate -s 16M /run/data && \
            qemu-img convert -O qcow2 /run/data /run/img/a.qcow2");
        mount_device(node, &options()).failure(&["holds data at offset 0", wording("not-formatted-over")]);
        node.assert_clean();
        sh("qemu-img convert -O raw /run/img/a.qcow2 /run/after && cmp /run/data /run/after");
    });
}

#[test]
fn a_killed_daemon_holds_up_no_unmount() {
    with_driver("a_killed_daemon_holds_up_no_unmount", |node| {
        let pod = node.volume(DRIVER, "p1");
        mount_device(node, &options()).success();
        node.mount(DRIVER, &pod, &options()).success();
        fs::write(pod.join("f"), "kept").unwrap();
        sh(&format!("sync -f {}", pod.display()));
        let pid = daemon().unwrap();
        sh(&format!("kill -9 {pid}"));
        assert!(eventually(|| daemon().is_none()));
        node.unmount(DRIVER, &pod).success();
        unmount_device(node).success();
        node.assert_clean();
        mount_device(node, &options()).success();
        assert_eq!(fs::read(staged(node).join("f")).unwrap(), b"kept");
        unmount_device(node).success();
        node.assert_clean();
    });
}

mod by_mount_alone;
mod killed;
mod silent;

/// What a killed mkfs leaves of itself where nobody can say that the device is ours.
mod unfinished {
    use super::*;

    const TRACE: &str = "/run/trace";
    const NOTES: &str = "/run/flexvol/unfinished";

    fn volume() -> Value {
        json!({"file": "a.qcow2", "fsType": "ext4", "kubernetes.io/pvOrVolumeName": "vol"})
    }

    /// On a blank image that somebody else has made, mkfs is held up late until its deadline kills
    /// it.
    fn interrupted(name: &str, body: impl FnOnce(&Node)) {
        with_driver(name, |node| {
            let seconds = slow_seconds(8);
            node.install(DRIVER, json!({"attach": true, "deadlines": {"mount": seconds}}));
            sh("qemu-img create -q -f qcow2 /run/img/a.qcow2 16M");
            let late = format!("deadline of {seconds} s passed");
            node.call(&mut held_up(node, "pwrite64", 40)).failure(&[&late, "mkfs"]);
            assert_eq!(fs::read_dir(NOTES).unwrap().count(), 1);
            node.install(DRIVER, json!({"attach": true}));
            body(node);
            node.assert_clean();
        });
    }

    /// `mountdevice`, whose mkfs stops at so many system calls of a kind.
    fn held_up(node: &Node, kind: &str, count: u32) -> Command {
        let call = stage(node, &volume());
        let mut held = Command::new("strace");
        held.args(["-f", "-qq", "-o", TRACE, "-e", &format!("trace={kind}")]);
        held.args(["-e", &format!("inject={kind}:signal=STOP:when={count}")]);
        held.arg(call.get_program()).args(call.get_args());
        held
    }

    fn is_usable(node: &Node) {
        mount_device(node, &volume()).success();
        fs::write(staged(node).join("f"), "kept").unwrap();
        unmount_device(node).success();
        mount_device(node, &volume()).success();
        assert_eq!(fs::read(staged(node).join("f")).unwrap(), b"kept");
        unmount_device(node).success();
    }

    #[test]
    fn is_formatted_again() {
        interrupted("qcow2::unfinished::is_formatted_again", |node| {
            is_usable(node);
            assert_eq!(fs::read_dir(NOTES).unwrap().count(), 0);
        });
    }

    /// On such an image the worker is killed where all but the superblock is on the disk: its
    /// device goes with it.
    fn killed(name: &str, body: impl FnOnce(&Node)) {
        with_driver(name, |node| {
            sh("qemu-img create -q -f qcow2 /run/img/a.qcow2 16M");
            let mut held = held_up(node, "fsync", 3);
            held.stdin(Stdio::null()).stdout(Stdio::piped());
            let call = held.spawn().unwrap();
            let is_held = || fs::read_to_string(TRACE).unwrap_or_default().contains("stopped by SIGSTOP");
            assert!(eventually(is_held));
            let mkfs = processes().into_iter().find(|(_, name)| name.starts_with("mkfs")).unwrap().0;
            let worker = sh(&format!("ps -o ppid= -p {mkfs}"));
            sh(&format!("kill -9 {worker}"));
            let answer = String::from_utf8(call.wait_with_output().unwrap().stdout).unwrap();
            assert!(answer.contains("the driver's worker"), "{answer}");
            unmount_device(node).success();
            node.assert_clean();
            let map = sh("qemu-img map --output=json /run/img/a.qcow2");
            assert!(map.contains("\"data\": true"), "mkfs wrote nothing: {map}");
            body(node);
            assert_eq!(fs::read_dir(NOTES).unwrap().count(), 0);
        });
    }

    #[test]
    fn is_formatted_again_after_its_worker_was_killed() {
        killed("qcow2::unfinished::is_formatted_again_after_its_worker_was_killed", is_usable);
    }

    #[test]
    fn is_data_if_somebody_has_written_after_the_worker_was_killed() {
        killed("qcow2::unfinished::is_data_if_somebody_has_written_after_the_worker_was_killed", |node| {
            sh("qemu-io -c 'write -P 7 8M 4k' /run/img/a.qcow2");
            for _ in 0..2 {
                mount_device(node, &volume()).failure(&["holds data", wording("not-formatted-over")]);
            }
            sh("qemu-io -c 'read -P 7 8M 4k' /run/img/a.qcow2 | grep -v failed");
            node.assert_clean();
        });
    }

    #[test]
    fn is_data_after_a_reboot() {
        interrupted("qcow2::unfinished::is_data_after_a_reboot", |node| {
            fs::remove_dir_all(NOTES).unwrap();
            mount_device(node, &volume()).failure(&["holds data", wording("not-formatted-over")]);
            sh("rm /run/img/a.qcow2 && qemu-img create -q -f qcow2 /run/img/a.qcow2 16M");
            is_usable(node);
        });
    }

    #[test]
    fn is_data_once_somebody_else_has_written() {
        interrupted("qcow2::unfinished::is_data_once_somebody_else_has_written", |node| {
            sh("qemu-io -c 'write -P 7 8M 4k' /run/img/a.qcow2");
            for _ in 0..2 {
                mount_device(node, &volume()).failure(&["holds data", wording("not-formatted-over")]);
            }
            sh("qemu-io -c 'read -P 7 8M 4k' /run/img/a.qcow2 | grep -v failed");
            assert_eq!(fs::read_dir(NOTES).unwrap().count(), 0);
        });
    }
}
