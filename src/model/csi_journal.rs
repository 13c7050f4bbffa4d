//! What `flexvold csi` notes of a volume, one JSON file each; pure. `flexvold` writes and reads
//! them, and who takes a driver away reads whose pods need it.
//!
//! ```text
//! /var/lib/flexvol/csi/<CSI name>/volumes/<sha256 of the id>.json
//! ```
//!
//! No secret is in it.

use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::{Failure, Result};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What such a file ends in.
pub const EXTENSION: &str = "json";

/// The most bytes of one: the options are the largest part, and no program can be given more than
/// 128 KiB of them.
pub const LIMIT: usize = 1 << 20;

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
    /// Who serves it, as `vendor/driver`.
    pub driver: String,
    /// CSI's name for it.
    pub id: String,
    /// What `expandfs` is called with: the options of the volume without secrets, as JSON.
    pub options: String,
    /// Fingerprint of the options that the volume itself has, without an admin's defaults: another
    /// volume with the same id has other ones. Empty if an older version wrote the file.
    pub identity: String,
    /// Where it is staged.
    pub staged: Option<Staged>,
    /// In which pods it is, by the directory there.
    pub targets: BTreeMap<String, Target>,
    /// To which nodes it is attached, and what `attach` answered.
    pub attached: BTreeMap<String, String>,
}

impl Entry {
    /// Reads what a file holds.
    pub fn parse(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| Failure::options(format!("no volume's journal: {error}")))
    }

    /// Whether the volume is nowhere any more, and there is nothing to note.
    pub fn is_over(&self) -> bool {
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
        self.paths().any(|each| each == path)
    }

    /// Every path it is at.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.targets.keys().chain(self.staged.iter().map(|staged| &staged.path)).map(String::as_str)
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
