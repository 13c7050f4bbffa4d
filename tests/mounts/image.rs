//! The image driver: real file systems on real loop devices.

use crate::support::{Answer, Node, eventually, has, isolated, kernel_has, mounts_at, sh, skip};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

const MEBIBYTE: u64 = 1 << 20;

fn file(name: &str) -> PathBuf {
    Path::new("/run/img").join(name)
}

fn blank(name: &str, size: u64) {
    File::create(file(name)).unwrap().set_len(size).unwrap();
}

fn sum(name: &str) -> String {
    sh(&format!("sha256sum < {}", file(name).display()))
}

/// Options with further ones over them.
fn with(options: &Value, more: &Value) -> Value {
    let mut options = options.clone();
    options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    options
}

fn ro() -> Value {
    json!({"kubernetes.io/readwrite": "ro"})
}

fn device(target: &Path) -> String {
    sh(&format!("findmnt -fno SOURCE {}", target.display())).trim().to_owned()
}

fn loop_says(target: &Path, attribute: &str) -> String {
    let path = Path::new("/sys/block").join(device(target).trim_start_matches("/dev/")).join("loop");
    fs::read_to_string(path.join(attribute)).unwrap().trim().to_owned()
}

fn is_rofs<T: std::fmt::Debug>(result: std::io::Result<T>) -> bool {
    result.unwrap_err().raw_os_error() == Some(30)
}

fn expand(node: &Node, target: &Path, options: &Value, new: u64, old: u64) -> Answer {
    let mut command = std::process::Command::new(node.program("image"));
    command.arg("expandfs").arg(options.to_string()).arg("").arg(target);
    node.call(command.args([new.to_string(), old.to_string()]))
}

fn capacity(target: &Path) -> u64 {
    let stat = rustix::fs::statvfs(target).unwrap();
    stat.f_blocks * stat.f_frsize
}

/// Those that can be made and mounted here, with a size that suits.
fn writable() -> Vec<(&'static str, &'static str)> {
    let kinds = [("ext4", "16Mi"), ("xfs", "300Mi"), ("btrfs", "128Mi")];
    let usable = |kind: &str| kernel_has(kind) && has(&format!("mkfs.{kind}"));
    kinds
        .into_iter()
        .filter(|(kind, _)| {
            usable(kind) || {
                skip("image", kind);
                false
            }
        })
        .collect()
}

#[test]
fn data_survives_for_every_kind() {
    isolated("image::data_survives_for_every_kind", |node| {
        for (kind, size) in writable() {
            let target = node.volume("image", kind);
            let options =
                json!({"file": format!("deep/{kind}.img"), "size": size, "kubernetes.io/fsType": kind});
            node.mount("image", &target, &options).success();
            assert!(mounts_at(&target)[0].contains(&format!(" - {kind} /dev/loop")));
            assert_eq!(loop_says(&target, "autoclear"), "1");
            assert_eq!(fs::metadata(file("deep")).unwrap().mode() & 0o7777, 0o700);
            assert_eq!(fs::metadata(file(&format!("deep/{kind}.img"))).unwrap().mode() & 0o7777, 0o600);
            sh(&format!(
                "head -c 3000000 /dev/urandom > {0}/data; sha256sum {0}/data > /run/sum",
                target.display()
            ));
            node.unmount("image", &target).success();
            node.assert_clean();
            // The kind is seen, not told; the size in the options does not matter to a file that exists.
            let plain = json!({"file": format!("deep/{kind}.img"), "size": "400Mi"});
            for options in [&options, &plain, &with(&plain, &ro())] {
                node.mount("image", &target, options).success();
                sh("sha256sum -c /run/sum");
                node.unmount("image", &target).success();
            }
            let other = if kind == "ext4" { "xfs" } else { "ext4" };
            node.mount("image", &target, &with(&plain, &json!({"fsType": other}))).failure(&[kind, other]);
            node.assert_clean();
            sh(&format!("rm -r {}", file("deep").display()));
        }
    });
}

