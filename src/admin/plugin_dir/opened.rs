//! A plugin directory, opened and locked.

use super::refusal::{Reason, Refusal};
use anyhow::{Context as _, Result};
use flexvol_linux::fs::directory::{self, Directory};
use flexvol_linux::fs::exec_dir;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_protocol::failure::{Code, Failure};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long another installer is waited for. One takes well below a second.
pub const INSTALLER_WAIT: Duration = Duration::from_mins(1);

/// How often a directory is opened again that was replaced while its lock was waited for.
const ATTEMPTS: usize = 5;

/// Where a plugin directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginDirPath {
    /// As the node calls it.
    pub directory: PathBuf,
    /// Where the node's file system begins for us: an image, or a host mounted into a container.
    /// `None` for our own.
    pub root: Option<PathBuf>,
    /// How long another installer may hold it.
    pub patience: Duration,
}

impl PluginDirPath {
    /// A plugin directory of this node.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), root: None, patience: INSTALLER_WAIT }
    }

    /// The root.
    pub fn root(&self) -> &Path {
        self.root.as_deref().unwrap_or(Path::new("/"))
    }

    /// The directory as we reach it, absolute.
    pub fn path(&self) -> Result<PathBuf> {
        self.below(&self.directory)
    }

    /// Another path of the same node as we reach it.
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
    /// Opens it; `None` if it does not exist. What is no directory is refused.
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

    /// Holds it against other installers.
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
