//! Self-test of the kit with drivers that are known to be well-behaved, and drivers that are known
//! to misbehave.
//!
//! The well-behaved drivers are three shell scripts, which people may copy. A [`Fault`] is one of
//! them with a few words changed, so that it misbehaves in one way: mostly a way in which a popular
//! driver does. The kit passes if each fault fails the cases that were written for it and no other,
//! and the three scripts fail none.

mod faults;

use super::case::{Case, matching};
use super::chosen::Chosen;
use super::given::{Given, Nature};
use super::report::{CaseOutcome, CaseResult};
use super::runner;
use anyhow::{Context as _, Result, ensure};
use flexvol_kubelet::PodVolume;
use flexvol_protocol::{DriverName, Options};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{DirBuilder, File};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Deadline for a call of a test driver, after which it counts as hanging: all of them are quick.
const CALL_WAIT: Duration = Duration::from_secs(5);

/// Beginning of a [template](Reference::template).
const TEMPLATE_HEAD: &str = r#"#!/bin/sh
[ "${bare-}" = yes ] || exec /usr/bin/env -i bare=yes PATH=/usr/sbin:/usr/bin:/sbin:/bin /bin/sh "$0" "$@"
cd / || exit
"#;

/// Seed, the same in every run.
const SEED: u64 = 20_180_126;

/// A driver that is known to be well-behaved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reference {
    /// Volume in memory: does not attach, takes a secret.
    Tmpfs,
    /// Disk in a file: attaches, and can grow.
    Loop,
    /// Volume in memory, with a process for each mount.
    Keeper,
}

/// One way to misbehave.
#[derive(Debug)]
pub struct Fault {
    /// Name: a few words, with dashes.
    pub name: &'static str,
    /// Wrong behaviour, and a driver that showed it, if one did; one line.
    pub what: &'static str,
    /// Driver that is changed.
    pub of: Reference,
    /// Changes, one after the other: text that occurs once in the script, and its replacement.
    pub change: &'static [(&'static str, &'static str)],
    /// Cases that find it; no other case may.
    pub fails: &'static [&'static str],
}

/// Result of one driver.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the fault, or of the well-behaved driver.
    pub name: &'static str,
    /// Wrong behaviour; empty if it is well-behaved.
    pub what: &'static str,
    /// Cases that should have failed.
    pub expected: BTreeSet<&'static str>,
    /// Cases that failed.
    pub failed: BTreeSet<&'static str>,
    /// Unexpected failures: the problem, and what the driver answered.
    pub surprises: BTreeMap<&'static str, String>,
    /// Number of cases that held.
    pub held: usize,
    /// Cases that could not be judged, because another failed.
    pub blocked: Vec<&'static str>,
    /// Cases with nothing to check, with this driver or on this machine.
    pub skipped: BTreeSet<&'static str>,
    /// Cases that the kit could not play, and why.
    pub broken: Vec<(&'static str, String)>,
    /// Duration from its survey to its last case.
    pub took: Duration,
}

/// Results of all drivers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Matrix {
    /// Rows, the well-behaved drivers first.
    pub rows: Vec<Row>,
}

/// Selection of the cases that are played with a misbehaving driver.
#[derive(Clone, Debug)]
pub enum Depth {
    /// These cases. If all are selected, the run shows that a fault fails no case except its own.
    Chosen(Chosen),
    /// Cases that the fault should fail, or all cases if one of them is watched.
    /// The well-behaved drivers play all cases.
    OwnCases,
}

