//! A plugin directory for one test, and drivers that go in and out of it as installers do it.

use crate::support::pace::deadline;
use crate::support::write_executable;
use flexvol::prober::{Event, Habits, Watcher};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take that is waited for.
pub(crate) fn event_wait() -> Duration {
    deadline(30)
}

/// What a good driver answers.
pub(crate) const GOOD: &str = r#"echo '{"status":"Success","capabilities":{"attach":false}}'"#;

/// A plugin directory, and beside it the executables that its drivers link to: no file that this
/// process writes is ever executed, as it could be busy.
pub(crate) struct PluginDir {
    home: TempDir,
    pub(crate) path: PathBuf,
}

impl PluginDir {
    /// An empty one, with two executables: `good`, and `bad`, whose `init` fails. Each notes its
    /// calls.
    pub(crate) fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("exec");
        fs::create_dir(&path).unwrap();
        let dir = Self { home, path };
        dir.script("good", GOOD);
        dir.script("bad", r#"echo '{"status":"Failure","message":"no luck"}'"#);
        dir
    }

    /// With good drivers in it.
    pub(crate) fn with(drivers: &[&str]) -> Self {
        let dir = Self::new();
        for name in drivers {
            dir.install(name, "good");
        }
        dir
    }

    /// Makes an executable to link to.
    pub(crate) fn script(&self, name: &str, body: &str) {
        let path = self.beside(name);
        let text = format!("#!/bin/sh\necho \"$0\" >>{}\n{body}\n", self.beside("calls").display());
        write_executable(&path, &text);
    }

    /// A path outside of the plugin directory.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// How often drivers were executed.
    pub(crate) fn calls(&self) -> usize {
        fs::read_to_string(self.beside("calls")).map_or(0, |text| text.lines().count())
    }

    /// A driver directory complete in one rename.
    pub(crate) fn install(&self, name: &str, executable: &str) {
        let hidden = self.at(".new");
        fs::create_dir(&hidden).unwrap();
        symlink(self.beside(executable), hidden.join(last(name))).unwrap();
        fs::rename(hidden, self.at(name)).unwrap();
    }

    /// Another executable, in one rename.
    pub(crate) fn replace(&self, name: &str, executable: &str) {
        let hidden = self.at(name).join(".new");
        symlink(self.beside(executable), &hidden).unwrap();
        fs::rename(hidden, self.at(name).join(last(name))).unwrap();
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.at(name).join(last(name))).unwrap();
        fs::remove_dir(self.at(name)).unwrap();
    }

    /// A watch with signals every 50 ms, after the first probe.
    pub(crate) fn watch(&self) -> Watch {
        let habits = Habits { period: Duration::from_millis(50), ..Habits::default() };
        let mut watch = Watch { watcher: Watcher::new(&self.path, habits).unwrap(), told: Vec::new() };
        watch.settle();
        watch.told.clear();
        watch
    }
}

/// The part of a directory's name after the last `~`.
pub(crate) fn last(name: &str) -> &str {
    name.rsplit('~').next().unwrap()
}

/// A watcher, and what it told since somebody asked.
pub(crate) struct Watch {
    pub(crate) watcher: Watcher,
    told: Vec<Event>,
}

impl Watch {
    /// Waits until something was told, as `kind driver`, and everything before it too: all of it.
    pub(crate) fn until(&mut self, last: &str) -> Vec<String> {
        let start = Instant::now();
        while !self.told.iter().any(|event| text(event) == last) {
            assert!(start.elapsed() < event_wait(), "never {last:?}: {:?}", self.told);
            self.told.extend(self.watcher.next(Duration::from_millis(100)).unwrap());
        }
        self.take()
    }

    /// Waits until nothing is left to be done; what was told.
    pub(crate) fn settle(&mut self) -> Vec<String> {
        let start = Instant::now();
        loop {
            let before = self.watcher.stats();
            let events = self.watcher.next(deadline(1) / 5).unwrap();
            if events.is_empty() && self.watcher.stats() == before {
                return self.take();
            }
            self.told.extend(events);
            assert!(start.elapsed() < event_wait(), "without end: {:?}", self.told);
        }
    }

    /// The events of the last answer.
    pub(crate) fn event(&mut self, last: &str) -> Event {
        let start = Instant::now();
        loop {
            let events = self.watcher.next(Duration::from_millis(100)).unwrap();
            if let Some(event) = events.into_iter().find(|event| text(event) == last) {
                return event;
            }
            assert!(start.elapsed() < event_wait(), "never {last:?}");
        }
    }

    pub(crate) fn in_service(&self) -> Vec<String> {
        self.watcher.loaded().map(|loaded| loaded.name.to_string()).collect()
    }

    fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.told).iter().map(text).collect()
    }
}

/// An event as `kind driver`; of the watch itself, `noted` and what.
pub(crate) fn text(event: &Event) -> String {
    let about = event.driver.as_ref().or(event.reason.as_ref()).unwrap();
    format!("{} {about}", event.kind.name())
}

/// Removes a directory and all in it.
pub(crate) fn remove_all(path: &Path) {
    fs::remove_dir_all(path).unwrap();
}
