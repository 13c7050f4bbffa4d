//! State machine of a prober: its reactions to changes, without a clock or a file system.
//!
//! The caller reports what [changed](Model::changed), asks for the next [step](Model::step),
//! executes it, and reports the result. Changes may be reported at any time, also in the middle of
//! a probe: they count for the next one.

use super::behaviour::{Behaviour, dropped};
use super::event::{Event, EventKind, Known};
use super::pace::Pace;
use flexvol_kubelet::scan::{Failed, Finding, Loaded, Stage, executable};
use flexvol_linux::fs::directory::Kind;
use flexvol_linux::fs::listing::{Named, is_hidden};
use flexvol_linux::fs::watch_tree::How;
use flexvol_protocol::ordered::filled;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::time::{Duration, Instant};

/// State of a prober.
#[derive(Debug)]
pub(super) struct Model {
    behaviour: Behaviour,
    pace: Pace,
    /// True if the whole plugin directory has to be probed.
    everything: bool,
    /// Driver directories that changed.
    pending: BTreeMap<OsString, Operation>,
    probe: Option<Probe>,
    table: BTreeMap<OsString, Known>,
    events: Vec<Event>,
    probes: u64,
}

/// Operation on a driver directory. The last one requested counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    AddOrUpdate,
    Remove,
}

/// Probe under way.
#[derive(Debug, Default)]
struct Probe {
    /// True for a probe of the whole directory.
    whole: bool,
    todo: VecDeque<(OsString, Operation)>,
    /// True if the executable or the directory to examine was removed a moment ago.
    vanishing: bool,
    done: Vec<(OsString, ProbeOutcome)>,
}

/// Result of a probe for one driver directory.
#[derive(Debug)]
enum ProbeOutcome {
    Loaded(Loaded),
    Failed(Failed),
    Gone,
}

/// Next step for the caller.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Wait until something changes or this time has passed.
    Rest(Option<Duration>),
    /// List the plugin directory, then call [`Model::listed`].
    List,
    /// Examine one name as the scan does, then call [`Model::looked`].
    Look(OsString),
    /// Run `init` there whatever it is, then call [`Model::looked`].
    Init(OsString),
}

impl Model {
    /// Creates a model in which everything is to be probed. `period` is the shortest time between
    /// two signals; for a kubelet, the time between two look-ups.
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

    /// Handles a change at a path in the plugin directory; the empty path is this directory itself.
    pub(super) fn changed(&mut self, now: Instant, path: &Path, how: How) {
        if !self.is_heard(path, how) {
            return;
        }
        // A probe of everything is due anyway.
        let Some(first) = path.iter().next().filter(|_| !self.everything) else { return };
        let operation = Self::operation(path, how);
        self.want(now, |model| {
            model.pending.insert(first.to_owned(), operation);
        });
    }

    /// Handles lost changes, or a plugin directory that was replaced.
    pub(super) fn lost(&mut self, now: Instant) {
        self.want(now, |model| {
            model.everything = true;
            model.pending.clear();
        });
    }

    /// Adds an event to the next ones.
    pub(super) fn note(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Returns the next step.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        loop {
            let Some(probe) = &mut self.probe else { return self.begin(now) };
            match probe.todo.pop_front() {
                None => self.end(),
                Some((name, operation)) if self.behaviour == Behaviour::Design => {
                    probe.vanishing = operation == Operation::Remove;
                    return Step::Look(name);
                }
                Some((name, Operation::Remove)) => self.found(name, ProbeOutcome::Gone),
                Some((name, Operation::AddOrUpdate)) => return Step::Init(name),
            }
        }
    }

    /// Receives the content of the plugin directory.
    pub(super) fn listed(&mut self, entries: Vec<Named>) {
        let there = entries.into_iter().filter(|entry| entry.kind == Kind::Directory);
        let mut names: BTreeSet<_> = filled(there.map(|entry| entry.name).filter(|name| !is_hidden(name)));
        if self.behaviour == Behaviour::Design {
            names.extend(self.table.keys().cloned());
        }
        let todo = names.into_iter().map(|name| (name, Operation::AddOrUpdate)).collect();
        self.probe = Some(Probe { whole: true, todo, ..Probe::default() });
    }

