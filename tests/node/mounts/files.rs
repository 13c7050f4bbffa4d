//! The files of `secretfiles`: who may read them, and that nobody may do more.

use crate::support::{isolated, mounts, mounts_at};
use flexvol::mount_options::{FsOption, MountFlags};
use flexvol::protocol::TargetPath;
use flexvol::sys::mount::place::Place;
use flexvol::sys::mount::{self, NewMount, Parameter, Way};
use serde_json::json;
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt as _;

#[test]
fn every_key_is_a_file_that_only_its_owner_reads() {
    isolated("files::every_key_is_a_file_that_only_its_owner_reads", |node| {
        node.install("secretfiles", json!({}));
        let target = node.volume("secretfiles", "p");
        // 0xFF, a NUL and no line break: any bytes at all.
        let mut options = json!({"kubernetes.io/secret/tls.key": "/wBzZWNyZXQtb2YtYS10ZXN0", "kubernetes.io/secret/ca": "YQ=="});
        node.mount("secretfiles", &target, &options).success();
        assert_eq!(fs::read(target.join("tls.key")).unwrap(), b"\xff\0secret-of-a-test");
        assert_eq!(fs::read(target.join("ca")).unwrap(), b"a");
        let file = fs::metadata(target.join("ca")).unwrap();
        assert_eq!((file.mode() & 0o7777, file.uid(), file.gid()), (0o400, 0, 0));
        assert_eq!(fs::read_dir(&target).unwrap().count(), 2);
        assert_eq!(fs::write(target.join("x"), "").unwrap_err().raw_os_error(), Some(30));
        let line = mounts_at(&target).remove(0);
        assert!(line.contains("ro,nosuid,nodev,noexec") && !line.contains("secret-of"), "{line}");
        node.mount("secretfiles", &target, &options).success();
        assert_eq!(mounts_at(&target).len(), 1);
        options["mode"] = "0440".into();
        node.mount("secretfiles", &target, &options).failure(&["with other options"]);
        node.unmount("secretfiles", &target).success();
        options["kubernetes.io/mounterArgs.FsGroup"] = "3000".into();
        options["keys"] = "ca".into();
        node.mount("secretfiles", &target, &options).success();
        let file = fs::metadata(target.join("ca")).unwrap();
        assert_eq!((file.mode() & 0o7777, file.gid()), (0o440, 3000));
        assert!(!target.join("tls.key").exists());
        node.unmount("secretfiles", &target).success();
        node.assert_clean();
    });
}

#[test]
fn as_much_as_a_secret_holds_fits() {
    isolated("files::as_much_as_a_secret_holds_fits", |node| {
        node.install("secretfiles", json!({}));
        let target = node.volume("secretfiles", "p");
        // kubelet's argument is at most 128 KiB.
        let keys = (0..40).map(|key| (format!("kubernetes.io/secret/key-{key}"), json!("YWFh".repeat(700))));
        node.mount("secretfiles", &target, &keys.collect()).success();
        let whole = |key: u32| fs::read(target.join(format!("key-{key}"))).unwrap().len() == 2100;
        assert!((0..40).all(whole));
        node.unmount("secretfiles", &target).success();
        node.assert_clean();
    });
}

#[test]
fn what_cannot_be_filled_is_not_mounted() {
    isolated("files::what_cannot_be_filled_is_not_mounted", |node| {
        let target = node.volume("tmpfs", "p");
        let path = TargetPath::parse(target.as_os_str()).unwrap();
        let size = [FsOption::new("size", 4096)];
        let options: Vec<_> = size.iter().map(Parameter::from).collect();
        let new = NewMount {
            file_system: "tmpfs",
            source: "filled",
            flags: MountFlags { read_only: true, ..MountFlags::DEFAULT },
            superblock_read_only: false,
            options: &options,
        };
        let before = mounts();
        for way in [Way::Detached, Way::Classic] {
            let place = Place::open(&path).unwrap().unwrap();
            let write = |root: BorrowedFd<'_>| {
                let owner = flexvol::plan::Ownership { mode: 0o400, uid: 0, gid: 0 };
                flexvol::sys::fs::openat_beneath::write_file(root, "a", b"content", owner)
            };
            let id = mount::mount_filled(&new, &write, &place, way).unwrap();
            assert!(mounts_at(&target)[0].starts_with(&format!("{id} ")));
            assert_eq!(fs::read(target.join("a")).unwrap(), b"content");
            assert_eq!(fs::write(target.join("x"), "").unwrap_err().raw_os_error(), Some(30), "{way:?}");
            mount::unmount(&place, false).unwrap();
            let fail = |root: BorrowedFd<'_>| write(root).and_then(|()| anyhow::bail!("no more"));
            mount::mount_filled(&new, &fail, &place, way).unwrap_err();
            assert_eq!(mounts(), before, "{way:?}");
        }
        node.assert_clean();
    });
}
