//! Journal on disk: the volumes that are attached, staged and published on this node.
//!
//! Each volume has one file, written before the driver is called and after it has answered: the
//! phase in it shows that a kill or a deadline interrupted a call. The file contains no secret, and
//! it may be lost: then mounts are found in the mount table, and only the volumes of a driver
//! without mounts cannot be found.
//!
//! A file contains an [`Entry`].
//!
//! A power failure may lose or damage the file, but it ends every mount as well. So the file is not
//! synced to disk, except for a driver that mounts nothing.

use super::name::hash;
use anyhow::{Context as _, Result};
use flexvol_linux::fs::files;
use flexvol_model::csi_journal::{EXTENSION, Entry, LIMIT, Phase, key};
use flexvol_protocol::{DriverName, TargetPath};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Extension of an unreadable file that was set aside.
const BROKEN: &str = "broken";

/// Volumes of one driver. A caller that changes an entry holds the volume's lock.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    driver: String,
    durable: bool,
    known: Mutex<Known>,
}

/// Volumes by id, and the owner of each path.
#[derive(Debug, Default)]
struct Known {
    entries: BTreeMap<String, Entry>,
    owners: BTreeMap<String, String>,
}

impl Known {
    fn insert(&mut self, entry: Entry) {
        self.remove(&entry.id);
        let paths = entry.paths().map(|path| (path.to_owned(), entry.id.clone()));
        self.owners.extend(paths);
        self.entries.insert(entry.id.clone(), entry);
    }

    fn remove(&mut self, id: &str) {
        for path in self.entries.remove(id).iter().flat_map(Entry::paths) {
            if self.owners.get(path).is_some_and(|owner| owner == id) {
                self.owners.remove(path);
            }
        }
    }
}

impl Journal {
    /// Reads the journal of a driver that an earlier process has left. Sets unreadable files aside,
    /// and returns a message for each of them. A `durable` journal survives a power failure.
    pub fn open(directory: PathBuf, driver: &DriverName, durable: bool) -> Result<(Self, Vec<String>)> {
        files::make_private(&directory)?;
        let (mut known, mut broken) = (Known::default(), Vec::new());
        for path in by_age(&directory).with_context(|| format!("list {}", directory.display()))? {
            match read(&path) {
                Ok(entry) => known.insert(entry),
                Err(error) => {
                    let aside = path.with_extension(BROKEN);
                    std::fs::rename(&path, &aside)
                        .with_context(|| format!("set {} aside", path.display()))?;
                    broken.push(format!("{error:#}: set aside as {}", aside.display()));
                }
            }
        }
        Ok((Self { directory, driver: driver.to_string(), durable, known: Mutex::new(known) }, broken))
    }

    /// Returns the entry of a volume.
    pub fn get(&self, id: &str) -> Option<Entry> {
        self.known().entries.get(id).cloned()
    }

    /// Returns the id of the volume that owns a directory.
    pub fn owner_of(&self, path: &TargetPath) -> Option<String> {
        self.known().owners.get(&key(path)).cloned()
    }

    /// Returns the publishes that were begun and have not ended: volume id and target of each.
    pub fn begun(&self) -> Vec<(String, TargetPath)> {
        let known = self.known();
        let all =
            known.entries.values().flat_map(|entry| entry.targets.iter().map(move |target| (entry, target)));
        let begun = all.filter(|(_, (_, target))| target.phase == Phase::Begun);
        begun
            .filter_map(|(entry, (path, _))| Some((entry.id.clone(), TargetPath::parse(path.as_ref()).ok()?)))
            .collect()
    }

    /// Returns the number of known volumes.
    pub fn len(&self) -> usize {
        self.known().entries.len()
    }

    /// Reports whether no volume is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes the entry of a volume, on disk first.
    pub fn change(&self, id: &str, change: impl FnOnce(&mut Entry)) -> Result<()> {
        let before = self.get(id);
        let mut entry = before.clone().unwrap_or_default();
        id.clone_into(&mut entry.id);
        self.driver.clone_into(&mut entry.driver);
        change(&mut entry);
        if before.as_ref() == Some(&entry) {
            return Ok(());
        }
        let path = self.directory.join(name_of(id));
        if entry.is_over() {
            files::forget(&path).with_context(|| format!("remove {}", path.display()))?;
            self.known().remove(id);
        } else {
            let write = if self.durable { files::replace } else { files::rewrite_unsynced };
            write(&path, serde_json::to_string(&entry)?.as_bytes())?;
            self.known().insert(entry);
        }
        Ok(())
    }

