//! A process that swaps a directory for a symlink, as fast as it can, while a driver works on a
//! path through it: each component in turn. Whatever the driver answers, nothing outside is
//! touched, shown, mounted on or unmounted.

use crate::support::{Node, isolated, mounts, mounts_at, sh};
use crate::trust::{Report, is_full};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// With `FULL=1`, of all components of a path together.
const ROUNDS: u32 = 10_000;

/// How often each of so many components is tried; in the gate, so often.
fn rounds(gate: u32, components: usize) -> u32 {
    if is_full() { ROUNDS.div_ceil(u32::try_from(components).unwrap()) } else { gate }
}

/// What the attacker would like to be used: the same names as inside, and a mount that could be
/// unmounted.
const OUTSIDE: &str = "/run/outside";

/// A node with an outside, for as long as the test takes.
fn beside_outside(name: &str, body: impl FnOnce(&Node)) {
    isolated(name, |node| {
        make_outside();
        body(node);
        sh("cd /run/outside; umount vol volumes/example~tmpfs/vol example~tmpfs/vol");
    });
}

fn make_outside() {
    sh("mkdir -p /run/outside; cd /run/outside; mkdir -p a/b/c b/c c volumes/example~bind/vol example~bind/vol vol x upper work
        for driver in tmpfs overlay; do mkdir -p volumes/example~$driver/vol example~$driver/vol; done; mkdir -p 7/volumes
        for at in . a a/b a/b/c b b/c c x vol; do echo secret >$at/secret; done; echo kept >tmpfs; echo kept >.flexvol.json
        mount -t tmpfs victim example~tmpfs/vol; mount -t tmpfs victim volumes/example~tmpfs/vol; mount -t tmpfs victim vol");
}

/// Every file of it, with whatever a change of it would change, and every mount in it.
fn outside() -> String {
    let files = sh(
        "cd /run/outside; find . -xdev ! -type d -printf '%p %i %s %m %U %T@\\n' -o -printf '%p %i %m %U %T@\\n' | sort",
    );
    let inside: Vec<_> = mounts().into_iter().filter(|line| line.contains(" /run/outside")).collect();
    format!("{files}{}", inside.join("\n"))
}

/// Somebody who swaps a component for a symlink to the outside and back.
struct Attacker<'a> {
    component: &'a Path,
    /// Whether it is swapped at the moment.
    swapped: Mutex<bool>,
    stop: AtomicBool,
}

impl Attacker<'_> {
    fn swap(&self) {
        let mut swapped = self.swapped.lock().unwrap();
        let link = self.component.with_file_name("link");
        *swapped ^= renameat_with(CWD, self.component, CWD, &link, RenameFlags::EXCHANGE).is_ok();
    }

    fn attack(&self) {
        while !self.stop.load(Ordering::Relaxed) {
            // It may be gone for a moment, as in an installation.
            self.swap();
            std::thread::sleep(Duration::from_micros(fastrand::u64(..150)));
        }
    }

    /// Does something while everything is as it should be, given what had to be unmounted for that:
    /// a directory that was swapped away in the moment in which something was mounted on it.
    fn in_peace(&self, work: impl FnOnce(Vec<String>)) {
        let mut swapped = self.swapped.lock().unwrap();
        let mut strays = Vec::new();
        if *swapped {
            let link = self.component.with_file_name("link");
            let back = || renameat_with(CWD, self.component, CWD, &link, RenameFlags::EXCHANGE);
            let first = back();
            if first == Err(Errno::BUSY) {
                strays = mounts_at(&link);
                sh(&format!("umount {}", link.display()));
                back().unwrap();
            } else {
                first.unwrap();
            }
            *swapped = false;
        }
        work(strays);
    }
}

/// Rounds under attack, and how many of them came to their end.
struct Sum {
    rounds: u32,
    done: u32,
}

