//! What is done two hundred times leaves no more than what is done once.

use crate::support::{Node, isolated, mounts, processes};
use serde_json::json;
use std::fs;
use std::path::Path;

/// How often.
const CYCLES: usize = 200;

/// Everything that could pile up on a node.
fn inventory(node: &Node) -> [usize; 5] {
    let files = |dir: &str| walk(Path::new(dir));
    let handles: usize = fs::read_to_string("/proc/sys/fs/file-nr")
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    // The whole machine's open files: others come and go, so only hundreds more count.
    [mounts().len(), processes().len(), node.loops().len(), files("/run"), handles / 400]
}

fn walk(dir: &Path) -> usize {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            1 + if entry.file_type().is_ok_and(|kind| kind.is_dir()) { walk(&entry.path()) } else { 0 }
        })
        .sum()
}

#[test]
fn nothing_grows() {
    isolated("cycles::nothing_grows", |node| {
        fs::create_dir("/run/srv/a").unwrap();
        fs::write("/run/srv/file", "").unwrap();
        let all = [
            ("tmpfs", json!({"size": "1Mi"})),
            ("bind", json!({"source": "/run/srv/a"})),
            ("bind", json!({"source": "/run/srv/file"})),
            ("image", json!({"file": "a", "size": "1Mi"})),
        ];
        for (driver, options) in all {
            let target = node.volume(driver, "p");
            let cycle = || {
                node.mount(driver, &target, &options).success();
                node.unmount(driver, &target).success();
            };
            cycle();
            node.volume(driver, "p");
            let before = inventory(node);
            for _ in 0..CYCLES {
                node.volume(driver, "p");
                cycle();
            }
            node.volume(driver, "p");
            node.assert_clean();
            let after = inventory(node);
            assert_eq!(after[..4], before[..4], "{driver} {options}");
            assert!(after[4] <= before[4] + 1, "{driver}: open files {before:?} {after:?}");
        }
    });
}