    /// Removes something that is gone from an entry, even if that cannot be written: on a full disk
    /// the file stays as it was, and still names a published directory that does not exist any
    /// more.
    pub fn forget(&self, id: &str, change: impl Fn(&mut Entry)) {
        if let Err(error) = self.change(id, &change) {
            tracing::warn!(volume = id, reason = format!("{error:#}"), "what is gone could not be noted");
            let Some(mut entry) = self.get(id) else { return };
            change(&mut entry);
            let mut known = self.known();
            if entry.is_over() { known.remove(id) } else { known.insert(entry) }
        }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the file name of a volume.
fn name_of(id: &str) -> String {
    format!("{}.{EXTENSION}", hash(id.as_bytes()))
}

/// Returns the files of volumes, the oldest first: if two claim the same path, the last one has it.
/// Removes the leftovers of killed writers.
fn by_age(directory: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for file in directory.read_dir()? {
        let (written, path) = file.and_then(|file| Ok((file.metadata()?.modified()?, file.path())))?;
        if is_draft(&path) {
            std::fs::remove_file(&path)?;
        } else if path.extension().is_some_and(|end| end == EXTENSION) {
            files.push((written, path));
        }
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// Reports whether a file is the leftover of a killed writer.
fn is_draft(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn read(path: &Path) -> Result<Entry> {
    let text = files::read_small(path, LIMIT)?.unwrap_or_default();
    let entry = Entry::parse(&text).with_context(|| format!("{} is damaged", path.display()))?;
    anyhow::ensure!(path.ends_with(name_of(&entry.id)), "{} is of another volume", path.display());
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_model::csi_journal::{Phase, Target};

    const TARGET: Target = Target { phase: Phase::Begun, read_only: false, exclusive: false };

    fn path(text: &str) -> TargetPath {
        TargetPath::parse(text.as_ref()).unwrap()
    }

    fn open(directory: &Path) -> (Journal, Vec<String>) {
        let driver = DriverName::parse("example.com/driver").unwrap();
        Journal::open(directory.to_owned(), &driver, true).unwrap()
    }

    fn journal(directory: &Path) -> Journal {
        let (journal, broken) = open(directory);
        assert!(broken.is_empty(), "{broken:?}");
        journal
    }

    #[test]
    fn another_process_reads_what_one_has_written() {
        let state = tempfile::tempdir().unwrap();
        let one = journal(state.path());
        one.change("v", |entry| entry.publish(&path("/a"), TARGET)).unwrap();
        assert_eq!(one.owner_of(&path("/a")).as_deref(), Some("v"));
        let other = journal(state.path());
        assert_eq!(other.get("v").unwrap().target(&path("/a")), Some(TARGET));
        other.change("v", |entry| entry.targets.clear()).unwrap();
        assert!(other.is_empty() && state.path().read_dir().unwrap().count() == 0);
    }

    #[test]
    fn what_is_damaged_is_set_aside() {
        let state = tempfile::tempdir().unwrap();
        journal(state.path()).change("v", |entry| entry.publish(&path("/a"), TARGET)).unwrap();
        let file = state.path().read_dir().unwrap().next().unwrap().unwrap().path();
        for text in ["", "{", "[]", r#"{"id":"other"}"#] {
            std::fs::remove_file(&file).ok();
            files::replace(&file, text.as_bytes()).unwrap();
            let (journal, broken) = open(state.path());
            assert!(journal.is_empty() && broken.len() == 1, "{text}: {broken:?}");
        }
    }

    #[test]
    fn the_draft_of_a_killed_writer_is_removed() {
        let state = tempfile::tempdir().unwrap();
        std::fs::File::create(state.path().join(".0.json")).unwrap();
        assert!(journal(state.path()).is_empty() && state.path().read_dir().unwrap().count() == 0);
    }

    /// On a full disk a forgotten path is still in its file; the present owner's file is newer.
    #[test]
    fn a_path_is_its_last_writer_s_until_that_one_gives_it_back() {
        let state = tempfile::tempdir().unwrap();
        for (id, seconds) in [("old", 1), ("new", 3), ("older", 0)] {
            let other = tempfile::tempdir_in(&state).unwrap();
            journal(other.path()).change(id, |entry| entry.publish(&path("/a"), TARGET)).unwrap();
            let file = state.path().join(name_of(id));
            std::fs::rename(other.path().join(name_of(id)), &file).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            std::fs::File::options().write(true).open(&file).unwrap().set_modified(time).unwrap();
        }
        let journal = journal(state.path());
        assert_eq!(journal.owner_of(&path("/a")).as_deref(), Some("new"));
        journal.change("old", |entry| entry.forget(&path("/a"))).unwrap();
        assert_eq!(journal.owner_of(&path("/a")).as_deref(), Some("new"));
        journal.change("new", |entry| entry.forget(&path("/a"))).unwrap();
        assert_eq!(journal.owner_of(&path("/a")), None);
    }

    #[test]
    fn on_a_full_disk_nothing_begins_and_what_is_gone_is_gone() {
        let state = tempfile::tempdir().unwrap();
        let one = journal(&state.path().join("below"));
        one.change("v", |entry| {
            entry.publish(&path("/a"), TARGET);
            entry.publish(&path("/b"), TARGET);
        })
        .unwrap();
        std::fs::remove_dir_all(state.path().join("below")).unwrap();
        assert!(one.change("w", |entry| entry.publish(&path("/c"), TARGET)).is_err());
        assert_eq!((one.len(), one.owner_of(&path("/c"))), (1, None));
        one.forget("v", |entry| entry.forget(&path("/a")));
        assert_eq!((one.owner_of(&path("/a")), one.owner_of(&path("/b")).as_deref()), (None, Some("v")));
    }
}
