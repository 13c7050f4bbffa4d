//! Many pods at once: on one source, and each doing what it likes.

use crate::support::pace::deadline;
use crate::support::{Answer, Node, eventually, has, isolated, mounts_at, processes, sh, skip};
use crate::trust::{Dice, Report, is_full};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const PODS: usize = 100;

/// Whose calls run at the same time; kubelet makes one at a time for each volume.
const VOLUMES: usize = 25;

/// One of each, the image shared by all.
fn kinds() -> [(&'static str, Value); 3] {
    sh("mkdir -p /run/srv/a; echo content >/run/srv/a/f");
    [
        ("tmpfs", json!({"size": "1Mi"})),
        ("bind", json!({"source": "/run/srv/a"})),
        ("image", json!({"file": "a", "size": "4Mi"})),
    ]
}

/// All at the same time.
fn at_once<T: Sync>(of: &[T], call: impl Fn(&T) -> Answer + Sync) {
    std::thread::scope(|scope| {
        let calls: Vec<_> = of.iter().map(|each| scope.spawn(|| call(each))).collect();
        for call in calls {
            call.join().unwrap().success();
        }
    });
}

#[test]
fn a_hundred_pods_use_one_source() {
    isolated("crowd::a_hundred_pods_use_one_source", |node| {
        for (driver, options) in kinds() {
            let mut report = Report::begin("race", driver, "hundred-pods", PODS);
            let pods: Vec<_> = (0..PODS).map(|pod| node.volume(driver, &format!("p{pod}"))).collect();
            at_once(&pods, |target| node.mount(driver, target, &options));
            if driver == "image" {
                fs::write(pods[0].join("data"), "shared").unwrap();
            }
            for target in &pods {
                assert_eq!(mounts_at(target).len(), 1);
                assert!(driver != "image" || fs::read(target.join("data")).unwrap() == b"shared");
                report.tried(None);
            }
            at_once(&pods, |target| node.unmount(driver, target));
            node.assert_clean();
            report.end();
        }
    });
}

/// One pod's volume, and whether the model has it mounted.
struct Pod<'a> {
    driver: &'static str,
    options: &'a Value,
    target: PathBuf,
    mounted: bool,
}

impl Pod<'_> {
    fn is_as_modelled(&self) {
        assert_eq!(mounts_at(&self.target).len(), usize::from(self.mounted), "{}", self.target.display());
    }

    /// What the dice say; the same again is the same.
    fn act(&mut self, node: &Node, dice: &mut Dice) {
        self.mounted = dice.roll(2) == 0;
        let Self { driver, target, options, mounted } = &*self;
        if *mounted {
            fs::create_dir_all(target).unwrap();
            node.mount(driver, target, options).success();
        } else {
            node.unmount(driver, target).success();
        }
        self.is_as_modelled();
    }
}

#[test]
fn the_world_is_the_model_s_after_hundreds_of_verbs() {
    isolated("crowd::the_world_is_the_model_s_after_hundreds_of_verbs", |node| {
        let verbs = if is_full() { 10_000 } else { 500 };
        let mut report = Report::begin("race", "all", "verbs", verbs);
        let kinds = kinds();
        let pod = |index: usize| {
            let (driver, options) = &kinds[index % kinds.len()];
            Pod { driver, options, target: node.volume(driver, &format!("p{index}")), mounted: false }
        };
        let mut pods: Vec<_> = (0..VOLUMES).map(pod).collect();
        std::thread::scope(|scope| {
            for (index, pod) in pods.iter_mut().enumerate() {
                scope.spawn(move || {
                    let mut dice = Dice::of(&format!("verbs {index}"));
                    (0..verbs / VOLUMES).for_each(|_| pod.act(node, &mut dice));
                });
            }
        });
        (0..verbs).for_each(|_| report.tried(None));
        pods.iter().for_each(Pod::is_as_modelled);
        at_once(&pods, |pod| node.unmount(pod.driver, &pod.target));
        node.assert_clean();
        report.end();
    });
}

/// A file system that nobody may write to just now: its own calls end in their time, and others
/// notice nothing.
#[test]
fn a_frozen_file_system_holds_up_nothing_else() {
    isolated("crowd::a_frozen_file_system_holds_up_nothing_else", |node| {
        let frozen = node.volume("image", "frozen");
        node.mount("image", &frozen, &json!({"file": "frozen", "size": "4Mi"})).success();
        let freeze = |how: &str, target: &Path| sh(&format!("fsfreeze {how} {}", target.display()));
        freeze("--freeze", &frozen);
        for (driver, options) in kinds() {
            let target = node.volume(driver, "p");
            let mounted = node.mount(driver, &target, &options);
            let unmounted = node.unmount(driver, &target);
            assert!(mounted.success().took < deadline(20) && unmounted.success().took < deadline(20));
        }
        // The same again, and another pod of it: nobody has to write for that.
        let other = node.volume("image", "other");
        let again = node.mount("image", &other, &json!({"file": "frozen", "size": "4Mi"}));
        node.unmount("image", &other);
        freeze("--unfreeze", &frozen);
        println!("NOTE another pod of a frozen image: {again:?}");
        for target in [&frozen, &other] {
            node.unmount("image", target).success();
        }
    });
}

/// The file of somebody else's loop device, by a server that has died.
/// Of another volume: the servers of both are none of each other's business.
#[test]
fn a_silent_server_holds_up_no_image() {
    const NAME: &str = "crowd::a_silent_server_holds_up_no_image";
    if !has("bindfs") {
        return skip(NAME, "needs bindfs");
    }
    isolated(NAME, |node| {
        sh(
            "mkdir /run/a /run/b; truncate -s 1M /run/a/f; bindfs /run/a /run/b; losetup -f --show /run/b/f >/run/device",
        );
        let bindfs = processes().into_iter().find(|(_, name)| name == "bindfs").map(|(pid, _)| pid).unwrap();
        sh(&format!("kill -STOP {bindfs}"));
        // What it said is believed for a second.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        let image = node.volume("image", "p1");
        let answer = node.mount("image", &image, &json!({"file": "b.img", "size": "16Mi"}));
        sh(&format!("kill -CONT {bindfs}; losetup -d $(cat /run/device); umount -l /run/b"));
        assert!(answer.success().took < deadline(40));
        node.unmount("image", &image).success();
    });
}

#[test]
fn a_dead_server_holds_up_no_image() {
    const NAME: &str = "crowd::a_dead_server_holds_up_no_image";
    if !has("bindfs") {
        return skip(NAME, "needs bindfs");
    }
    isolated(NAME, |node| {
        sh(
            "mkdir /run/a /run/b; truncate -s 1M /run/a/f; bindfs /run/a /run/b; losetup -f --show /run/b/f >/run/device",
        );
        let bindfs = || processes().into_iter().find(|(_, name)| name == "bindfs").map(|(pid, _)| pid);
        sh(&format!("kill -9 {}", bindfs().unwrap()));
        assert!(eventually(|| bindfs().is_none()));
        let image = node.volume("image", "p1");
        let answer = node.mount("image", &image, &json!({"file": "b.img", "size": "16Mi"}));
        sh("losetup -d $(cat /run/device); umount -l /run/b");
        answer.success();
        node.unmount("image", &image).success();
    });
}
