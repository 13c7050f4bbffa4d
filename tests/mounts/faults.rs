//! System calls that fail: one reply, nothing left behind, and the next call works.
//!
//! strace makes the first, second, ... call of each kind in each process fail, until there is none of that
//! number. By default each gets two of the errors in turn; with `FULL=1` in the environment all of them.

use crate::support::{Answer, Node, eventually, has, isolated, mounts_at, processes, sh, skip};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;

const ERRORS: [&str; 6] = ["EIO", "ENOSPC", "EMFILE", "ENOMEM", "EBUSY", "EPERM"];

/// Those that change something or that a decision hangs on.
const CALLS: [&str; 28] = [
    "fsopen",
    "fsconfig",
    "fsmount",
    "move_mount",
    "open_tree",
    "mount_setattr",
    "statx",
    "umount2",
    "flock",
    "openat2",
    "ioctl",
    "fallocate",
    "ftruncate",
    "mkdirat",
    "fchmod",
    "fchown",
    "unlinkat",
    "clone",
    "pipe2",
    "fsync",
    "fsetxattr",
    "fgetxattr",
    "fremovexattr",
    "fstatfs",
    "mkdir",
    "ppoll",
    "prctl",
    "lseek",
];

/// One call whose system calls fail.
struct Scenario<'a> {
    node: &'a Node,
    driver: &'a str,
    verb: &'a str,
    target: &'a Path,
    options: Value,
    /// Brings about the state before the call.
    before: &'a dyn Fn(),
    /// Holds after a mount that succeeded.
    intact: &'a dyn Fn(),
    /// Holds after a mount that failed.
    undone: &'a dyn Fn(),
}

impl Scenario<'_> {
    /// The answer, and whether anything was made to fail.
    fn inject(&self, call: &str, error: &str, when: usize) -> (Answer, bool) {
        let plain = self.node.command(
            self.driver,
            self.verb,
            self.target,
            (self.verb == "mount").then_some(&self.options),
        );
        let mut traced = Command::new("strace");
        let inject = format!("inject={call}:error={error}:when={when}");
        traced.args([
            "-f",
            "-qq",
            "-o",
            "/run/trace",
            "-E",
            "LD_LIBRARY_PATH",
            "-e",
            &format!("trace={call}"),
            "-e",
            &inject,
        ]);
        let answer = self.node.call(traced.arg(plain.get_program()).args(plain.get_args()));
        (answer, fs::read_to_string("/run/trace").unwrap().contains("INJECTED"))
    }

    /// How many were tried, and how many of these the call reported as a failure.
    fn fail_each(&self, call: &str) -> (usize, usize) {
        let (mut tried, mut failed) = (0, 0);
        for when in 1.. {
            let mut hit = false;
            for (index, error) in ERRORS.into_iter().enumerate() {
                if std::env::var_os("FULL").is_none() && index % 3 != when % 3 {
                    continue;
                }
                (self.before)();
                let (answer, injected) = self.inject(call, error, when);
                let name = format!("{} {}, {call} {when} says {error}: {answer:?}", self.driver, self.verb);
                let settled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.settle(&answer)));
                assert!(settled.is_ok(), "{name}");
                hit |= injected;
                tried += usize::from(injected);
                failed += usize::from(injected && answer.status == "Failure");
            }
            if !hit {
                break;
            }
        }
        (tried, failed)
    }

    fn settle(&self, answer: &Answer) {
        let Self { node, driver, target, .. } = self;
        assert!(eventually(|| processes().is_empty()), "still running: {:?}", processes());
        let mounted = mounts_at(target).len();
        match (self.verb, answer.status.as_str()) {
            ("mount", "Success") => assert_eq!(mounted, 1),
            ("mount", "Failure") => {
                assert!(mounted == 0 && eventually(|| node.loops().is_empty()), "something is left");
                (self.undone)();
            }
            (_, "Success") => assert_eq!(mounted, 0),
            _ => assert_eq!(answer.status, "Failure"),
        }
        if self.verb == "mount" {
            node.mount(driver, target, &self.options).success();
            assert_eq!(mounts_at(target).len(), 1);
            (self.intact)();
        }
        node.unmount(driver, target).success();
        assert_eq!(fs::read_dir(target).map_or(0, Iterator::count), 0);
        node.assert_clean();
    }

    fn fail_all(&self) {
        let (mut tried, mut failed) = (0, 0);
        for call in CALLS {
            let (more, of_these) = self.fail_each(call);
            (tried, failed) = (tried + more, failed + of_these);
        }
        println!("NOTE {} {}: {tried} faults, {failed} of them failures", self.driver, self.verb);
        assert!(tried > 10 && failed > 5, "{tried} {failed}");
    }
}

