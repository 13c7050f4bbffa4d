//! State machine of a prober: its reactions to changes, without a clock or a file system.
//!
//! The caller reports what [changed](Model::changed), asks for the next [step](Model::step),
//! executes it, and reports the result. Changes may be reported at any time, also in the middle of
//! a probe: they count for the next one.

use super::event::{Event, EventKind};
use flexvol_kubelet::scan::{Failed, Finding, Loaded, Stage, executable};
use flexvol_linux::fs::directory::Kind;
use flexvol_linux::fs::listing::{Named, is_hidden};
use flexvol_linux::fs::watch_tree::How;
use flexvol_protocol::ordered::filled;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

/// State of a prober.
#[derive(Debug)]
pub(super) struct Model {
    /// Shortest time between two probes.
    period: Duration,
    /// Earliest time of the next probe.
    next: Instant,
    /// True if the whole plugin directory has to be probed.
    everything: bool,
    /// Driver directories that changed. The last change counts.
    pending: BTreeMap<OsString, Changed>,
    /// Driver directories that the probe under way has yet to examine.
    todo: VecDeque<(OsString, Changed)>,
    /// Change of the directory that is being examined.
    examined: Changed,
    table: BTreeMap<OsString, Result<Loaded, Failed>>,
    events: Vec<Event>,
    probes: u64,
}

/// Change of a driver directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Changed {
    Somehow,
    /// It, or the executable in it, was removed.
    Removed,
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
}

impl Model {
    /// Creates a model in which everything is to be probed.
    pub(super) fn new(period: Duration, now: Instant) -> Self {
        Self {
            period,
            next: now,
            everything: true,
            pending: BTreeMap::new(),
            todo: VecDeque::new(),
            examined: Changed::Somehow,
            table: BTreeMap::new(),
            events: Vec::new(),
            probes: 0,
        }
    }

    /// Handles a change at a path in the plugin directory; the empty path is this directory itself.
    pub(super) fn changed(&mut self, path: &Path, how: How) {
        let mut parts = path.iter();
        // A probe of everything is due anyway.
        let Some(first) = parts.next().filter(|_| !self.everything && !path.iter().any(is_hidden)) else {
            return;
        };
        let is_driver = parts.next().is_none() || path == executable(Path::new(""), first);
        let removed = how == How::Removed && is_driver;
        self.pending.insert(first.to_owned(), if removed { Changed::Removed } else { Changed::Somehow });
    }

    /// Handles lost changes, or a plugin directory that was replaced.
    pub(super) fn lost(&mut self) {
        self.everything = true;
        self.pending.clear();
    }