/// `round` says whether it came to its end; what it leaves is its own to remove, in peace.
fn under_attack(component: &Path, rounds: u32, mut round: impl FnMut(&Attacker<'_>) -> bool) -> Sum {
    let link = component.with_file_name("link");
    symlink(OUTSIDE, &link).unwrap();
    let attacker = Attacker { component, swapped: Mutex::new(false), stop: AtomicBool::new(false) };
    let before = outside();
    let done = std::thread::scope(|scope| {
        scope.spawn(|| attacker.attack());
        // Also after a panic: the scope waits.
        let _stop = Stop(&attacker.stop);
        (0..rounds).filter(|_| round(&attacker)).count()
    });
    attacker.in_peace(|strays| assert!(strays.is_empty(), "{strays:?}"));
    assert_eq!(outside(), before, "something outside was changed by way of {}", component.display());
    fs::remove_file(&link).unwrap();
    Sum { rounds, done: u32::try_from(done).unwrap() }
}

struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Mounts and unmounts under attack; what is shown is never what is outside.
fn mounted_and_unmounted(
    node: &Node,
    driver: &str,
    target: &Path,
    options: &Value,
    attacker: &Attacker<'_>,
) -> bool {
    let answer = node.mount(driver, target, options);
    let mut shown = Vec::new();
    attacker.in_peace(|strays| {
        assert!(strays.is_empty() || answer.message.contains("left behind"), "{answer:?}: {strays:?}");
        shown = mounts_at(target);
        let escaped = target.join("secret").exists() || shown.iter().any(|line| line.contains("/outside"));
        assert!(!escaped, "out of the root: {answer:?}: {shown:?}");
        // What could not be taken back, because the way to it was gone, is at least said.
        let told = answer.status == "Success" || answer.message.contains("left behind");
        assert!(told || shown.is_empty(), "{answer:?}: {shown:?}");
        assert!(!shown.is_empty() || answer.status != "Success", "{answer:?}");
    });
    node.unmount(driver, target);
    attacker.in_peace(|strays| {
        assert!(strays.is_empty(), "{strays:?}");
        node.unmount(driver, target).success();
        fs::create_dir_all(target).unwrap();
    });
    answer.status == "Success"
}

fn report(driver: &str, what: &str, sums: &[Sum]) {
    let rounds: u32 = sums.iter().map(|sum| sum.rounds).sum();
    let done: u32 = sums.iter().map(|sum| sum.done).sum();
    println!("NOTE swaps {driver} {what}: {done} of {rounds} came to their end");
    // Whoever finds something outside changed has ended the test by now.
    let mut report = Report::begin("swaps", driver, what, sums.len());
    (0..rounds).for_each(|_| report.tried(None));
    report.end();
    assert!(!is_full() || done > 0 && done < rounds, "no race: {done} of {rounds}");
}

/// Each component of a source, the last one included.
fn sources(node: &Node, driver: &str, options: &dyn Fn(&str) -> Value, gate: u32) -> Vec<Sum> {
    let below = |root: &str| ["a", "a/b", "a/b/c"].map(|name| Path::new(root).join(name));
    let target = node.volume(driver, "p");
    let components = below("/run/srv");
    let rounds = rounds(gate, components.len());
    let attacked = components.into_iter().map(|component| {
        under_attack(&component, rounds, |attacker| {
            mounted_and_unmounted(node, driver, &target, &options("/run/srv/a/b/c"), attacker)
        })
    });
    attacked.collect()
}

#[test]
fn sources_of_binds() {
    beside_outside("swaps::sources_of_binds", |node| {
        sh("mkdir -p /run/srv/a/b/c");
        let plain = |source: &str| json!({"source": source});
        report("bind", "source", &sources(node, "bind", &plain, 15));
    });
}

#[test]
fn sources_that_are_made() {
    beside_outside("swaps::sources_that_are_made", |node| {
        sh("mkdir -p /run/srv/a/b/c");
        let below = |source: &str| json!({"source": source, "subPath": "x/y", "create": "true"});
        report("bind", "create", &sources(node, "bind", &below, 8));
    });
}

#[test]
fn layers_of_overlays() {
    beside_outside("swaps::layers_of_overlays", |node| {
        node.install("overlay", json!({}));
        sh("mkdir -p /run/srv/a/b/c /run/srv/low");
        let lower = |source: &str| json!({"lower": source});
        report("overlay", "lower", &sources(node, "overlay", &lower, 8));
        let upper = |source: &str| json!({"lower": "/run/srv/low", "upper": source});
        report("overlay", "upper", &sources(node, "overlay", &upper, 8));
    });
}

#[test]
fn files_of_images() {
    beside_outside("swaps::files_of_images", |node| {
        sh("mkdir -p /run/srv/a/b/c; truncate -s 8M /run/srv/a/b/c/disk; mkfs.ext4 -q /run/srv/a/b/c/disk
            truncate -s 8M /run/outside/a/disk; mkdir /run/content; echo secret >/run/content/secret
            mkfs.ext4 -q -d /run/content /run/outside/a/disk
            for at in a/b a/b/c b b/c c; do cp --sparse=always /run/outside/a/disk /run/outside/$at/disk; done");
        node.install("image", json!({"policy": {"imageRoots": ["/run/srv"]}}));
        let there = |source: &str| json!({"file": format!("{source}/disk"), "fsType": "ext4"});
        report("image", "file", &sources(node, "image", &there, 6));
    });
}

/// What is mounted below kubelet's directory stays there, and what is unmounted is nothing else.
#[test]
fn targets() {
    beside_outside("swaps::targets", |node| {
        sh("mkdir -p /run/srv/a/b/c");
        for (driver, options) in
            [("tmpfs", json!({"size": "1Mi"})), ("bind", json!({"source": "/run/srv/a"}))]
        {
            let target = node.volume(driver, "7");
            let attacked: Vec<_> = target.ancestors().take_while(|path| *path != node.root).collect();
            let rounds = rounds(8, attacked.len());
            let sums = attacked.into_iter().map(|component| {
                under_attack(component, rounds, |attacker| {
                    mounted_and_unmounted(node, driver, &target, &options, attacker)
                })
            });
            let sums: Vec<_> = sums.collect();
            report(driver, "target", &sums);
        }
    });
}

/// The directory of a driver, while it is installed and removed.
#[test]
fn plugin_directories() {
    beside_outside("swaps::plugin_directories", |node| {
        let component = Path::new("/run/plugins2/example~tmpfs");
        // The release, which installs itself, is a tenth of the other.
        let program = std::env::var_os("FLEXVOL_RELEASE").unwrap_or(env!("CARGO_BIN_EXE_flexvol").into());
        let flexvol = |verb: &str| {
            let mut command = Command::new(&program);
            command.args([verb, "example/tmpfs", "--plugin-dir", "/run/plugins2"]);
            command.output().unwrap()
        };
        fs::create_dir("/run/plugins2").unwrap();
        assert!(flexvol("install").status.success());
        let sum = under_attack(component, rounds(4, 1), |_| {
            let done = flexvol("install").status.success();
            flexvol("uninstall");
            done
        });
        report("install", "directory", &[sum]);
        assert_eq!(fs::read_to_string("/run/outside/tmpfs").unwrap(), "kept\n");
        assert!(
            fs::metadata(OUTSIDE).unwrap().is_dir()
                && fs::metadata("/run/outside/tmpfs").unwrap().size() == 5
        );
        let _ = node;
    });
}
