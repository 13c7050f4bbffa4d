//! Changes anywhere below one directory: a watch on it and on every directory in it.
//!
//! A directory is watched before it is listed, and a new one before its change is handed out. So
//! whoever looks at what a change names sees all of it, or is told of another change. What is
//! watched under a path follows the file system and not the order of changes: after each one that
//! makes or unmakes a directory, whatever is there now is watched. So a directory that was renamed,
//! swapped, or removed and made again never speaks under a path it no longer has.

use crate::fs::directory::Kind;
use crate::fs::inotify::{Inotify, Interest, Notice, Watch, What};
use crate::fs::listing::{self, is_hidden};
use anyhow::{Context as _, Result};
use flexvol_protocol::failure::{Code, Failure};
use rustix::io::Errno;
use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A watched directory and all below it; symlinks are not followed, but for the root itself.
#[derive(Debug)]
pub struct Tree {
    root: PathBuf,
    hidden: Hidden,
    inotify: Inotify,
    /// By its path below the root, which itself is the empty path.
    watches: BTreeMap<PathBuf, Watch>,
    /// The path under which a watch speaks. Where the two maps disagree this one is right: the
    /// other's entry waits for the news that the directory moved.
    paths: HashMap<Watch, PathBuf>,
    /// The root and the directories above it.
    line: Vec<Watch>,
    unwatched: Option<String>,
}

/// What becomes of directories whose name begins with a dot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// They are passed over, with all below them.
    Skipped,
    /// Those are watched that are there when the directory above begins to be; a new one is passed
    /// over.
    KeptIfThere,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// To an entry of the root or of a directory below it, or to the root itself.
    At {
        /// The path below the root; empty for the root itself.
        path: PathBuf,
        /// What.
        how: How,
    },
    /// Changes were lost: [`Tree::renew`], then look at everything.
    Overflow,
    /// The root was removed or its file system unmounted: [`Tree::renew`] once there is one again.
    RootRemoved,
    /// The root, or a directory above it, was renamed: nothing is known of what the root's path
    /// names now.
    RootMoved,
}

/// What is told of each directory.
const INTEREST: Interest = Interest::ENTRIES.and(Interest::WRITTEN);

/// What happened to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// The name is new, or names something else now.
    Appeared,
    /// The name is gone: removed.
    Removed,
    /// The name is gone: renamed, to a name in the tree or outside.
    MovedAway,
    /// Content, mode, owner or the like.
    Altered,
    /// Closed by someone who could write: from now on it can be executed.
    Written,
}

impl Tree {
    /// Watches the root and all below it. Fails if the root is not there; that the kernel's limit
    /// of watches is reached, or what fails further down, shows in [`unwatched`](Self::unwatched).
    pub fn new(root: &Path, hidden: Hidden) -> Result<Self> {
        let mut tree = Self::asleep(root, hidden)?;
        tree.begin()?;
        Ok(tree)
    }

    /// Watches nothing until it is [renewed](Self::renew).
    pub fn asleep(root: &Path, hidden: Hidden) -> Result<Self> {
        Ok(Self {
            root: root.to_owned(),
            hidden,
            inotify: Inotify::new()?,
            watches: BTreeMap::new(),
            paths: HashMap::new(),
            line: Vec::new(),
            unwatched: None,
        })
    }

    /// Begins again with whatever the root's path names now; all that was queued is forgotten.
    pub fn renew(&mut self) -> Result<()> {
        *self = Self::new(&self.root, self.hidden)?;
        Ok(())
    }

    /// What has happened, oldest first; nothing if nothing has.
    pub fn changes(&mut self) -> Result<Vec<Change>> {
        let notices = self.inotify.read()?;
        Ok(notices.into_iter().filter_map(|notice| self.change(notice)).collect())
    }

