//! The image driver: real file systems on real loop devices.

use crate::support::{Answer, Node, eventually, has, isolated, kernel_has, mounts_at, sh, skip};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;

pub(crate) const MEBIBYTE: u64 = 1 << 20;

pub(crate) fn file(name: &str) -> PathBuf {
    Path::new("/run/img").join(name)
}

pub(crate) fn blank(name: &str, size: u64) {
    File::create(file(name)).unwrap().set_len(size).unwrap();
}

pub(crate) fn sum(name: &str) -> String {
    sh(&format!("sha256sum < {}", file(name).display()))
}

/// Options with further ones over them.
pub(crate) fn with(options: &Value, more: &Value) -> Value {
    let mut options = options.clone();
    options.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    options
}

pub(crate) fn ro() -> Value {
    json!({"kubernetes.io/readwrite": "ro"})
}

fn device(target: &Path) -> String {
    sh(&format!("findmnt -fno SOURCE {}", target.display())).trim().to_owned()
}

fn loop_says(target: &Path, attribute: &str) -> String {
    let path = Path::new("/sys/block").join(device(target).trim_start_matches("/dev/")).join("loop");
    fs::read_to_string(path.join(attribute)).unwrap().trim().to_owned()
}

pub(crate) fn is_rofs<T: std::fmt::Debug>(result: std::io::Result<T>) -> bool {
    result.unwrap_err().raw_os_error() == Some(30)
}

pub(crate) fn expand(node: &Node, target: &Path, options: &Value, new: u64, old: u64) -> Answer {
    let mut command = std::process::Command::new(node.program("image"));
    command.arg("expandfs").arg(options.to_string()).arg("").arg(target);
    node.call(command.args([new.to_string(), old.to_string()]))
}

pub(crate) fn capacity(target: &Path) -> u64 {
    let stat = rustix::fs::statvfs(target).unwrap();
    stat.f_blocks * stat.f_frsize
}

