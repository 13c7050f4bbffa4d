//! The matrix of `flexvol check --self`: each misbehaviour, and the cases that it fails.
//!
//! `UPDATE=1 cargo test --test pure check_self::` rewrites the matrix; the diff is what a
//! reviewer reads.

use flexvol::check::Case;
use flexvol::check::self_test::{Fault, Reference};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// How many misbehaviours are asked for.
const FEWEST: usize = 60;

/// Cases that no fault fails, and why not.
const IDLE: &[(&str, &str)] = &[
    ("attach::unmount_device", "it precedes every other case of such drivers"),
    ("metrics::statfs_does_not_block", "needs a file system whose server hangs; the three drivers have none"),
    ("mount::backend_down", "needs storage on the network"),
];

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pure/data/check-self.txt")
}

/// What is expected of every driver, as `--self` shows it; how much of it holds depends on the
/// machine.
fn matrix() -> String {
    let mut text = String::new();
    for reference in Reference::ALL {
        let _ = writeln!(text, "{:<26} well-behaved", reference.name());
    }
    for fault in Fault::all() {
        let fails: BTreeSet<_> = fault.fails.iter().copied().collect();
        let fails: Vec<_> = fails.into_iter().collect();
        let _ = writeln!(text, "{:<26} {}\n{:<26} → {}", fault.name, fault.what, "", fails.join(", "));
    }
    text
}

#[test]
fn the_matrix_is_the_golden_one() {
    let matrix = matrix();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(golden(), &matrix).unwrap();
    }
    let kept = std::fs::read_to_string(golden()).unwrap();
    assert_eq!(matrix, kept, "UPDATE=1 accepts");
}

#[test]
fn there_are_enough_misbehaviours() {
    let number = Fault::all().count();
    assert!(number >= FEWEST, "{number} are fewer than {FEWEST}");
}

/// A case that nobody has seen fail may be one that cannot.
#[test]
fn every_case_is_failed_by_a_misbehaviour() {
    let failed: BTreeSet<_> = Fault::all().flat_map(|fault| fault.fails).copied().collect();
    let idle: BTreeSet<_> = Case::all().map(|case| case.id).filter(|id| !failed.contains(id)).collect();
    let known: BTreeSet<_> = IDLE.iter().map(|(id, _)| *id).collect();
    assert_eq!(idle, known);
}
