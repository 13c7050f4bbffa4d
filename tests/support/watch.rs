//! Who can find a secret: any part of it, in any spelling, in the arguments and environments of all
//! processes and in the mount table, a thousand times a second.
//!
//! Of the standard library alone, because tests/guest/watch.rs, which is compiled by itself, looks
//! in the same way.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// So much of a secret counts as it.
pub(crate) const PART: usize = 8;

/// Every part of a secret, in the spellings that were given.
pub(crate) struct Parts(HashSet<Vec<u8>>);

impl Parts {
    pub(crate) fn of<T: AsRef<[u8]>>(spellings: impl IntoIterator<Item = T>) -> Self {
        let mut parts = HashSet::new();
        for spelling in spellings {
            parts.extend(spelling.as_ref().windows(PART).map(<[u8]>::to_vec));
        }
        Self(parts)
    }

    pub(crate) fn are_in(&self, text: &[u8]) -> bool {
        text.windows(PART).any(|part| self.0.contains(part))
    }

    /// For `grep -F -f`.
    pub(crate) fn lines(&self) -> Vec<u8> {
        self.0.iter().flat_map(|part| [part, b"\n".as_slice()].concat()).collect()
    }
}

/// Looks at every process until it is told to stop.
pub(crate) struct Watch<'a> {
    pub(crate) parts: &'a Parts,
    /// Those that a test has started with the secret, and the test.
    pub(crate) excused: Vec<u32>,
    /// The driver, or where all are: kubelet starts them with the secret, and what comes after that
    /// is their own.
    pub(crate) drivers: PathBuf,
}

/// What was seen.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) looks: usize,
    /// With the arguments that they had last.
    pub(crate) processes: BTreeMap<u32, Vec<u8>>,
    pub(crate) found: BTreeSet<String>,
    table: Vec<u8>,
}

impl Watch<'_> {
    pub(crate) fn until(&self, is_over: impl Fn() -> bool) -> Seen {
        let mut seen = Seen::default();
        while !is_over() {
            let next = Instant::now() + Duration::from_millis(1);
            self.look(&mut seen);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        seen
    }

    fn look(&self, seen: &mut Seen) {
        let pids = fs::read_dir("/proc").unwrap().flatten();
        for pid in pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
            if !self.excused.contains(&pid) {
                self.look_at(pid, seen);
            }
        }
        let table = fs::read("/proc/self/mountinfo").unwrap();
        if table != seen.table {
            if self.parts.are_in(&table) {
                seen.found.insert("mountinfo".to_owned());
            }
            seen.table = table;
        }
        seen.looks += 1;
    }

    /// Whoever has other arguments than a moment ago is another program, with an environment of its
    /// own.
    fn look_at(&self, pid: u32, seen: &mut Seen) {
        let read = |name: &str| fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let arguments = read("cmdline");
        if seen.processes.get(&pid) == Some(&arguments) {
            return;
        }
        for (name, text) in [("cmdline", arguments.clone()), ("environ", read("environ"))] {
            if self.parts.are_in(&text) && !(name == "cmdline" && self.is_driver(pid)) {
                let text = String::from_utf8_lossy(&text).replace('\0', " ");
                seen.found.insert(format!("{name} of {pid}: {text}"));
            }
        }
        seen.processes.insert(pid, arguments);
    }

    /// Or just about to be: a process that is gone has no executable any more.
    fn is_driver(&self, pid: u32) -> bool {
        fs::read_link(format!("/proc/{pid}/exe")).map_or(true, |path| path.starts_with(&self.drivers))
    }
}
