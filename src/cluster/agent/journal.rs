//! Holds of this node, on its own disk: one file per hold, synced before anything depends on it.
//! The volumes of CSI drivers have such a journal too ([`csi`](super::csi)).
//!
//! An entry has what the record of the storage cannot tell: when the hold was requested, and the
//! agent's progress with it. A lost entry is restored from the records.

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

/// Limit for an entry, in bytes. A hold has two paths and a few names; a volume has these for each
/// of its pods.
const LIMIT: usize = 1 << 20;

/// Format version that this program writes.
pub const VERSION: u32 = 1;

/// Extension of an entry's file.
const EXTENSION: &str = "json";

/// Extension of a file that cannot be read, after it was set aside.
const BROKEN: &str = "broken";

/// Limit for a mount after its hold request. After that, no driver works on the mount any more.
pub(super) const CALL: Duration = Duration::from_mins(5);

/// Lifecycle phase of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The store is asked, or was asked and the answer is unknown.
    Asking,
    /// This node holds the storage.
    Held,
    /// The volume is unmounted, and the record must be changed.
    Releasing,
    /// Another node was given the storage while it was mounted here.
    Lost,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 4] = [Self::Asking, Self::Held, Self::Releasing, Self::Lost];

    /// Returns the name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Asking => "asking",
            Self::Held => "held",
            Self::Releasing => "releasing",
            Self::Lost => "lost",
        }
    }
}

/// Journal entry of one hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Format version of this entry.
    pub version: u32,
    /// Id of the holder in the record.
    pub id: String,
    /// Handle of the storage.
    pub handle: String,
    /// Directory of the mount.
    pub target: String,
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The pod's UID.
    pub uid: String,
    /// Boot in which the hold was requested.
    pub boot: String,
    /// Time of the request, in nanoseconds of that boot. Older requests are about an older mount.
    pub asked: u64,
    /// Epoch of the hold.
    pub epoch: u64,
    /// Lifecycle phase.
    pub phase: Phase,
    /// True if the hold is lost and its record shows that others were given the storage. A missing
    /// record shows nothing.
    #[serde(default)]
    pub taken: bool,
}

impl Entry {
    /// Creates the entry of a holder, for a request at this time of the holder's boot.
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

    /// Reports whether no driver can still work on a request of this boot, because it is too old.
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

/// Entry type of a journal.
pub trait Noted: Clone + PartialEq + Serialize + DeserializeOwned {
    /// Returns the id, which is also the name of the file.
    fn id(&self) -> &str;

    /// Returns the format version.
    fn version(&self) -> u32;
}

/// All entries of one kind on this node, by default its holds.
#[derive(Debug)]
pub struct Journal<E = Entry> {
    directory: PathBuf,
    entries: Mutex<BTreeMap<String, E>>,
}

impl<E: Noted> Journal<E> {
    /// Reads the entries that an earlier process has left. Also returns a message for each file
    /// that could not be read and was set aside.
    pub fn open(directory: PathBuf) -> Result<(Self, Vec<String>)> {
        files::make_private(&directory)?;
        let (mut entries, mut broken) = (BTreeMap::new(), Vec::new());
        for file in directory.read_dir().with_context(|| format!("list {}", directory.display()))? {
            let path = file?.path();
            if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
                // A killed writer left this draft.
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

    /// Returns an entry by its id.
    pub fn get(&self, id: &str) -> Option<E> {
        self.entries().get(id).cloned()
    }

    /// Returns all entries.
    pub fn all(&self) -> Vec<E> {
        self.entries().values().cloned().collect()
    }

    /// Writes an entry, first to the disk.
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

    /// Removes an entry. It counts as removed even if its file stays on the disk; the next start
    /// then checks it again.
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
