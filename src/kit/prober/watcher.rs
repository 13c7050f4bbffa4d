//! Running prober: receives changes from the kernel and runs `init`, in one thread.

use super::event::Event;
use super::model::{Model, Step};
use anyhow::{Context as _, Result};
use flexvol_kubelet::Terms;
use flexvol_kubelet::scan::{self, Failed, Loaded};
use flexvol_linux::errno::Errno;
use flexvol_linux::fs::directory;
use flexvol_linux::fs::listing;
use flexvol_linux::fs::watch_tree::{Change, Tree};
use flexvol_linux::proc::signal;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Limit for the absence of a plugin directory before it is created again: a program that replaces
/// it by two renames must not find ours in between.
const ABSENCE: Duration = Duration::from_secs(1);

/// Pause between two checks whether it is back.
const ABSENCE_TICK: Duration = Duration::from_millis(200);

/// Limit for delaying the events of a probe under way.
const HELD_BACK: Duration = Duration::from_millis(250);

/// Settings of a [`Watcher`].
#[derive(Clone, Debug)]
pub struct Habits {
    /// Shortest time between two probes.
    pub period: Duration,
    /// Terms for the execution of drivers.
    pub terms: Terms,
    /// Pause between full probes while the kernel cannot watch everything.
    pub rescan: Duration,
    /// True if a missing plugin directory is created at the start, as kubelet does; otherwise it is
    /// an error. A directory that disappears later is created again in any case.
    pub create: bool,
}

impl Default for Habits {
    fn default() -> Self {
        let (period, rescan) = (Duration::from_secs(1), Duration::from_secs(10));
        Self { period, terms: scan::terms(), rescan, create: false }
    }
}

/// Plugin directory under watch, and the drivers in it.
#[derive(Debug)]
pub struct Watcher {
    plugin_dir: PathBuf,
    habits: Habits,
    tree: Tree,
    model: Model,
    /// Time when the plugin directory disappeared, while it is missing.
    away: Option<Instant>,
    /// True if the failure to create it again has been reported.
    absence_noted: bool,
    /// True if it has been reported that the kernel cannot watch everything.
    limited: bool,
    /// Time of the next full probe, if the kernel cannot watch everything.
    rescan: Option<Instant>,
    stats: Stats,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Changes that the kernel reported.
    pub changes: u64,
    /// Probes, each of all that had changed.
    pub probes: u64,
    /// Driver directories that were examined, mostly by running `init`.
    pub looks: u64,
    /// Overflows of the kernel's queue.
    pub overflows: u64,
}

impl Watcher {
    /// Watches a plugin directory; the first [`next`](Self::next) reports the drivers in it.
    pub fn new(plugin_dir: &Path, habits: Habits) -> Result<Self> {
        let plugin_dir = std::path::absolute(plugin_dir).context("find the working directory")?;
        if habits.create && listing::kind_of(&plugin_dir)?.is_none() {
            directory::make_all(&plugin_dir)?;
        }
        // Fail here if anything else is wrong with the directory.
        listing::list(&plugin_dir).map_err(|error| scan::unreadable(&plugin_dir, error))?;
        let now = Instant::now();
        let mut watcher = Self {
            tree: Tree::new(&plugin_dir)?,
            model: Model::new(habits.period, now),
            plugin_dir,
            habits,
            away: None,
            absence_noted: false,
            limited: false,
            rescan: None,
            stats: Stats::default(),
        };
        watcher.mind_the_limit(now);
        Ok(watcher)
    }

    /// Returns new events. Waits until there is one, at most for `timeout`, or until a signal stops
    /// the process. Runs `init` meanwhile, so it may take longer by the time of one driver.
    pub fn next(&mut self, timeout: Duration) -> Result<Vec<Event>> {
        let start = Instant::now();
        while !signal::interrupted() {
            self.follow()?;
            let waited = start.elapsed();
            match self.model.step(Instant::now()) {
                Step::Rest(_) if self.model.has_events() || waited >= timeout => break,
                Step::Rest(wait) => self.rest(wait.unwrap_or(timeout).min(timeout.saturating_sub(waited)))?,
                Step::List => self.list(),
                Step::Look(name) => self.look(name),
            }
            let waited = start.elapsed();
            if waited >= timeout || waited >= HELD_BACK && self.model.has_events() {
                break;
            }
        }
        Ok(self.model.take_events())
    }

    /// Returns the drivers in service, by the name of their directory: a cached list, which needs
    /// no call of a driver.
    pub fn loaded(&self) -> impl Iterator<Item = &Loaded> {
        self.table().values().filter_map(|known| known.as_ref().ok())
    }

