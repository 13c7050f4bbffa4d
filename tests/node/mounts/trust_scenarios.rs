//! The scenarios of the drivers without a server, for `tests/support/trust`.

use crate::support::{Node, has, isolated, kernel_has, sh, skip};
use crate::trust::{Rung, Volume, Whole, crash, faults};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is noted of images whose mkfs did not come to its end.
const UNFINISHED: &str = "/run/flexvol/unfinished";

/// The target, made as kubelet does; what a driver has made of it stays.
fn made(node: &Node, driver: &str) -> PathBuf {
    let target = node.root.join(format!("pods/p/volumes/example~{driver}/vol"));
    if target.symlink_metadata().is_err() {
        node.volume(driver, "p");
    }
    target
}

/// `mount` of one pod.
fn mount<'a>(node: &'a Node, driver: &'static str, options: &Value) -> Rung<'a> {
    let options = options.clone();
    Rung::new("mount", move || {
        let target = made(node, driver);
        node.command(driver, "mount", &target, Some(&options))
    })
}

/// `unmount` of the same; the directory is kubelet's, and there.
fn unmount<'a>(node: &'a Node, driver: &'static str) -> Rung<'a> {
    Rung::new("unmount", move || {
        let target = made(node, driver);
        node.command(driver, "unmount", &target, None)
    })
}

/// One that is mounted and unmounted for one pod.
fn plain<'a>(name: &'a str, node: &'a Node, driver: &'static str, options: &Value) -> Volume<'a> {
    Volume::new(name, vec![mount(node, driver, options)], vec![unmount(node, driver)])
}

/// Everything there is to try with it.
fn all(volume: &Volume<'_>) {
    volume.withstands([10, 2000]);
}

#[test]
fn tmpfs() {
    isolated("trust_scenarios::tmpfs", |node| all(&plain("tmpfs", node, "tmpfs", &json!({"size": "1Mi"}))));
}

#[test]
fn bind_of_a_directory() {
    isolated("trust_scenarios::bind_of_a_directory", |node| {
        let made = || {
            let made = fs::metadata("/run/srv/x/y").unwrap();
            assert_eq!((made.mode() & 0o7777, made.uid(), made.gid()), (0o2770, 7, 8));
        };
        let options =
            json!({"source": "/run/srv/x/y", "create": "true", "mode": "2770", "uid": "7", "gid": "8"});
        all(&Volume {
            fresh: &|| drop(sh("rm -rf /run/srv/x")),
            intact: &made,
            places: vec!["/run/srv".into()],
            ..plain("bind", node, "bind", &options)
        });
    });
}

#[test]
fn bind_of_a_file() {
    isolated("trust_scenarios::bind_of_a_file", |node| {
        let target = node.volume("bind", "p");
        let seen = || assert_eq!(fs::read_to_string(&target).unwrap(), "content");
        fs::write("/run/srv/file", "content").unwrap();
        let options = json!({"source": "/run/srv/file"});
        all(&Volume {
            intact: &seen,
            always: &|| assert_eq!(fs::read_to_string("/run/srv/file").unwrap(), "content"),
            places: vec!["/run/srv".into()],
            ..plain("bind/file", node, "bind", &options)
        });
    });
}

/// A driver's volume with what a pod once wrote.
fn kept(target: &Path) {
    let data = fs::read_to_string(target.join("data"));
    assert_eq!(data.unwrap_or_else(|error| panic!("{}: {error}", target.display())), "precious");
}

fn fill(target: &Path) {
    fs::write(target.join("data"), "precious").unwrap();
}

#[test]
fn new_images() {
    isolated("trust_scenarios::new_images", |node| {
        let options = json!({"file": "d/a", "size": "2Mi", "allocation": "full"});
        let volume = Volume {
            fresh: &|| drop(sh("rm -rf /run/img/d")),
            places: vec!["/run/img".into()],
            whole: Whole::EachOnce,
            ..plain("image/new", node, "image", &options)
        };
        all(&volume);
        (volume.up[0].command)().status().unwrap();
        sh("e2fsck -fn /run/img/d/a");
        node.unmount("image", &node.volume("image", "p")).success();
    });
}

