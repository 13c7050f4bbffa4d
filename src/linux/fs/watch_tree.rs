//! Changes anywhere below one directory: a watch on it and on every directory below it.
//!
//! A directory is watched before it is listed, and a new one before its change is returned.
//! If the caller then inspects the path of a change, it sees the whole state or gets another
//! change. Watches follow the file system, not the order of changes: after each change that makes
//! or removes a directory, the directories that exist now are watched. So a directory that was
//! renamed, swapped, or removed and made again never reports under a path that it no longer has.

use crate::fs::directory::Kind;
use crate::fs::inotify::{Inotify, Interest, Notice, Watch, What};
use crate::fs::listing::{self, is_hidden};
use anyhow::{Context as _, Result};
use flexvol_protocol::failure::{Code, Failure};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A watched directory and all below it, but for what has a name with a leading dot; symlinks are
/// not followed, except for the root itself.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    inotify: Inotify,
    /// Watches by their path below the root; the root itself has the empty path.
    watches: BTreeMap<PathBuf, Watch>,
    /// Path under which a watch reports. If the two maps disagree, this one is right: the entry of
    /// the other is stale until the change about the moved directory is read.
    paths: HashMap<Watch, PathBuf>,
    /// Watches of the directories above the root, and of the root, which is the last.
    line: Vec<Watch>,
    unwatched: Option<String>,
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A change of an entry of the root or of a directory below it, or of the root itself.
    At {
        /// The path below the root; empty for the root itself.
        path: PathBuf,
        /// Kind of change.
        how: How,
    },
    /// Changes were lost: call [`Tree::renew`], then check everything.
    Overflow,
    /// The root was removed or unmounted: call [`Tree::renew`] once it exists again.
    RootRemoved,
    /// The root, or a directory above it, was renamed: the root's path may name any file now.
    RootMoved,
}

/// Events to report for each directory.
const INTEREST: Interest = Interest::ENTRIES.and(Interest::WRITTEN);

/// Kind of change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The name is new, or names another file now.
    Appeared,
    /// The name is gone: removed.
    Removed,
    /// The name is gone: renamed, to a name in the tree or outside.
    MovedAway,
    /// Content, mode, owner or the like was changed.
    Altered,
    /// A process that could write to it closed it: from now on it can be executed.
    Written,
}

impl Tree {
    /// Watches the root and all below it. Fails if the root does not exist. A reached limit of the
    /// kernel, or a failure further down, is reported by [`unwatched`](Self::unwatched).
    pub fn new(root: &Path) -> Result<Self> {
        let mut tree = Self {
            root: root.to_owned(),
            inotify: Inotify::new()?,
            watches: BTreeMap::new(),
            paths: HashMap::new(),
            line: Vec::new(),
            unwatched: None,
        };
        tree.begin()?;
        Ok(tree)
    }

    /// Starts again with the directory that the root's path names now; drops all queued changes.
    pub fn renew(&mut self) -> Result<()> {
        *self = Self::new(&self.root)?;
        Ok(())
    }

    /// Returns the changes so far, oldest first.
    pub fn changes(&mut self) -> Result<Vec<Change>> {
        let notices = self.inotify.read()?;
        Ok(notices.into_iter().filter_map(|notice| self.change(notice)).collect())
    }