#[test]
fn read_only_kinds() {
    isolated("image::read_only_kinds", |node| {
        sh("mkdir /run/tree; echo inside > /run/tree/f");
        let makers = [
            ("squashfs", "mksquashfs", "mksquashfs /run/tree /run/img/squashfs -quiet -no-progress"),
            ("erofs", "mkfs.erofs", "mkfs.erofs /run/img/erofs /run/tree"),
            ("iso9660", "genisoimage", "genisoimage -quiet -R -o /run/img/iso9660 /run/tree"),
        ];
        for (kind, tool, script) in makers {
            if !has(tool) || !kernel_has(kind) {
                skip("image::read_only_kinds", kind);
                continue;
            }
            sh(script);
            let before = sum(kind);
            let target = node.volume("image", kind);
            for options in [json!({"file": kind}), json!({"file": kind, "fsType": kind})] {
                node.mount("image", &target, &options).failure(&[kind, "readOnly: true"]);
                node.assert_clean();
                node.mount("image", &target, &with(&options, &ro())).success();
                assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "inside\n");
                assert!(is_rofs(fs::write(target.join("g"), "")));
                node.mount("image", &target, &with(&options, &ro())).success();
                node.unmount("image", &target).success();
            }
            assert_eq!(sum(kind), before);
        }
    });
}

#[test]
fn blank_files_are_formatted_when_asked() {
    isolated("image::blank_files_are_formatted_when_asked", |node| {
        let target = node.volume("image", "p");
        blank("sparse", 16 * MEBIBYTE);
        sh("fallocate -l 16M /run/img/full; head -c 16M /dev/zero > /run/img/zeros");
        for name in ["sparse", "full", "zeros"] {
            node.mount("image", &target, &json!({"file": name})).failure(&["ifBlank"]);
            let never = json!({"file": name, "size": "16Mi", "format": "never"});
            node.mount("image", &target, &never).failure(&["ifBlank"]);
            let read_only = with(&json!({"file": name, "format": "ifBlank"}), &ro());
            node.mount("image", &target, &read_only).failure(&["no file system"]);
            assert!(sh(&format!("tr -d '\\0' < {} | wc -c", file(name).display())).trim() == "0");
            node.mount(
                "image",
                &target,
                &json!({"file": name, "format": "ifBlank", "mkfsOptions": "-L label -N 64"}),
            )
            .success();
            assert_eq!(sh(&format!("blkid -p -o value -s LABEL {}", device(&target))).trim(), "label");
            fs::write(target.join("f"), name).unwrap();
            node.unmount("image", &target).success();
            node.mount("image", &target, &json!({"file": name})).success();
            assert_eq!(fs::read_to_string(target.join("f")).unwrap(), name);
            node.unmount("image", &target).success();
        }
        node.mount("image", &target, &json!({"file": "none"})).failure(&["size"]);
        assert!(!file("none").exists());
    });
}

