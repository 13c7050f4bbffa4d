//! The kit proves itself: `flexvol check --self`, whose matrix is `tests/pure/check_self.rs`'s.

use crate::support::{BINARY, release, skip};
use flexvol::check::self_test::{Fault, Reference};
use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

/// Of so many misbehaviours one is played, where time matters.
const SAMPLE: usize = 10;

/// What it fails besides its own cases depends on when the kernel lets go of a loop device: only in
/// full runs.
const VARIES: &str = "formats-always";

#[test]
fn each_misbehaviour_is_caught_by_its_cases_only() {
    let name = "check_self::each_misbehaviour_is_caught_by_its_cases_only";
    if !rustix::process::geteuid().is_root() {
        return skip(name, "needs root for namespaces");
    }
    let binary = release().unwrap_or_else(|| BINARY.into());
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
