//! Everything that a call could leave behind.

use crate::support::pace::deadline;
use flexvol::sys::block::loop_device::backing_of;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Where we and what we run write: records, locks, private files, scratch.
const PLACES: [&str; 2] = ["/run/flexvol", "/var/lib/flexvol"];

/// How long what was told to go may take.
fn cleanup_wait() -> Duration {
    deadline(30)
}

/// What is there. Of the processes all of this PID namespace, of everything else what is this mount
/// namespace's.
#[derive(Clone, Debug)]
pub(crate) struct Inventory {
    places: Vec<PathBuf>,
    things: BTreeSet<String>,
    /// By number: the parent's, and the name.
    processes: BTreeMap<i32, (i32, String)>,
}

impl Inventory {
    pub(crate) fn take(places: &[PathBuf]) -> Self {
        let mut things = BTreeSet::new();
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        // Without the number, which is another one each time, and of the mount alone.
        things.extend(table.lines().map(|line| format!("mount {}", after(line, 2))));
        things.extend(loops().iter().map(|device| format!("loop device {device:#x}")));
        things.extend(groups().iter().map(|group| format!("control group {}", group.display())));
        for place in PLACES.map(Path::new).into_iter().chain(places.iter().map(PathBuf::as_path)) {
            walk(place, &mut things);
        }
        Self { places: places.into(), things, processes: processes() }
    }

    /// What has come since, and of the mounts, files and groups what has gone.
    pub(crate) fn changes(&self) -> Vec<String> {
        let now = Self::take(&self.places);
        let mut changes: Vec<_> = now.things.difference(&self.things).cloned().collect();
        changes.extend(self.things.difference(&now.things).map(|thing| format!("missing: {thing}")));
        let own = std::process::id().cast_signed();
        for (pid, (parent, name)) in &now.processes {
            // A server that was there may start what it likes.
            let mut ancestor = (*pid, *parent);
            while ancestor.0 > 1 && ancestor.0 != own && !self.processes.contains_key(&ancestor.0) {
                let above = now.processes.get(&ancestor.1).map_or(0, |(parent, _)| *parent);
                ancestor = (ancestor.1, above);
            }
            if *pid != own && (ancestor.0 <= 1 || ancestor.0 == own) {
                changes.push(format!("process {pid} {name}"));
            }
        }
        changes
    }

    /// Everything is as it was, after a while.
    #[track_caller]
    pub(crate) fn holds(&self) {
        self.holds_but(|_| false);
    }

    /// Everything but what is excused.
    #[track_caller]
    pub(crate) fn holds_but(&self, excused: impl Fn(&str) -> bool) {
        let start = Instant::now();
        loop {
            let mut changes = self.changes();
            changes.retain(|change| !excused(change));
            if changes.is_empty() {
                return;
            }
            assert!(start.elapsed() < cleanup_wait(), "left behind: {changes:#?}");
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// How many of everything, for what must not grow.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.things.len(), self.processes.len())
    }
}

fn after(line: &str, fields: usize) -> String {
    line.split(' ').skip(fields).collect::<Vec<_>>().join(" ")
}

/// Files by their names, without those that grow by design. In places that are not ours without
/// empty ones and their directories: an image that could not be locked may be another pod's by now,
/// and stays. Whether there was such a one.
fn walk(place: &Path, found: &mut BTreeSet<String>) -> bool {
    let ours = PLACES.iter().any(|own| place.starts_with(own));
    let mut has_empty = false;
    for entry in fs::read_dir(place).into_iter().flatten().flatten() {
        let (path, Ok(metadata)) = (entry.path(), entry.metadata()) else { continue };
        if path.ends_with("flexvol/log") {
            continue;
        }
        let empty = if metadata.is_dir() { walk(&path, found) } else { metadata.len() == 0 };
        if ours || !empty {
            found.insert(format!("file {}", path.display()));
        }
        has_empty |= empty;
    }
    has_empty
}

/// The loop devices that show a file of this namespace's /run.
fn loops() -> Vec<u64> {
    let here = fs::metadata("/run").unwrap().dev();
    let numbers = fs::read_dir("/sys/block").unwrap().flatten().filter_map(|entry| {
        entry.path().join("loop").exists().then_some(())?;
        entry.file_name().to_str()?.strip_prefix("loop")?.parse::<u32>().ok()
    });
    let device = |number: u32| rustix::fs::makedev(7, number);
    let ours =
        |device: &u64| matches!(backing_of(*device), Ok(Some(backing)) if backing.inode.device == here);
    numbers.map(device).filter(ours).collect()
}

/// The control groups that were made in this PID namespace.
pub(crate) fn groups() -> Vec<PathBuf> {
    let namespace = format!("-{}", flexvol::sys::proc::process::namespace());
    let roots = ["", "/unified", "/systemd", "/memory"].map(|root| format!("/sys/fs/cgroup{root}/flexvol"));
    let found = roots.iter().flat_map(|root| fs::read_dir(root).into_iter().flatten().flatten());
    found.map(|entry| entry.path()).filter(|path| path.to_string_lossy().ends_with(&namespace)).collect()
}

/// The living ones but the first.
fn processes() -> BTreeMap<i32, (i32, String)> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|pid| *pid != 1);
    let living = |pid: i32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (name, rest) = stat.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        let living = !fields.next()?.starts_with(['Z', 'X']);
        let name = name.split_once('(')?.1.to_owned();
        living.then_some((pid, (fields.next()?.parse().ok()?, name)))
    };
    pids.filter_map(living).collect()
}
