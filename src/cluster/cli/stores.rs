//! Store of the locks, as `--store` selects it.

use super::api_server::ApiServer;
use crate::fence::store::RecordStore;
use crate::fence::store::StoreError;
use crate::fence::store::file::FileStore;
use crate::fence::store::kubernetes::KubernetesStore;
use anyhow::{Context as _, Result, bail};
use clap::Args;
use flexvol_linux::fs::files;
use flexvol_model::paths;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Prefix for the name of a store in files.
const FILE: &str = "file:";

/// Name of the store in Kubernetes' API.
const KUBERNETES: &str = "kubernetes";

/// Deadline for the API server to identify this node.
const PATIENCE: Duration = Duration::from_secs(10);

/// Limit for a uid, in bytes.
const LONGEST: usize = 1024;

/// Store of the locks, and access to it.
#[derive(Args)]
pub(super) struct Store {
    /// Store of the locks: a directory that all nodes share, or objects of Kubernetes' API
    #[arg(long, value_name = "file:DIR|kubernetes", default_value_t = format!("{FILE}{}", paths::STORAGE_LOCKS))]
    store: String,
    #[command(flatten)]
    api: ApiServer,
}

/// Store that is open.
pub(super) enum Open {
    File(PathBuf, FileStore),
    Kubernetes(String, KubernetesStore),
}

impl Store {
    /// Reports whether the default store is selected.
    pub(super) fn is_default(&self) -> bool {
        self.store == format!("{FILE}{}", paths::STORAGE_LOCKS)
    }

    /// Opens the store; creates a missing directory if `made` is true.
    pub(super) fn open(&self, made: bool) -> Result<Open> {
        if self.store == KUBERNETES {
            let namespace = self.api.namespace();
            let store =
                KubernetesStore::open(&self.api.place()?, &namespace).context("reach the API server")?;
            return Ok(Open::Kubernetes(namespace, store));
        }
        let path = self.store.strip_prefix(FILE).map(Path::new).filter(|path| path.is_absolute());
        let text = || format!("--store {:?} is no store: write file:/DIRECTORY or kubernetes", self.store);
        let path = path.with_context(text)?;
        let store = if made {
            files::make_directories(path.parent().unwrap_or(path), 0o700)?;
            FileStore::open(path)?
        } else {
            FileStore::open_existing(path)?
        };
        Ok(Open::File(path.to_owned(), store))
    }
}

impl Open {
    /// Returns the name for messages, after "locks in".
    pub(super) fn name(&self) -> String {
        match self {
            Self::File(path, _) => path.display().to_string(),
            Self::Kubernetes(namespace, _) => format!("namespace {namespace}"),
        }
    }

    /// Returns the store for callers that do not need to know its kind.
    pub(super) fn records(self) -> Box<dyn RecordStore> {
        match self {
            Self::File(_, store) => Box::new(store),
            Self::Kubernetes(_, store) => Box::new(store),
        }
    }

    /// Returns an id that tells two machines of one name apart: for Kubernetes the uid of the Node
    /// object (the last known one if the API server does not answer), otherwise the machine's own
    /// id.
    pub(super) fn uid_of(&self, node: &str, machine: &Path, heard: &Path) -> Result<String> {
        let Self::Kubernetes(_, store) = self else {
            let machine = files::read_small(machine, LONGEST).ok().flatten().unwrap_or_default();
            return Ok(machine.trim().to_owned());
        };
        match store.uid_of_node(node, Instant::now() + PATIENCE) {
            Ok(uid) => {
                files::replace(heard, format!("{node} {uid}\n").as_bytes())?;
                Ok(uid)
            }
            Err(StoreError::Unsure(reason)) => {
                let text = files::read_small(heard, LONGEST).ok().flatten().unwrap_or_default();
                match text.trim().split_once(' ') {
                    Some((name, uid)) if name == node => Ok(uid.to_owned()),
                    _ => bail!("{reason}: this node has not asked who it is before: start the API server"),
                }
            }
            Err(error) => Err(error.into()),
        }
    }
}