    /// Receives the finding at one name of the plugin directory; `None` if there is nothing.
    pub(super) fn looked(&mut self, name: OsString, finding: Option<Finding>) {
        let outcome = match finding {
            Some(Finding::Loaded(loaded)) => ProbeOutcome::Loaded(loaded),
            Some(Finding::Failed(failed)) => ProbeOutcome::Failed(failed),
            Some(Finding::Ignored(_)) | None => ProbeOutcome::Gone,
        };
        self.found(name, outcome);
    }

    /// Returns the events since the last call.
    pub(super) fn take_events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// Reports whether there are events.
    pub(super) fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the number of probes.
    pub(super) fn probes(&self) -> u64 {
        self.probes
    }

    /// Returns all driver directories, by name.
    pub(super) fn table(&self) -> &BTreeMap<OsString, Known> {
        &self.table
    }

    fn is_heard(&self, path: &Path, how: How) -> bool {
        match self.behaviour {
            Behaviour::Design => path.iter().next().is_some() && !path.iter().any(is_hidden),
            // No kubelet watches for this event.
            _ if how == How::Written => false,
            // The plugin directory itself.
            _ if path.file_name().is_none() => false,
            _ => !path.file_name().is_some_and(is_hidden),
        }
    }

    fn operation(path: &Path, how: How) -> Operation {
        let mut parts = path.iter();
        let first = parts.next().unwrap_or_default();
        let is_driver = parts.next().is_none() || path == executable(Path::new(""), first);
        if how == How::Removed && is_driver { Operation::Remove } else { Operation::AddOrUpdate }
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

    fn found(&mut self, name: OsString, outcome: ProbeOutcome) {
        let Some(probe) = &mut self.probe else { return };
        // The removal of a driver removes the executable first and the directory a moment later. If
        // the directory stays, the next signal reports that it has no executable.
        let outcome = match outcome {
            ProbeOutcome::Failed(failed) if probe.vanishing && failed.stage == Stage::Init => {
                self.pending.entry(name.clone()).or_insert(Operation::AddOrUpdate);
                ProbeOutcome::Gone
            }
            outcome => outcome,
        };
        // Kubelet keeps a failed driver in its queue until it succeeds or is removed. A probe of
        // the whole directory leaves no queue.
        let again =
            matches!(&outcome, ProbeOutcome::Failed(failed) if failed.stage == Stage::Init) && !probe.whole;
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
        let failed = |(_, outcome): &&(OsString, ProbeOutcome)| matches!(outcome, ProbeOutcome::Failed(failed) if failed.stage == Stage::Init);
        if let Some((culprit, _)) = probe.done.iter().find(failed) {
            let culprit = culprit.clone();
            return self.forget(probe.done, &culprit);
        }
        for (name, outcome) in probe.done {
            self.settle(&name, outcome);
        }
    }

    /// Handles a probe in which one driver failed: kubelet discards what it found of the others.
    fn forget(&mut self, done: Vec<(OsString, ProbeOutcome)>, culprit: &OsStr) {
        for (name, outcome) in done {
            let what = match outcome {
                ProbeOutcome::Gone if !self.table.contains_key(&name) => continue,
                ProbeOutcome::Gone => "it is gone",
                ProbeOutcome::Loaded(_) => "its init succeeded",
                ProbeOutcome::Failed(failed) => {
                    self.settle(&name, ProbeOutcome::Failed(failed));
                    continue;
                }
            };
            self.settle(&name, ProbeOutcome::Failed(dropped(what, culprit)));
        }
    }

    /// Enters an outcome in the table, and adds its event.
    fn settle(&mut self, name: &OsStr, outcome: ProbeOutcome) {
        let mut known = self.table.remove(name).unwrap_or_default();
        let event = match outcome {
            ProbeOutcome::Gone if known.loaded.is_none() && known.failed.is_none() => return,
            ProbeOutcome::Gone => {
                self.events.push(Event::of(EventKind::Removed, name, &Known::default()));
                return;
            }
            ProbeOutcome::Loaded(loaded) => {
                let kind = if known.loaded.is_some() { EventKind::Updated } else { EventKind::Added };
                known = Known { loaded: Some(loaded), failed: None };
                Event::of(kind, name, &known)
            }
            ProbeOutcome::Failed(failed) => {
                if self.behaviour == Behaviour::Design {
                    known.loaded = None;
                }
                let event = Event::of(EventKind::Failed, name, &known).because(&failed);
                known.failed = Some(failed);
                event
            }
        };
        self.events.push(event);
        self.table.insert(name.to_owned(), known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_protocol::{Capabilities, DriverName};

    use Behaviour::{Design, Kubelet122, Kubelet136};

    const KUBELETS: [Behaviour; 2] = [Kubelet136, Kubelet122];

    /// Plugin directory without a file system, and its prober.
    struct World {
        model: Model,
        now: Instant,
        there: Vec<Named>,
        failing: Vec<&'static str>,
        /// Names that were executed or examined since the last probe was requested.
        looks: Vec<String>,
    }

    fn loaded(name: &OsStr) -> Option<Finding> {
        let (capabilities, took) = (Capabilities::KUBELET_DEFAULT, Duration::ZERO);
        let executable = executable(Path::new("/p"), name);
        let name = DriverName::from_directory(name).ok()?;
        Some(Finding::Loaded(Loaded { name, executable, capabilities, took }))
    }

    fn failed(stage: Stage) -> Finding {
        Finding::Failed(Failed { stage, logged: "why".into(), fix: None })
    }

    impl World {
        /// Creates a world with drivers that exist before the first probe.
        fn new(behaviour: Behaviour, drivers: &[&'static str]) -> Self {
            let now = Instant::now();
            let model = Model::new(behaviour, Duration::from_secs(1), now);
            let mut world = Self { model, now, there: Vec::new(), failing: Vec::new(), looks: Vec::new() };
            for name in drivers {
                world.put(name, Kind::Directory);
            }
            world
        }

        fn probed(behaviour: Behaviour, drivers: &[&'static str]) -> Self {
            let mut world = Self::new(behaviour, drivers);
            world.probe();
            world.pass(10_000);
            world
        }

        fn put(&mut self, name: &str, kind: Kind) {
            self.take(name);
            self.there.push(Named { name: name.into(), kind });
        }

        fn take(&mut self, name: &str) {
            self.there.retain(|entry| entry.name != name);
        }

        fn pass(&mut self, milliseconds: u64) {
            self.now += Duration::from_millis(milliseconds);
        }

        fn tell(&mut self, path: &str, how: How) {
            self.model.changed(self.now, Path::new(path), how);
        }

        /// Executes all steps until a rest. Returns the events, and the duration of the rest.
        fn go(&mut self) -> (Vec<String>, Option<Duration>) {
            self.looks.clear();
            let rest = loop {
                match self.model.step(self.now) {
                    Step::Rest(rest) => break rest,
                    Step::List => self.model.listed(self.there.clone()),
                    Step::Look(name) => self.look(name, true),
                    Step::Init(name) => self.look(name, false),
                }
            };
            let told = self.model.take_events().into_iter().map(|event| {
                let kept = if event.kind == EventKind::Failed && event.capabilities.is_some() {
                    " kept"
                } else {
                    ""
                };
                format!("{} {}{kept}", event.kind.name(), event.driver.unwrap())
            });
            (told.collect(), rest)
        }

        fn probe(&mut self) -> Vec<String> {
            self.go().0
        }

        fn look(&mut self, name: OsString, as_scan: bool) {
            let text = name.to_str().unwrap().to_owned();
            let kind = self.there.iter().find(|entry| entry.name == name).map(|entry| entry.kind);
            let finding = match kind {
                None | Some(Kind::Link | Kind::File) if as_scan => None,
                None | Some(Kind::File) => Some(failed(Stage::Init)),
                _ if self.failing.iter().any(|failing| *failing == text) => Some(failed(Stage::Init)),
                _ => Some(loaded(&name).unwrap_or_else(|| failed(Stage::Name))),
            };
            self.looks.push(text);
            self.model.looked(name, finding);
        }

        fn in_service(&self) -> Vec<&str> {
            let known = self.model.table().iter().filter(|(_, known)| known.loaded.is_some());
            known.map(|(name, _)| name.to_str().unwrap()).collect()
        }
    }

    #[test]
    fn the_first_probe_is_of_every_real_directory_without_a_dot() {
        for behaviour in [Design, Kubelet136, Kubelet122] {
            let mut world = World::new(behaviour, &["v~b", "v~a", ".v~c"]);
            world.put("link", Kind::Link);
            world.put("README", Kind::File);
            assert_eq!(world.probe(), ["added v/a", "added v/b"], "{behaviour:?}");
            assert_eq!(world.looks, ["v~a", "v~b"]);
            world.pass(5000);
            assert_eq!(world.go(), (vec![], None), "{behaviour:?}: a cached list from then on");
            assert_eq!((world.looks.len(), world.model.probes()), (0, 1));
        }
    }

    #[test]
    fn a_signal_comes_at_once_and_then_at_most_once_a_second() {
        let mut world = World::probed(Design, &["v~a"]);
        for (milliseconds, wait) in [(0, None), (1, Some(999)), (500, Some(499)), (498, Some(1))] {
            world.pass(milliseconds);
            world.tell("v~a/a", How::Altered);
            let (told, rest) = world.go();
            assert_eq!((told.len(), rest), (usize::from(wait.is_none()), wait.map(Duration::from_millis)));
        }
        world.pass(1);
        assert_eq!(world.go(), (vec!["updated v/a".to_owned()], None), "many changes, one probe");
        assert_eq!(world.model.probes(), 3);
    }

    #[test]
    fn a_storm_is_one_probe_a_second_of_what_changed() {
        let mut world = World::probed(Design, &["v~a", "v~b", "v~c"]);
        let before = world.model.probes();
        for _ in 0..10_000 {
            world.tell("v~a/a", How::Altered);
            world.tell("v~c/x", How::Appeared);
            world.probe();
            assert!(world.looks.is_empty() || world.looks == ["v~a"] || world.looks == ["v~a", "v~c"]);
            world.pass(1);
        }
        assert_eq!(world.model.probes() - before, 10);
    }

    #[test]
    fn changes_during_a_probe_count_for_the_next() {
        for behaviour in [Design, Kubelet136] {
            let mut world = World::probed(behaviour, &["v~a", "v~b"]);
            world.tell("v~a", How::Altered);
            world.tell("v~b", How::Altered);
            world.pass(1000);
            let (Step::Look(first) | Step::Init(first)) = world.model.step(world.now) else { panic!() };
            world.tell("v~a", How::Altered);
            world.look(first, true);
            assert_eq!(world.probe(), ["updated v/a", "updated v/b"]);
            world.pass(1000);
            assert_eq!(world.probe(), ["updated v/a"]);
        }
    }

    #[test]
    fn a_driver_that_is_being_removed_has_not_failed() {
        let mut world = World::probed(Design, &["v~a", "v~b"]);
        world.failing = vec!["v~a", "v~b"];
        world.tell("v~a/a", How::Removed);
        world.tell("v~b/b", How::Removed);
        assert_eq!(world.probe(), ["removed v/a", "removed v/b"]);
        world.take("v~a");
        world.tell("v~a", How::Removed);
        world.pass(1000);
        assert_eq!(world.probe(), ["failed v/b"], "it stayed, and has no executable");
        world.pass(1000);
        assert_eq!(world.go(), (vec![], None));
    }

    #[test]
    fn the_design_ignores_every_dot_and_the_plugin_directory_itself() {
        let mut world = World::probed(Design, &["v~a"]);
        for path in [".x", ".x/x", "v~a/.a", "v~a/.tmp/a", ""] {
            world.tell(path, How::Altered);
            world.tell(path, How::Appeared);
            assert_eq!(world.go(), (vec![], None), "{path}");
        }
    }

    #[test]
    fn the_design_believes_what_is_there_and_not_what_was_told() {
        let mut world = World::probed(Design, &["v~a"]);
        for path in ["v~a", "v~a/a"] {
            world.tell(path, How::Removed);
            assert_eq!(world.probe(), ["updated v/a"], "it is still there, or again");
            world.pass(1000);
        }
        world.put("v~a", Kind::Link);
        world.tell("v~a", How::Appeared);
        assert_eq!(world.probe(), ["removed v/a"], "as the next start would have it");
        world.pass(1000);
        world.put("v~a", Kind::Directory);
        world.tell("v~a", How::Appeared);
        assert_eq!(world.probe(), ["added v/a"]);
        world.pass(1000);
        world.take("v~a");
        world.tell("v~a", How::MovedAway);
        assert_eq!(world.probe(), ["removed v/a"]);
        world.pass(1000);
        world.tell("README", How::Appeared);
        assert_eq!(world.probe(), [""; 0]);
    }

    #[test]
    fn the_design_does_not_use_an_old_version_silently() {
        let mut world = World::probed(Design, &["v~a", "v~b"]);
        world.failing = vec!["v~a"];
        world.tell("v~a/a", How::Appeared);
        assert_eq!(world.probe(), ["failed v/a"]);
        assert_eq!(world.in_service(), ["v~b"]);
        world.pass(10_000);
        assert_eq!(world.go(), (vec![], None), "nobody asks again until it changes");
        world.failing.clear();
        world.tell("v~a/a", How::Written);
        assert_eq!(world.probe(), ["added v/a"]);
        world.failing = vec!["v~a"];
        world.pass(1000);
        world.tell("v~a/a", How::Altered);
        assert_eq!(world.probe(), ["failed v/a"]);
        world.pass(1000);
        world.take("v~a");
        world.tell("v~a", How::Removed);
        assert_eq!(world.probe(), ["removed v/a"]);
    }

    #[test]
    fn after_lost_changes_the_design_probes_everything() {
        let mut world = World::probed(Design, &["v~a", "v~b"]);
        world.take("v~a");
        world.put("v~c", Kind::Directory);
        world.model.lost(world.now);
        assert_eq!(world.probe(), ["removed v/a", "updated v/b", "added v/c"]);
        world.there.clear();
        world.pass(1000);
        world.model.lost(world.now);
        assert_eq!(world.probe(), ["removed v/b", "removed v/c"]);
    }

    #[test]
    fn kubelet_probes_at_look_ups_which_come_by_the_clock() {
        let mut world = World::probed(Kubelet136, &["v~a"]);
        world.pass(300);
        world.tell("v~a/a", How::Altered);
        assert_eq!(world.go(), (vec![], Some(Duration::from_millis(700))));
        world.pass(700);
        assert_eq!(world.probe(), ["updated v/a"]);
        world.pass(3000);
        world.tell("v~a/a", How::Altered);
        assert_eq!(world.go(), (vec![], Some(Duration::from_secs(1))), "the look-up just now came before it");
    }

    #[test]
    fn kubelet_ignores_a_dot_at_the_end_of_a_path_only() {
        let mut world = World::probed(Kubelet136, &["v~a"]);
        for path in [".x", "v~a/.a", "v~a/x/.y", ""] {
            world.tell(path, How::Appeared);
            assert_eq!(world.go(), (vec![], None), "{path}");
        }
        world.tell(".x/y", How::Appeared);
        world.tell("README", How::Appeared);
        world.pass(1000);
        assert_eq!(world.probe(), ["failed ./x", "failed README"].map(|text| text.replace("./", ".")));
        assert_eq!(world.looks, [".x", "README"], "it executes .x/.x and README/README");
        assert_eq!(executable(Path::new("/p"), OsStr::new(".x")), Path::new("/p/.x/.x"));
    }

    #[test]
    fn kubelet_does_not_hear_that_a_file_was_closed() {
        for behaviour in KUBELETS {
            let mut world = World::probed(behaviour, &["v~a"]);
            world.tell("v~a/a", How::Written);
            assert_eq!(world.go(), (vec![], None), "{behaviour:?}");
        }
    }

    #[test]
    fn kubelet_removes_when_the_executable_or_the_directory_is_removed() {
        for path in ["v~a", "v~a/a"] {
            let mut world = World::probed(Kubelet136, &["v~a"]);
            world.tell(path, How::Removed);
            world.pass(1000);
            assert_eq!(world.probe(), ["removed v/a"], "{path}");
            assert!(world.looks.is_empty());
        }
        let mut world = World::probed(Kubelet136, &["v~a"]);
        for path in ["v~a/b", "v~a/v~a", "v~a/a/a"] {
            world.tell(path, How::Removed);
            world.pass(1000);
            assert_eq!(world.probe(), ["updated v/a"], "{path}");
        }
    }

    #[test]
    fn kubelet_takes_a_driver_moved_away_for_a_failing_update() {
        let mut world = World::probed(Kubelet136, &["v~a"]);
        world.take("v~a");
        world.tell("v~a", How::MovedAway);
        for _ in 0..3 {
            world.pass(1000);
            assert_eq!(world.probe(), ["failed v/a kept"]);
        }
        assert_eq!(world.in_service(), ["v~a"]);
    }

    #[test]
    fn the_last_change_wins() {
        let mut world = World::probed(Kubelet136, &["v~a"]);
        world.tell("v~a", How::Removed);
        world.tell("v~a", How::Appeared);
        world.pass(1000);
        assert_eq!(world.probe(), ["updated v/a"]);
        world.tell("v~a", How::Appeared);
        world.tell("v~a", How::Removed);
        world.pass(1000);
        assert_eq!(world.probe(), ["removed v/a"]);
    }

    #[test]
    fn kubelet_keeps_the_old_version_and_runs_init_at_every_look_up() {
        for behaviour in [Kubelet136, Kubelet122] {
            let mut world = World::probed(behaviour, &["v~a"]);
            world.failing = vec!["v~a"];
            world.tell("v~a/a", How::Appeared);
            for _ in 0..5 {
                world.pass(1000);
                assert_eq!(world.probe(), ["failed v/a kept"]);
            }
            assert_eq!(world.in_service(), ["v~a"]);
            world.failing.clear();
            world.pass(1000);
            assert_eq!(world.probe(), ["updated v/a"]);
            world.pass(1000);
            assert_eq!(world.go(), (vec![], None));
        }
    }

    #[test]
    fn a_remove_ends_the_repetition() {
        let mut world = World::probed(Kubelet136, &["v~a"]);
        world.failing = vec!["v~a"];
        world.tell("v~a/a", How::Altered);
        world.pass(1000);
        assert_eq!(world.probe(), ["failed v/a kept"]);
        world.tell("v~a", How::Removed);
        world.pass(1000);
        assert_eq!(world.probe(), ["removed v/a"]);
        world.pass(1000);
        assert_eq!(world.go(), (vec![], None));
    }

    #[test]
    fn what_fails_when_kubelet_starts_is_not_tried_again() {
        let mut world = World::new(Kubelet136, &["v~a", "v~b"]);
        world.failing = vec!["v~a"];
        assert_eq!(world.probe(), ["failed v/a", "added v/b"]);
        world.pass(1000);
        assert_eq!(world.go(), (vec![], None));
    }

    #[test]
    fn a_name_kubernetes_refuses_is_not_tried_again() {
        let mut world = World::probed(Kubelet136, &[]);
        world.put("Foo~x", Kind::Directory);
        world.tell("Foo~x", How::Appeared);
        world.pass(1000);
        assert_eq!(world.probe(), ["failed Foo/x"]);
        world.pass(1000);
        assert_eq!(world.go(), (vec![], None));
    }

    #[test]
    fn kubelet_loads_a_symlinked_directory_until_it_is_restarted() {
        let mut world = World::probed(Kubelet136, &[]);
        world.put("v~a", Kind::Link);
        world.tell("v~a", How::Appeared);
        world.pass(1000);
        assert_eq!(world.probe(), ["added v/a"]);
        let mut restarted = World::new(Kubelet136, &[]);
        restarted.put("v~a", Kind::Link);
        assert_eq!(restarted.probe(), [""; 0]);
    }

    #[test]
    fn before_1_23_one_failing_driver_costs_the_others_their_news() {
        let mut world = World::probed(Kubelet122, &["v~a", "v~old"]);
        world.failing = vec!["v~bad"];
        for name in ["v~bad", "v~new"] {
            world.put(name, Kind::Directory);
            world.tell(name, How::Appeared);
        }
        world.tell("v~old", How::Removed);
        world.pass(1000);
        assert_eq!(world.probe(), ["failed v/bad", "failed v/new", "failed v/old kept"]);
        assert_eq!(world.in_service(), ["v~a", "v~old"]);
        world.pass(1000);
        assert_eq!(world.probe(), ["failed v/bad"], "and the others are forgotten");
        world.failing.clear();
        world.pass(1000);
        assert_eq!(world.probe(), ["added v/bad"]);
        assert_eq!(world.in_service(), ["v~a", "v~bad", "v~old"]);
        world.tell("v~new/new", How::Altered);
        world.pass(1000);
        assert_eq!(world.probe(), ["added v/new"], "until something changes there");
        let later = |behaviour| {
            let mut world = World::new(behaviour, &["v~a", "v~bad"]);
            world.failing = vec!["v~bad"];
            world.probe();
            world.in_service().len()
        };
        assert_eq!([Kubelet122, Kubelet136, Design].map(later), [0, 1, 1]);
    }
}
