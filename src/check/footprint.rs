//! What there is on the node at a moment, to see what a call has added or taken away.

use super::evidence::Stopped;
use super::subject::KUBELET_ROOT;
use crate::sys::mount_table;
use crate::sys::sandbox::Inside;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What only lets go of something is gone by then.
const MOMENT: Duration = Duration::from_millis(500);

/// How often it is looked for.
const TICK: Duration = Duration::from_millis(5);

/// Mounts, devices, processes, files: each for people.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Footprint(BTreeMap<Thing, String>);

/// What makes one thing different from another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Thing {
    Mount(u64),
    Device(PathBuf),
    Process(i32),
    File(PathBuf),
}

impl Footprint {
    /// Now.
    pub(super) fn of(inside: &Inside) -> Result<Self, Stopped> {
        let mut found = BTreeMap::new();
        for mount in mount_table::read()? {
            let words = format!("a mount ({}) at {}", mount.file_system, mount.target.display());
            found.insert(Thing::Mount(mount.id), words);
        }
        for device in inside.devices()? {
            let words = format!("the device {}", device.display());
            found.insert(Thing::Device(device), words);
        }
        for (pid, line) in inside.processes()? {
            found.insert(Thing::Process(pid), format!("the process {pid} ({})", line.trim()));
        }
        let mut files = inside.changed()?;
        files.retain(|path| !is_log(path) && has_content(path));
        below(Path::new(KUBELET_ROOT), &mut files)?;
        for file in files {
            let words = file.display().to_string();
            found.insert(Thing::File(file), words);
        }
        Ok(Self(found))
    }

    /// What is there and was not before; what goes away by itself is given a moment.
    pub(super) fn grown_since(before: &Self, inside: &Inside) -> Result<Vec<String>, Stopped> {
        let end = Instant::now() + MOMENT;
        loop {
            let now = Self::of(inside)?;
            let grown = now.without(before);
            if grown.is_empty() || Instant::now() > end {
                return Ok(grown);
            }
            std::thread::sleep(TICK);
        }
    }

    /// What is not in another one.
    pub(super) fn without(&self, other: &Self) -> Vec<String> {
        let mine = self.0.iter().filter(|(thing, _)| !other.0.contains_key(thing));
        mine.map(|(_, words)| words.clone()).collect()
    }
}

/// Whether it is where drivers log to.
fn is_log(path: &Path) -> bool {
    let in_log = path.components().any(|part| part.as_os_str() == "log");
    in_log || path.extension().is_some_and(|extension| extension == "log" || extension == "jsonl")
}

/// A directory for state, or a file that is locked, is made once and stays.
fn has_content(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|data| !data.is_dir() && data.len() > 0)
}

/// All that is in a directory, and not in what is mounted there: that may be dead, or hang.
fn below(directory: &Path, found: &mut Vec<PathBuf>) -> Result<(), Stopped> {
    let mounted: BTreeSet<_> = mount_table::below(directory)?.into_iter().map(|entry| entry.target).collect();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.flatten() {
            let path = entry.path();
            if !mounted.contains(&path) && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                waiting.push(path.clone());
            }
            found.push(path);
        }
    }
    Ok(())
}