/// Plays cases with every driver whose name matches one of the patterns, or with all drivers.
/// Calls `done` for each driver as it is finished.
pub fn run(patterns: &[String], depth: &Depth, done: &mut dyn FnMut(&Row)) -> Result<Matrix> {
    let wanted = |name: &str| patterns.is_empty() || patterns.iter().any(|pattern| matching(pattern, name));
    let directory = tempfile::tempdir().context("make a directory for the drivers")?;
    let mut matrix = Matrix::default();
    for reference in Reference::ALL.into_iter().filter(|reference| wanted(reference.name())) {
        let script = write(directory.path(), reference.name(), reference.text())?;
        let fault = Fault { name: reference.name(), what: "", of: reference, change: &[], fails: &[] };
        matrix.push(Row::of(&fault, script, &depth.cases_of(&fault))?, done);
    }
    for fault in Fault::all().filter(|fault| wanted(fault.name)) {
        let script = write(directory.path(), fault.name, &fault.text()?)?;
        matrix.push(Row::of(fault, script, &depth.cases_of(fault))?, done);
    }
    Ok(matrix)
}

impl Depth {
    fn cases_of(&self, fault: &Fault) -> Chosen {
        match self {
            Self::Chosen(chosen) => chosen.clone(),
            Self::OwnCases => Chosen::with_ids(fault.fails).unwrap_or_else(Chosen::all),
        }
    }
}

impl Reference {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Tmpfs, Self::Loop, Self::Keeper];

    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tmpfs => "tmpfs",
            Self::Loop => "loop",
            Self::Keeper => "keeper",
        }
    }

    /// Returns the whole script.
    pub fn text(self) -> &'static str {
        match self {
            Self::Tmpfs => include_str!("self_test/tmpfs.sh"),
            Self::Loop => include_str!("self_test/loop.sh"),
            Self::Keeper => include_str!("self_test/keeper.sh"),
        }
    }

    /// Returns the script as a template for a new driver. It is started by `/bin/sh`, because
    /// busybox and coreutils before 8.30 have no `env -S`, and drops kubelet's environment itself.
    /// A shell complains if it is started in a directory that was removed; no kubelet does that.
    pub fn template(self) -> String {
        let text = self.text();
        let rest = text.split_once('\n').map_or(text, |(_, rest)| rest);
        TEMPLATE_HEAD.to_owned() + rest
    }

    /// Returns the options of a volume: the user's, and those that kubelet adds.
    fn options(self) -> &'static str {
        match self {
            Self::Tmpfs => {
                r#"{"size":"8Mi","kubernetes.io/fsType":"","kubernetes.io/readwrite":"rw","kubernetes.io/secret/password":"dGhlLXBhc3N3b3JkLW9mLWEtdGVzdAo="}"#
            }
            Self::Loop => {
                r#"{"file":"disk.img","size":"8Mi","kubernetes.io/fsType":"ext4","kubernetes.io/readwrite":"rw"}"#
            }
            Self::Keeper => r#"{"kubernetes.io/fsType":"","kubernetes.io/readwrite":"rw"}"#,
        }
    }

    fn natures(self) -> impl Iterator<Item = Nature> {
        let natures: &[_] = match self {
            Self::Tmpfs | Self::Keeper => &[Nature::Ephemeral],
            Self::Loop => &[Nature::Exclusive],
        };
        natures.iter().copied()
    }

    fn given(self, script: PathBuf, name: &str) -> Result<Given> {
        let volume = PodVolume {
            kubelet_root: "/var/lib/kubelet".into(),
            pod_uid: "1".to_owned(),
            driver: DriverName::parse(&format!("check.example/{name}"))?,
            name: "data".to_owned(),
            options: Options::parse(self.options())?,
            capacity: None,
        };
        Ok(Given {
            volume: Some(volume),
            natures: self.natures().collect(),
            repeat: 1,
            patience: CALL_WAIT,
            seed: SEED,
            // A case spends much time waiting for processes and namespaces to begin and end.
            jobs: 2 * std::thread::available_parallelism().map_or(1, usize::from),
            ..Given::new(script)
        })
    }
}

impl Fault {
    /// Returns all faults, in the order in which they are reported.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        faults::ALL.iter().copied().flatten()
    }

    /// Returns the whole script with the fault.
    pub fn text(&self) -> Result<String> {
        let mut text = self.of.text().to_owned();
        for (from, to) in self.change {
            let times = text.matches(from).count();
            ensure!(times == 1, "{}: {from:?} is {times} times in {}", self.name, self.of.name());
            text = text.replacen(from, to, 1);
        }
        Ok(text)
    }
}

