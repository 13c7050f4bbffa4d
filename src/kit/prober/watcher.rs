//! Running prober: receives changes from the kernel and runs `init`, in one thread.

use super::behaviour::Behaviour;
use super::event::{Event, Known};
use super::model::{Model, Step};
use anyhow::{Context as _, Result};
use flexvol_kubelet::Terms;
use flexvol_kubelet::scan::{self, Finding, Loaded};
use flexvol_linux::errno::Errno;
use flexvol_linux::fs::directory::{self, Kind};
use flexvol_linux::fs::listing;
use flexvol_linux::fs::watch_tree::{Change, Tree};
use flexvol_linux::proc::signal;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
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
    /// Prober to imitate.
    pub behaviour: Behaviour,
    /// Design: shortest time between two signals. Kubelet: time between two look-ups of a volume
    /// plugin.
    pub period: Duration,
    /// Terms for the execution of drivers.
    pub terms: Terms,
    /// Pause between full probes while the kernel cannot watch everything. No kubelet does that.
    pub rescan: Duration,
    /// True if a missing plugin directory is created at the start, as kubelet does; otherwise it is
    /// an error. A directory that disappears later is created again in any case.
    pub create: bool,
}

impl Habits {
    /// Returns settings with one signal or look-up per second, and [`scan::terms`].
    pub fn of(behaviour: Behaviour) -> Self {
        let (period, rescan) = (Duration::from_secs(1), Duration::from_secs(10));
        Self { behaviour, period, terms: scan::terms(), rescan, create: false }
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
    /// Probes: one per signal, or per look-up that had something to probe.
    pub probes: u64,
    /// Driver directories that were examined, mostly by running `init`.
    pub looks: u64,
    /// Overflows of the kernel's queue.
    pub overflows: u64,
}

impl Watcher {
    /// Watches a plugin directory; the first [`next`](Self::next) reports the drivers in it.
    pub fn new(plugin_dir: &Path, behaviour: Behaviour) -> Result<Self> {
        Self::with(plugin_dir, Habits::of(behaviour))
    }

    /// Watches a plugin directory with other settings.
    pub fn with(plugin_dir: &Path, habits: Habits) -> Result<Self> {
        let plugin_dir = std::path::absolute(plugin_dir).context("find the working directory")?;
        if habits.create && listing::kind_of(&plugin_dir)?.is_none() {
            directory::make_all(&plugin_dir)?;
        }
        // Fail here if anything else is wrong with the directory.
        listing::list(&plugin_dir).map_err(|error| scan::unreadable(&plugin_dir, error))?;
        let hidden = habits.behaviour.hidden();
        let kind = listing::kind_of(&plugin_dir)?;
        let blind = habits.behaviour != Behaviour::Design && kind == Some(Kind::Link);
        let now = Instant::now();
        let mut watcher = Self {
            tree: if blind { Tree::asleep(&plugin_dir, hidden) } else { Tree::new(&plugin_dir, hidden) }?,
            model: Model::new(habits.behaviour, habits.period, now),
            plugin_dir,
            habits,
            away: None,
            absence_noted: false,
            limited: false,
            rescan: None,
            stats: Stats::default(),
        };
        if blind {
            watcher.go_blind("the plugin directory is a symlink, which kubelet does not follow")?;
        }
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
                Step::Look(name) => self.look(name, scan::look),
                Step::Init(name) => self.look(name, |dir, name, terms| Some(initialized(dir, name, terms))),
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
        self.table().values().filter_map(|known| known.loaded.as_ref())
    }

    /// Returns the known state of each driver directory, by its name.
    pub fn table(&self) -> &BTreeMap<OsString, Known> {
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

    /// Returns the behaviour of this prober.
    pub fn behaviour(&self) -> Behaviour {
        self.habits.behaviour
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

    fn look(&mut self, name: OsString, look: impl FnOnce(&Path, &OsStr, &Terms) -> Option<Finding>) {
        self.stats.looks += 1;
        let finding = look(&self.plugin_dir, &name, &self.habits.terms);
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
                Change::At { path, how } => self.model.changed(now, &path, how),
                Change::Overflow => self.overflowed(now)?,
                Change::RootRemoved => self.went(now),
                Change::RootMoved if self.is_design() => self.went(now),
                Change::RootMoved => self.go_blind("the plugin directory was renamed")?,
            }
        }
        if self.rescan.is_some_and(|next| next <= now) {
            self.begin_anew(now)?;
        }
        self.mind_the_limit(now);
        self.mind_the_absence(now)
    }