    /// As [`Inotify::wait`].
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        self.inotify.wait(timeout)
    }

    /// Why some directory below the root is not watched, if one is not: changes in it are not told.
    pub fn unwatched(&self) -> Option<&str> {
        self.unwatched.as_deref()
    }

    /// How many directories are watched.
    pub fn len(&self) -> usize {
        self.watches.len()
    }

    /// Whether nothing is watched, as after the root went.
    pub fn is_empty(&self) -> bool {
        self.watches.is_empty()
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
        // Without a right to look at one of them nothing is lost but the news of its renaming.
        self.line = above.filter_map(|each| self.inotify.watch(each, Interest::MOVED).ok()).collect();
        self.line.push(watch);
        self.watch_below(Path::new(""));
        Ok(())
    }

    /// Watches every directory below one that is watched.
    fn watch_below(&mut self, path: &Path) {
        let mut todo = vec![path.to_owned()];
        while let Some(path) = todo.pop() {
            // It may be gone by now, and then there is nothing in it.
            let entries = listing::list(&self.root.join(&path)).unwrap_or_default();
            let skipped = |name: &OsStr| self.hidden == Hidden::Skipped && is_hidden(name);
            let below = entries.into_iter().filter(|entry| entry.kind == Kind::Directory);
            let below: Vec<_> = below.filter(|entry| !skipped(&entry.name)).map(|entry| entry.name).collect();
            todo.extend(below.into_iter().map(|name| path.join(name)).filter(|path| self.watch(path)));
        }
    }

    /// Watches one directory; says whether there is one.
    fn watch(&mut self, path: &Path) -> bool {
        match self.inotify.watch_directory(&self.root.join(path), INTEREST) {
            Ok(watch) => {
                self.remember(path, watch);
                true
            }
            // Gone, or something else, by now.
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

    /// Ends the watch of a directory that was at that path, unless it speaks under another one by
    /// now.
    fn end(&mut self, watch: Watch, path: &Path) {
        if self.paths.get(&watch).is_some_and(|current| current == path) {
            self.paths.remove(&watch);
            self.inotify.unwatch(watch);
        }
    }

    /// Ends all watches at and below a path, then watches what is there now.
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
        // A watch that was taken away still has its last words in the queue.
        let path = self.paths.get(&watch)?;
        // What a directory says of itself, the one above it says too.
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

    /// Of the root itself, or of a directory above it.
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

impl AsFd for Tree {
    /// For who waits for other things too: readable when something has happened.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
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

    fn tree(hidden: Hidden, directories: &[&str]) -> (TempDir, Tree) {
        let dir = tempfile::tempdir().unwrap();
        for each in directories {
            fs::create_dir_all(dir.path().join("root").join(each)).unwrap();
        }
        let tree = Tree::new(&dir.path().join("root"), hidden).unwrap();
        (dir, tree)
    }

    /// What happened, as `how path`; equal ones in a row once.
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

    /// Each watched directory, and no other, tells of a file made in it, under its own path.
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
        let (dir, mut tree) = tree(Hidden::Skipped, &["a/b/c", "d"]);
        hears(&dir, &mut tree, &["", "a", "a/b", "a/b/c", "d"]);
        fs::create_dir_all(dir.path().join("root/d/e/f")).unwrap();
        let told = told(&mut tree);
        assert_eq!(told[0], "Appeared d/e");
        hears(&dir, &mut tree, &["", "a", "a/b", "a/b/c", "d", "d/e", "d/e/f"]);
    }

    #[test]
    fn hidden_directories_are_passed_over_or_kept() {
        let there = ["a/.b/c", ".d/e"];
        let (dir, mut tree_) = tree(Hidden::Skipped, &there);
        hears(&dir, &mut tree_, &["", "a"]);
        let (dir, mut tree) = tree(Hidden::KeptIfThere, &there);
        hears(&dir, &mut tree, &["", ".d", ".d/e", "a", "a/.b", "a/.b/c"]);
        fs::create_dir_all(dir.path().join("root/.x/y")).unwrap();
        fs::create_dir_all(dir.path().join("out/.x/y")).unwrap();
        fs::rename(dir.path().join("out"), dir.path().join("root/z")).unwrap();
        assert_eq!(told(&mut tree), ["Appeared .x", "Appeared z"]);
        hears(&dir, &mut tree, &["", ".d", ".d/e", "a", "a/.b", "a/.b/c", "z", "z/.x", "z/.x/y"]);
    }

    #[test]
    fn a_moved_directory_speaks_under_its_new_path_only() {
        let (dir, mut tree) = tree(Hidden::Skipped, &["a/b"]);
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
        let (dir, mut tree) = tree(Hidden::Skipped, &["a/x/y"]);
        let root = dir.path().join("root");
        fs::create_dir(root.join("b")).unwrap();
        fs::rename(root.join("a/x"), root.join("b/x")).unwrap();
        hears(&dir, &mut tree, &["", "a", "b", "b/x", "b/x/y"]);
    }

    #[test]
    fn swapped_directories_speak_under_each_other_s_path() {
        let (dir, mut tree) = tree(Hidden::Skipped, &["a/x", "b/y"]);
        let path = |name: &str| dir.path().join("root").join(name);
        renameat_with(CWD, path("a"), CWD, path("b"), RenameFlags::EXCHANGE).unwrap();
        hears(&dir, &mut tree, &["", "a", "a/y", "b", "b/x"]);
    }

    #[test]
    fn what_came_and_went_between_two_looks_does_not_confuse() {
        let (dir, mut tree) = tree(Hidden::Skipped, &["a/x"]);
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
        let (dir, mut tree) = tree(Hidden::Skipped, &["a"]);
        fs::create_dir(dir.path().join("out")).unwrap();
        std::os::unix::fs::symlink("../out", dir.path().join("root/link")).unwrap();
        assert_eq!(told(&mut tree), ["Appeared link"]);
        File::create(dir.path().join("out/file")).unwrap();
        assert_eq!(told(&mut tree), [""; 0]);
    }

    #[test]
    fn the_root_that_goes_is_told_of_and_found_again() {
        let (dir, mut tree) = tree(Hidden::Skipped, &["a"]);
        let root = dir.path().join("root");
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(told(&mut tree).last().unwrap(), "RootRemoved");
        assert!(tree.is_empty() && tree.renew().is_err());
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
        let mut tree = Tree::new(&dir.path().join("link/b/root"), Hidden::Skipped).unwrap();
        fs::rename(dir.path().join("a"), dir.path().join("c")).unwrap();
        assert_eq!(told(&mut tree), ["RootMoved"]);
    }

    #[test]
    fn a_full_queue_is_told_of_and_renewed() {
        let (dir, mut tree) = tree(Hidden::Skipped, &["a"]);
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
