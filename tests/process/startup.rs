//! What `init` costs the node: kubelet runs it for every driver, under a lock, whenever a file
//! changes.
//!
//! Counted are page faults and memory, which do not depend on the machine's speed; times are for
//! `tests/bench`.

use crate::support::{copy, release, skip};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Minor page faults of one `init`; without `bin/order.ld` it has 41, an empty static C program
/// about 25. Where it has more, `tests/order` writes a new list.
const FAULTS: u64 = 29;
/// Kibibytes of its own at most; an empty static C program has about 52. Pages of the file do not
/// count: the page cache has them once, and how many of them a fault brings along is the linker's
/// and the kernel's.
const PRIVATE: u64 = 64;

/// The harness is C, because the memory of whoever starts a program counts as that program's until
/// it is exec'd.
fn harness(directory: &Path) -> PathBuf {
    let (source, program) =
        (Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench.c"), directory.join("bench"));
    let built = Command::new("cc").args(["-O2", "-static", "-o"]).arg(&program).arg(source).status().unwrap();
    assert!(built.success(), "cc: {built}");
    program
}

#[test]
fn init_is_cheap() {
    let Some(release) = release() else {
        return skip("startup::init_is_cheap", "FLEXVOL_RELEASE names no release binary");
    };
    let directory = tempfile::tempdir().unwrap();
    let driver = directory.path().join("example~tmpfs/tmpfs");
    fs::create_dir(driver.parent().unwrap()).unwrap();
    copy(&release, &driver);
    let output = Command::new(harness(directory.path()))
        .args(["cost", "9"])
        .arg(&driver)
        .arg("init")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let figures: Vec<u64> = text.split_whitespace().map(|figure| figure.parse().unwrap()).collect();
    let [faults, private] = figures[..] else { panic!("{text}{}", String::from_utf8_lossy(&output.stderr)) };
    assert!(faults <= FAULTS, "{faults} page faults, at most {FAULTS} are allowed");
    assert!(private <= PRIVATE, "{private} KiB of private memory, at most {PRIVATE} are allowed");
}
