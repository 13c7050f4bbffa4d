//! Whatever a tenant's bytes make a program look for that reads them, it opens nothing of the node
//! but the volume's own device: seen by a program in the place of each that tries.

use crate::image::{MEBIBYTE, expand};
use crate::qcow2::{DRIVER, options, with_driver};
use crate::support::{has, isolated, sh, skip};
use base64::Engine as _;
use serde_json::json;
use std::fs;

/// What another tenant has: a file, and a device.
struct Others {
    device: String,
}

const FILE: &str = "/run/img/others/secret";

impl Others {
    fn new() -> Self {
        let make = "mkdir -p /run/img/others; echo precious >/run/img/others/secret
            (echo precious; head -c 1M /dev/zero) >/run/img/others/disk; losetup --find --show /run/img/others/disk";
        Self { device: sh(make).trim().to_owned() }
    }

    /// Stands in for a program: says what it can read, writes, and fails so that it is heard.
    fn stand_in(&self, program: &str) {
        let device = &self.device;
        let script = format!(
            "#!/bin/sh\nexec 2>/dev/null\nfor place in {FILE} {device} /proc/$PPID/root{FILE}; do
            read -r word <$place && echo \"READ $word\"; echo WRITTEN >>$place; echo WRITTEN 1<>$place; done
            echo heard; exit 77\n"
        );
        fs::write("/run/stand-in", script).unwrap();
        sh(&format!("chmod 755 /run/stand-in; mount --bind /run/stand-in $(command -v {program})"));
    }

    fn assert_untouched(&self, program: &str, said: &str) {
        assert!(said.contains("heard") && !said.contains("READ"), "{program}: {said}");
        assert_eq!(fs::read_to_string(FILE).unwrap(), "precious\n", "{program}");
        assert!(fs::read(&self.device).unwrap().starts_with(b"precious\n"), "{program}");
    }

    /// What it says when it is in the place of a program.
    fn try_in_place_of(&self, program: &str, call: impl FnOnce() -> String) {
        self.stand_in(program);
        let said = call();
        sh(&format!("umount $(command -v {program})"));
        self.assert_untouched(program, &said);
    }
}

impl Drop for Others {
    fn drop(&mut self) {
        sh(&format!("losetup --detach {}", self.device));
    }
}

fn has_landlock(name: &str) -> bool {
    let has_it =
        fs::read_to_string("/sys/kernel/security/lsm").map_or(true, |list| list.contains("landlock"));
    if !has_it {
        skip(name, "no Landlock (Linux 5.13)");
    }
    has_it
}

#[test]
fn a_program_sees_nothing_of_another_tenant() {
    const NAME: &str = "reach::a_program_sees_nothing_of_another_tenant";
    isolated(NAME, |node| {
        if !has_landlock(NAME) {
            return;
        }
        let (target, others) = (node.volume("image", "p"), Others::new());
        let options = json!({"file": "a", "size": "32Mi"});
        let mount = || node.mount("image", &target, &options);
        others.try_in_place_of("mkfs.ext4", || mount().failure(&[]).message);
        mount().success();
        let grow = || expand(node, &target, &options, 64 * MEBIBYTE, 32 * MEBIBYTE);
        others.try_in_place_of("resize2fs", || grow().failure(&[]).message);
        node.unmount("image", &target).success();
        others.try_in_place_of("e2fsck", || mount().failure(&[]).message);
        mount().success();
        node.unmount("image", &target).success();
    });
}

#[test]
fn who_opens_encryption_sees_nothing_of_another_tenant() {
    const NAME: &str = "reach::who_opens_encryption_sees_nothing_of_another_tenant";
    with_driver(NAME, |node| {
        if !has_landlock(NAME) {
            return;
        }
        if !has("cryptsetup") {
            return skip(NAME, "no cryptsetup");
        }
        let others = Others::new();
        let passphrase = base64::engine::general_purpose::STANDARD.encode("hunter2");
        let more = json!({"luks": "true", "kubernetes.io/secret/passphrase": passphrase});
        let target = node.volume(DRIVER, "p");
        let options = crate::image::with(&options(), &more);
        others.try_in_place_of("cryptsetup", || node.mount(DRIVER, &target, &options).failure(&[]).message);
    });
}