    /// Waits like [`Inotify::wait`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        self.inotify.wait(timeout)
    }

    /// Returns the reason if a directory below the root is not watched: its changes are missed.
    pub fn unwatched(&self) -> Option<&str> {
        self.unwatched.as_deref()
    }

    fn begin(&mut self) -> Result<()> {
        let watch =
            match self.inotify.watch(&self.root, INTEREST.and(Interest::ITSELF).and(Interest::DIRECTORY)) {
                Err(error) if is_limit(&error) => {
                    self.unwatched = Some(format!("{error:#}"));
                    return Ok(());
                }
                watch => watch?,
            };
        self.remember(Path::new(""), watch);
        let above = self.root.canonicalize().with_context(|| format!("find {}", self.root.display()))?;
        let above = above.ancestors().skip(1);
        // Without access to one of them, only the report of its renaming is lost.
        self.line = above.filter_map(|each| self.inotify.watch(each, Interest::MOVED).ok()).collect();
        self.line.push(watch);
        self.watch_below(Path::new(""));
        Ok(())
    }

    /// Watches every directory below a watched one.
    fn watch_below(&mut self, path: &Path) {
        let mut todo = vec![path.to_owned()];
        while let Some(path) = todo.pop() {
            // A directory that is gone by now counts as empty.
            let entries = listing::list(&self.root.join(&path)).unwrap_or_default();
            let below = entries.into_iter().filter(|entry| entry.kind == Kind::Directory);
            let below: Vec<_> = below.map(|entry| entry.name).filter(|name| !is_hidden(name)).collect();
            todo.extend(below.into_iter().map(|name| path.join(name)).filter(|path| self.watch(path)));
        }
    }

    /// Watches one directory. Returns true if there is one.
    fn watch(&mut self, path: &Path) -> bool {
        match self.inotify.watch_directory(&self.root.join(path), INTEREST) {
            Ok(watch) => {
                self.remember(path, watch);
                true
            }
            // The directory is gone, or another file has its name, by now.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => false,
            Err(errno) => {
                let why = || {
                    format!("{:#}", crate::fs::inotify::refused(errno).context(path.display().to_string()))
                };
                self.unwatched.get_or_insert_with(why);
                false
            }
        }
    }

    fn remember(&mut self, path: &Path, watch: Watch) {
        self.paths.insert(watch, path.to_owned());
        if let Some(old) = self.watches.insert(path.to_owned(), watch)
            && old != watch
        {
            self.end(old, path);
        }
    }

    /// Ends the watch of a directory that was at that path, unless it reports under another path by
    /// now.
    fn end(&mut self, watch: Watch, path: &Path) {
        if self.paths.get(&watch).is_some_and(|current| current == path) {
            self.paths.remove(&watch);
            self.inotify.unwatch(watch);
        }
    }

    /// Ends all watches at and below a path, then watches the directories that exist there now.
    fn rewatch(&mut self, path: &Path) {
        let below = self.watches.range(path.to_owned()..).take_while(|(each, _)| each.starts_with(path));
        let old: Vec<_> = below.map(|(path, watch)| (path.clone(), *watch)).collect();
        for (path, watch) in old {
            self.watches.remove(&path);
            self.end(watch, &path);
        }
        let hidden = path.file_name().is_some_and(is_hidden);
        if !hidden && self.watch(path) {
            self.watch_below(path);
        }
    }

    fn change(&mut self, notice: Notice) -> Option<Change> {
        let Some(watch) = notice.watch else { return Some(Change::Overflow) };
        if self.line.contains(&watch) && notice.name.is_none() {
            return self.change_of_line(watch, notice.what);
        }
        // The queue may still contain events of a removed watch.
        let path = self.paths.get(&watch)?;
        // An event of a directory itself is skipped: the watch of its parent reports it too.
        let path = path.join(notice.name?);
        let how = match notice.what {
            What::Created | What::MovedIn => How::Appeared,
            What::Removed => How::Removed,
            What::MovedOut => How::MovedAway,
            What::Written => How::Written,
            _ => How::Altered,
        };
        if notice.directory && matches!(how, How::Appeared | How::Removed | How::MovedAway) {
            self.rewatch(&path);
        }
        Some(Change::At { path, how })
    }

    /// Returns the change for an event of the root itself, or of a directory above it.
    fn change_of_line(&mut self, watch: Watch, what: What) -> Option<Change> {
        let root = self.line.last() == Some(&watch);
        match what {
            What::SelfMoved => Some(Change::RootMoved),
            What::SelfRemoved | What::Unmounted if root => {
                self.watches.clear();
                self.paths.clear();
                Some(Change::RootRemoved)
            }
            What::Attributes if root => Some(Change::At { path: PathBuf::new(), how: How::Altered }),
            _ => None,
        }
    }
}