fn with_strace(name: &str, body: impl FnOnce(&Node)) {
    isolated(name, |node| if has("strace") { body(node) } else { skip(name, "no strace") });
}

fn nothing() {}

#[test]
fn of_tmpfs() {
    with_strace("faults::of_tmpfs", |node| {
        let (options, target) = (json!({"size": "1Mi"}), &node.volume("tmpfs", "p"));
        let (driver, intact) = ("tmpfs", &nothing);
        Scenario { node, driver, verb: "mount", target, options, before: &nothing, intact, undone: &nothing }
            .fail_all();
    });
}

#[test]
fn of_bind() {
    with_strace("faults::of_bind", |node| {
        let target = &node.volume("bind", "p");
        let before = || drop(sh("rm -rf /run/srv/x; echo content > /run/srv/file"));
        let made = json!({"source": "/run/srv/x/y", "create": "true", "mode": "0700", "uid": "3"});
        for options in [made, json!({"source": "/run/srv/file"})] {
            let (driver, intact) = ("bind", &nothing);
            let undone = &|| assert!(!Path::new("/run/srv/x").exists(), "the source is left");
            Scenario { node, driver, verb: "mount", target, options, before: &before, intact, undone }
                .fail_all();
            assert_eq!(fs::read_to_string("/run/srv/file").unwrap(), "content\n");
        }
    });
}

#[test]
fn of_new_images() {
    with_strace("faults::of_new_images", |node| {
        let target = &node.volume("image", "p");
        let before = || drop(sh("rm -rf /run/img/d"));
        let options = json!({"file": "d/a", "size": "1Mi", "allocation": "full"});
        let (driver, intact) = ("image", &nothing);
        // An image that could not be locked may be another pod's by now: it stays, empty.
        let undone =
            &|| assert!(fs::metadata("/run/img/d/a").map_or(0, |file| file.len()) == 0, "the image is left");
        Scenario { node, driver, verb: "mount", target, options, before: &before, intact, undone }.fail_all();
    });
}

#[test]
fn of_images_with_data() {
    with_strace("faults::of_images_with_data", |node| {
        let target = &node.volume("image", "p");
        let options = json!({"file": "a", "size": "2Mi"});
        node.mount("image", target, &options).success();
        fs::write(target.join("data"), "precious").unwrap();
        node.unmount("image", target).success();
        let intact = &|| assert_eq!(fs::read_to_string(target.join("data")).unwrap(), "precious");
        Scenario {
            node,
            driver: "image",
            verb: "mount",
            target,
            options,
            before: &nothing,
            intact,
            undone: &nothing,
        }
        .fail_all();
        sh("e2fsck -fn /run/img/a");
    });
}

#[test]
fn of_unmounts() {
    with_strace("faults::of_unmounts", |node| {
        sh("echo content > /run/srv/file");
        let image = json!({"file": "a", "size": "2Mi"});
        for (driver, options) in
            [("tmpfs", json!({})), ("bind", json!({"source": "/run/srv/file"})), ("image", image)]
        {
            let target = &node.volume(driver, "p");
            let before = || drop(node.mount(driver, target, &options).success());
            let options = options.clone();
            Scenario {
                node,
                driver,
                verb: "unmount",
                target,
                options,
                before: &before,
                intact: &nothing,
                undone: &nothing,
            }
            .fail_all();
        }
    });
}

/// A helper that is killed is a failure like any other.
#[test]
fn of_helpers() {
    with_strace("faults::of_helpers", |node| {
        let target = node.volume("image", "p");
        for (tool, options) in
            [("mkfs.ext4", json!({"file": "a", "size": "2Mi"})), ("e2fsck", json!({"file": "b"}))]
        {
            sh("rm -f /run/img/*; truncate -s 2M /run/img/b; mkfs.ext4 -q /run/img/b");
            for signal in ["KILL", "TERM", "SEGV"] {
                let plain = node.command("image", "mount", &target, Some(&options));
                let mut traced = Command::new("strace");
                traced.args(["-f", "-qq", "-o", "/dev/null", "-E", "LD_LIBRARY_PATH"]);
                // Both write to the device, and nobody else writes there with pwrite64.
                traced.args(["-e", &format!("inject=pwrite64:signal={signal}:when=1")]);
                node.call(traced.arg(plain.get_program()).args(plain.get_args())).failure(&[tool]);
                assert!(mounts_at(&target).is_empty() && eventually(|| node.loops().is_empty()));
                node.mount("image", &target, &options).success();
                node.unmount("image", &target).success();
                node.assert_clean();
                sh("rm -f /run/img/a; debugfs -w -R 'ssv state 2' /run/img/b 2>&1");
            }
        }
    });
}