#[test]
fn what_is_not_blank_is_never_formatted() {
    isolated("image::what_is_not_blank_is_never_formatted", |node| {
        let bytes = |offset: u64, content: &'static [u8]| {
            move |path: &Path| {
                File::options().write(true).open(path).unwrap().write_all_at(content, offset).unwrap()
            }
        };
        let script =
            |script: &'static str| move |path: &Path| drop(sh(&script.replace("{}", path.to_str().unwrap())));
        let mut makers: Vec<(&str, &str, Box<dyn Fn(&Path)>)> = vec![
            ("a luks header", "", Box::new(bytes(0, b"LUKS\xba\xbe\0\x02"))),
            ("an lvm label", "", Box::new(bytes(512, b"LABELONE"))),
            ("one byte in the middle", "", Box::new(bytes(8 * MEBIBYTE + 77, b"\x01"))),
            ("the last byte", "", Box::new(bytes(16 * MEBIBYTE - 1, b"\x01"))),
            ("a database", "", Box::new(bytes(0, b"SQLite format 3\0"))),
            ("a boot sector", "", Box::new(bytes(510, b"\x55\xaa"))),
        ];
        let tools = [
            ("swap", "mkswap", "mkswap {} 2>&1"),
            ("vfat", "mkfs.vfat", "mkfs.vfat {} >/dev/null"),
            ("a dos label", "sfdisk", "echo size=1M | sfdisk -q --label dos {}"),
            ("a gpt", "sfdisk", "echo size=1M | sfdisk -q --label gpt {}"),
            (
                "ext4 without its superblock",
                "mkfs.ext4",
                "mkfs.ext4 -q -b 1024 {}; dd if=/dev/zero of={} bs=8k count=1 conv=notrunc status=none",
            ),
        ];
        makers.extend(
            tools.map(|(what, tool, text)| (what, tool, Box::new(script(text)) as Box<dyn Fn(&Path)>)),
        );
        let target = node.volume("image", "p");
        for (what, tool, make) in makers {
            if !tool.is_empty() && !has(tool) {
                skip("image::what_is_not_blank_is_never_formatted", what);
                continue;
            }
            blank("f", 16 * MEBIBYTE);
            make(&file("f"));
            let before = sum("f");
            for kind in ["ext4", "xfs", "btrfs"] {
                let options = json!({"file": "f", "size": "16Mi", "format": "ifBlank", "fsType": kind});
                let answer = node.mount("image", &target, &options).failure(&[]);
                assert!(answer.message.contains("holds"), "{what}: {answer:?}");
                assert_eq!(sum("f"), before, "{what} as {kind}");
            }
            node.assert_clean();
        }
    });
}

#[test]
fn partitions_and_offsets() {
    isolated("image::partitions_and_offsets", |node| {
        if !has("sfdisk") {
            return skip("image::partitions_and_offsets", "no sfdisk");
        }
        for label in ["dos", "gpt"] {
            blank(label, 40 * MEBIBYTE);
            sh(&format!(
                "printf 'start=2048,size=20480\\nstart=22528,size=20480\\n' | sfdisk -q --label {label} /run/img/{label}"
            ));
            let (one, two) = (node.volume("image", "one"), node.volume("image", "two"));
            let first = json!({"file": label, "partition": "1", "format": "ifBlank"});
            let second = json!({"file": label, "offset": (22528 * 512).to_string(), "format": "never"});
            node.mount("image", &one, &json!({"file": label, "partition": "3"})).failure(&["there is 1, 2"]);
            node.mount("image", &one, &json!({"file": label, "partition": "2"})).failure(&["ifBlank"]);
            node.mount("image", &one, &first).success();
            let other = json!({"file": label, "partition": "2", "format": "ifBlank"});
            node.mount("image", &two, &other).success();
            fs::write(one.join("f"), "one").unwrap();
            fs::write(two.join("f"), "two").unwrap();
            assert!(capacity(&one) < 10 * MEBIBYTE && capacity(&two) < 10 * MEBIBYTE);
            expand(node, &one, &first, 80 * MEBIBYTE, 40 * MEBIBYTE).failure(&["partition"]);
            node.unmount("image", &one).success();
            node.unmount("image", &two).success();
            node.mount("image", &two, &second).success();
            assert_eq!(fs::read_to_string(two.join("f")).unwrap(), "two");
            node.unmount("image", &two).success();
            node.mount("image", &one, &first).success();
            assert_eq!(fs::read_to_string(one.join("f")).unwrap(), "one");
            node.unmount("image", &one).success();
            assert_eq!(fs::metadata(file(label)).unwrap().len(), 40 * MEBIBYTE);
            sh(&format!("sfdisk -q --verify /run/img/{label}"));
            node.mount("image", &one, &json!({"file": label, "offset": "100"})).failure(&["512"]);
        }
    });
}