/// Those that can be made and mounted here, with a size that suits.
pub(crate) fn writable() -> Vec<(&'static str, &'static str)> {
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
            // The kind is seen, not told; the size in the options does not matter to a file that
            // exists.
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

type Maker = Box<dyn Fn(&Path)>;

/// As on an immutable file.
#[test]
fn a_blank_file_that_cannot_be_written_is_named() {
    isolated("image::a_blank_file_that_cannot_be_written_is_named", |node| {
        blank("a", 16 * MEBIBYTE);
        sh("mount --bind /run/img /run/img && mount -o remount,bind,ro /run/img");
        let target = node.volume("image", "p");
        node.mount("image", &target, &json!({"file": "a", "format": "ifBlank"}))
            .failure(&["image /run/img/a cannot be written", "immutable"]);
        sh("umount /run/img");
        node.assert_clean();
    });
}

#[test]
fn what_is_not_blank_is_never_formatted() {
    isolated("image::what_is_not_blank_is_never_formatted", |node| {
        let bytes = |offset: u64, content: &'static [u8]| {
            move |path: &Path| {
                File::options().write(true).open(path).unwrap().write_all_at(content, offset).unwrap();
            }
        };
        let script =
            |script: &'static str| move |path: &Path| drop(sh(&script.replace("{}", path.to_str().unwrap())));
        let mut makers: Vec<(&str, &str, Maker)> = vec![
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
        makers.extend(tools.map(|(what, tool, text)| (what, tool, Box::new(script(text)) as Maker)));
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
fn a_dirty_ext4_is_fixed_first() {
    isolated("image::a_dirty_ext4_is_fixed_first", |node| {
        if !has("debugfs") || !has("e2fsck") {
            return skip("image::a_dirty_ext4_is_fixed_first", "no debugfs or e2fsck");
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

/// How many processes have words among theirs that are like this.
fn processes_of(pattern: &str) -> usize {
    sh(&format!("pgrep -fc '{pattern}' || true")).trim().parse().unwrap()
}

/// Half of what it fixes is worse than nothing: a check is told to end when its call is killed, and
/// may say so, as e2fsck does, to a pipe that nobody reads any more.
#[test]
fn a_check_is_told_to_end_before_it_is_killed() {
    // It can write to the device alone, where ext4 has nothing.
    const CHECK: &str = "#!/bin/sh\nfor device; do :; done\nexec 3<>$device\n\
        trap 'echo cancelled; printf told >&3; exit 32' TERM\nwhile :; do sleep 0.053; done\n";
    let runs = |pattern: &str| processes_of(pattern) > 0;
    if !has("e2fsck") {
        return skip("image::a_check_is_told_to_end_before_it_is_killed", "no e2fsck");
    }
    isolated("image::a_check_is_told_to_end_before_it_is_killed", |node| {
        let (options, target) = (json!({"file": "a", "size": "16Mi"}), node.volume("image", "p"));
        node.mount("image", &target, &options).success();
        node.unmount("image", &target).success();
        fs::write("/run/check", CHECK).unwrap();
        sh("chmod 755 /run/check; mount --bind /run/check $(command -v e2fsck)");
        for victims in ["$worker", "$worker $1"] {
            let mut call = node.command("image", "mount", &target, Some(&options));
            let mut running = call.stdout(Stdio::null()).spawn().unwrap();
            assert!(eventually(|| runs("[s]leep 0.053")));
            sh(&format!("set {}; worker=$(pgrep -P $1); kill -9 {victims}", running.id()));
            running.wait().unwrap();
            let told = || fs::read(file("a")).unwrap().starts_with(b"told");
            assert!(eventually(told), "{victims}");
            assert!(eventually(|| !runs("[e]2fsck -p")), "{victims}");
            File::options().write(true).open(file("a")).unwrap().write_all_at(&[0; 4], 0).unwrap();
        }
        sh("umount $(command -v e2fsck)");
        node.mount("image", &target, &options).success();
        node.unmount("image", &target).success();
    });
}

/// An image that once held ext4 still has backups of its superblock, which e2fsck would bring back
/// to life.
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
            // The blocks are given back a moment after the journal's commit.
            let has_freed = || used() + 8 * MEBIBYTE < before;
            assert_eq!(
                if frees { eventually(has_freed) } else { has_freed() },
                frees,
                "discard {discard}: {before}"
            );
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

pub(crate) fn ro_of(name: &str) -> Value {
    with(&json!({"file": name}), &ro())
}

#[test]
fn the_same_bytes_are_never_behind_two_devices() {
    isolated("image::the_same_bytes_are_never_behind_two_devices", |node| {
        if !has("sfdisk") {
            return skip("image::the_same_bytes_are_never_behind_two_devices", "no sfdisk");
        }
        blank("a", 40 * MEBIBYTE);
        sh("printf 'start=2048,size=20480\\n' | sfdisk -q --label dos /run/img/a");
        let (one, two) = (node.volume("image", "one"), node.volume("image", "two"));
        let partition = json!({"file": "a", "partition": "1", "format": "ifBlank"});
        node.mount("image", &one, &partition).success();
        for other in [json!({"offset": "1Mi"}), json!({}), json!({"offset": "512k"})] {
            node.mount("image", &two, &with(&json!({"file": "a"}), &other))
                .failure(&["/dev/loop", "overlaps"]);
        }
        node.mount("image", &two, &with(&partition, &ro())).success();
        assert_eq!(device(&one), device(&two));
        for target in [&one, &two] {
            node.unmount("image", target).success();
        }
    });
}

#[test]
fn a_full_image_grows_full() {
    isolated("image::a_full_image_grows_full", |node| {
        let target = node.volume("image", "p");
        let options = json!({"file": "a", "size": "300Mi", "fsType": "xfs", "allocation": "full"});
        node.mount("image", &target, &options).success();
        expand(node, &target, &options, 320 * MEBIBYTE, 300 * MEBIBYTE).success();
        let image = fs::metadata(file("a")).unwrap();
        assert!(
            image.len() == 320 * MEBIBYTE && image.blocks() * 512 >= image.len(),
            "{} blocks",
            image.blocks()
        );
        node.unmount("image", &target).success();
    });
}