/// Images of one kind, with data in them.
fn images_with_data(name: &'static str, kind: &'static str, size: &str) {
    if !kernel_has(kind) || !has(&format!("mkfs.{kind}")) {
        return skip(name, kind);
    }
    isolated(name, |node| {
        let options = json!({"file": "a", "size": size, "kubernetes.io/fsType": kind});
        let target = node.volume("image", "p");
        node.mount("image", &target, &options).success();
        fill(&target);
        node.unmount("image", &target).success();
        sh("cp --sparse=always /run/img/a /run/first");
        let title = format!("image/{kind}");
        all(&Volume {
            fresh: &|| drop(sh("cp --sparse=always /run/first /run/img/a")),
            intact: &|| kept(&target),
            places: vec!["/run/img".into()],
            whole: if kind == "ext4" { Whole::All } else { Whole::EachOnce },
            ..plain(&title, node, "image", &options)
        });
    });
}

#[test]
fn images_of_ext4() {
    images_with_data("trust_scenarios::images_of_ext4", "ext4", "2Mi");
}

#[test]
fn images_of_xfs() {
    images_with_data("trust_scenarios::images_of_xfs", "xfs", "300Mi");
}

#[test]
fn images_of_btrfs() {
    images_with_data("trust_scenarios::images_of_btrfs", "btrfs", "128Mi");
}

/// Another pod uses the file all the while and must notice nothing.
#[test]
fn an_image_beside_another_pod() {
    isolated("trust_scenarios::an_image_beside_another_pod", |node| {
        let options = json!({"file": "a", "size": "2Mi"});
        let (other, target) = (node.volume("image", "other"), node.volume("image", "p"));
        node.mount("image", &other, &options).success();
        fill(&other);
        let volume = Volume {
            intact: &|| kept(&target),
            always: &|| kept(&other),
            whole: Whole::EachOnce,
            ..plain("image/shared", node, "image", &options)
        };
        crash(&volume);
        faults(&volume);
        node.unmount("image", &other).success();
    });
}

#[test]
fn overlay() {
    isolated("trust_scenarios::overlay", |node| {
        node.install("overlay", json!({}));
        sh("mkdir /run/srv/low; echo below >/run/srv/low/f");
        let target = node.volume("overlay", "p");
        let options = json!({"lower": "/run/srv/low", "size": "1Mi"});
        all(&Volume {
            intact: &|| assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "below\n"),
            places: vec!["/run/srv".into()],
            ..plain("overlay", node, "overlay", &options)
        });
        fs::create_dir("/run/srv/mine").unwrap();
        let upper = json!({"lower": "/run/srv/low", "upper": "/run/srv/mine"});
        node.mount("overlay", &target, &upper).success();
        fill(&target);
        node.unmount("overlay", &target).success();
        let volume =
            Volume { intact: &|| kept(&target), ..plain("overlay/directory", node, "overlay", &upper) };
        crash(&volume);
        faults(&volume);
    });
}

#[test]
fn secretfiles() {
    isolated("trust_scenarios::secretfiles", |node| {
        node.install("secretfiles", json!({}));
        let target = node.volume("secretfiles", "p");
        let options =
            json!({"kubernetes.io/secret/ca": "YQ==", "kubernetes.io/secret/tls.key": "/wBzZWNyZXQ="});
        all(&Volume {
            intact: &|| assert_eq!(fs::read(target.join("tls.key")).unwrap(), b"\xff\0secret"),
            ..plain("secretfiles", node, "secretfiles", &options)
        });
    });
}

/// Where kubelet has the device mounted for the node.
fn staged(node: &Node, driver: &str) -> PathBuf {
    let path = node.root.join(format!("plugins/kubernetes.io/flexvolume/example/{driver}/mounts/vol"));
    fs::create_dir_all(&path).unwrap();
    path
}

/// A call that has these words.
fn rung<'a>(node: &'a Node, driver: &'static str, verb: &'static str, words: Vec<String>) -> Rung<'a> {
    Rung::new(verb, move || {
        staged(node, driver);
        let mut command = Command::new(node.program(driver));
        command.arg(verb).args(&words);
        command
    })
}

