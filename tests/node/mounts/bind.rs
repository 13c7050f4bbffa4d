//! The bind driver: what may be a source, and what the mount shows.

use crate::support::pace::deadline;
use crate::support::{isolated, mounts_at, sh};
use flexvol::mount_options::MountFlags;
use flexvol::plan::Propagation;
use flexvol::protocol::TargetPath;
use flexvol::sys::mount::place::Place;
use flexvol::sys::mount::{self, BindMount, NewMount, Way};
use serde_json::json;
use std::fs;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.err().and_then(|error| error.raw_os_error())
}

/// A pod that is shown a root may lock(2) it, and everything in it.
#[test]
fn who_may_read_a_root_cannot_hold_up_its_binds() {
    isolated("bind::who_may_read_a_root_cannot_hold_up_its_binds", |node| {
        sh("mkdir -p /run/srv/here");
        let held = ["/run/srv", "/run/srv/here"].map(|path| fs::File::open(path).unwrap());
        for file in &held {
            rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
        }
        for (name, create) in [("here", "false"), ("made/by/us", "true")] {
            let target = node.volume("bind", "p");
            let options = json!({"source": format!("/run/srv/{name}"), "create": create});
            let answer = node.mount("bind", &target, &options).success();
            assert!(answer.took < deadline(20), "{name}: {:?}", answer.took);
            node.unmount("bind", &target).success();
        }
    });
}

#[test]
fn sources_that_are_refused() {
    isolated("bind::sources_that_are_refused", |node| {
        sh("mkdir -p /run/outside/dir /run/srv/real/dir; ln -s /run/outside /run/srv/out; ln -s real /run/srv/in; ln -s . /run/srv/dot
            ln -s /run/srv/out/dir /run/srv/real/deep; mkfifo /run/srv/fifo; mknod /run/srv/disk b 7 200; mknod /run/srv/null c 1 3
            python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/run/srv/socket\")' || :; mkdir /run/srv-sibling");
        let target = node.volume("bind", "p");
        let bad = [
            "out",
            "out/dir",
            "in",
            "in/dir",
            "dot/real",
            "real/deep",
            "fifo",
            "disk",
            "null",
            "socket",
            "none",
            "../outside",
            "real/../real",
            "real/../../outside",
            "../srv-sibling",
        ];
        for name in bad {
            for create in ["false", "true"] {
                if name == "none" && create == "true" {
                    continue;
                }
                let source = format!("/run/srv/{name}");
                let answer =
                    node.mount("bind", &target, &json!({"source": source, "create": create})).failure(&[]);
                assert!(answer.took < deadline(20), "{name}");
            }
        }
        for source in
            ["/", "/etc", "/run", "/run/outside", "/run/srv-sibling", "srv", "", "/run/srv\0/real", "//etc"]
        {
            node.mount("bind", &target, &json!({"source": source})).failure(&[]);
        }
        for sub in ["..", "../outside", "/etc", "in", "real/deep", "./real", ""] {
            let answer = node.mount("bind", &target, &json!({"source": "/run/srv", "subPath": sub}));
            assert_eq!(answer.status == "Success", sub.is_empty(), "{sub} {answer:?}");
            node.unmount("bind", &target).success();
        }
        assert_eq!(sh("cd /run/outside; find . | sort"), ".\n./dir\n");
        node.install("bind", json!({"policy": {}}));
        node.mount("bind", &target, &json!({"source": "/run/srv/real"})).failure(&["policy.bindRoots"]);
    });
}

