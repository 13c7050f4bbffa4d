//! What is known of a driver before the first case: found out by one life of a volume.

use flexvol_protocol::{Verb, VerbSet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What a driver does when nothing is wrong.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "a fact is so or not")]
pub struct Facts {
    /// Whether `init` was a success in kubelet's eyes.
    pub loads: bool,
    /// Whether `init` was meant to be one.
    pub init_works: bool,
    /// Whether it attaches for kubelet, by its own word or because it left that out.
    pub says_attach: bool,
    /// Whether its volumes are attached: it says so, and has one of the verbs of an attachment.
    pub attaches: bool,
    /// Whether kubelet changes the group of its files.
    pub fs_group: bool,
    /// Whether kubelet asks for the figures of its file system.
    pub supports_metrics: bool,
    /// Whether kubelet grows its volumes.
    pub requires_fs_resize: bool,
    /// Whether kubelet has the runtime relabel its files.
    pub selinux_relabel: bool,
    /// The names of the verbs that it has: those that were not answered with `Not supported`.
    pub verbs: Vec<String>,
    /// The names of the verbs that it lacks: those that were.
    pub lacks: Vec<String>,
    /// Whether a volume was mounted and unmounted again.
    pub mounts: bool,
    /// Why not.
    pub why_not: String,
    /// Whether kubelet could read every answer that was meant to be a success.
    pub clean: bool,
    /// Whether the output of a call was still open when the driver had ended.
    pub lingers: bool,
    /// Whether a call had to be stopped.
    pub hangs: bool,
    /// Whether one was stopped for which the machine was too busy, so that little is known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub busy: bool,
    /// The size of the file system, in bytes.
    pub size: u64,
    /// The type of the file system that was mounted.
    pub file_system: String,
    /// Whether a file could be made in it.
    pub writable: bool,
    /// Whether the file was there again at the next mount.
    pub keeps_data: bool,
    /// The processes that ran while it was mounted and not before: its daemons.
    pub daemons: Vec<String>,
    /// Files and directories that it leaves after each volume in the same place: there it keeps its
    /// data.
    pub keeps: Vec<PathBuf>,
    /// Whether mounts, devices or processes were left when the first volume was gone.
    pub litters: bool,
    /// How long mount and unmount took, in milliseconds.
    pub mount_took: u64,
    /// See `mount_took`.
    pub unmount_took: u64,
    /// The modes of what the first mount made, by path; the root of the volume has an empty one.
    pub modes: BTreeMap<String, u32>,
}

impl Facts {
    /// The verbs that it has.
    pub fn verbs(&self) -> VerbSet {
        let verbs: Vec<_> = self.verbs.iter().filter_map(|name| Verb::parse(name.as_ref())).collect();
        VerbSet::of(&verbs)
    }

    /// Whether it answered a verb with `Not supported`.
    pub fn leaves_to_kubelet(&self, verb: Verb) -> bool {
        self.lacks.iter().any(|name| name == verb.name())
    }

    /// Whether it has a verb.
    pub fn has(&self, verb: Verb) -> bool {
        self.verbs().contains(verb)
    }
}
