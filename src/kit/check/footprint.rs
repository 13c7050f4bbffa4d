//! State of the node at one moment, to see what a call has added or removed.

use super::evidence::Stopped;
use super::in_time::{Deadline, Pace};
use super::left;
use super::subject::{KUBELET_ROOT, Subject};
use flexvol_linux::mount::mount_table;
use flexvol_protocol::ordered::filled;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Deadline for things that disappear on their own, such as a process that only releases something.
const MOMENT: Duration = Duration::from_millis(500);

/// Pause between two looks.
const TICK: Duration = Duration::from_millis(5);

/// Deadline for a changing state to come to rest.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// Looks until two looks, `apart` from each other, find the same. A process that the driver has
/// started may not have executed its program yet, or may be about to end.
pub(super) fn at_rest<T: PartialEq>(
    apart: Duration,
    look: impl Fn() -> Result<T, Stopped>,
) -> Result<T, Stopped> {
    let apart = Pace::recent().limit(apart);
    let mut end = Deadline::new(ON_ITS_WAY);
    let mut before = look()?;
    loop {
        std::thread::sleep(apart);
        let now = look()?;
        if now == before || end.is_over() {
            return Ok(now);
        }
        before = now;
    }
}

/// Mounts, devices, processes and files, each with a description for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Footprint(BTreeMap<Thing, String>);

/// Identity of a thing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Mount(u64),
    Other(String),
    File(PathBuf),
}

impl Footprint {
    /// Lists mounts and the content of kubelet's directories, where a misplaced mount shows.
    pub(super) fn of_places() -> Result<Self, Stopped> {
        let mut found = BTreeMap::new();
        for mount in mount_table::read()? {
            let words = format!("a mount ({}) at {}", mount.file_system, mount.target.display());
            found.insert(Thing::Mount(mount.id), words);
        }
        let mut files = BTreeSet::new();
        below(Path::new(KUBELET_ROOT), &mut files)?;
        for file in files {
            let words = file.display().to_string();
            found.insert(Thing::File(file), words);
        }
        Ok(Self(found))
    }

    /// Lists the present state, except logs, locks and the like, and data that the driver keeps.
    pub(super) fn of(subject: &Subject<'_>) -> Result<Self, Stopped> {
        let Self(mut found) = Self::of_places()?;
        for words in left::devices(subject)?.iter().map(|device| format!("the device {device}")) {
            found.insert(Thing::Other(words.clone()), words);
        }
        for words in left::processes(subject.inside)?.iter().map(|process| format!("the process {process}")) {
            found.insert(Thing::Other(words.clone()), words);
        }
        let mut files = left::files(subject)?;
        files.retain(|path| !subject.facts.keeps.iter().any(|kept| path.starts_with(kept)));
        for file in files {
            let words = file.display().to_string();
            found.insert(Thing::File(file), words);
        }
        Ok(Self(found))
    }

    /// Lists what is new since `self`, except files in the directory `aside`.
    /// Waits a moment for things that disappear on their own.
    pub(super) fn grown(&self, subject: &Subject<'_>, aside: &Path) -> Result<Vec<String>, Stopped> {
        let mut end = Deadline::new(MOMENT);
        loop {
            let mut now = Self::of(subject)?;
            now.0.retain(|thing, _| !matches!(thing, Thing::File(path) if path.starts_with(aside)));
            let grown = now.without(self);
            if grown.is_empty() || end.is_over() {
                return Ok(grown);
            }
            std::thread::sleep(TICK);
        }
    }

    /// Lists new mounts and new files in kubelet's directories, without waiting.
    pub(super) fn new_places(&self) -> Result<Vec<String>, Stopped> {
        Ok(Self::of_places()?.without(self))
    }

    /// Lists the things that `other` does not have.
    pub(super) fn without(&self, other: &Self) -> Vec<String> {
        let mine = self.0.iter().filter(|(thing, _)| !other.0.contains_key(thing));
        mine.map(|(_, words)| words.clone()).collect()
    }
}

/// Finds everything below a directory, but not in mounts there: a mount may be dead, or hang.
fn below(directory: &Path, found: &mut BTreeSet<PathBuf>) -> Result<(), Stopped> {
    let mounted: BTreeSet<_> = filled(mount_table::below(directory)?.into_iter().map(|entry| entry.target));
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if !mounted.contains(&path) && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(path.clone());
            }
            found.insert(path);
        }
    }
    Ok(())
}
