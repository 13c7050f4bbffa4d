//! What runs as long as the node does: `deploy` and `watch` have no more after many upgrades than
//! after a few.

use super::node::{Node, command, script};
use super::support::pace::deadline;
use super::trust::{Report, is_full};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take with a binary that is not optimised.
fn debug_build_wait() -> Duration {
    deadline(60)
}

/// What an allocator may keep to itself, in KiB.
const SLACK: u64 = 128;

/// Ended with the test.
struct Daemon {
    child: Child,
    said: PathBuf,
}

impl Daemon {
    fn start(node: &Node, words: &[&str]) -> Self {
        let said = node.path(words[0]);
        let mut command = Command::new(command());
        command.args(words).arg("--plugin-dir").arg(node.plugins());
        command.stdin(Stdio::null()).stdout(File::create(&said).unwrap());
        Self { child: command.spawn().unwrap(), said }
    }

    fn lines(&self, word: &str) -> usize {
        fs::read_to_string(&self.said).unwrap().lines().filter(|line| line.contains(word)).count()
    }

    /// Open files, and KiB of its own: pages of the program are the page cache's.
    fn has(&self) -> (usize, u64) {
        let process = PathBuf::from(format!("/proc/{}", self.child.id()));
        let status = fs::read_to_string(process.join("status")).unwrap();
        let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        let kibibytes = own.trim().trim_end_matches(" kB").parse().unwrap();
        (fs::read_dir(process.join("fd")).unwrap().count(), kibibytes)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn eventually(what: &str, so: impl Fn() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < debug_build_wait(), "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn deploy_and_watch_do_not_grow_with_upgrades() {
    let Some(node) = Node::new("daemons::deploy_and_watch_do_not_grow_with_upgrades") else { return };
    let cycles = if is_full() { 200 } else { 3 };
    let binaries =
        [("old", ""), ("new", "\"attach\":false")].map(|(name, text)| node.file(name, &script(text)));
    let state = node.state();
    let deploy = Daemon::start(&node, &["deploy", "example/tmpfs", "--state-dir", state.to_str().unwrap()]);
    let watch = Daemon::start(&node, &["watch", "--json"]);
    eventually("deployed", || Path::new("/run/flexvol/deploy/ready").exists());
    // Each is seen by the watch before the next one begins.
    let upgrade = |number: usize| {
        let seen = watch.lines("\"v/d\"");
        let binary = binaries[number % 2].to_str().unwrap();
        assert_ne!(node.install(&["v/d", "--binary", binary]).action(), "unchanged");
        eventually("the watch has seen it", || watch.lines("\"v/d\"") > seen);
    };
    (0..2).for_each(&upgrade);
    let mut report = Report::begin("endurance", "deploy+watch", "upgrade", cycles);
    let daemons = [("deploy", &deploy), ("watch", &watch)];
    let before = daemons.map(|(_, daemon)| daemon.has());
    for number in 0..cycles {
        upgrade(number);
        report.tried(None);
    }
    for ((name, daemon), before) in daemons.into_iter().zip(before) {
        println!("NOTE {name}: descriptors and KiB {before:?}, after {cycles} upgrades {:?}", daemon.has());
        eventually(&format!("{name} has no more than {before:?}"), || {
            let after = daemon.has();
            after.0 <= before.0 && after.1 <= before.1 + SLACK
        });
    }
    report.end();
}