    /// Adds an event to the next ones.
    pub(super) fn note(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Returns the next step.
    pub(super) fn step(&mut self, now: Instant) -> Step {
        if self.todo.is_empty() {
            if !self.everything && self.pending.is_empty() {
                return Step::Rest(None);
            }
            if self.next > now {
                return Step::Rest(Some(self.next - now));
            }
            self.next = now + self.period;
            self.probes += 1;
            if std::mem::take(&mut self.everything) {
                return Step::List;
            }
            self.todo = std::mem::take(&mut self.pending).into_iter().collect();
        }
        let Some((name, changed)) = self.todo.pop_front() else { return Step::Rest(None) };
        self.examined = changed;
        Step::Look(name)
    }

    /// Receives the content of the plugin directory.
    pub(super) fn listed(&mut self, entries: Vec<Named>) {
        let there = entries.into_iter().filter(|entry| entry.kind == Kind::Directory);
        let mut names: BTreeSet<_> = filled(there.map(|entry| entry.name).filter(|name| !is_hidden(name)));
        names.extend(self.table.keys().cloned());
        self.todo = names.into_iter().map(|name| (name, Changed::Somehow)).collect();
    }

    /// Receives the finding at one name of the plugin directory; `None` if there is nothing.
    pub(super) fn looked(&mut self, name: OsString, finding: Option<Finding>) {
        let known = match finding {
            // The removal of a driver removes the executable first and the directory a moment
            // later. If the directory stays, the next probe reports that it has no executable.
            Some(Finding::Failed(failed))
                if self.examined == Changed::Removed && failed.stage == Stage::Init =>
            {
                self.pending.entry(name.clone()).or_insert(Changed::Somehow);
                None
            }
            Some(Finding::Failed(failed)) => Some(Err(failed)),
            Some(Finding::Loaded(loaded)) => Some(Ok(loaded)),
            Some(Finding::Ignored(_)) | None => None,
        };
        let before = self.table.remove(&name);
        let kind = match (&before, &known) {
            (None, None) => return,
            (Some(_), None) => EventKind::Removed,
            (_, Some(Err(_))) => EventKind::Failed,
            (Some(Ok(_)), Some(Ok(_))) => EventKind::Updated,
            (_, Some(Ok(_))) => EventKind::Added,
        };
        self.events.push(Event::of(kind, &name, known.as_ref()));
        self.table.extend(known.map(|known| (name, known)));
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
    pub(super) fn table(&self) -> &BTreeMap<OsString, Result<Loaded, Failed>> {
        &self.table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_protocol::{Capabilities, DriverName};
    use std::ffi::OsStr;

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
        fn new(drivers: &[&'static str]) -> Self {
            let now = Instant::now();
            let model = Model::new(Duration::from_secs(1), now);
            let mut world = Self { model, now, there: Vec::new(), failing: Vec::new(), looks: Vec::new() };
            for name in drivers {
                world.put(name, Kind::Directory);
            }
            world
        }

        fn probed(drivers: &[&'static str]) -> Self {
            let mut world = Self::new(drivers);
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
            self.model.changed(Path::new(path), how);
        }

        /// Executes all steps until a rest. Returns the events, and the duration of the rest.
        fn go(&mut self) -> (Vec<String>, Option<Duration>) {
            self.looks.clear();
            let rest = loop {
                match self.model.step(self.now) {
                    Step::Rest(rest) => break rest,
                    Step::List => self.model.listed(self.there.clone()),
                    Step::Look(name) => self.look(name),
                }
            };
            let told = self.model.take_events().into_iter();
            let told = told.map(|event| format!("{} {}", event.kind.name(), event.driver.unwrap()));
            (told.collect(), rest)
        }

        fn probe(&mut self) -> Vec<String> {
            self.go().0
        }

        fn look(&mut self, name: OsString) {
            let text = name.to_str().unwrap().to_owned();
            let kind = self.there.iter().find(|entry| entry.name == name).map(|entry| entry.kind);
            let finding = match kind {
                None | Some(Kind::Link | Kind::File) => None,
                _ if self.failing.iter().any(|failing| *failing == text) => Some(failed(Stage::Init)),
                _ => Some(loaded(&name).unwrap_or_else(|| failed(Stage::Name))),
            };
            self.looks.push(text);
            self.model.looked(name, finding);
        }

        fn in_service(&self) -> Vec<&str> {
            let known = self.model.table().iter().filter(|(_, known)| known.is_ok());
            known.map(|(name, _)| name.to_str().unwrap()).collect()
        }
    }

    #[test]
    fn the_first_probe_is_of_every_real_directory_without_a_dot() {
        let mut world = World::new(&["v~b", "v~a", ".v~c"]);
        world.put("link", Kind::Link);
        world.put("README", Kind::File);
        assert_eq!(world.probe(), ["added v/a", "added v/b"]);
        assert_eq!(world.looks, ["v~a", "v~b"]);
        world.pass(5000);
        assert_eq!(world.go(), (vec![], None), "a cached list from then on");
        assert_eq!((world.looks.len(), world.model.probes()), (0, 1));
    }

    #[test]
    fn a_signal_comes_at_once_and_then_at_most_once_a_second() {
        let mut world = World::probed(&["v~a"]);
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
        let mut world = World::probed(&["v~a", "v~b", "v~c"]);
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
        let mut world = World::probed(&["v~a", "v~b"]);
        world.tell("v~a", How::Altered);
        world.tell("v~b", How::Altered);
        world.pass(1000);
        let Step::Look(first) = world.model.step(world.now) else { panic!() };
        world.tell("v~a", How::Altered);
        world.look(first);
        assert_eq!(world.probe(), ["updated v/a", "updated v/b"]);
        world.pass(1000);
        assert_eq!(world.probe(), ["updated v/a"]);
    }

    #[test]
    fn a_driver_that_is_being_removed_has_not_failed() {
        let mut world = World::probed(&["v~a", "v~b"]);
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
    fn every_dot_and_the_plugin_directory_itself_are_ignored() {
        let mut world = World::probed(&["v~a"]);
        for path in [".x", ".x/x", "v~a/.a", "v~a/.tmp/a", ""] {
            world.tell(path, How::Altered);
            world.tell(path, How::Appeared);
            assert_eq!(world.go(), (vec![], None), "{path}");
        }
    }

    #[test]
    fn what_is_there_counts_and_not_what_was_told() {
        let mut world = World::probed(&["v~a"]);
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
    fn an_old_version_is_not_used_silently() {
        let mut world = World::probed(&["v~a", "v~b"]);
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
    fn after_lost_changes_everything_is_probed() {
        let mut world = World::probed(&["v~a", "v~b"]);
        world.take("v~a");
        world.put("v~c", Kind::Directory);
        world.model.lost();
        assert_eq!(world.probe(), ["removed v/a", "updated v/b", "added v/c"]);
        world.there.clear();
        world.pass(1000);
        world.model.lost();
        assert_eq!(world.probe(), ["removed v/b", "removed v/c"]);
    }

    #[test]
    fn the_last_change_wins() {
        let mut world = World::probed(&["v~a"]);
        world.failing = vec!["v~a"];
        world.tell("v~a/a", How::Removed);
        world.tell("v~a/a", How::Appeared);
        assert_eq!(world.probe(), ["failed v/a"]);
        world.tell("v~a/a", How::Appeared);
        world.tell("v~a/a", How::Removed);
        world.pass(1000);
        assert_eq!(world.probe(), ["removed v/a"]);
    }

    #[test]
    fn only_the_executable_and_the_directory_are_the_driver() {
        for path in ["v~a/b", "v~a/v~a", "v~a/a/a"] {
            let mut world = World::probed(&["v~a"]);
            world.failing = vec!["v~a"];
            world.tell(path, How::Removed);
            assert_eq!(world.probe(), ["failed v/a"], "{path}");
        }
    }
}
