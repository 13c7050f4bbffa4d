//! SIGKILL between any two system calls of a call, then what kubelet does next.
//!
//! By default the points are sampled evenly; with `FULL=1` in the environment every one is tried.

use crate::support::tracer::{self, Victim};
use crate::support::{Node, eventually, isolated, mounts_at, processes, sh};
use serde_json::{Value, json};
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How many points of one scenario are tried by default.
const SAMPLE: usize = 40;

const VICTIMS: [Victim; 3] = [Victim::Worker, Victim::Both, Victim::Supervisor];

/// One call to be killed, and what surrounds it.
struct Scenario<'a> {
    node: &'a Node,
    driver: &'a str,
    verb: &'a str,
    target: PathBuf,
    options: Value,
    /// Brings about the state before the call.
    before: &'a dyn Fn(),
    /// Holds after a mount that succeeded.
    intact: &'a dyn Fn(&Path),
    /// Whether kubelet's next call is an unmount: every other time.
    unmount_first: Cell<bool>,
}

impl Scenario<'_> {
    fn command(&self) -> Command {
        let options = (self.verb == "mount").then_some(&self.options);
        self.node.command(self.driver, self.verb, &self.target, options)
    }

    /// What kubelet does after a call it got no answer to, in both orders; then nothing may be left.
    fn settle(&self) {
        let Self { node, driver, target, options, .. } = self;
        let wait = || assert!(eventually(|| processes().is_empty()), "still running: {:?}", processes());
        if self.unmount_first.replace(!self.unmount_first.get()) {
            node.unmount(driver, target).success();
            wait();
            assert!(mounts_at(target).is_empty(), "mounted after a killed {}", self.verb);
            node.assert_clean();
        }
        node.mount(driver, target, options).success();
        assert_eq!(mounts_at(target).len(), 1);
        (self.intact)(target);
        node.unmount(driver, target).success();
        wait();
        assert_eq!(fs::read_dir(target).map_or(0, Iterator::count), 0);
        node.assert_clean();
    }

    /// Tries every point, or a sample.
    fn kill_everywhere(&self, name: &str) {
        (self.before)();
        let length = tracer::kill_at(&self.command(), usize::MAX, Victim::Both);
        self.settle();
        let step = if std::env::var_os("FULL").is_some() { 1 } else { length.div_ceil(SAMPLE) };
        let mut tried = 0;
        for (index, victim) in VICTIMS.into_iter().enumerate() {
            for point in (1..=length).skip(index * step / VICTIMS.len()).step_by(step) {
                (self.before)();
                tracer::kill_at(&self.command(), point, victim);
                let settled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.settle()));
                assert!(settled.is_ok(), "{name}: after SIGKILL of {victim:?} before system call {point}");
                tried += 1;
            }
        }
        println!("NOTE {name}: {tried} points, {length} system calls");
        assert!(tried >= length.min(SAMPLE), "{name}: {tried} points");
    }
}

fn nothing() {}

fn any(_: &Path) {}

#[test]
fn tmpfs_mount() {
    isolated("crash::tmpfs_mount", |node| {
        let options = json!({"size": "1Mi"});
        let target = node.volume("tmpfs", "p");
        let case = Scenario {
            node,
            driver: "tmpfs",
            verb: "mount",
            target,
            options,
            before: &nothing,
            intact: &any,
            unmount_first: Cell::new(true),
        };
        case.kill_everywhere("tmpfs mount");
    });
}

#[test]
fn bind_mount() {
    isolated("crash::bind_mount", |node| {
        let made = |_: &Path| {
            let made = fs::metadata("/run/srv/x/y").unwrap();
            assert_eq!((made.mode() & 0o7777, made.uid(), made.gid()), (0o2770, 7, 8));
        };
        let options =
            json!({"source": "/run/srv/x/y", "create": "true", "mode": "2770", "uid": "7", "gid": "8"});
        let before = || drop(sh("rm -rf /run/srv/x"));
        let target = node.volume("bind", "p");
        let case = Scenario {
            node,
            driver: "bind",
            verb: "mount",
            target,
            options,
            before: &before,
            intact: &made,
            unmount_first: Cell::new(true),
        };
        case.kill_everywhere("bind mount");
    });
}

