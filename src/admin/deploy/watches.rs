//! What is watched: the plugin directories, the drivers' directories in them, and the directory of
//! the log.

use super::DriverHome;
use anyhow::Result;
use flexvol_linux::fs::inotify::{Inotify, Interest, Notice, Watch, What};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// What has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Something about the driver of that number.
    Driver(usize),
    /// A plugin directory as a whole: removed, renamed or unmounted.
    PluginDir(PathBuf),
    /// A file of that name in the log's directory; without one, the directory as a whole.
    Log(Option<PathBuf>),
    /// It is unknown what.
    Anything,
}

/// The watches of one deployment.
#[derive(Debug)]
pub struct Watches {
    inotify: Inotify,
    held: Vec<(Watch, Watched)>,
}

/// What a watch is on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Watched {
    PluginDir(PathBuf),
    Driver(usize),
    Log,
}

impl Watches {
    /// None yet.
    pub fn new() -> Result<Self> {
        Ok(Self { inotify: Inotify::new()?, held: Vec::new() })
    }

    /// Watches what is there. To be repeated after every change: what is watched already costs a
    /// system call, and what came again is watched from then on. The numbers of the drivers for
    /// which that is so: no event tells what has happened to them between their coming and this
    /// call.
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

    /// Whether that is a new watch. What is not there cannot be watched, and is found missing by
    /// who looks at it.
    fn watch(&mut self, path: &Path, watched: Watched) -> bool {
        let entries = Interest::ENTRIES.and(Interest::ITSELF);
        // What someone was writing is left alone until they have closed it.
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

    /// What has changed since the last time.
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
    /// Readable when something has changed.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// What a notice about a watched means. Other people's drivers in the same plugin directory mean
/// nothing.
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
