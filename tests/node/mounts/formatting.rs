//! Formatting destroys nothing that another window of the same image holds.

use crate::image::{MEBIBYTE, blank, file, ro_of, sum, with};
use crate::qcow2::{DRIVER, mount_device, options, unmount_device, with_driver};
use crate::support::wording::{wording, wording_of};
use crate::support::{Answer, Node, has, isolated, kernel_has, sh, skip};
use serde_json::json;
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::FileExt as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// What is zero behind a file system is that file system's free space.
#[test]
fn an_offset_is_formatted_only_in_a_file_that_is_blank_as_a_whole() {
    isolated("formatting::an_offset_is_formatted_only_in_a_file_that_is_blank_as_a_whole", |node| {
        let target = node.volume("image", "p");
        let tail = |name| json!({"file": name, "offset": "32Mi", "format": "ifBlank"});
        blank("ext4", 64 * MEBIBYTE);
        sh("mkfs.ext4 -q -F /run/img/ext4");
        blank("byte", 64 * MEBIBYTE);
        sh("printf x | dd of=/run/img/byte bs=1 seek=1234567 conv=notrunc status=none");
        // One that ends where the window begins is data, too.
        blank("small", 64 * MEBIBYTE);
        sh("mkfs.ext4 -q -F /run/img/small 32M");
        for name in ["ext4", "byte", "small"] {
            sh(&format!(
                "dd if=/dev/zero of=/run/img/{name} bs=1M seek=32 count=32 conv=notrunc status=none"
            ));
            let before = sum(name);
            node.mount("image", &target, &tail(name)).failure(&["holds ", "whole"]);
            assert_eq!(sum(name), before, "{name}");
        }
        blank("blank", 64 * MEBIBYTE);
        for _ in 0..2 {
            node.mount("image", &target, &tail("blank")).success();
            node.unmount("image", &target).success();
        }
        let before = sum("blank");
        for other in [
            json!({"file": "blank", "format": "ifBlank"}),
            json!({"file": "blank", "offset": "48Mi", "format": "ifBlank"}),
        ] {
            node.mount("image", &target, &other).failure(&["holds "]);
        }
        assert_eq!(sum("blank"), before);
    });
}

fn precious_in_the_second_of_two(node: &Node, name: &str, table: &str) {
    blank(name, 40 * MEBIBYTE);
    sh(&format!("printf '{table}' | sfdisk -q --label dos --force /run/img/{name}"));
    let target = node.volume("image", "p");
    let second = json!({"file": name, "partition": "2", "format": "ifBlank"});
    node.mount("image", &target, &second).success();
    fs::write(target.join("precious"), "data").unwrap();
    node.unmount("image", &target).success();
}

#[test]
fn an_interrupted_mkfs_of_one_partition_is_no_licence_for_another() {
    isolated("formatting::an_interrupted_mkfs_of_one_partition_is_no_licence_for_another", |node| {
        if !has("sfdisk") {
            return skip(
                "formatting::an_interrupted_mkfs_of_one_partition_is_no_licence_for_another",
                "no sfdisk",
            );
        }
        precious_in_the_second_of_two(node, "a", "start=2048,size=20480\\nstart=22528,size=20480\\n");
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() - 2;
        let target = node.volume("image", "p");
        // What older versions noted names no window.
        for note in [format!("{now} {} {}", 2048 * 512, 20480 * 512), now.to_string()] {
            rustix::fs::setxattr(
                file("a"),
                "trusted.flexvol.formatting",
                note.as_bytes(),
                rustix::fs::XattrFlags::empty(),
            )
            .unwrap();
            let second = json!({"file": "a", "partition": "2", "format": "ifBlank"});
            let mounted = node.mount("image", &target, &second);
            if note.contains(' ') {
                mounted.success();
            } else {
                mounted.failure(&["written since"]);
                rustix::fs::removexattr(file("a"), "trusted.flexvol.formatting").unwrap();
                node.mount("image", &target, &second).success();
            }
            assert_eq!(fs::read_to_string(target.join("precious")).unwrap(), "data", "{note}");
            node.unmount("image", &target).success();
        }
    });
}