#[test]
fn bind_of_a_file() {
    isolated("crash::bind_of_a_file", |node| {
        let options = json!({"source": "/run/srv/file"});
        fs::write("/run/srv/file", "content").unwrap();
        let seen = |target: &Path| assert_eq!(fs::read_to_string(target).unwrap(), "content");
        let target = node.volume("bind", "p");
        let case = Scenario {
            node,
            driver: "bind",
            verb: "mount",
            target,
            options,
            before: &nothing,
            intact: &seen,
            unmount_first: Cell::new(true),
        };
        case.kill_everywhere("bind mount of a file");
        assert_eq!(fs::read_to_string("/run/srv/file").unwrap(), "content");
    });
}

#[test]
fn first_image_mount() {
    isolated("crash::first_image_mount", |node| {
        let options = json!({"file": "d/a", "size": "2Mi"});
        let before = || drop(sh("rm -rf /run/img/d"));
        let target = node.volume("image", "p");
        let case = Scenario {
            node,
            driver: "image",
            verb: "mount",
            target,
            options,
            before: &before,
            intact: &any,
            unmount_first: Cell::new(true),
        };
        case.kill_everywhere("image mount that makes the file");
        sh("e2fsck -fn /run/img/d/a");
    });
}

#[test]
fn second_image_mount() {
    isolated("crash::second_image_mount", |node| {
        let options = json!({"file": "a", "size": "2Mi"});
        let target = node.volume("image", "p");
        node.mount("image", &target, &options).success();
        fs::write(target.join("data"), "precious").unwrap();
        node.unmount("image", &target).success();
        let kept = |target: &Path| assert_eq!(fs::read_to_string(target.join("data")).unwrap(), "precious");
        let case = Scenario {
            node,
            driver: "image",
            verb: "mount",
            target,
            options,
            before: &nothing,
            intact: &kept,
            unmount_first: Cell::new(true),
        };
        case.kill_everywhere("image mount of existing data");
        sh("e2fsck -fn /run/img/a");
    });
}

/// Another pod uses the file all the while and must notice nothing.
#[test]
fn beside_another_pod() {
    isolated("crash::beside_another_pod", |node| {
        let options = json!({"file": "a", "size": "2Mi"});
        let other = node.volume("image", "other");
        node.mount("image", &other, &options).success();
        let with_other = Node::of(&node.root).sharing(1, 1);
        let shared = |target: &Path| {
            fs::write(other.join("data"), "by the other").unwrap();
            assert_eq!(fs::read_to_string(target.join("data")).unwrap(), "by the other");
            assert_eq!(node.loops().len(), 1);
        };
        for verb in ["mount", "unmount"] {
            let target = node.volume("image", "p");
            let before = || {
                if verb == "unmount" {
                    drop(node.mount("image", &target, &options).success());
                }
            };
            let case = Scenario {
                node: &with_other,
                driver: "image",
                verb,
                target: target.clone(),
                options: options.clone(),
                before: &before,
                intact: &shared,
                unmount_first: Cell::new(true),
            };
            case.kill_everywhere(&format!("image {verb} beside another pod"));
        }
        node.unmount("image", &other).success();
    });
}

#[test]
fn unmounts() {
    isolated("crash::unmounts", |node| {
        fs::write("/run/srv/file", "content").unwrap();
        let image = json!({"file": "a", "size": "2Mi"});
        let all = [("tmpfs", json!({})), ("bind", json!({"source": "/run/srv/file"})), ("image", image)];
        for (driver, options) in all {
            let target = node.volume(driver, "p");
            let before = || drop(node.mount(driver, &target, &options).success());
            let (target, options) = (target.clone(), options.clone());
            let case = Scenario {
                node,
                driver,
                verb: "unmount",
                target,
                options,
                before: &before,
                intact: &any,
                unmount_first: Cell::new(true),
            };
            case.kill_everywhere(&format!("{driver} unmount"));
        }
    });
}
