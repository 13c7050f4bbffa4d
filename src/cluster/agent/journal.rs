//! What this node holds, on its own disk: a file for each hold, synced before anything depends on
//! it; in the same way a file for each volume of a CSI driver ([`csi`](super::csi)).
//!
//! Of a hold it has what the record of the storage cannot tell: when the hold was asked for, and
//! how far the agent had come. One that is lost is made again from the records.

use crate::fence::record::{Holder, Pod};
use anyhow::{Context as _, Result, ensure};
use flexvol_linux::fs::files;
use flexvol_linux::proc::clock;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// No entry is larger: a hold has two paths and a few names, a volume has those for each of its
/// pods.
const LIMIT: usize = 1 << 20;

/// What this version writes.
pub const VERSION: u32 = 1;

/// How the name of an entry's file ends.
const EXTENSION: &str = "json";

/// What a file that cannot be read ends with from then on.
const BROKEN: &str = "broken";

/// How long a mount may take that has asked for its hold: then no driver works for it any more.
pub(super) const CALL: Duration = Duration::from_mins(5);

/// How far it has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The store is asked, or was: no one knows the answer.
    Asking,
    /// This node holds the storage.
    Held,
    /// It is unmounted, and the record is to say so.
    Releasing,
    /// Another node has been given the storage while it was mounted here.
    Lost,
}

impl Phase {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Asking, Self::Held, Self::Releasing, Self::Lost];

    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Asking => "asking",
            Self::Held => "held",
            Self::Releasing => "releasing",
            Self::Lost => "lost",
        }
    }
}

/// One hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Which format this is.
    pub version: u32,
    /// The holder's in the record.
    pub id: String,
    /// The storage.
    pub handle: String,
    /// The directory it is mounted on.
    pub target: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// In which boot it was asked for.
    pub boot: String,
    /// When, in nanoseconds of that boot: what was asked before is about an older mount.
    pub asked: u64,
    /// Under which epoch it is held.
    pub epoch: u64,
    /// How far it has come.
    pub phase: Phase,
    /// Of what is lost: whether its record shows that others were given it. A record that is gone
    /// shows nothing.
    #[serde(default)]
    pub taken: bool,
}

impl Entry {
    /// Of a holder, asked for at this time of the holder's boot.
    pub fn of(holder: &Holder, handle: &str, asked: u64, phase: Phase) -> Self {
        let Pod { namespace, name, uid } = holder.pod.clone();
        Self {
            version: VERSION,
            id: holder.id.clone(),
            handle: handle.to_owned(),
            target: holder.target.clone(),
            namespace,
            pod: name,
            uid,
            boot: holder.node.boot.clone(),
            asked,
            epoch: holder.epoch,
            phase,
            taken: false,
        }
    }

    /// Whether no driver works for it any more that has asked for it in this boot.
    pub fn is_old(&self) -> bool {
        Duration::from_nanos(clock::since_boot().saturating_sub(self.asked)) > CALL
    }
}

impl Noted for Entry {
    fn id(&self) -> &str {
        &self.id
    }

    fn version(&self) -> u32 {
        self.version
    }
}

/// What a journal keeps.
pub trait Noted: Clone + PartialEq + Serialize + DeserializeOwned {
    /// What it is found by: the name of a file.
    fn id(&self) -> &str;

    /// Which format it was written in.
    fn version(&self) -> u32;
}

/// All holds of this node.
#[derive(Debug)]
pub struct Journal<E = Entry> {
    directory: PathBuf,
    entries: Mutex<BTreeMap<String, E>>,
}

impl<E: Noted> Journal<E> {
    /// Reads what an earlier process has left; beside it what could not be read, which is set
    /// aside.
    pub fn open(directory: PathBuf) -> Result<(Self, Vec<String>)> {
        files::make_private(&directory)?;
        let (mut entries, mut broken) = (BTreeMap::new(), Vec::new());
        for file in directory.read_dir().with_context(|| format!("list {}", directory.display()))? {
            let path = file?.path();
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                // Of a writer that was killed.
                std::fs::remove_file(&path)?;
            } else if path.extension().is_some_and(|end| end == EXTENSION) {
                match read::<E>(&path) {
                    Ok(entry) => drop(entries.insert(E::id(&entry).to_owned(), entry)),
                    Err(error) => broken.push(set_aside(&path, &error)?),
                }
            }
        }
        Ok((Self { directory, entries: Mutex::new(entries) }, broken))
    }

    /// What is known of one.
    pub fn get(&self, id: &str) -> Option<E> {
        self.entries().get(id).cloned()
    }

    /// All of them.
    pub fn all(&self) -> Vec<E> {
        self.entries().values().cloned().collect()
    }

    /// Writes an entry, on disk first.
    pub fn write(&self, entry: &E) -> Result<()> {
        let id = entry.id();
        if self.get(id).as_ref() == Some(entry) {
            return Ok(());
        }
        files::replace(&self.path(id), serde_json::to_string(entry)?.as_bytes())?;
        self.sync()?;
        self.entries().insert(id.to_owned(), entry.clone());
        Ok(())
    }

    /// Removes one. That it is gone holds, even if it could not be removed from the disk: then it
    /// is looked at again at the next start.
    pub fn forget(&self, id: &str) -> Result<()> {
        self.entries().remove(id);
        files::forget(&self.path(id)).with_context(|| format!("remove {}", self.path(id).display()))?;
        self.sync()
    }

    fn sync(&self) -> Result<()> {
        let directory = File::open(&self.directory).and_then(|directory| directory.sync_all());
        directory.with_context(|| format!("sync {}", self.directory.display()))
    }

    fn path(&self, id: &str) -> PathBuf {
        self.directory.join(format!("{id}.{EXTENSION}"))
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, E>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read<E: Noted>(path: &Path) -> Result<E> {
    let text = files::read_small(path, LIMIT)?.unwrap_or_default();
    let entry: E = serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))?;
    let (version, shown) = (entry.version(), path.display());
    ensure!(version == VERSION, "{shown} is damaged: it is of version {version}");
    ensure!(path.file_stem().is_some_and(|name| name == entry.id()), "{shown} is of another entry");
    Ok(entry)
}

fn set_aside(path: &Path, error: &anyhow::Error) -> Result<String> {
    let aside = path.with_extension(BROKEN);
    std::fs::rename(path, &aside).with_context(|| format!("set {} aside", path.display()))?;
    Ok(format!("{error:#}: set aside as {}", aside.display()))
}
