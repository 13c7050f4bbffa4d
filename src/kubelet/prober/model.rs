//! What a prober does with the changes it is told of, as a machine without a clock or a file system.
//!
//! Whoever drives it tells it what [changed](Model::changed) and asks for the next [step](Model::step), does
//! that, and tells it what came of it. Changes may be told at any time, also in the middle of a probe: they
//! count for the next one.

use super::behaviour::Behaviour;
use super::event::{Event, Kind, Known};
use super::pace::Pace;
use super::scan::{Failed, Finding, Loaded, Stage, executable, is_hidden};
use crate::sys::directory::{self, Named};
use crate::sys::watch_tree::How;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::{Duration, Instant};

/// A prober's mind.
#[derive(Debug)]
pub(super) struct Model {
    behaviour: Behaviour,
    pace: Pace,
    /// The whole plugin directory has to be looked at.
    everything: bool,
    /// The driver directories that changed.
    pending: BTreeMap<OsString, Operation>,
    probe: Option<Probe>,
    table: BTreeMap<OsString, Known>,
    events: Vec<Event>,
    probes: u64,
}

/// What the prober was told to do with a driver directory. The last word counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    AddOrUpdate,
    Remove,
}

/// One probe under way.
#[derive(Debug, Default)]
struct Probe {
    /// Of the whole directory.
    whole: bool,
    todo: VecDeque<(OsString, Operation)>,
    done: Vec<(OsString, Outcome)>,
}

/// What a probe found of one driver directory.
#[derive(Debug)]
enum Outcome {
    Loaded(Loaded),
    Failed(Failed),
    Gone,
}

/// What has to be done next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing, until something changes or so much time has passed.
    Rest(Option<Duration>),
    /// List the plugin directory, then tell [`Model::listed`].
    List,
    /// Look at one name as the scan does, then tell [`Model::looked`].
    Look(OsString),
    /// Run `init` there whatever it is, then tell [`Model::looked`].
    Init(OsString),
}

impl Model {
    /// Begins with everything to be probed. `period` is the shortest time between two signals, or, of a
    /// kubelet, the time from one look-up to the next.
    pub(super) fn new(behaviour: Behaviour, period: Duration, now: Instant) -> Self {
        Self {
            behaviour,
            pace: Pace::new(behaviour, period, now),
            everything: true,
            pending: BTreeMap::new(),
            probe: None,
            table: BTreeMap::new(),
            events: Vec::new(),
            probes: 0,
        }
    }

    /// Something happened at a path below the plugin directory; the empty path is that itself.
    pub(super) fn changed(&mut self, now: Instant, path: &Path, how: How) {
        if !self.is_heard(path, how) {
            return;
        }
        if self.behaviour == Behaviour::Kubelet18 {
            if self.pace.admits(now) {
                self.want(now, |model| model.everything = true);
            }
            return;
        }
        // A probe of everything is due anyway.
        let Some(first) = path.iter().next().filter(|_| !self.everything) else { return };
        let operation = self.operation(path, how);
        self.want(now, |model| drop(model.pending.insert(first.to_owned(), operation)));
    }

    /// Changes were lost, or the plugin directory is another one.
    pub(super) fn lost(&mut self, now: Instant) {
        self.want(now, |model| {
            model.everything = true;
            model.pending.clear();
        });
    }

    /// Adds something that is told with the next events.
    pub(super) fn note(&mut self, event: Event) {
        self.events.push(event);
    }

