//! The kit proves itself: `flexvol check --self`, and the matrix it prints.
//!
//! `UPDATE=1 cargo test --test check_self` writes the matrix anew; the diff is what a reviewer
//! reads.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "the tests start the command and write their golden file")]

mod support;

use flexvol::check::Case;
use flexvol::check::self_test::{Fault, Reference};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::skip;

/// How many misbehaviours are asked for.
const FEWEST: usize = 60;

/// Of so many misbehaviours one is played, where time matters.
const SAMPLE: usize = 10;

/// What it fails besides its own cases depends on when the kernel lets go of a loop device: only in
/// full runs.
const VARIES: &str = "formats-always";

/// Cases that no fault fails, and why not.
const IDLE: &[(&str, &str)] = &[
    ("attach::unmount_device", "without it no case of a driver that attaches can be judged"),
    ("metrics::statfs_does_not_block", "needs a file system whose server hangs; the three drivers have none"),
    ("mount::backend_down", "needs storage on the network"),
];

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/check-self.txt")
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
    assert_eq!(matrix, kept, "run with UPDATE=1 and look at the diff");
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

#[test]
fn each_misbehaviour_is_caught_by_its_cases_only() {
    let name = "each_misbehaviour_is_caught_by_its_cases_only";
    if !rustix::process::geteuid().is_root() {
        return skip(name, "needs root for namespaces");
    }
    let binary = support::release().unwrap_or_else(|| support::BINARY.into());
    let mut command = Command::new(binary);
    command.args(["check", "--self", "--json"]);
    // Everything with everybody takes a quarter of an hour on two cores.
    let full = std::env::var_os("FULL").is_some();
    let sampled = Fault::all().step_by(if full { 1 } else { SAMPLE }).map(|fault| fault.name);
    let sampled: Vec<_> = sampled.filter(|name| full || *name != VARIES).collect();
    if !full {
        command.arg("--quick");
        for name in Reference::ALL.map(Reference::name).iter().chain(&sampled) {
            command.args(["-t", name]);
        }
    }
    let output = command.output().unwrap();
    let matrix: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}", String::from_utf8_lossy(&output.stderr));
    });
    let rows = matrix["rows"].as_array().unwrap();
    assert_eq!(rows.len(), Reference::ALL.len() + sampled.len());
    let wrong: Vec<_> = rows.iter().filter(|row| !is_exact(row)).map(ToString::to_string).collect();
    assert!(wrong.is_empty() && output.status.success(), "{}", wrong.join("\n"));
}

/// What is skipped, this machine cannot show.
fn is_exact(row: &Value) -> bool {
    let ids = |key: &str| -> BTreeSet<_> {
        row[key].as_array().unwrap().iter().map(|id| id.as_str().unwrap().to_owned()).collect()
    };
    let (expected, skipped) = (ids("expected"), ids("skipped"));
    ids("failed") == &expected - &skipped && row["broken"] == Value::Array(Vec::new())
}