    fn overflowed(&mut self, now: Instant) -> Result<()> {
        self.stats.overflows += 1;
        if self.is_design() {
            self.note("the kernel's queue was full and changes are lost: everything is probed again");
            return self.begin_anew(now);
        }
        self.note("the kernel's queue was full and changes are lost: kubelet logs that and does nothing");
        Ok(())
    }

    /// Starts again with a full probe; earlier changes do not matter any more.
    fn begin_anew(&mut self, now: Instant) -> Result<()> {
        self.rescan = None;
        self.model.lost(now);
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
        if self.is_design() {
            self.model.lost(now);
        }
    }

    /// Creates the plugin directory again, unless another process does.
    fn mind_the_absence(&mut self, now: Instant) -> Result<()> {
        let Some(since) = self.away else { return Ok(()) };
        let back = listing::kind_of(&self.plugin_dir)?.is_some();
        let patience = if self.is_design() { ABSENCE } else { Duration::ZERO };
        if !back && now.saturating_duration_since(since) < patience {
            return Ok(());
        }
        match directory::make_all(&self.plugin_dir).and_then(|()| self.tree.renew()) {
            Ok(()) => self.is_back(now, if back { "there again" } else { "made again" }),
            Err(error) if self.is_design() => self.note_absence(&error),
            Err(error) => self.go_blind(&format!("error (re-)creating driver directory: {error:#}"))?,
        }
        Ok(())
    }

    fn is_back(&mut self, now: Instant, how: &str) {
        (self.away, self.absence_noted) = (None, false);
        self.note(format!("the plugin directory is {how}, and watched"));
        // Kubelet looks only at later changes in the directory.
        if self.is_design() {
            self.model.lost(now);
        }
    }

    fn note_absence(&mut self, error: &anyhow::Error) {
        if !std::mem::replace(&mut self.absence_noted, true) {
            self.note(format!("the plugin directory cannot be made again: {error:#}; make way for it"));
        }
    }

    /// Stops watching for good.
    fn go_blind(&mut self, why: &str) -> Result<()> {
        self.note(format!("{why}: kubelet sees no change until it is restarted"));
        self.tree = Tree::asleep(&self.plugin_dir, self.habits.behaviour.hidden())?;
        self.away = None;
        Ok(())
    }

    /// Handles parts that the kernel does not watch: they are probed regularly.
    fn mind_the_limit(&mut self, now: Instant) {
        let unwatched = self.tree.unwatched().map(str::to_owned);
        if unwatched.is_some() != self.limited {
            self.limited = unwatched.is_some();
            self.note(match (&unwatched, self.is_design()) {
                (Some(why), true) => {
                    format!("{why}; until then everything is probed every {} s", self.habits.rescan.as_secs())
                }
                (Some(why), false) => {
                    format!("Error recursively adding watch: {why}; kubelet sees no change there")
                }
                (None, _) => "the kernel watches everything again".to_owned(),
            });
        }
        if self.limited && self.is_design() {
            self.rescan = self.rescan.or(Some(now + self.habits.rescan));
        }
    }

    fn is_design(&self) -> bool {
        self.habits.behaviour == Behaviour::Design
    }

    fn note(&mut self, reason: impl Into<String>) {
        self.model.note(Event::note(&self.plugin_dir, reason));
    }
}

impl AsFd for Watcher {
    /// Returns a descriptor for callers that wait for other things, too: readable if something has
    /// happened. A pending signal shows only in [`next`](Watcher::next).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tree.as_fd()
    }
}

fn initialized(plugin_dir: &Path, name: &OsStr, terms: &Terms) -> Finding {
    scan::init(plugin_dir, name, terms).map_or_else(Finding::Failed, Finding::Loaded)
}

fn is_missing(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(&Errno::NOENT | &Errno::NOTDIR))
}