    /// What to do next.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        loop {
            let Some(probe) = &mut self.probe else { return self.begin(now) };
            match probe.todo.pop_front() {
                None => self.end(),
                Some((name, Operation::Remove)) => self.found(name, Outcome::Gone),
                Some((name, Operation::AddOrUpdate)) if self.behaviour == Behaviour::Design => {
                    return Step::Look(name);
                }
                Some((name, Operation::AddOrUpdate)) => return Step::Init(name),
            }
        }
    }

    /// What the plugin directory holds.
    pub(super) fn listed(&mut self, entries: Vec<Named>) {
        let there = entries.into_iter().filter(|entry| entry.kind == directory::Kind::Directory);
        let mut names: BTreeSet<_> = there.map(|entry| entry.name).filter(|name| !is_hidden(name)).collect();
        if self.behaviour == Behaviour::Design {
            names.extend(self.table.keys().cloned());
        }
        let todo = names.into_iter().map(|name| (name, Operation::AddOrUpdate)).collect();
        self.probe = Some(Probe { whole: true, todo, done: Vec::new() });
    }

    /// What is at one name of the plugin directory; `None` if nothing.
    pub(super) fn looked(&mut self, name: OsString, finding: Option<Finding>) {
        let outcome = match finding {
            Some(Finding::Loaded(loaded)) => Outcome::Loaded(loaded),
            Some(Finding::Failed(failed)) => Outcome::Failed(failed),
            Some(Finding::Ignored(_)) | None => Outcome::Gone,
        };
        self.found(name, outcome);
    }

    /// What became true since the last call.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Whether there is something to tell.
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// How many probes there were.
    pub(super) fn probes(&self) -> u64 {
        self.probes
    }

    /// All driver directories, by name.
    pub(super) fn table(&self) -> &BTreeMap<OsString, Known> {
        &self.table
    }

    fn is_heard(&self, path: &Path, how: How) -> bool {
        match self.behaviour {
            Behaviour::Design => path.iter().next().is_some() && !path.iter().any(is_hidden),
            // No kubelet asks for that.
            _ if how == How::Written => false,
            // The plugin directory itself.
            _ if path.file_name().is_none() => self.behaviour == Behaviour::Kubelet18,
            _ => !path.file_name().is_some_and(is_hidden),
        }
    }

    fn operation(&self, path: &Path, how: How) -> Operation {
        let mut parts = path.iter();
        let first = parts.next().unwrap_or_default();
        let is_driver = parts.next().is_none() || path == executable(Path::new(""), first);
        let removed = how == How::Removed && is_driver && self.behaviour != Behaviour::Design;
        if removed { Operation::Remove } else { Operation::AddOrUpdate }
    }

    fn want(&mut self, now: Instant, add: impl FnOnce(&mut Self)) {
        if !self.is_wanted() {
            self.pace.rouse(now);
        }
        add(self);
    }

    fn is_wanted(&self) -> bool {
        self.everything || !self.pending.is_empty()
    }

    fn begin(&mut self, now: Instant) -> Step {
        if !self.is_wanted() {
            return Step::Rest(None);
        }
        let wait = self.pace.wait(now);
        if !wait.is_zero() {
            return Step::Rest(Some(wait));
        }
        self.pace.went(now);
        self.probes += 1;
        let pending = std::mem::take(&mut self.pending);
        if std::mem::take(&mut self.everything) {
            return Step::List;
        }
        self.probe = Some(Probe { todo: pending.into_iter().collect(), ..Probe::default() });
        self.step(now)
    }

    fn found(&mut self, name: OsString, outcome: Outcome) {
        let Some(probe) = &mut self.probe else { return };
        // Kubelet has what fails in its queue until it succeeds or is removed; of a whole directory, it has
        // none.
        let again =
            matches!(&outcome, Outcome::Failed(failed) if failed.stage == Stage::Init) && !probe.whole;
        if again && self.behaviour != Behaviour::Design {
            self.pending.entry(name.clone()).or_insert(Operation::AddOrUpdate);
        }
        if self.behaviour.is_all_or_nothing() {
            probe.done.push((name, outcome));
        } else {
            self.settle(&name, outcome);
        }
    }

    fn end(&mut self) {
        let Some(probe) = self.probe.take() else { return };
        if !self.behaviour.is_all_or_nothing() {
            return;
        }
        let failed = |(_, outcome): &&(OsString, Outcome)| matches!(outcome, Outcome::Failed(failed) if failed.stage == Stage::Init);
        if let Some((culprit, _)) = probe.done.iter().find(failed) {
            let culprit = culprit.clone();
            return self.forget(probe.done, &culprit);
        }
        let names: BTreeSet<_> = probe.done.iter().map(|(name, _)| name.clone()).collect();
        let gone = self.table.keys().filter(|name| !names.contains(*name)).cloned();
        let gone: Vec<_> = if self.behaviour == Behaviour::Kubelet18 { gone.collect() } else { Vec::new() };
        for name in gone {
            self.settle(&name, Outcome::Gone);
        }
        for (name, outcome) in probe.done {
            self.settle(&name, outcome);
        }
    }

    /// One driver failed, and kubelet throws away what it found of the others.
    fn forget(&mut self, done: Vec<(OsString, Outcome)>, culprit: &OsStr) {
        for (name, outcome) in done {
            let what = match outcome {
                Outcome::Gone if !self.table.contains_key(&name) => continue,
                Outcome::Gone => "it is gone",
                Outcome::Loaded(_) => "its init succeeded",
                Outcome::Failed(failed) => {
                    self.settle(&name, Outcome::Failed(failed));
                    continue;
                }
            };
            self.settle(&name, Outcome::Failed(dropped(what, culprit)));
        }
    }

    /// Makes an outcome true.
    fn settle(&mut self, name: &OsStr, outcome: Outcome) {
        let mut known = self.table.remove(name).unwrap_or_default();
        let event = match outcome {
            Outcome::Gone if known.loaded.is_none() && known.failed.is_none() => return,
            Outcome::Gone => {
                self.events.push(Event::of(Kind::Removed, name, &Known::default()));
                return;
            }
            Outcome::Loaded(loaded) => {
                let kind = if known.loaded.is_some() { Kind::Updated } else { Kind::Added };
                known = Known { loaded: Some(loaded), failed: None };
                Event::of(kind, name, &known)
            }
            Outcome::Failed(failed) => {
                if self.behaviour == Behaviour::Design {
                    known.loaded = None;
                }
                let event = Event::of(Kind::Failed, name, &known).because(&failed);
                known.failed = Some(failed);
                event
            }
        };
        self.events.push(event);
        self.table.insert(name.to_owned(), known);
    }
}

/// Of a driver that kubelet forgets about, because the `init` of another one failed in the same probe.
pub(super) fn dropped(what: &str, culprit: &OsStr) -> Failed {
    let logged = format!(
        "{what}, but that of {} failed in the same probe, and kubelet drops both until something changes again",
        culprit.display()
    );
    Failed { stage: Stage::Init, logged, mend: Some(format!("mend or remove {}", culprit.display())) }
}
