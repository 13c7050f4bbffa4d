//! What is attached, staged and published on this node, on disk.
//!
//! One file a volume, written before the driver is called and after it has answered: a call that a
//! kill or a deadline cut short is known by its phase. There is no secret in it, and it may be
//! lost: then what is mounted is found in the mount table, and only a driver without mounts of its
//! own has nothing to be found by.
//!
//! ```text
//! <state>/<CSI name>/volumes/<sha256 of the id>.json
//! ```
//!
//! A power cut may lose or damage it, and ends every mount as well; so it is not synced to disk,
//! except for a driver that mounts nothing.

use super::name::hash;
use anyhow::{Context as _, Result};
use flexvol_linux::fs::files;
use flexvol_protocol::TargetPath;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The options are the largest part, and no program can be given more than 128 KiB of them.
const LIMIT: usize = 1 << 20;

/// What a file that cannot be read is called from then on.
const BROKEN: &str = "broken";

/// How far a call has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// The driver was called, and nothing is known of the end.
    Begun,
    /// The caller was told, or was to be told, that it is done.
    Done,
}

/// The volume is mounted once for the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Staged {
    /// Where.
    pub path: String,
    /// The device, as the driver calls it.
    pub device: String,
    /// How far it has come.
    pub phase: Phase,
}

/// The volume is in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// How far it has come.
    pub phase: Phase,
    /// Whether the pod may not write.
    pub read_only: bool,
    /// Whether no other pod may have it.
    pub exclusive: bool,
}

/// What is known of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Entry {
    /// CSI's name for it.
    pub id: String,
    /// What `expandfs` is called with: the options of the volume without secrets, as JSON.
    pub options: String,
    /// Where it is staged.
    pub staged: Option<Staged>,
    /// In which pods it is, by the directory there.
    pub targets: BTreeMap<String, Target>,
    /// To which nodes it is attached, and what `attach` answered.
    pub attached: BTreeMap<String, String>,
}

impl Entry {
    fn is_over(&self) -> bool {
        self.staged.is_none() && self.targets.is_empty() && self.attached.is_empty()
    }

    /// The volume is, or may be, attached to a node.
    pub fn attach(&mut self, node: &str, device: &str) {
        self.attached.insert(node.to_owned(), device.to_owned());
    }

    /// The volume is, or may be, in this directory.
    pub fn publish(&mut self, path: &TargetPath, target: Target) {
        self.targets.insert(key(path), target);
    }

    /// The volume is in this directory no longer.
    pub fn forget(&mut self, path: &TargetPath) {
        self.targets.remove(&key(path));
    }

    /// What is known of a directory of a pod's.
    pub fn target(&self, path: &TargetPath) -> Option<Target> {
        self.targets.get(&key(path)).copied()
    }

    /// Whether the volume is at this path, in a pod or for the node.
    pub fn is_at(&self, path: &TargetPath) -> bool {
        self.has(&key(path))
    }

    fn has(&self, path: &str) -> bool {
        self.targets.contains_key(path) || self.staged.as_ref().is_some_and(|staged| staged.path == path)
    }

    /// Whether the volume is staged here.
    pub fn is_staged_at(&self, path: &TargetPath) -> bool {
        self.staged.as_ref().is_some_and(|staged| staged.path == key(path))
    }
}

/// A path as the journal has it: CSI's paths are text.
pub fn key(path: &TargetPath) -> String {
    path.as_path().to_string_lossy().into_owned()
}

/// The volumes of one driver. Who changes an entry holds the volume's lock.
#[derive(Debug)]
pub struct Journal {
    directory: PathBuf,
    durable: bool,
    entries: Mutex<BTreeMap<String, Entry>>,
}

impl Journal {
    /// Reads what an earlier process has left; beside it the files that cannot be read, which are
    /// set aside. If it is to be `durable`, it outlives a power cut.
    pub fn open(directory: PathBuf, durable: bool) -> Result<(Self, Vec<String>)> {
        files::make_private(&directory)?;
        let (mut entries, mut broken) = (BTreeMap::new(), Vec::new());
        let what = || format!("list {}", directory.display());
        for file in directory.read_dir().with_context(what)? {
            let path = file.with_context(what)?.path();
            if is_draft(&path) {
                std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
                continue;
            }
            if path.extension().is_none_or(|end| end != "json") {
                continue;
            }
            match read(&path) {
                Ok(entry) => drop(entries.insert(entry.id.clone(), entry)),
                Err(error) => {
                    let aside = path.with_extension(BROKEN);
                    std::fs::rename(&path, &aside)
                        .with_context(|| format!("set {} aside", path.display()))?;
                    broken.push(format!("{error:#}: set aside as {}", aside.display()));
                }
            }
        }
        Ok((Self { directory, durable, entries: Mutex::new(entries) }, broken))
    }

    /// What is known of a volume.
    pub fn get(&self, id: &str) -> Option<Entry> {
        self.entries().get(id).cloned()
    }

    /// Whose directory this is.
    pub fn owner_of(&self, path: &TargetPath) -> Option<String> {
        let (entries, path) = (self.entries(), key(path));
        entries.values().find(|entry| entry.has(&path)).map(|entry| entry.id.clone())
    }

    /// How many volumes are known.
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// Whether no volume is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Changes what is known, on disk first.
    pub fn change(&self, id: &str, change: impl FnOnce(&mut Entry)) -> Result<()> {
        let before = self.get(id);
        let mut entry = before.clone().unwrap_or_default();
        id.clone_into(&mut entry.id);
        change(&mut entry);
        if before.as_ref() == Some(&entry) {
            return Ok(());
        }
        let path = self.directory.join(format!("{}.json", hash(id.as_bytes())));
        if entry.is_over() {
            files::forget(&path).with_context(|| format!("remove {}", path.display()))?;
            self.entries().remove(id);
        } else {
            let write = if self.durable { files::replace } else { files::replace_unsynced };
            write(&path, serde_json::to_string(&entry)?.as_bytes())?;
            self.entries().insert(id.to_owned(), entry);
        }
        Ok(())
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a writer that was killed has left.
fn is_draft(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn read(path: &Path) -> Result<Entry> {
    let text = files::read_small(path, LIMIT)?.unwrap_or_default();
    let entry: Entry =
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
    let expected = format!("{}.json", hash(entry.id.as_bytes()));
    anyhow::ensure!(path.ends_with(&expected), "{} is of another volume", path.display());
    Ok(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Target = Target { phase: Phase::Begun, read_only: false, exclusive: false };

    fn path(text: &str) -> TargetPath {
        TargetPath::parse(text.as_ref()).unwrap()
    }

    fn journal(directory: &Path) -> Journal {
        let (journal, broken) = Journal::open(directory.to_owned(), true).unwrap();
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
            let (journal, broken) = Journal::open(state.path().to_owned(), false).unwrap();
            assert!(journal.is_empty() && broken.len() == 1, "{text}: {broken:?}");
        }
    }

    #[test]
    fn the_draft_of_a_killed_writer_is_removed() {
        let state = tempfile::tempdir().unwrap();
        std::fs::File::create(state.path().join(".0.json")).unwrap();
        assert!(journal(state.path()).is_empty() && state.path().read_dir().unwrap().count() == 0);
    }

    #[test]
    fn a_disk_that_is_full_changes_nothing() {
        let state = tempfile::tempdir().unwrap();
        let one = journal(&state.path().join("below"));
        std::fs::remove_dir(state.path().join("below")).unwrap();
        assert!(one.change("v", |entry| entry.publish(&path("/a"), TARGET)).is_err());
        assert!(one.is_empty());
    }
}