#[test]
fn partitions_that_overlap_are_not_formatted() {
    isolated("formatting::partitions_that_overlap_are_not_formatted", |node| {
        blank("a", 40 * MEBIBYTE);
        // Two primary entries of one MBR, the second in the last half of the first.
        let entry = |start: u32, count: u32| {
            let mut entry = [0, 0, 0, 0, 0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
            entry[8..12].copy_from_slice(&start.to_le_bytes());
            entry[12..].copy_from_slice(&count.to_le_bytes());
            entry
        };
        let table = [&entry(2048, 65536)[..], &entry(34816, 32768), &[0; 32], &[0x55, 0xaa]].concat();
        let image = fs::OpenOptions::new().write(true).open(file("a")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&image, &table, 446).unwrap();
        let before = sum("a");
        let target = node.volume("image", "p");
        for number in ["1", "2"] {
            let options = json!({"file": "a", "partition": number, "format": "ifBlank"});
            node.mount("image", &target, &options).failure(&["overlap"]);
        }
        assert_eq!(sum("a"), before);
    });
}

fn errors_behaviour(target: &std::path::Path) -> String {
    let device = sh(&format!("findmnt -fno SOURCE {}", target.display()));
    let name = device.trim().trim_start_matches("/dev/");
    let options = fs::read_to_string(format!("/proc/fs/ext4/{name}/options")).unwrap();
    options.lines().find(|line| line.starts_with("errors=")).unwrap_or_default().to_owned()
}

/// Nobody provokes the error: that would end the machine.
#[test]
fn a_damaged_ext4_does_not_stop_the_node() {
    isolated("formatting::a_damaged_ext4_does_not_stop_the_node", |node| {
        let target = node.volume("image", "p");
        for (kind, panics) in [
            ("ext4", "tune2fs -e panic"),
            ("ext2", "tune2fs -e panic"),
            ("ext4", "tune2fs -E mount_opts=errors=panic"),
        ] {
            sh(&format!(
                "rm -f /run/img/a; truncate -s 32M /run/img/a; mkfs.{kind} -q -F /run/img/a; {panics} /run/img/a"
            ));
            for (options, expected) in
                [("", "remount-ro"), ("errors=continue", "continue"), ("errors=remount-ro", "remount-ro")]
            {
                let read_only = json!({"file": "a", "kubernetes.io/readwrite": "ro"});
                let mut all = vec![json!({"file": "a", "fsType": "ext4", "mountOptions": options})];
                all.extend(options.is_empty().then_some(read_only));
                for asked in all {
                    node.mount("image", &target, &asked).success();
                    let behaviour = errors_behaviour(&target);
                    node.unmount("image", &target).success();
                    assert_eq!(behaviour, format!("errors={expected}"), "{panics} {asked}");
                }
            }
            let asked = json!({"file": "a", "fsType": "ext4", "mountOptions": "errors=panic"});
            node.mount("image", &target, &asked).failure(&["errors"]);
        }
    });
}

/// What a superblock asks for by itself is no more than what the volume's options may ask for.
#[test]
fn a_superblock_asks_for_no_more_than_a_volume() {
    isolated("formatting::a_superblock_asks_for_no_more_than_a_volume", |node| {
        let target = node.volume("image", "p");
        sh("truncate -s 32M /run/img/a; mkfs.ext4 -q -F /run/img/a");
        for (words, fits) in [
            ("commit=7", true),
            ("journal_dev=1794", false),
            ("debug", false),
            ("test_dummy_encryption", false),
        ] {
            sh(&format!("tune2fs -E mount_opts={words} /run/img/a"));
            let answer = node.mount("image", &target, &json!({"file": "a"}));
            if fits {
                answer.success();
                node.unmount("image", &target).success();
            } else {
                answer.failure(&["superblock", "tune2fs"]);
            }
        }
        sh(
            "rm /run/img/a; truncate -s 32M /run/img/a; mkfs.ext4 -q -F -O ^has_journal /run/img/a
            debugfs -w -R 'ssv journal_dev 0x702' /run/img/a; debugfs -w -R 'feature has_journal' /run/img/a",
        );
        node.mount("image", &target, &json!({"file": "a", "fsck": "false"}))
            .failure(&["journal", "another device"]);
    });
}

/// An erofs names them by path, and a btrfs has all that bear its UUID.
#[test]
fn a_file_system_has_no_part_on_another_device() {
    isolated("formatting::a_file_system_has_no_part_on_another_device", |node| {
        let target = node.volume("image", "p");
        let options = json!({"file": "a", "fsck": "false", "kubernetes.io/readwrite": "ro"});
        let (erofs, btrfs) = (
            "mkdir -p /run/empty; mkfs.erofs /run/img/a /run/empty",
            "truncate -s 128M /run/img/a; mkfs.btrfs -q /run/img/a",
        );
        // Where the numbers are: the table of devices and how many are in it; the count.
        for (kind, make, numbers) in
            [("erofs", erofs, &[(1104, 8), (1110, 1)][..]), ("btrfs", btrfs, &[(65672, 2)][..])]
        {
            if !has(&format!("mkfs.{kind}")) || !kernel_has(kind) {
                skip("formatting::a_file_system_has_no_part_on_another_device", kind);
                continue;
            }
            sh(&format!("rm -f /run/img/a; {make}"));
            node.mount("image", &target, &options).success();
            node.unmount("image", &target).success();
            for (place, byte) in numbers {
                sh(&format!(
                    "printf '\\{byte:03o}' | dd of=/run/img/a bs=1 seek={place} conv=notrunc status=none"
                ));
            }
            node.mount("image", &target, &options).failure(&["superblock", "other devices"]);
        }
        node.assert_clean();
    });
}

/// Of a device of more than 1 GiB the places that every file system writes were looked at, and no
/// others.
#[test]
fn data_anywhere_in_a_large_device_is_not_formatted() {
    with_driver("formatting::data_anywhere_in_a_large_device_is_not_formatted", |node| {
        sh("truncate -s 2G /run/data && head -c 12M /dev/urandom | \
            dd of=/run/data bs=1M seek=66 conv=notrunc iflag=fullblock status=none && \
            qemu-img convert -O qcow2 /run/data /run/img/a.qcow2");
        mount_device(node, &options())
            .failure(&["holds data at offset 69206016", wording("not-formatted-over")]);
        node.assert_clean();
        sh("qemu-img convert -O raw /run/img/a.qcow2 /run/after && cmp /run/data /run/after");
        node.install(DRIVER, json!({"attach": true, "policy": {"allowSampling": true}}));
        mount_device(node, &options()).success();
        unmount_device(node).success();
    });
}

/// Reading it would take many calls.
#[test]
fn what_an_image_has_no_clusters_for_is_not_read() {
    with_driver("formatting::what_an_image_has_no_clusters_for_is_not_read", |node| {
        let make = "rm -f /run/img/a.qcow2; qemu-img create -q -f qcow2 /run/img/a.qcow2 2T";
        sh(&format!("{make}; qemu-io -c 'write -q -P 7 1T 64k' /run/img/a.qcow2"));
        mount_device(node, &options()).failure(&["holds data at offset 1099511627776"]);
        sh(make);
        mount_device(node, &options()).success();
        unmount_device(node).success();
    });
}

/// One call has no time for all of it. Each has more time than the one before, so that on any
/// machine the first come to no end, and a later one does.
#[test]
fn a_proof_goes_on_where_the_call_before_ended() {
    with_driver("formatting::a_proof_goes_on_where_the_call_before_ended", |node| {
        let seconds = Cell::new(0);
        let call = || {
            seconds.set(1 + seconds.get() + seconds.get() / 3);
            node.install(DRIVER, json!({"attach": true, "deadlines": {"mount": seconds.get()}}));
            let answer = mount_device(node, &options());
            let late = format!("deadline of {} s passed", seconds.get());
            (answer.status != "Failure" || !answer.message.contains(&late)).then_some(answer)
        };
        let read = |message: &str| -> Option<u64> {
            message.split_once("blank: ")?.1.split(' ').next()?.parse().ok()
        };
        let make = |size| {
            // Clusters that are there are read, whatever is in them.
            let words = "-q -f qcow2 -o preallocation=metadata";
            sh(&format!("rm -f /run/img/a.qcow2; qemu-img create {words} /run/img/a.qcow2 {size}"))
        };
        make("4G");
        let mut reached = vec![0];
        loop {
            // A call that is late for all but the proof says so.
            let Some(answer) = call() else { continue };
            if answer.status == "Success" {
                break;
            }
            let now = read(&answer.message).unwrap_or_else(|| panic!("{answer:?}"));
            // Once all is read, what is left are the samples, and these want a call of their own.
            assert!(now > *reached.last().unwrap() || now == 4096, "{answer:?} after {reached:?}");
            node.assert_clean();
            reached.push(now);
            assert!(reached.len() < 60);
        }
        assert!(reached.len() > 1, "one call was enough");
        unmount_device(node).success();
        // What was written over bytes that were read is seen, and nothing is remembered of it.
        make("200G");
        let late = wording_of("not-proven-blank", []);
        let is_late = |answer: &Answer| answer.message.contains(late);
        seconds.set(seconds.get() / 3);
        let first = std::iter::from_fn(|| Some(call())).flatten().next().unwrap();
        assert!(is_late(&first), "{first:?}");
        sh("qemu-io -c 'write -q -P 7 1M 64k' /run/img/a.qcow2");
        let mut further = std::iter::from_fn(|| Some(call())).take(10).flatten();
        let told = further.find(|answer| !is_late(answer)).unwrap();
        told.failure(&["holds data at offset 1048576"]);
        assert!(fs::read_dir("/run/flexvol/blank").unwrap().next().is_none());
    });
}

const FORMATTING: &str = "trusted.flexvol.formatting";

#[test]
fn a_failed_mkfs_leaves_a_blank_image_and_no_licence() {
    isolated("formatting::a_failed_mkfs_leaves_a_blank_image_and_no_licence", |node| {
        let target = node.volume("image", "p");
        blank("a", 16 * MEBIBYTE);
        let wanted = json!({"file": "a", "format": "ifBlank"});
        for fails in [json!({"fsType": "xfs"}), json!({"fsType": "ext4", "mkfsOptions": "-N 4000000000"})] {
            node.mount("image", &target, &with(&wanted, &fails)).failure(&[]);
            assert!(sh("tr -d '\\0' < /run/img/a | wc -c").trim() == "0", "{fails}");
            assert!(rustix::fs::getxattr(file("a"), FORMATTING, &mut [0; 20][..]).is_err(), "{fails}");
        }
        // The admin's own way out: a good image, copied over the same inode.
        node.mount("image", &target, &json!({"file": "good", "size": "16Mi"})).success();
        fs::write(target.join("precious"), "data").unwrap();
        node.unmount("image", &target).success();
        sh("cp /run/img/good /run/img/a");
        node.mount("image", &target, &wanted).success();
        assert_eq!(fs::read_to_string(target.join("precious")).unwrap(), "data");
        node.unmount("image", &target).success();
    });
}

#[test]
fn an_interrupted_mkfs_is_begun_again_unless_the_image_was_written_since() {
    isolated("formatting::an_interrupted_mkfs_is_begun_again_unless_the_image_was_written_since", |node| {
        let target = node.volume("image", "p");
        let wanted = json!({"file": "a", "format": "ifBlank"});
        let note = |seconds_ago: u64| {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
            let text = (now - seconds_ago).to_string();
            rustix::fs::setxattr(file("a"), FORMATTING, text.as_bytes(), rustix::fs::XattrFlags::empty())
                .unwrap();
        };
        blank("a", 16 * MEBIBYTE);
        fs::OpenOptions::new().write(true).open(file("a")).unwrap().write_all_at(b"half", 5000).unwrap();
        let before = sum("a");
        note(3600);
        node.mount("image", &target, &wanted).failure(&["written since", "setfattr -x"]);
        node.mount("image", &target, &ro_of("a")).failure(&["written since"]);
        assert_eq!(sum("a"), before);
        note(5);
        node.mount("image", &target, &ro_of("a")).failure(&["interrupted"]);
        node.mount("image", &target, &wanted).success();
        node.unmount("image", &target).success();
    });
}
