//! What there is on the node at a moment, to see what a call has added or taken away.

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

/// What only releases something is gone by then.
const MOMENT: Duration = Duration::from_millis(500);

/// How often it is looked for.
const TICK: Duration = Duration::from_millis(5);

/// How long what is on its way may take.
const ON_ITS_WAY: Duration = Duration::from_secs(2);

/// What is looked at, once it is the same twice, so long apart: what a driver has started may still
/// be on its way to its program, or to its end.
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

/// Mounts, devices, processes, files: each for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Footprint(BTreeMap<Thing, String>);

/// What makes one thing different from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Mount(u64),
    Other(String),
    File(PathBuf),
}

impl Footprint {
    /// The mounts, and what is in kubelet's directories: where a mount in the wrong place shows.
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

    /// Now. Logs, locks and the like are left out, and what the driver keeps when a volume is gone.
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

    /// What is there and was not before, files in one directory aside; what goes away by itself is
    /// given a moment.
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

    /// The same of places: at once.
    pub(super) fn new_places(&self) -> Result<Vec<String>, Stopped> {
        Ok(Self::of_places()?.without(self))
    }

    /// What is not in another one.
    pub(super) fn without(&self, other: &Self) -> Vec<String> {
        let mine = self.0.iter().filter(|(thing, _)| !other.0.contains_key(thing));
        mine.map(|(_, words)| words.clone()).collect()
    }
}

/// All that is in a directory, and not in what is mounted there: that may be dead, or hang.
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
