//! Journal of `flexvold csi`: one JSON file per volume. Pure. `flexvold` writes and reads the
//! files; code that removes a driver reads which pods still need it.
//!
//! ```text
//! /var/lib/flexvol/csi/<CSI name>/volumes/<sha256 of the id>.json
//! ```
//!
//! The files contain no secret.

use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::{Failure, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Extension of a file.
pub const EXTENSION: &str = "json";

/// Limit for one file, in bytes. The options are the largest part, and no program can be given more
/// than 128 KiB of them.
pub const LIMIT: usize = 1 << 20;

/// Lifecycle phase of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Phase {
    /// The driver was called; the result is not known.
    Begun,
    /// The caller was told, or was about to be told, that the call is done.
    Done,
}

/// Staging of a volume: a mount that is made once for the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Staged {
    /// Directory of the mount.
    pub path: String,
    /// Device, as the driver names it.
    pub device: String,
    /// Lifecycle phase.
    pub phase: Phase,
}

/// Publication of a volume in a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Target {
    /// Lifecycle phase.
    pub phase: Phase,
    /// True if the pod may not write.
    pub read_only: bool,
    /// True if a single pod has exclusive access.
    pub exclusive: bool,
}

/// Journal entry of one volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Entry {
    /// Driver that serves the volume, as `vendor/driver`.
    pub driver: String,
    /// CSI's id of the volume.
    pub id: String,
    /// Options for `expandfs`: those of the volume without secrets, in JSON form.
    pub options: String,
    /// Fingerprint of the options that the volume itself has, without the defaults of an admin:
    /// another volume with the same id has other ones. Empty if an older version wrote the file.
    pub identity: String,
    /// Staging, if the volume is staged.
    pub staged: Option<Staged>,
    /// Publications in pods, by their directories.
    pub targets: BTreeMap<String, Target>,
    /// Nodes to which it is attached, each with the answer of `attach`.
    pub attached: BTreeMap<String, String>,
}

impl Entry {
    /// Parses the text of a file.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| Failure::options(format!("no volume's journal: {error}")))
    }

    /// Reports whether the volume is attached, staged and published nowhere, so that nothing is
    /// left to record.
    pub fn is_over(&self) -> bool {
        self.staged.is_none() && self.targets.is_empty() && self.attached.is_empty()
    }

    /// Records that the volume is, or may be, attached to a node.
    pub fn attach(&mut self, node: &str, device: &str) {
        self.attached.insert(node.to_owned(), device.to_owned());
    }

    /// Records that the volume is, or may be, published in this directory.
    pub fn publish(&mut self, path: &TargetPath, target: Target) {
        self.targets.insert(key(path), target);
    }

    /// Records that the volume is no longer in this directory.
    pub fn forget(&mut self, path: &TargetPath) {
        self.targets.remove(&key(path));
    }

    /// Returns the publication in a pod's directory.
    pub fn target(&self, path: &TargetPath) -> Option<Target> {
        self.targets.get(&key(path)).copied()
    }

    /// Reports whether the volume is at this path, in a pod or staged for the node.
    pub fn is_at(&self, path: &TargetPath) -> bool {
        self.has(&key(path))
    }

    fn has(&self, path: &str) -> bool {
        self.paths().any(|each| each == path)
    }

    /// Returns every path of the volume.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.targets.keys().chain(self.staged.iter().map(|staged| &staged.path)).map(String::as_str)
    }

    /// Reports whether the volume is staged here.
    pub fn is_staged_at(&self, path: &TargetPath) -> bool {
        self.staged.as_ref().is_some_and(|staged| staged.path == key(path))
    }
}

/// Returns a path in the journal's form, which is text as in CSI.
pub fn key(path: &TargetPath) -> String {
    path.as_path().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let path = TargetPath::parse("/k/pods/7/volumes/kubernetes.io~csi/data/mount".as_ref()).unwrap();
        let mut entry = Entry { driver: "a/b".into(), id: "fx1#v".into(), ..Entry::default() };
        assert!(entry.is_over());
        entry.publish(&path, Target { phase: Phase::Begun, read_only: true, exclusive: false });
        entry.attach("node", "/dev/x");
        assert!(entry.is_at(&path) && !entry.is_over());
        assert_eq!(Entry::parse(&serde_json::to_string(&entry).unwrap()).unwrap(), entry);
    }

    #[test]
    fn a_later_version_s_keys_are_passed_over_and_its_words_are_not_guessed() {
        let later = r#"{"id":"v","color":"red","targets":{"/a":{"phase":"done","readOnly":true,"exclusive":false,"x":1}}}"#;
        assert!(Entry::parse(later).unwrap().has("/a"));
        for wrong in ["", "{", "{\"id\":1}", r#"{"targets":{"/a":{"phase":"halfway"}}}"#] {
            assert!(Entry::parse(wrong).is_err(), "{wrong}");
        }
    }
}