#[test]
fn a_dirty_ext4_is_mended_first() {
    isolated("image::a_dirty_ext4_is_mended_first", |node| {
        if !has("debugfs") || !has("e2fsck") {
            return skip("image::a_dirty_ext4_is_mended_first", "no debugfs or e2fsck");
        }
        let target = node.volume("image", "p");
        let is_sound = || {
            std::process::Command::new("e2fsck")
                .args(["-fn", "/run/img/a"])
                .output()
                .unwrap()
                .status
                .success()
        };
        for (fsck, sound) in [("false", false), ("true", true)] {
            sh("rm -f /run/img/a; truncate -s 16M /run/img/a; mkfs.ext4 -q -O ^metadata_csum /run/img/a
                for c in 'ssv free_inodes_count 5' 'ssv state 2' 'clri <2000>' 'freeb 1' ; do debugfs -w -R \"$c\" /run/img/a 2>&1; done");
            assert!(!is_sound());
            node.mount("image", &target, &json!({"file": "a", "fsck": fsck})).success();
            node.unmount("image", &target).success();
            assert_eq!(is_sound(), sound, "fsck {fsck}");
        }
        // A journal that was never replayed is replayed.
        node.mount("image", &target, &json!({"file": "a"})).success();
        fs::write(target.join("synced"), "x").unwrap();
        sh(&format!("sync -f {0}/synced; cp --sparse=always /run/img/a /run/img/b", target.display()));
        node.unmount("image", &target).success();
        node.mount("image", &target, &with(&json!({"file": "b"}), &ro())).success();
        assert!(target.join("synced").exists());
        node.unmount("image", &target).success();
    });
}

/// An image that once held ext4 still has backups of its superblock, which e2fsck would bring back to life.
#[test]
fn only_what_is_ext4_is_checked_as_ext4() {
    isolated("image::only_what_is_ext4_is_checked_as_ext4", |node| {
        if !has("mkfs.xfs") || !kernel_has("xfs") {
            return skip("image::only_what_is_ext4_is_checked_as_ext4", "no xfs");
        }
        let target = node.volume("image", "p");
        sh("truncate -s 320M /run/img/a; mkfs.ext4 -q -b 1024 /run/img/a; mkfs.xfs -q -f -K /run/img/a");
        let before = sum("a");
        let wrong = json!({"file": "a", "fsType": "ext4"});
        node.mount("image", &target, &wrong).failure(&["holds xfs", "ext4"]);
        assert_eq!(sum("a"), before);
        node.mount("image", &target, &json!({"file": "a", "fsType": "xfs"})).success();
        node.unmount("image", &target).success();
    });
}

#[test]
fn storage_options_take_effect() {
    isolated("image::storage_options_take_effect", |node| {
        let target = node.volume("image", "p");
        let used = || fs::metadata(file("a")).unwrap().blocks() * 512;
        for (discard, frees) in [("false", false), ("true", true)] {
            let options = json!({"file": "a", "size": "32Mi", "discard": discard});
            node.mount("image", &target, &options).success();
            sh(&format!("head -c 10M /dev/urandom > {0}/f; sync -f {0}/f", target.display()));
            let before = used();
            sh(&format!("rm {0}/f; sync -f {0}; sync -f {0}", target.display()));
            assert_eq!(used() + 8 * MEBIBYTE < before, frees, "discard {discard}: {before} {}", used());
            node.unmount("image", &target).success();
            fs::remove_file(file("a")).unwrap();
        }
        let options = json!({"file": "a", "size": "16Mi", "allocation": "full", "directIO": "true"});
        node.mount("image", &target, &options).success();
        assert!(used() >= 16 * MEBIBYTE, "{}", used());
        assert_eq!(loop_says(&target, "dio"), "1");
        node.unmount("image", &target).success();
        node.mount("image", &target, &json!({"file": "a", "fsType": "ext4", "mountOptions": "errors=panic"}))
            .failure(&["errors"]);
        node.mount(
            "image",
            &target,
            &json!({"file": "a", "fsType": "ext4", "mountOptions": "commit=7,noatime"}),
        )
        .success();
        assert!(mounts_at(&target)[0].contains("commit=7") && mounts_at(&target)[0].contains("noatime"));
        assert_eq!(loop_says(&target, "dio"), "0");
        node.unmount("image", &target).success();
        node.install("image", json!({"policy": {"imageRoots": ["/run/img"], "maxSize": "8Mi"}}));
        node.mount("image", &target, &json!({"file": "b", "size": "9Mi"})).failure(&["8Mi"]);
        assert!(!file("b").exists());
    });
}

