//! How much of the node's disk is taken for what pods write, in numbers that docs/settings.md has.

use crate::node::{Node, alone_for, deadlines, sh};
use crate::stores::{of_rclone, of_webdav, serve, with};
use crate::support::pace::deadline;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;

/// How much pods write at a time, in MiB.
const WRITTEN: u64 = 48;

fn limited(driver: &'static str) -> Node {
    Node::installed(driver, &json!({"deadlines": deadlines(30, 45), "policy": {"maxCache": "4Mi"}}))
}

/// How much is on disk below it, in MiB, rounded up.
fn size(directory: &str) -> u64 {
    let text = sh(&format!("du -s -B {MIB} {directory} 2>/dev/null || true"));
    text.split_whitespace().next().and_then(|size| size.parse().ok()).unwrap_or(0)
}

/// The largest that it is while it becomes small enough.
fn until_small(directory: &str, limit: u64) -> u64 {
    let (start, mut most) = (Instant::now(), 0);
    loop {
        let now = size(directory);
        most = most.max(now);
        if now <= limit {
            return most;
        }
        assert!(start.elapsed() < deadline(30), "{directory} has {now} MiB");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn write(target: &Path, name: &str, mebibytes: u64) -> File {
    let mut file = File::create(target.join(name)).unwrap();
    for _ in 0..mebibytes {
        file.write_all(&vec![7; 1 << 20]).unwrap();
    }
    file
}

/// Many files, and a large one that is open; what the cache has at most, in MiB, of each.
fn fill(node: &Node, options: &Value, cache: &str) -> [u64; 2] {
    let target = node.pod("1");
    node.mount(&target, options).success();
    let mut many = 0;
    for number in 0..WRITTEN {
        drop(write(&target, &format!("file-{number}"), 1));
        many = many.max(size(cache));
    }
    many = many.max(until_small(cache, 6));
    let open = write(&target, "large", WRITTEN);
    open.sync_all().unwrap();
    let large = size(cache);
    drop(open);
    until_small(cache, 6);
    assert_eq!(fs::metadata(target.join("large")).unwrap().len(), WRITTEN * MIB);
    node.unmount(&target).success();
    node.is_clean(&[]);
    println!("NOTE of {WRITTEN} MiB, {many} MiB were kept of many files and {large} MiB of an open one");
    [many, large]
}

#[test]
fn of_rclone_it_soon_ends() {
    alone_for("caches::of_rclone_it_soon_ends", 120, &["rclone"], || {
        let node = limited("rclone");
        let _server = serve("webdav", &node.make("srv"), 8080);
        for mode in ["writes", "full"] {
            let options = with(&of_rclone(), "mountOptions", &format!("vfs-cache-mode={mode}"));
            let [_, large] = fill(&node, &options, "/var/lib/flexvol/scratch");
            // What is open is kept, whatever it takes: where this changes, docs/settings.md has to.
            assert!(large >= WRITTEN, "{large}");
        }
    });
}

#[test]
fn of_davfs2_it_ends() {
    alone_for("caches::of_davfs2_it_ends", 120, &["mount.davfs", "rclone"], || {
        let node = limited("webdav");
        sh("mount -t tmpfs -o mode=1775,gid=davfs2 cache /var/cache/davfs2");
        let _server = serve("webdav", &node.make("srv"), 8080);
        let [_, large] = fill(&node, &of_webdav(), "/var/cache/davfs2");
        assert!(large >= WRITTEN, "{large}");
    });
}

/// The next pod has another cache: what stays of each would fill the disk.
#[test]
fn of_davfs2_nothing_stays_but_what_is_not_saved() {
    alone_for(
        "caches::of_davfs2_nothing_stays_but_what_is_not_saved",
        120,
        &["mount.davfs", "rclone"],
        || {
            let node = limited("webdav");
            sh("mount -t tmpfs -o mode=1775,gid=davfs2 cache /var/cache/davfs2");
            let server = serve("webdav", &node.make("srv"), 8080);
            let caches = || fs::read_dir("/var/cache/davfs2").unwrap().count();
            let target = node.pod("1");
            node.mount(&target, &of_webdav()).success();
            drop(write(&target, "file", 1));
            assert_eq!(caches(), 1);
            node.unmount(&target).success();
            assert_eq!(caches(), 0);
            node.mount(&target, &of_webdav()).success();
            drop(server);
            let _ = File::create(target.join("lost")).and_then(|mut file| file.write_all(b"lost"));
            node.unmount(&target).reply();
            assert_eq!(
                sh("grep -rlx lost /var/cache/davfs2 | wc -l").trim(),
                "1",
                "{}",
                sh("ls -lR /var/cache/davfs2")
            );
        },
    );
}
