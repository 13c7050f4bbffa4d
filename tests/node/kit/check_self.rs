//! The kit on drivers that are known to be well-behaved, and on drivers that are known to
//! misbehave: each of these fails the cases that were written for it, and no other.

use crate::faults::{Fault, Laid, Reference};
use crate::support::pace::slow_seconds;
use crate::support::{BINARY, release, skip, write_executable};
use flexvol::check::{Case, How};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;

/// Of so many misbehaviours one is played, where time matters.
const SAMPLE: usize = 10;

/// What it fails besides its own cases depends on when the kernel lets go of a loop device: only in
/// full runs.
const VARIES: &str = "formats-always";

/// How many misbehaviours are asked for.
const FEWEST: usize = 60;

/// Cases that no fault fails, and why not.
const IDLE: &[(&str, &str)] = &[
    ("attach::unmount_device", "it precedes every other case of such drivers"),
    ("metrics::statfs_does_not_block", "needs a file system whose server hangs; the three drivers have none"),
    ("mount::backend_down", "needs storage on the network"),
];

/// Cases that block others if they do not hold: each driver plays them.
const FIRST: [&str; 7] = [
    "init::works",
    "attach::works",
    "mount::works",
    "mount::twice",
    "unmount::works",
    "unmount::not_mounted",
    "options::read_only",
];

#[test]
fn each_misbehaviour_is_caught_by_its_cases_only() {
    let name = "check_self::each_misbehaviour_is_caught_by_its_cases_only";
    if !rustix::process::geteuid().is_root() {
        return skip(name, "needs root for namespaces");
    }
    // Everything with everybody takes a quarter of an hour on two cores.
    let full = std::env::var_os("FULL").is_some();
    let sampled = Fault::all().step_by(if full { 1 } else { SAMPLE });
    let mut wrong = Vec::new();
    for fault in &Reference::ALL.map(Fault::none) {
        wrong.extend(differences(fault, true));
    }
    for fault in sampled.filter(|fault| full || fault.name != VARIES) {
        wrong.extend(differences(fault, full));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// What the kit found otherwise than it should, with all cases or with those that tell.
fn differences(fault: &Fault, all: bool) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let driver = install(directory.path(), fault);
    let mut check = Command::new(release().unwrap_or_else(|| BINARY.into()));
    // A case spends much time waiting for processes and namespaces to begin and end.
    let jobs = 2 * available_parallelism().map_or(1, usize::from);
    let [options, nature] = fault.of.volume();
    check.args(["check", "--json", "--repeat", "1", "--seed", "20180126", "--options", options, nature]);
    check.args(["--jobs", &jobs.to_string(), "--timeout", &slow_seconds(5).to_string()]);
    let is_watched = |id: &str| Case::named(id).is_some_and(|case| matches!(case.how, How::Watched(_)));
    if !all && !fault.fails.iter().any(|id| is_watched(id)) {
        check.args(fault.fails.iter().chain(&FIRST).flat_map(|id| ["-t", *id]));
    }
    let output = check.arg(&driver).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    judged(fault, report["cases"].as_array().unwrap())
}

/// Writes the driver where kubelet would have it.
fn install(plugins: &Path, fault: &Fault) -> PathBuf {
    let laid = fault.laid();
    let own = plugins.join(format!("{}~{}", laid.vendor, fault.name));
    let driver = own.join(fault.name);
    write_executable(&driver, &fault.text());
    fs::set_permissions(&driver, Permissions::from_mode(laid.mode)).unwrap();
    if let Some(beside) = laid.beside {
        File::create(own.join(beside)).unwrap();
    }
    driver
}

/// All cases can be played, and those failed that should and can on this machine. With a
/// well-behaved driver, all have been judged, too.
fn judged(fault: &Fault, cases: &[Value]) -> Vec<String> {
    let expected: BTreeSet<_> = fault.fails.iter().copied().collect();
    let mut wrong = Vec::new();
    let mut skipped = 0;
    for case in cases {
        let (id, why) = (case["id"].as_str().unwrap(), &case["why"]);
        let seen = &case["evidence"][0];
        let told = match (case["result"].as_str().unwrap(), expected.contains(id)) {
            ("failed", false) => format!("also failed {id}: {} {}", seen["problem"], seen["cameBack"]),
            ("passed" | "blocked", true) => format!("did not fail {id}"),
            ("broken", _) => format!("could not play {id}: {why}"),
            ("blocked", _) if fault.what.is_empty() => format!("could not judge {id}"),
            ("skipped", _) => {
                skipped += 1;
                continue;
            }
            _ => continue,
        };
        wrong.push(format!("{}: {told}", fault.name));
    }
    println!("NOTE {}: {} cases, {skipped} skipped", fault.name, cases.len());
    let missing = expected.into_iter().filter(|id| cases.iter().all(|case| case["id"] != *id));
    wrong.extend(missing.map(|id| format!("{}: did not play {id}", fault.name)));
    wrong
}

#[test]
fn every_fault_changes_its_driver() {
    let same = |fault: &&Fault| fault.text() == fault.of.text() && fault.laid() == Laid::WELL;
    let same: Vec<_> = Fault::all().filter(same).map(|fault| fault.name).collect();
    assert!(same.is_empty(), "{same:?}");
}

#[test]
fn every_fault_has_a_name_of_its_own_and_cases_that_exist() {
    let mut names: BTreeSet<_> = Reference::ALL.map(Reference::name).into();
    for fault in Fault::all() {
        assert!(names.insert(fault.name), "{} is there twice", fault.name);
        assert!(!fault.what.is_empty() && fault.what.len() <= 110, "{}: {}", fault.name, fault.what);
        assert!(!fault.fails.is_empty(), "{} is found by nothing", fault.name);
        for id in fault.fails {
            assert!(Case::named(id).is_some(), "{}: there is no case {id}", fault.name);
        }
    }
    assert!(names.len() >= FEWEST, "{} are fewer than {FEWEST}", names.len());
}

/// A case that nobody has seen fail may be one that cannot.
#[test]
fn every_case_is_failed_by_a_misbehaviour() {
    let failed: BTreeSet<_> = Fault::all().flat_map(|fault| fault.fails).copied().collect();
    let idle: BTreeSet<_> = Case::all().map(|case| case.id).filter(|id| !failed.contains(id)).collect();
    let known: BTreeSet<_> = IDLE.iter().map(|(id, _)| *id).collect();
    assert_eq!(idle, known);
}