/// A pod with write access to the source's parent swaps a directory and a symlink to the node's own
/// files as fast as it can.
#[test]
fn a_symlink_swapped_in_by_a_pod() {
    isolated("bind::a_symlink_swapped_in_by_a_pod", |node| {
        sh(
            "mkdir -p /run/outside/dir /run/srv/a/b/dir; touch /run/outside/secret /run/outside/dir/secret; ln -s /run/outside /run/srv/a/link",
        );
        let (stop, start) = (AtomicBool::new(false), Instant::now());
        let swap = || {
            let exchange = rustix::fs::RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(
                rustix::fs::CWD,
                "/run/srv/a/b",
                rustix::fs::CWD,
                "/run/srv/a/link",
                exchange,
            )
            .unwrap();
        };
        let (mut mounted, mut refused) = (0, 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    swap();
                }
            });
            for round in 0..3000 {
                let has_raced = mounted > 50 && refused > 50;
                if start.elapsed() > if has_raced { Duration::from_secs(12) } else { deadline(90) } {
                    break;
                }
                let target = node.volume("bind", "p");
                let options = match round % 3 {
                    0 => json!({"source": "/run/srv/a/b/dir"}),
                    1 => json!({"source": "/run/srv/a/b"}),
                    _ => json!({"source": format!("/run/srv/a/b/new{round}"), "create": "true"}),
                };
                let answer = node.mount("bind", &target, &options);
                let escaped = target.join("secret").exists()
                    || mounts_at(&target).iter().any(|line| line.contains("/outside"));
                if escaped {
                    stop.store(true, Ordering::Relaxed);
                    panic!("round {round}: out of the root: {answer:?}");
                }
                if answer.status == "Success" {
                    mounted += 1;
                } else {
                    refused += 1;
                }
                node.unmount("bind", &target).success();
            }
            stop.store(true, Ordering::Relaxed);
        });
        println!("NOTE swapped symlinks: {mounted} mounted, {refused} refused");
        assert!(mounted > 50 && refused > 50, "no race: {mounted} {refused}");
        assert_eq!(sh("cd /run/outside; find . | sort"), ".\n./dir\n./dir/secret\n./secret\n");
    });
}

#[test]
fn files() {
    isolated("bind::files", |node| {
        fs::write("/run/srv/file", "content").unwrap();
        let target = node.volume("bind", "p");
        for _ in 0..2 {
            for _ in 0..3 {
                node.mount("bind", &target, &json!({"source": "/run/srv/file"})).success();
            }
            assert!(target.is_file() && mounts_at(&target).len() == 1);
            fs::write(&target, "written").unwrap();
            assert_eq!(fs::read_to_string("/run/srv/file").unwrap(), "written");
            node.unmount("bind", &target).success();
            assert!(!target.exists());
            assert_eq!(fs::read_dir(target.parent().unwrap()).unwrap().count(), 0);
        }
        let read_only = json!({"source": "/run/srv/file", "kubernetes.io/readwrite": "ro"});
        node.volume("bind", "p");
        node.mount("bind", &target, &read_only).success();
        assert_eq!(errno(fs::write(&target, "x")), Some(30));
        node.unmount("bind", &target).success();
        // A directory that holds something cannot become a file, and stays.
        node.volume("bind", "p");
        fs::write(target.join("f"), "kept").unwrap();
        node.mount("bind", &target, &json!({"source": "/run/srv/file"})).failure(&[]);
        assert_eq!(fs::read_to_string(target.join("f")).unwrap(), "kept");
        fs::remove_file(target.join("f")).unwrap();
        node.unmount("bind", &target).success();
    });
}

/// A file server with root squashed says no to whoever wants to make what is there.
#[test]
fn what_is_there_is_not_made() {
    isolated("bind::what_is_there_is_not_made", |node| {
        let target = node.volume("bind", "p");
        sh("mkdir -p /run/srv/here/sub");
        let mount = |source: &str| {
            let options = json!({"source": source, "create": "true"});
            let plain = node.command("bind", "mount", &target, Some(&options));
            let mut refused = std::process::Command::new("strace");
            refused.args(["-f", "-qq", "-o", "/run/trace", "-e", "inject=mkdirat:error=EACCES"]);
            node.call(refused.arg(plain.get_program()).args(plain.get_args()))
        };
        mount("/run/srv/here/sub").success();
        node.unmount("bind", &target).success();
        mount("/run/srv/here/new").failure(&["make", "here/new", "Permission denied"]);
    });
}

