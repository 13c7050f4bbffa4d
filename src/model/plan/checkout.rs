//! Clones of repositories.

use super::Content;
use flexvol_protocol::TargetPath;
use flexvol_protocol::mount_options::MountFlags;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A revision of a repository, cloned by git for this one mount and shown once it is complete.
///
/// It is no one else's and ends with the mount: unmounted by
/// [`Step::EndDaemon`](super::Step::EndDaemon), because what belongs to it is found in the same
/// places.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Checkout {
    /// Where it is shown.
    pub target: TargetPath,
    /// Where it is cloned from, as git understands it: no word that could be an option, and no
    /// password.
    pub repository: String,
    /// What the server has under this name: a branch, a tag, or the whole id of a commit.
    pub revision: String,
    /// How many commits of its history come along; 0 is all of them.
    pub depth: u32,
    /// The directory of it that is shown, of plain names; else the whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// In memory, at most so many bytes; else on the node's disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// The private files of git's home directory by their names: in memory, for root alone, gone
    /// before anybody sees the clone.
    pub files: BTreeMap<&'static str, Content>,
    /// Whom git talks to, for the policy.
    pub servers: Vec<String>,
    /// Per-mount flags.
    pub flags: MountFlags,
}