#[test]
fn a_full_disk_leaves_nothing() {
    isolated("image::a_full_disk_leaves_nothing", |node| {
        let target = node.volume("image", "p");
        sh("mount -t tmpfs -o size=2m x /run/img");
        let sparse = |kind: &str, size: &str| json!({"file": "d/a", "size": size, "fsType": kind});
        let mut all =
            vec![json!({"file": "d/a", "size": "8Mi", "allocation": "full"}), sparse("ext4", "2Gi")];
        all.extend(writable().iter().skip(1).map(|(kind, size)| sparse(kind, size)));
        for options in all {
            let answer = node.mount("image", &target, &options).failure(&[]);
            let left: Vec<_> =
                fs::read_dir("/run/img").unwrap().flatten().map(|entry| entry.path()).collect();
            assert!(left.is_empty(), "{left:?}: {answer:?}");
            assert!(mounts_at(&target).is_empty() && node.loops().is_empty());
        }
        node.mount("image", &target, &json!({"file": "a", "size": "1Mi"})).success();
        node.unmount("image", &target).success();
        sh("umount /run/img");
    });
}

#[test]
fn two_pods_share_one_device() {
    isolated("image::two_pods_share_one_device", |node| {
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
    isolated("image::ten_first_mounts_at_once", |node| {
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

/// One of two pods that start at once on a new file must fail; its undo must not take the file from the other.
#[test]
fn a_failing_pod_does_not_hurt_the_other() {
    isolated("image::a_failing_pod_does_not_hurt_the_other", |node| {
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
            good.iter().for_each(|target| drop(node.unmount("image", target).success()));
            node.assert_clean();
            fs::remove_file(file("a")).unwrap();
        }
    });
}

#[test]
fn on_a_read_only_file_system() {
    isolated("image::on_a_read_only_file_system", |node| {
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
    isolated("image::expandfs_grows_online", |node| {
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
                skip("image::expandfs_grows_online", "ext4 grows online only with CAP_SYS_RESOURCE");
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

#[test]
fn only_regular_files_below_the_root() {
    isolated("image::only_regular_files_below_the_root", |node| {
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
                assert!(answer.took.as_secs() < 5, "{name} {answer:?}");
                node.assert_clean();
            }
        }
        assert_eq!(sh("sha256sum /run/outside"), before);
        assert_eq!(sh("ls /run/img").split_whitespace().count(), 6);
    });
}

#[test]
fn a_device_of_someone_else_is_shared_and_left() {
    isolated("image::a_device_of_someone_else_is_shared_and_left", |node| {
        let target = node.volume("image", "p");
        sh(
            "truncate -s 16M /run/img/a; mkfs.ext4 -q /run/img/a; mkdir /run/theirs; mount -o loop /run/img/a /run/theirs",
        );
        node.mount("image", &target, &json!({"file": "a"})).success();
        assert_eq!(node.loops().len(), 1);
        fs::write(target.join("f"), "x").unwrap();
        assert_eq!(fs::read_to_string("/run/theirs/f").unwrap(), "x");
        node.unmount("image", &target).success();
        assert_eq!(node.loops().len(), 1);
        sh("umount /run/theirs");
        assert!(eventually(|| node.loops().is_empty()));
    });
}