/// Placement of a driver in the plugin directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Laid {
    /// Part of the directory's name before the `~`.
    vendor: &'static str,
    /// Mode of the file.
    mode: u32,
    /// Another file in its directory.
    beside: Option<&'static str>,
}

impl Laid {
    const WELL: Self = Self { vendor: "check.example", mode: 0o755, beside: None };
}

/// Writes the script where kubelet would have it.
/// A script that is still open for writing is executed without complaint.
fn write(directory: &Path, name: &str, text: &str) -> Result<PathBuf> {
    let laid = faults::laid(name);
    let own = directory.join(format!("{}~{name}", laid.vendor));
    DirBuilder::new().mode(0o755).create(&own).with_context(|| format!("make {}", own.display()))?;
    if let Some(beside) = laid.beside {
        File::create(own.join(beside))?;
    }
    let path = own.join(name);
    let mut file = File::create(&path)?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(PermissionsExt::from_mode(laid.mode))?;
    Ok(path)
}

impl Row {
    fn of(fault: &Fault, script: PathBuf, chosen: &Chosen) -> Result<Self> {
        let given = fault.of.given(script, fault.name)?;
        let report = runner::run(&given, chosen, &mut |_| {})?;
        let ended = |wanted: fn(&CaseOutcome) -> bool| {
            report.results.iter().filter(move |result| wanted(&result.outcome)).map(|result| result.case.id)
        };
        let broken = |result: &CaseResult| match &result.outcome {
            CaseOutcome::Broken(why) => Some((result.case.id, why.clone())),
            _ => None,
        };
        let expected: BTreeSet<_> = fault.fails.iter().copied().filter(|id| chosen.reports(id)).collect();
        let failed: BTreeSet<_> = ended(|outcome| *outcome == CaseOutcome::Failed).collect();
        let seen = |result: &CaseResult| {
            let first = result.telling().next();
            let seen = first.map(|seen| format!("{} {}", seen.problem, seen.came_back));
            (result.case.id, seen.unwrap_or_default())
        };
        let is_surprise = |id: &str| failed.contains(id) && !expected.contains(id);
        let surprises =
            report.results.iter().filter(|result| is_surprise(result.case.id)).map(seen).collect();
        Ok(Self {
            name: fault.name,
            what: fault.what,
            surprises,
            expected,
            failed,
            held: ended(|outcome| *outcome == CaseOutcome::Passed).count(),
            blocked: ended(|outcome| matches!(outcome, CaseOutcome::Blocked(_))).collect(),
            skipped: ended(|outcome| matches!(outcome, CaseOutcome::Skipped(_))).collect(),
            broken: report.results.iter().filter_map(broken).collect(),
            took: report.took,
        })
    }

    /// Reports whether the driver is well-behaved.
    pub fn is_reference(&self) -> bool {
        self.what.is_empty()
    }

    /// Reports whether all cases could be played and exactly those failed that should and can on
    /// this machine. With a well-behaved driver, all cases must have been judged too.
    pub fn is_exact(&self) -> bool {
        self.differences().is_empty()
    }

    /// Lists the differences from what was expected, for people.
    pub fn differences(&self) -> Vec<String> {
        let saw = |id: &str| self.surprises.get(id).map_or_else(String::new, |seen| format!(": {seen}"));
        let also = self.failed.difference(&self.expected).map(|id| format!("also failed {id}{}", saw(id)));
        let missed = self.expected.difference(&self.failed).filter(|id| !self.skipped.contains(*id));
        let missed = missed.map(|id| format!("did not fail {id}"));
        let broken = self.broken.iter().map(|(id, why)| format!("could not play {id}: {why}"));
        let blocked = self.blocked.iter().filter(|_| self.is_reference());
        let blocked = blocked.map(|id| format!("could not judge {id}"));
        also.chain(missed).chain(broken).chain(blocked).collect()
    }

