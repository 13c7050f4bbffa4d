//! What every driver's mount has in common, and the options of tmpfs.

use crate::support::wording::{wording, wording_of};
use crate::support::{Node, eventually, has, isolated, mounts_at, sh, skip};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

/// One volume of each driver, and a contradicting request for the same target.
fn samples() -> [(&'static str, Value, Value); 3] {
    fs::create_dir_all("/run/srv/a").unwrap();
    fs::create_dir_all("/run/srv/b").unwrap();
    let image = |name: &str| json!({"file": name, "size": "4Mi"});
    [
        ("tmpfs", json!({"size": "1Mi"}), json!({"size": "2Mi"})),
        ("bind", json!({"source": "/run/srv/a"}), json!({"source": "/run/srv/b"})),
        ("image", image("a.img"), image("b.img")),
    ]
}

fn read_only(options: &Value) -> Value {
    let mut options = options.clone();
    options["kubernetes.io/readwrite"] = "ro".into();
    options
}

/// The per-mount options in mountinfo.
fn flags(target: &Path) -> String {
    mounts_at(target)[0].split(' ').nth(5).unwrap().to_owned()
}

fn super_options(target: &Path) -> String {
    mounts_at(target)[0].rsplit(' ').next().unwrap().to_owned()
}

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}

#[test]
fn tmpfs_options_take_effect() {
    isolated("basic::tmpfs_options_take_effect", |node| {
        let target = node.volume("tmpfs", "p");
        let with = |options: Value, check: &dyn Fn()| {
            node.mount("tmpfs", &target, &options).success();
            check();
            node.unmount("tmpfs", &target).success();
        };
        let fill = |bytes: usize| fs::write(target.join("f"), vec![1; bytes]);
        with(json!({"size": "1Mi"}), &|| {
            fill(1 << 20).unwrap();
            assert_eq!(errno(fill((1 << 20) + 1)), 28);
        });
        with(json!({"nrInodes": "3"}), &|| {
            fs::write(target.join("a"), "").unwrap();
            fs::write(target.join("b"), "").unwrap();
            assert_eq!(errno(fs::write(target.join("c"), "")), 28);
        });
        with(json!({"mode": "0711", "uid": "7", "gid": "8"}), &|| {
            let root = fs::metadata(&target).unwrap();
            assert_eq!((root.mode() & 0o7777, root.uid(), root.gid()), (0o711, 7, 8));
        });
        with(json!({"kubernetes.io/mounterArgs.FsGroup": "1234"}), &|| {
            let root = fs::metadata(&target).unwrap();
            assert_eq!((root.mode() & 0o7777, root.gid()), (0o2777, 1234));
            fill(1).unwrap();
            assert_eq!(fs::metadata(target.join("f")).unwrap().gid(), 1234);
        });
        with(json!({}), &|| assert_eq!(fs::metadata(&target).unwrap().mode() & 0o7777, 0o777));
        with(json!({"size": "1%"}), &|| {
            let memory =
                sh("sed -n 's/^MemTotal: *//p' /proc/meminfo").split(' ').next().unwrap().parse::<u64>();
            let size = rustix::fs::statvfs(&target).unwrap();
            let share = memory.unwrap() * 1024 / 100;
            assert!((size.f_blocks * size.f_frsize).abs_diff(share) < share / 50);
        });
        with(json!({"noswap": "true"}), &|| assert!(super_options(&target).contains("noswap")));
        with(json!({"huge": "within_size"}), &|| {
            assert!(super_options(&target).contains("huge=within_size"));
        });
    });
}