#[test]
fn created_sources() {
    isolated("bind::created_sources", |node| {
        let target = node.volume("bind", "p");
        let meta = |path: &str| {
            fs::metadata(path).map(|meta| (meta.mode() & 0o7777, meta.uid(), meta.gid())).unwrap()
        };
        node.mount("bind", &target, &json!({"source": "/run/srv/a/b"})).failure(&["does not exist"]);
        let options = json!({"source": "/run/srv/a/b", "create": "true", "mode": "2770", "uid": "5",
            "kubernetes.io/mounterArgs.FsGroup": "6"});
        node.mount("bind", &target, &options).success();
        assert_eq!((meta("/run/srv/a"), meta("/run/srv/a/b")), ((0o755, 0, 0), (0o2770, 5, 6)));
        node.unmount("bind", &target).success();
        sh("chown 9:9 /run/srv/a/b; chmod 00700 /run/srv/a/b");
        node.mount("bind", &target, &options).success();
        assert_eq!(meta("/run/srv/a/b"), (0o700, 9, 9), "what exists is left as it is");
        node.unmount("bind", &target).success();
        let failing = json!({"source": "/run/srv/new/er", "create": "true", "mountOptions": "commit=5"});
        node.mount("bind", &target, &failing).failure(&["commit"]);
        fs::remove_dir(&target).unwrap();
        std::os::unix::fs::symlink("/run", &target).unwrap();
        node.mount("bind", &target, &json!({"source": "/run/srv/new/er", "create": "true"})).failure(&[]);
        assert!(!Path::new("/run/srv/new").exists());
        fs::remove_file(&target).unwrap();
    });
}

#[test]
fn read_only_and_its_source() {
    isolated("bind::read_only_and_its_source", |node| {
        sh(
            "mkdir /run/srv/ro /run/srv/rw; mount -t tmpfs x /run/srv/ro; mkdir /run/srv/ro/sub; mount -o remount,ro /run/srv/ro",
        );
        let target = node.volume("bind", "p");
        for source in ["/run/srv/ro", "/run/srv/ro/sub"] {
            node.mount("bind", &target, &json!({"source": source})).failure(&["read-only", "readOnly: true"]);
            node.mount("bind", &target, &json!({"source": source, "kubernetes.io/readwrite": "ro"}))
                .success();
            node.unmount("bind", &target).success();
        }
        node.mount("bind", &target, &json!({"source": "/run/srv/rw", "kubernetes.io/readwrite": "ro"}))
            .success();
        assert_eq!(errno(fs::write(target.join("f"), "")), Some(30));
        fs::write("/run/srv/rw/f", "").unwrap();
        node.unmount("bind", &target).success();
        sh("umount /run/srv/ro");
    });
}

