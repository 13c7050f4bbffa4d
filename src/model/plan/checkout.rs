//! Clones of repositories.

use super::Content;
use flexvol_protocol::TargetPath;
use flexvol_protocol::mount_options::MountFlags;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A revision of a repository, cloned by git for this one mount and shown once it is complete.
///
/// The clone belongs to this mount alone and ends with it.
/// [`Step::EndDaemon`](super::Step::EndDaemon) unmounts it, because its files are in the same
/// places as those of a daemon.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkout {
    /// Mount point of the clone.
    pub target: TargetPath,
    /// Address of the repository as git understands it: no word that could be an option, and no
    /// password.
    pub repository: String,
    /// Revision on the server: a branch, a tag, or the whole id of a commit.
    pub revision: String,
    /// Number of commits of its history to fetch; 0 means all.
    pub depth: u32,
    /// Directory of the clone to show, of plain names; `None` shows the whole clone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Size limit in memory, in bytes; `None` puts the clone on the node's disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Private files of git's home directory by their names: in memory, for root alone, removed
    /// before any pod sees the clone.
    pub files: BTreeMap<&'static str, Content>,
    /// Servers that git talks to, for the policy.
    pub servers: Vec<String>,
    /// Per-mount flags.
    pub flags: MountFlags,
}