#[test]
fn flags_take_effect() {
    isolated("basic::flags_take_effect", |node| {
        for (driver, options, _) in samples() {
            let target = node.volume(driver, "p");
            let with = |list: &str| {
                let mut options = options.clone();
                options["mountOptions"] = list.into();
                node.mount(driver, &target, &options).success();
                let flags = flags(&target);
                fs::write(target.join("run"), "#!/bin/sh\nexit 7\n").unwrap();
                fs::set_permissions(target.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
                let ran = std::process::Command::new(target.join("run")).status();
                node.unmount(driver, &target).success();
                (flags, ran.map_or_else(|error| error.raw_os_error(), |status| status.code()))
            };
            let (flags, ran) = with("");
            assert!(
                flags.contains("nosuid") && flags.contains("nodev") && flags.contains("relatime"),
                "{flags}"
            );
            assert_eq!(ran, Some(7), "{driver}");
            let (flags, ran) = with("noexec,noatime,nodiratime");
            assert!(
                ["nosuid", "nodev", "noexec", "noatime", "nodiratime"].iter().all(|f| flags.contains(f)),
                "{flags}"
            );
            assert_eq!(ran, Some(13), "{driver}");
            for word in ["suid", "dev"] {
                let mut options = options.clone();
                options["mountOptions"] = word.into();
                node.mount(driver, &target, &options).failure(&[wording("denied-mount-option")]);
            }
        }
        sh("rm -rf /run/srv/* /run/img/*");
        node.install("tmpfs", json!({"policy": {"allowSuid": true, "allowDev": true}}));
        let target = node.volume("tmpfs", "p");
        node.mount("tmpfs", &target, &json!({"mountOptions": "suid,dev,strictatime"})).success();
        let flags = flags(&target);
        assert!(!["nosuid", "nodev", "relatime"].iter().any(|flag| flags.contains(flag)), "{flags}");
        node.unmount("tmpfs", &target).success();
    });
}

#[test]
fn read_only_is_read_only() {
    isolated("basic::read_only_is_read_only", |node| {
        for (driver, options, _) in samples() {
            let target = node.volume(driver, "p");
            node.mount(driver, &target, &options).success();
            fs::write(target.join("kept"), "kept").unwrap();
            node.unmount(driver, &target).success();
            let mut by_tenant = options.clone();
            by_tenant["mountOptions"] = "ro".into();
            let mut both = read_only(&options);
            both["mountOptions"] = "rw".into();
            for options in [read_only(&options), by_tenant, both] {
                node.mount(driver, &target, &options).success();
                assert_eq!(errno(fs::write(target.join("new"), "")), 30, "{driver} {options}");
                let kept = fs::read_to_string(target.join("kept")).ok();
                assert_eq!(kept.as_deref(), (driver != "tmpfs").then_some("kept"));
                node.unmount(driver, &target).success();
            }
            let mut odd = options.clone();
            odd["kubernetes.io/readwrite"] = "maybe".into();
            node.mount(driver, &target, &odd).failure(&[wording("ro-or-rw")]);
            // Not kubelet's key: must not lift the read-only.
            let mut smuggled = read_only(&options);
            smuggled["KUBERNETES.IO/readwrite"] = "rw".into();
            if node.mount(driver, &target, &smuggled).status == "Success" {
                assert_eq!(errno(fs::write(target.join("new"), "")), 30, "{driver}");
                node.unmount(driver, &target).success();
            }
        }
    });
}

#[test]
fn twenty_repeats_are_one_mount() {
    isolated("basic::twenty_repeats_are_one_mount", |node| {
        for (driver, options, other) in samples() {
            let target = node.volume(driver, "p");
            for _ in 0..20 {
                node.mount(driver, &target, &options).success();
            }
            let before = mounts_at(&target);
            assert_eq!(before.len(), 1, "{driver}");
            let name = target.to_str().unwrap();
            node.mount(driver, &target, &other).failure(&[name, "unmount it first"]);
            node.mount(driver, &target, &read_only(&options)).failure(&[name, "unmount it first"]);
            assert_eq!(mounts_at(&target), before, "{driver}");
            node.unmount(driver, &target).success();
            assert!(mounts_at(&target).is_empty());
            assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
            node.assert_clean();
        }
    });
}

#[test]
fn another_source_is_named() {
    isolated("basic::another_source_is_named", |node| {
        let [_, (_, bind, other_bind), (_, image, other_image)] = samples();
        let target = node.volume("bind", "p");
        node.mount("bind", &target, &bind).success();
        node.mount("bind", &target, &other_bind).failure(&["/srv/a", "/run/srv/b"]);
        node.unmount("bind", &target).success();
        let target = node.volume("image", "p");
        node.mount("image", &target, &image).success();
        let device = sh(&format!("findmnt -no SOURCE {}", target.display()));
        node.mount("image", &target, &other_image).failure(&[device.trim(), "/run/img/b.img"]);
        assert!(!Path::new("/run/img/b.img").exists());
        node.unmount("image", &target).success();
    });
}

#[test]
fn awkward_targets() {
    isolated("basic::awkward_targets", |node| {
        for (driver, options, _) in samples() {
            // Missing: made, as kubelet makes it.
            let target = node.volume(driver, "p");
            fs::remove_dir(&target).unwrap();
            node.mount(driver, &target, &options).success();
            node.unmount(driver, &target).success();
            assert_eq!(fs::metadata(&target).unwrap().mode() & 0o7777, 0o750);
            // Dirty: what is there is hidden, never deleted, and named once nothing hides it.
            fs::write(target.join("left"), "x").unwrap();
            node.mount(driver, &target, &options).success();
            assert!(!target.join("left").exists());
            node.unmount(driver, &target).failure(&["left", "move that away"]);
            assert_eq!(fs::read(target.join("left")).unwrap(), b"x");
            fs::remove_file(target.join("left")).unwrap();
            node.unmount(driver, &target).success();
            // Not a directory.
            fs::remove_dir(&target).unwrap();
            fs::create_dir_all("/run/elsewhere").unwrap();
            symlink("/run/elsewhere", &target).unwrap();
            node.mount(driver, &target, &options)
                .failure(&[wording_of("target-is-no-directory", ["…", "a symlink"])]);
            assert!(mounts_at(Path::new("/run/elsewhere")).is_empty());
            fs::remove_file(&target).unwrap();
            fs::write(&target, "precious").unwrap();
            node.mount(driver, &target, &options).failure(&[]);
            assert_eq!(fs::read(&target).unwrap(), b"precious", "{driver}");
            fs::remove_file(&target).unwrap();
            // An empty file is what a killed bind of a file leaves.
            fs::write(&target, "").unwrap();
            node.mount(driver, &target, &options).success();
            node.unmount(driver, &target).success();
            fs::remove_dir(&target).unwrap();
            // A symlink above it, where only kubelet makes directories.
            let above = target.parent().unwrap();
            fs::remove_dir(above).unwrap();
            symlink("/run/elsewhere", above).unwrap();
            node.mount(driver, &target, &options).failure(&["symlink"]);
            node.unmount(driver, &target).failure(&["symlink"]);
            assert_eq!(fs::read_dir("/run/elsewhere").unwrap().count(), 0);
            for bad in ["relative/dir", "/run/k/../k/pods", "/", ""] {
                node.mount(driver, Path::new(bad), &options).failure(&["target"]);
            }
            for target in ["/etc", "/run/k", "/run/srv"] {
                node.mount(driver, Path::new(target), &options)
                    .failure(&[wording("neither-volume-nor-empty")]);
                assert!(mounts_at(Path::new(target)).is_empty());
            }
            let nowhere = node.root.join(format!("pods/none/volumes/example~{driver}/vol"));
            node.mount(driver, &nowhere, &options).failure(&["does not exist"]);
            node.assert_clean();
        }
    });
}

#[test]
fn a_failure_leaves_nothing() {
    isolated("basic::a_failure_leaves_nothing", |node| {
        for (driver, options, _) in samples() {
            let target = node.volume(driver, "p");
            fs::remove_dir(&target).unwrap();
            let wrong = match driver {
                "tmpfs" => json!({"mountOptions": "context=x"}),
                "bind" => json!({"source": "/run/srv/none/deeper"}),
                _ => json!({"file": "x/y/new.img", "size": "4Ki"}),
            };
            node.mount(driver, &target, &wrong).failure(&[]);
            assert!(!target.exists(), "{driver}");
            let names = sh("cd /run; find srv img | sort").replace('\n', " ");
            assert_eq!(names.trim(), "img srv srv/a srv/b", "{driver}");
            node.assert_clean();
            node.mount(driver, &target, &options).success();
            node.unmount(driver, &target).success();
            sh("rm -rf /run/img/*");
        }
    });
}

#[test]
fn any_root_of_kubelet() {
    isolated("basic::any_root_of_kubelet", |_| {
        let long = format!("/run/{}/{}", "l".repeat(120), "m".repeat(130));
        fs::create_dir_all("/run/real/kubelet").unwrap();
        symlink("/run/real", "/run/link").unwrap();
        let roots = [
            "/run/with space\ttab",
            "/run/kübelet-日本",
            "/run/back\\slash#",
            long.as_str(),
            "/run/link/kubelet",
        ];
        for root in roots {
            let node = Node::of(Path::new(root));
            for (driver, options, other) in samples() {
                let target = node.volume(driver, "p");
                for _ in 0..2 {
                    node.mount(driver, &target, &options).success();
                }
                fs::write(target.join("through"), "x").unwrap();
                let real = target.canonicalize().unwrap();
                assert_eq!(mounts_at(&real).len(), 1, "{root} {driver}");
                node.mount(driver, &target, &other).failure(&["unmount it first"]);
                // A second layer makes the unmount look into the mount table.
                sh(&format!("mkdir '{0}/sub'; mount -t tmpfs x '{0}/sub'", target.display()));
                node.unmount(driver, &target).success();
                assert!(mounts_at(&real).is_empty(), "{root} {driver}");
            }
            node.assert_clean();
            sh("rm -rf /run/srv/* /run/img/*");
        }
    });
}

#[test]
fn a_second_namespace_sees_the_volume() {
    isolated("basic::a_second_namespace_sees_the_volume", |node| {
        if !has("nsenter") {
            return skip("basic::a_second_namespace_sees_the_volume", "no nsenter");
        }
        sh("mount --bind /run/k /run/k; mount --make-shared /run/k");
        let mut pod = std::process::Command::new("unshare")
            .args(["-m", "--propagation", "slave", "sh", "-c", "echo; exec sleep 60"])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        std::io::Read::read_exact(&mut pod.stdout.take().unwrap(), &mut [0]).unwrap();
        let inside = |script: &str| sh(&format!("nsenter -m -t {} sh -ec '{script}'", pod.id()));
        for (driver, options, _) in samples() {
            let target = node.volume(driver, "p");
            node.mount(driver, &target, &options).success();
            fs::write(target.join("seen"), "by both").unwrap();
            assert_eq!(inside(&format!("cat {}/seen", target.display())), "by both");
            node.unmount(driver, &target).success();
            assert!(eventually(|| inside("cat /proc/self/mountinfo")
                .lines()
                .all(|line| !line.contains("/vol "))));
        }
        pod.kill().unwrap();
        pod.wait().unwrap();
        sh("umount /run/k");
    });
}

#[test]
fn records_hold_no_option() {
    isolated("basic::records_hold_no_option", |node| {
        for (driver, mut options, _) in samples() {
            options["kubernetes.io/secret/password"] = "aHVudGVyMi1odW50ZXIy".into();
            options["example.org/note"] = "annotation-text".into();
            options["kubernetes.io/pvOrVolumeName"] = "the-volume".into();
            let target = node.volume(driver, "p");
            node.mount(driver, &target, &options).success();
            let mode = |path: &str| fs::metadata(path).unwrap().mode() & 0o7777;
            assert_eq!((mode("/run/flexvol"), mode("/run/flexvol/volumes")), (0o700, 0o700));
            let records = sh("cat /run/flexvol/volumes/*; stat -c %a /run/flexvol/volumes/*");
            assert!(records.contains("the-volume") && records.trim().ends_with("600"), "{records}");
            for word in ["hunter2", "aHVudGVy", "annotation-text", "1Mi", "/run/srv/a", "a.img"] {
                assert!(!records.contains(word), "{word} in {records}");
            }
            node.unmount(driver, &target).success();
        }
    });
}
