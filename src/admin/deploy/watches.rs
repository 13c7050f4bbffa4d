//! Watches on the plugin directories, the drivers' directories in them, and the log's directory.

use super::DriverHome;
use anyhow::Result;
use flexvol_linux::fs::inotify::{Inotify, Interest, Notice, Watch, What};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A change of the driver with this number.
    Driver(usize),
    /// A change of a plugin directory as a whole: removed, renamed or unmounted.
    PluginDir(PathBuf),
    /// A change of this file in the log's directory; `None`: of the directory as a whole.
    Log(Option<PathBuf>),
    /// An unknown change: events were lost.
    Anything,
}

/// The watches of one deployment.
#[derive(Debug)]
pub struct Watches {
    inotify: Inotify,
    held: Vec<(Watch, Watched)>,
}

/// Object of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Watched {
    PluginDir(PathBuf),
    Driver(usize),
    Log,
}

impl Watches {
    /// Makes an empty set of watches.
    pub fn new() -> Result<Self> {
        Ok(Self { inotify: Inotify::new()?, held: Vec::new() })
    }

    /// Watches everything that exists. Call it again after every change: a path that is watched
    /// already costs one system call, and a path that was made again is watched from then on.
    /// Returns the numbers of the drivers with a new watch: no event reports what happened to them
    /// between their creation and this call.
    pub fn renew(&mut self, homes: &[DriverHome], log: &Path) -> Vec<usize> {
        let mut anew = Vec::new();
        for (number, home) in homes.iter().enumerate() {
            self.watch(&home.plugin_dir, Watched::PluginDir(home.plugin_dir.clone()));
            if self.watch(&home.directory(), Watched::Driver(number)) {
                anew.push(number);
            }
        }
        self.watch(log, Watched::Log);
        anew
    }

    /// Watches one path; returns true if the watch is new. A missing path cannot be watched; the
    /// next check of the driver finds that it is missing.
    fn watch(&mut self, path: &Path, watched: Watched) -> bool {
        let entries = Interest::ENTRIES.and(Interest::ITSELF);
        // A file that is being written is left alone until it is closed.
        let interest =
            if matches!(watched, Watched::Driver(_)) { entries.and(Interest::WRITTEN) } else { entries };
        let Ok(watch) = self.inotify.watch(path, interest) else {
            return false;
        };
        let is_new = !self.held.contains(&(watch, watched.clone()));
        if is_new {
            self.held.push((watch, watched));
        }
        is_new
    }

    /// Returns the changes since the last call.
    pub fn changes(&mut self, homes: &[DriverHome]) -> Result<Vec<Change>> {
        let notices = self.inotify.read()?;
        let mut changes = Vec::new();
        for notice in &notices {
            let told = |held: &(Watch, Watched)| Some(held.0) == notice.watch;
            let subjects = self.held.iter().filter(|held| told(held)).map(|(_, watched)| watched);
            for change in subjects.flat_map(|watched| meaning(watched, notice, homes)) {
                if !changes.contains(&change) {
                    changes.push(change);
                }
            }
            match notice.what {
                What::Overflow => changes.push(Change::Anything),
                What::Ended => self.held.retain(|held| !told(held)),
                _ => {}
            }
        }
        Ok(changes)
    }
}

impl AsFd for Watches {
    /// Returns a descriptor that is readable when something has changed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// Translates a notice into changes. Ignores drivers of others in the same plugin directory.
fn meaning(watched: &Watched, notice: &Notice, homes: &[DriverHome]) -> Vec<Change> {
    match (watched, &notice.name) {
        (Watched::Driver(number), _) => vec![Change::Driver(*number)],
        (Watched::PluginDir(path), Some(name)) => {
            let named = |home: &DriverHome| home.plugin_dir == *path && *name == *home.name.directory();
            let numbers = homes.iter().enumerate().filter(|(_, home)| named(home));
            numbers.map(|(number, _)| Change::Driver(number)).collect()
        }
        // Times and mode of the plugin directory itself change with every entry.
        (Watched::PluginDir(_), None) if notice.what == What::Attributes => Vec::new(),
        (Watched::PluginDir(path), None) => vec![Change::PluginDir(path.clone())],
        (Watched::Log, name) => vec![Change::Log(name.as_ref().map(PathBuf::from))],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_protocol::DriverName;
    use std::fs;

    fn homes(root: &Path) -> Vec<DriverHome> {
        let home = |name| DriverHome { name: DriverName::parse(name).unwrap(), plugin_dir: root.join("p") };
        ["v/one", "v/two"].map(home).into()
    }

    #[test]
    fn changes_are_told_apart() {
        let root = tempfile::tempdir().unwrap();
        let (p, log) = (root.path().join("p"), root.path().join("log"));
        fs::create_dir_all(p.join("v~one")).unwrap();
        fs::create_dir(&log).unwrap();
        let homes = homes(root.path());
        let mut watches = Watches::new().unwrap();
        let changes = |watches: &mut Watches| watches.changes(&homes).unwrap();
        assert_eq!(watches.renew(&homes, &log), [0]);
        assert!(watches.renew(&homes, &log).is_empty());
        assert_eq!(watches.held.len(), 3);

        fs::create_dir(p.join("other~driver")).unwrap();
        assert_eq!(changes(&mut watches), []);
        fs::File::create(p.join("v~one/one")).unwrap();
        assert_eq!(changes(&mut watches), [Change::Driver(0)]);
        fs::create_dir(p.join("v~two")).unwrap();
        assert_eq!(changes(&mut watches), [Change::Driver(1)]);
        assert_eq!(watches.renew(&homes, &log), [1]);
        fs::File::create(p.join("v~two/two")).unwrap();
        assert_eq!(changes(&mut watches), [Change::Driver(1)]);
        let writer = fs::File::create(p.join("v~two/.flexvol.json")).unwrap();
        assert_eq!((changes(&mut watches), changes(&mut watches)), (vec![Change::Driver(1)], vec![]));
        drop(writer);
        assert_eq!(changes(&mut watches), [Change::Driver(1)]);
        fs::File::create(log.join("x")).unwrap();
        assert_eq!(changes(&mut watches), [Change::Log(Some("x".into()))]);
    }

    #[test]
    fn a_plugin_directory_made_anew_is_watched_anew() {
        let root = tempfile::tempdir().unwrap();
        let (p, log) = (root.path().join("p"), root.path().join("log"));
        let homes = homes(root.path());
        let mut watches = Watches::new().unwrap();
        for _ in 0..3 {
            fs::create_dir_all(p.join("v~one")).unwrap();
            watches.renew(&homes, &log);
            fs::File::create(p.join("v~one/one")).unwrap();
            assert_eq!(watches.changes(&homes).unwrap(), [Change::Driver(0)]);
            fs::remove_dir_all(&p).unwrap();
            let changes = watches.changes(&homes).unwrap();
            assert_eq!(changes, [Change::Driver(0), Change::PluginDir(p.clone())]);
            assert_eq!(watches.held, []);
        }
    }
}