fn is_limit(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Failure>().is_some_and(|failure| failure.code() == Code::Busy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    use std::fs::{self, File};
    use tempfile::TempDir;

    fn tree(directories: &[&str]) -> (TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        for each in directories {
            fs::create_dir_all(dir.path().join("root").join(each)).unwrap();
        }
        let tree = Tree::new(&dir.path().join("root")).unwrap();
        (dir, tree)
    }

    /// Returns the changes as `how path`; equal ones in a row once.
    fn told(tree: &mut Tree) -> Vec<String> {
        let mut told: Vec<_> = tree
            .changes()
            .unwrap()
            .into_iter()
            .map(|change| match change {
                Change::At { path, how } => format!("{how:?} {}", path.display()),
                other => format!("{other:?}"),
            })
            .collect();
        told.dedup();
        told
    }

    fn watched(tree: &Tree) -> Vec<&str> {
        tree.watches.keys().map(|path| path.to_str().unwrap()).collect()
    }

    /// Checks that exactly these directories are watched, and report a file under their own path.
    fn hears(dir: &TempDir, tree: &mut Tree, expected: &[&str]) {
        tree.changes().unwrap();
        assert_eq!(watched(tree), expected);
        assert_eq!(tree.paths.len(), expected.len());
        for each in expected {
            let path = Path::new(each).join("probe");
            let file = dir.path().join("root").join(&path);
            drop(File::create(&file).unwrap());
            fs::remove_file(&file).unwrap();
            let [made, gone] = ["Appeared", "Removed"].map(|how| format!("{how} {}", path.display()));
            let told = told(tree);
            assert_eq!((told.first(), told.last()), (Some(&made), Some(&gone)), "{told:?}");
        }
    }

    #[test]
    fn directories_are_watched_to_the_bottom_and_new_ones_too() {
        let (dir, mut tree) = tree(&["a/b/c", "d"]);
        hears(&dir, &mut tree, &["", "a", "a/b", "a/b/c", "d"]);
        fs::create_dir_all(dir.path().join("root/d/e/f")).unwrap();
        let told = told(&mut tree);
        assert_eq!(told[0], "Appeared d/e");
        hears(&dir, &mut tree, &["", "a", "a/b", "a/b/c", "d", "d/e", "d/e/f"]);
    }

    #[test]
    fn hidden_directories_are_passed_over() {
        let (dir, mut tree) = tree(&["a/.b/c", ".d/e"]);
        hears(&dir, &mut tree, &["", "a"]);
        fs::create_dir_all(dir.path().join("root/.x/y")).unwrap();
        fs::create_dir_all(dir.path().join("out/.x/y")).unwrap();
        fs::rename(dir.path().join("out"), dir.path().join("root/z")).unwrap();
        assert_eq!(told(&mut tree), ["Appeared .x", "Appeared z"]);
        hears(&dir, &mut tree, &["", "a", "z"]);
    }

    #[test]
    fn a_moved_directory_speaks_under_its_new_path_only() {
        let (dir, mut tree) = tree(&["a/b"]);
        let root = dir.path().join("root");
        fs::rename(root.join("a"), root.join("c")).unwrap();
        File::create(root.join("c/b/early")).unwrap();
        hears(&dir, &mut tree, &["", "c", "c/b"]);
        fs::rename(root.join("c"), dir.path().join("out")).unwrap();
        assert_eq!(told(&mut tree), ["MovedAway c"]);
        File::create(dir.path().join("out/b/file")).unwrap();
        assert_eq!(told(&mut tree), [""; 0]);
        hears(&dir, &mut tree, &[""]);
        fs::rename(dir.path().join("out"), root.join(".hidden")).unwrap();
        hears(&dir, &mut tree, &[""]);
        fs::rename(root.join(".hidden"), root.join("a")).unwrap();
        hears(&dir, &mut tree, &["", "a", "a/b"]);
    }

    #[test]
    fn one_that_was_found_before_its_move_was_told_is_kept() {
        let (dir, mut tree) = tree(&["a/x/y"]);
        let root = dir.path().join("root");
        fs::create_dir(root.join("b")).unwrap();
        fs::rename(root.join("a/x"), root.join("b/x")).unwrap();
        hears(&dir, &mut tree, &["", "a", "b", "b/x", "b/x/y"]);
    }

    #[test]
    fn swapped_directories_speak_under_each_other_s_path() {
        let (dir, mut tree) = tree(&["a/x", "b/y"]);
        let path = |name: &str| dir.path().join("root").join(name);
        renameat_with(CWD, path("a"), CWD, path("b"), RenameFlags::EXCHANGE).unwrap();
        hears(&dir, &mut tree, &["", "a", "a/y", "b", "b/x"]);
    }

    #[test]
    fn what_came_and_went_between_two_looks_does_not_confuse() {
        let (dir, mut tree) = tree(&["a/x"]);
        let path = |name: &str| dir.path().join("root").join(name);
        for _ in 0..3 {
            fs::remove_dir_all(path("a")).unwrap();
            fs::create_dir_all(path("a/x")).unwrap();
            fs::rename(path("a"), path("b")).unwrap();
            fs::create_dir_all(path("a/z")).unwrap();
            fs::remove_dir_all(path("b")).unwrap();
        }
        fs::rename(path("a"), path("c")).unwrap();
        fs::create_dir(path("a")).unwrap();
        hears(&dir, &mut tree, &["", "a", "c", "c/z"]);
        fs::remove_dir_all(path("c")).unwrap();
        fs::remove_dir_all(path("a")).unwrap();
        File::create(path("a")).unwrap();
        hears(&dir, &mut tree, &[""]);
    }

    #[test]
    fn symlinks_are_not_followed() {
        let (dir, mut tree) = tree(&["a"]);
        fs::create_dir(dir.path().join("out")).unwrap();
        std::os::unix::fs::symlink("../out", dir.path().join("root/link")).unwrap();
        assert_eq!(told(&mut tree), ["Appeared link"]);
        File::create(dir.path().join("out/file")).unwrap();
        assert_eq!(told(&mut tree), [""; 0]);
    }

    #[test]
    fn the_root_that_goes_is_told_of_and_found_again() {
        let (dir, mut tree) = tree(&["a"]);
        let root = dir.path().join("root");
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(told(&mut tree).last().unwrap(), "RootRemoved");
        assert!(tree.watches.is_empty() && tree.renew().is_err());
        fs::create_dir_all(root.join("b")).unwrap();
        tree.renew().unwrap();
        hears(&dir, &mut tree, &["", "b"]);
        fs::rename(&root, dir.path().join("moved")).unwrap();
        assert_eq!(told(&mut tree), ["RootMoved"]);
    }

    #[test]
    fn a_rename_above_the_root_is_told_of() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("a/b/root");
        fs::create_dir_all(&root).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("link")).unwrap();
        let mut tree = Tree::new(&dir.path().join("link/b/root")).unwrap();
        fs::rename(dir.path().join("a"), dir.path().join("c")).unwrap();
        assert_eq!(told(&mut tree), ["RootMoved"]);
    }

    #[test]
    fn a_full_queue_is_told_of_and_renewed() {
        let (dir, mut tree) = tree(&["a"]);
        let limit = fs::read_to_string("/proc/sys/fs/inotify/max_queued_events").unwrap();
        let files = [dir.path().join("root/a/x"), dir.path().join("root/a/y")];
        for _ in 0..limit.trim().parse::<usize>().unwrap() {
            for file in &files {
                drop(File::create(file).unwrap());
                fs::remove_file(file).unwrap();
            }
        }
        fs::create_dir(dir.path().join("root/late")).unwrap();
        let mut changes = Vec::new();
        while tree.wait(Some(Duration::ZERO)).unwrap() {
            changes.extend(tree.changes().unwrap());
        }
        assert_eq!(changes.last(), Some(&Change::Overflow));
        assert_eq!(watched(&tree), ["", "a"]);
        tree.renew().unwrap();
        hears(&dir, &mut tree, &["", "a", "late"]);
    }
}