    /// Describes its behaviour and the cases that found it, one line each.
    pub fn render(&self) -> String {
        if self.is_reference() {
            return format!("{:<26} well-behaved: {} cases hold\n", self.name, self.held);
        }
        let mut failed: Vec<_> = self.failed.iter().map(|id| (*id).to_owned()).collect();
        failed.extend(self.expected.intersection(&self.skipped).map(|id| format!("{id} (not here)")));
        if !self.blocked.is_empty() {
            failed.push(format!("{} not judged", self.blocked.len()));
        }
        let failed = if failed.is_empty() { "found by nothing".to_owned() } else { failed.join(", ") };
        format!("{:<26} {}\n{:<26} → {failed}\n", self.name, self.what, "")
    }
}

impl Matrix {
    fn push(&mut self, row: Row, done: &mut dyn FnMut(&Row)) {
        done(&row);
        self.rows.push(row);
    }

    /// Reports whether every row is exact.
    pub fn is_exact(&self) -> bool {
        self.rows.iter().all(Row::is_exact)
    }

    /// Lists the cases that no fault failed: it is not proven that they find anything.
    pub fn idle(&self) -> Vec<&'static str> {
        let failed: BTreeSet<_> = self.rows.iter().flat_map(|row| &row.failed).copied().collect();
        Case::all().map(|case| case.id).filter(|id| !failed.contains(id)).collect()
    }

    /// Returns the verdict, one line.
    pub fn verdict(&self) -> String {
        let (references, faults): (Vec<_>, Vec<_>) = self.rows.iter().partition(|row| row.is_reference());
        let wrong = self.rows.iter().filter(|row| !row.is_exact()).count();
        match wrong {
            0 => format!(
                "{} misbehaviours, each caught by its cases only; {} well-behaved drivers pass",
                faults.len(),
                references.len()
            ),
            _ => format!("{wrong} of {} drivers were not judged as they should be", self.rows.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_changes_its_driver() {
        let wrong = |fault: &Fault| match fault.text() {
            Ok(text) if text == fault.of.text() && faults::laid(fault.name) == Laid::WELL => {
                Some(format!("{} changes nothing", fault.name))
            }
            Ok(_) => None,
            Err(error) => Some(error.to_string()),
        };
        let wrong: Vec<_> = Fault::all().filter_map(wrong).collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn every_fault_has_a_name_of_its_own_and_cases_that_exist() {
        let mut names: BTreeSet<_> = Reference::ALL.iter().map(|reference| reference.name()).collect();
        for fault in Fault::all() {
            assert!(names.insert(fault.name), "{} is there twice", fault.name);
            assert!(!fault.what.is_empty() && fault.what.len() <= 110, "{}: {}", fault.name, fault.what);
            assert!(!fault.fails.is_empty(), "{} is found by nothing", fault.name);
            for id in fault.fails {
                assert!(Case::named(id).is_some(), "{}: there is no case {id}", fault.name);
            }
        }
    }

    #[test]
    fn what_differs_is_said() {
        let row = Row {
            name: "a-fault",
            what: "does wrong",
            expected: ["a::b", "a::c", "a::f"].into(),
            failed: ["a::c", "a::d"].into(),
            surprises: [("a::d", "two devices".to_owned())].into(),
            held: 1,
            blocked: vec!["a::e"],
            skipped: ["a::f"].into(),
            broken: Vec::new(),
            took: Duration::ZERO,
        };
        assert_eq!(row.differences(), ["also failed a::d: two devices", "did not fail a::b"]);
        assert!(!row.is_exact());
        let well = Row { what: "", expected: BTreeSet::new(), failed: BTreeSet::new(), ..row };
        assert_eq!(well.differences(), ["could not judge a::e"]);
    }
}