#[test]
fn recursion_and_propagation() {
    isolated("bind::recursion_and_propagation", |node| {
        let shared = json!({"source": "/run/srv", "propagation": "rshared"});
        node.mount("bind", &node.volume("bind", "p"), &shared).failure(&["policy.allowShared"]);
        node.install("bind", json!({"policy": {"bindRoots": ["/run/srv"], "allowShared": true}}));
        for shared_parent in [false, true] {
            sh(
                "mkdir -p /run/srv/a/sub; mount --bind /run/srv /run/srv; mount --make-shared /run/srv; mount -t tmpfs x /run/srv/a/sub; touch /run/srv/a/sub/seen",
            );
            if shared_parent {
                sh("mount --bind /run/k /run/k; mount --make-shared /run/k");
            }
            let target = node.volume("bind", "p");
            for (recursive, there) in [("false", false), ("true", true)] {
                let options =
                    json!({"source": "/run/srv/a", "recursive": recursive, "kubernetes.io/readwrite": "ro"});
                node.mount("bind", &target, &options).success();
                assert_eq!(target.join("sub/seen").exists(), there);
                assert_eq!(
                    errno(fs::write(target.join("sub/new"), "")),
                    Some(30),
                    "read-only all the way down"
                );
                node.unmount("bind", &target).success();
            }
            for (kind, from_node, to_node) in
                [("private", false, false), ("rslave", true, false), ("rshared", true, true)]
            {
                let options = json!({"source": "/run/srv/a", "propagation": kind});
                node.mount("bind", &target, &options).success();
                sh(&format!("mkdir -p /run/srv/a/late /run/srv/a/pod; mount -t tmpfs x /run/srv/a/late; touch /run/srv/a/late/f
                    mount -t tmpfs x {0}/pod; touch {0}/pod/f", target.display()));
                let seen = (target.join("late/f").exists(), Path::new("/run/srv/a/pod/f").exists());
                assert_eq!(seen, (from_node, to_node), "{kind}, parent shared: {shared_parent}");
                let flag = mounts_at(&target)[0].split(" - ").next().unwrap().to_owned();
                assert_eq!(flag.contains("master:"), kind == "rslave", "{kind}: {flag}");
                sh("umount /run/srv/a/late");
                node.unmount("bind", &target).success();
                assert!(mounts_at(Path::new("/run/srv/a/pod")).is_empty());
            }
            sh("umount /run/srv/a/sub; umount /run/srv; rm -rf /run/srv/a");
            if shared_parent {
                sh("umount /run/k");
            }
            node.assert_clean();
        }
    });
}

/// Both of the kernel's ways, through the library: the same result, and never through a symlink at
/// the target.
#[test]
fn both_ways_of_mounting() {
    isolated("bind::both_ways_of_mounting", |node| {
        fs::create_dir("/run/srv/a").unwrap();
        let target = node.volume("bind", "p");
        let path = TargetPath::parse(target.as_os_str()).unwrap();
        let source = fs::File::open("/run/srv/a").unwrap();
        let strict = MountFlags { read_only: true, exec: false, ..MountFlags::DEFAULT };
        let mut seen = Vec::new();
        for way in [Way::Detached, Way::Classic] {
            let place = Place::open(&path).unwrap().unwrap();
            for flags in [MountFlags::DEFAULT, strict] {
                let what = BindMount {
                    source: source.as_fd(),
                    recursive: false,
                    flags,
                    propagation: Propagation::Private,
                    lift: false,
                };
                let id = mount::bind(&what, &place, way).unwrap();
                let line = mounts_at(&target).remove(0);
                assert!(line.starts_with(&format!("{id} ")));
                seen.push(line.split(' ').skip(5).collect::<Vec<_>>().join(" "));
                mount::unmount(&place, false).unwrap();
                let size = |value| [mount::Parameter { key: "size", value: mount::Value::Text(value) }];
                let new = NewMount {
                    file_system: "tmpfs",
                    source: "name",
                    flags,
                    superblock_read_only: false,
                    options: &size("1m"),
                };
                mount::mount(&new, &place, way).unwrap();
                assert!(mounts_at(&target)[0].contains("size=1024k"));
                seen.push(mounts_at(&target)[0].split(' ').nth(5).unwrap().to_owned());
                mount::unmount(&place, false).unwrap();
                mount::mount(&NewMount { options: &size("nonsense"), ..new }, &place, way).unwrap_err();
                assert!(mounts_at(&target).is_empty());
            }
            fs::remove_dir(&target).unwrap();
            std::os::unix::fs::symlink("/run/srv", &target).unwrap();
            let what = BindMount {
                source: source.as_fd(),
                recursive: false,
                flags: strict,
                propagation: Propagation::Private,
                lift: false,
            };
            assert!(mount::bind(&what, &place, way).is_err(), "{way:?} through a symlink");
            assert!(mounts_at(Path::new("/run/srv")).is_empty());
            fs::remove_file(&target).unwrap();
            node.volume("bind", "p");
        }
        let (detached, classic) = seen.split_at(seen.len() / 2);
        assert_eq!(detached, classic);
    });
}

/// What the admin mounted with noexec and the like is shown so, in both ways.
#[test]
fn flags_of_the_source_stay() {
    isolated("bind::flags_of_the_source_stay", |node| {
        sh("mkdir /run/srv/a; mount -t tmpfs -o noexec,nosuid,nodev,nodiratime x /run/srv/a");
        let target = node.volume("bind", "p");
        let place = Place::open(&TargetPath::parse(target.as_os_str()).unwrap()).unwrap().unwrap();
        let source = fs::File::open("/run/srv/a").unwrap();
        let flags = MountFlags { suid: true, dev: true, ..MountFlags::DEFAULT };
        for way in [Way::Detached, Way::Classic] {
            let what = BindMount {
                source: source.as_fd(),
                recursive: false,
                flags,
                propagation: Propagation::Private,
                lift: false,
            };
            mount::bind(&what, &place, way).unwrap();
            let line = mounts_at(&target).remove(0);
            let words: Vec<_> = line.split(' ').nth(5).unwrap().split(',').collect();
            assert!(
                ["noexec", "nosuid", "nodev", "nodiratime"].iter().all(|word| words.contains(word)),
                "{way:?}: {line}"
            );
            mount::unmount(&place, false).unwrap();
        }
        drop(source);
        sh("umount /run/srv/a");
    });
}