    /// Returns the known state of each driver directory, by its name.
    pub fn table(&self) -> &BTreeMap<OsString, Result<Loaded, Failed>> {
        self.model.table()
    }

    /// Returns the counters so far.
    pub fn stats(&self) -> Stats {
        Stats { probes: self.model.probes(), ..self.stats }
    }

    /// Returns the absolute path of the plugin directory.
    pub fn plugin_dir(&self) -> &Path {
        &self.plugin_dir
    }

    fn list(&mut self) {
        let entries = listing::list(&self.plugin_dir).unwrap_or_else(|error| {
            if self.away.is_none() {
                self.note(format!("error reading the Flexvolume directory: {error:#}"));
            }
            Vec::new()
        });
        self.model.listed(entries);
    }

    fn look(&mut self, name: OsString) {
        self.stats.looks += 1;
        let finding = scan::look(&self.plugin_dir, &name, &self.habits.terms);
        // A signal to this process also stops the driver: the result says nothing about it.
        if !signal::interrupted() {
            self.model.looked(name, finding);
        }
    }

    fn rest(&self, wait: Duration) -> Result<()> {
        let rescan = self.rescan.map(|next| next.saturating_duration_since(Instant::now()));
        let absence = self.away.map(|_| ABSENCE_TICK);
        let wait = rescan.into_iter().chain(absence).fold(wait, Duration::min);
        self.tree.wait(Some(wait)).map(drop)
    }

    /// Handles all changes.
    fn follow(&mut self) -> Result<()> {
        let now = Instant::now();
        for change in self.tree.changes()? {
            self.stats.changes += 1;
            match change {
                Change::At { path, how } => self.model.changed(&path, how),
                Change::Overflow => {
                    self.stats.overflows += 1;
                    self.note("the kernel's queue was full and changes are lost: everything is probed again");
                    self.begin_anew(now)?;
                }
                Change::RootRemoved | Change::RootMoved => self.went(now),
            }
        }
        if self.rescan.is_some_and(|next| next <= now) {
            self.begin_anew(now)?;
        }
        self.mind_the_limit(now);
        self.mind_the_absence(now)
    }

    /// Starts again with a full probe; earlier changes do not matter any more.
    fn begin_anew(&mut self, now: Instant) -> Result<()> {
        self.rescan = None;
        self.model.lost();
        match self.tree.renew() {
            Err(error) if is_missing(&error) => self.away = self.away.or(Some(now)),
            renewed => renewed?,
        }
        Ok(())
    }

    /// Handles the loss of the plugin directory.
    fn went(&mut self, now: Instant) {
        if self.away.is_none() {
            self.note("the plugin directory is gone");
            self.away = Some(now);
        }
        self.model.lost();
    }

    /// Creates the plugin directory again, unless another process does.
    fn mind_the_absence(&mut self, now: Instant) -> Result<()> {
        let Some(since) = self.away else { return Ok(()) };
        let back = listing::kind_of(&self.plugin_dir)?.is_some();
        if !back && now.saturating_duration_since(since) < ABSENCE {
            return Ok(());
        }
        match directory::make_all(&self.plugin_dir).and_then(|()| self.tree.renew()) {
            Ok(()) => self.is_back(if back { "there again" } else { "made again" }),
            Err(error) => self.note_absence(&error),
        }
        Ok(())
    }

    fn is_back(&mut self, how: &str) {
        (self.away, self.absence_noted) = (None, false);
        self.note(format!("the plugin directory is {how}, and watched"));
        self.model.lost();
    }

    fn note_absence(&mut self, error: &anyhow::Error) {
        if !std::mem::replace(&mut self.absence_noted, true) {
            self.note(format!("the plugin directory cannot be made again: {error:#}; make way for it"));
        }
    }

    /// Handles parts that the kernel does not watch: they are probed regularly.
    fn mind_the_limit(&mut self, now: Instant) {
        let unwatched = self.tree.unwatched().map(str::to_owned);
        if unwatched.is_some() != self.limited {
            self.limited = unwatched.is_some();
            let seconds = self.habits.rescan.as_secs();
            self.note(unwatched.map_or_else(
                || "the kernel watches everything again".to_owned(),
                |why| format!("{why}; until then everything is probed every {seconds} s"),
            ));
        }
        if self.limited {
            self.rescan = self.rescan.or(Some(now + self.habits.rescan));
        }
    }

    fn note(&mut self, reason: impl Into<String>) {
        self.model.note(Event::note(&self.plugin_dir, reason));
    }
}

fn is_missing(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(&Errno::NOENT | &Errno::NOTDIR))
}