/// Every verb that there is, by commands of the admin's.
#[test]
fn exec() {
    const DISK: &str = "/run/srv/disk";
    isolated("trust_scenarios::exec", |node| {
        let sh = |script: &str| json!(["/bin/sh", "-c", script, "sh", "{target}"]);
        let once = "mount -t tmpfs -o size=1m x \"$1\"";
        let bind = "mount --bind /run/srv/disk \"$1\"";
        node.install(
            "exec",
            json!({"driver": "exec", "exec": {"capabilities": {"attach": true, "requiresFSResize": true}, "commands": {
                "attach": ["/bin/sh", "-c", format!("mkdir -p {DISK}; echo /dev/null")],
                "waitforattach": ["/bin/echo", "{device}"],
                "isattached": ["/bin/sh", "-c", format!("test -d {DISK} && echo true || echo false")],
                "mountdevice": sh(once), "expandfs": sh("mount -o remount,size=2m \"$1\""),
                "mount": sh(bind), "unmount": sh("umount \"$1\" 2>/dev/null; true"),
                "unmountdevice": sh("umount \"$1\" 2>/dev/null; true"),
                "detach": ["/bin/sh", "-c", format!("rm -rf {DISK}")]}}}),
        );
        let options = json!({"kubernetes.io/pvOrVolumeName": "vol"});
        let (text, stage) = (options.to_string(), staged(node, "exec").display().to_string());
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let call = |verb, list: &[&str]| rung(node, "exec", verb, words(list));
        let up = vec![
            call("attach", &[&text, "n"]),
            call("waitforattach", &["/dev/null", &text]),
            call("mountdevice", &[&stage, "/dev/null", &text]),
            call("expandfs", &[&text, "/dev/null", &stage, "2097152", "1048576"]),
            mount(node, "exec", &options),
        ];
        let down =
            vec![unmount(node, "exec"), call("unmountdevice", &[&stage]), call("detach", &["vol", "n"])];
        all(&Volume { sample: 3, whole: Whole::EachOnce, ..Volume::new("exec", up, down) });
    });
}

#[test]
fn qcow2() {
    image_on_a_device("trust_scenarios::qcow2", true, ["qcow2/new", "qcow2"]);
}

#[test]
fn qcow2_by_mount_alone() {
    image_on_a_device("trust_scenarios::qcow2_by_mount_alone", false, ["qcow2/mount-new", "qcow2/mount"]);
}

/// The device is attached and mounted once for the node, or by the pod's own mount.
fn image_on_a_device(name: &str, attach: bool, [empty, filled]: [&str; 2]) {
    if !["qemu-storage-daemon", "qemu-img"].iter().all(|program| has(program)) {
        return skip(name, "needs qemu-storage-daemon and qemu-img");
    }
    isolated(name, |node| {
        node.install("qcow2", json!({"attach": attach}));
        let options = json!({"file": "a.qcow2", "size": "16Mi", "kubernetes.io/pvOrVolumeName": "vol"});
        let (text, stage) = (options.to_string(), staged(node, "qcow2").display().to_string());
        let call = |verb, words: &[&str]| {
            rung(node, "qcow2", verb, words.iter().map(|word| (*word).to_owned()).collect())
        };
        let up = || {
            let stage = attach.then(|| call("mountdevice", &[&stage, "", &text]));
            stage.into_iter().chain([mount(node, "qcow2", &options)]).collect()
        };
        let down = || {
            let unstage = attach.then(|| call("unmountdevice", &[&stage]));
            [unmount(node, "qcow2")].into_iter().chain(unstage).collect()
        };
        // An image that was made stays, empty, whatever fails then. What an mkfs left in it is
        // known as long as it is there.
        let new = Volume {
            fresh: &|| drop(sh(&format!("rm -rf /run/img/a.qcow2 {UNFINISHED}"))),
            intact: &|| assert_eq!(fs::read_dir(UNFINISHED).into_iter().flatten().count(), 0),
            sample: 4,
            whole: Whole::EachOnce,
            ..Volume::new(empty, up(), down())
        };
        crash(&new);
        faults(&new);
        let target = node.volume("qcow2", "p");
        for rung in &new.up {
            node.call(&mut (rung.command)()).success();
        }
        fill(&target);
        for rung in &new.down {
            node.call(&mut (rung.command)()).success();
        }
        sh("cp /run/img/a.qcow2 /run/first");
        all(&Volume {
            fresh: &|| drop(sh("cp /run/first /run/img/a.qcow2")),
            intact: &|| kept(&target),
            places: vec!["/run/img".into()],
            sample: 4,
            whole: Whole::EachOnce,
            ..Volume::new(filled, up(), down())
        });
    });
}
