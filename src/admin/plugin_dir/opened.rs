//! A plugin directory, opened and locked.

use super::refusal::{Reason, Refusal};
use anyhow::{Context as _, Result};
use flexvol_linux::fs::directory::{self, Directory};
use flexvol_linux::fs::exec_dir;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_protocol::failure::{Code, Failure};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Deadline for another installer to unlock the directory; it takes well below a second.
pub const INSTALLER_WAIT: Duration = Duration::from_mins(1);

/// Limit for attempts to lock a directory that is replaced during the wait.
const ATTEMPTS: usize = 5;

/// Location of a plugin directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginDirPath {
    /// Path on the node.
    pub directory: PathBuf,
    /// Root of the node's file system for this process: an image, or a host mounted into a
    /// container. `None` for our own root.
    pub root: Option<PathBuf>,
    /// Limit for the wait for another installer's lock.
    pub patience: Duration,
}

impl PluginDirPath {
    /// Makes the location of a plugin directory of this node.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), root: None, patience: INSTALLER_WAIT }
    }

    /// Returns the root.
    pub fn root(&self) -> &Path {
        self.root.as_deref().unwrap_or(Path::new("/"))
    }

    /// Returns the directory's absolute path for this process.
    pub fn path(&self) -> Result<PathBuf> {
        self.below(&self.directory)
    }

    /// Translates another path on the same node into a path for this process.
    pub fn below(&self, path: &Path) -> Result<PathBuf> {
        match &self.root {
            Some(root) => directory::resolve(&std::path::absolute(root)?, path),
            None => Ok(std::path::absolute(path)?),
        }
    }
}

/// An opened plugin directory. Locked if it came from [`Opened::lock`], until it is dropped.
#[derive(Debug)]
pub struct Opened {
    /// The directory.
    pub directory: Directory,
}

impl Opened {
    /// Opens it; `None` if it does not exist. Refuses anything that is not a directory.
    pub fn open(place: &PluginDirPath) -> Result<Option<Self>> {
        let path = place.path()?;
        if let Some(in_the_way) = exec_dir::in_the_way(&path) {
            let text = format!("{in_the_way}, or name kubelet's plugin directory with --plugin-dir");
            return Err(Refusal::new(Reason::Preflight, text).into());
        }
        Ok(Directory::open(&path)?.map(|directory| Self { directory }))
    }

    /// Makes and opens it, as kubelet does when it starts.
    pub fn make(place: &PluginDirPath) -> Result<Self> {
        directory::make_all(&place.path()?)?;
        Self::open(place)?.context("the plugin directory was removed meanwhile: install again")
    }

    /// Locks it against other installers.
    pub fn lock(self, place: &PluginDirPath) -> Result<Self> {
        let (deadline, mut opened) = (Deadline::after(place.patience), self);
        for _ in 0..ATTEMPTS {
            opened.directory.lock(&deadline).map_err(|error| held(&opened.directory, error))?;
            if opened.directory.is_still_there() {
                return Ok(opened);
            }
            opened = Self::make(place)?;
        }
        let text = format!("{} is replaced again and again: try later", opened.directory.path().display());
        Err(Refusal::new(Reason::Locked, text).into())
    }
}

fn held(directory: &Directory, error: anyhow::Error) -> anyhow::Error {
    match error.downcast_ref::<Failure>().map(Failure::code) {
        Some(Code::Timeout) => {
            let text = format!(
                "another installer holds {}: wait for it to end, or find it with fuser -v {0}",
                directory.path().display()
            );
            Refusal::new(Reason::Locked, text).into()
        }
        _ => error,
    }
}
