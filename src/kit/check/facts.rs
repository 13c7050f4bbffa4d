//! Facts about a driver before the first case: learnt from one life cycle of a volume.

use flexvol_protocol::{Verb, VerbSet};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Behaviour of a driver when nothing is wrong.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "a fact is so or not")]
pub struct Facts {
    /// True if `init` was a success for kubelet.
    pub loads: bool,
    /// True if `init` was meant to be a success.
    pub init_works: bool,
    /// True if it attaches in kubelet's view: it says so, or does not mention it.
    pub says_attach: bool,
    /// True if its volumes are attached: it says so, and has one of the verbs of an attachment.
    pub attaches: bool,
    /// True if kubelet changes the group of its files.
    pub fs_group: bool,
    /// True if kubelet asks for the metrics of its file system.
    pub supports_metrics: bool,
    /// True if kubelet grows its volumes.
    pub requires_fs_resize: bool,
    /// True if kubelet has the runtime relabel its files.
    pub selinux_relabel: bool,
    /// Names of the verbs that it has: those that were not answered with `Not supported`.
    pub verbs: Vec<String>,
    /// Names of the verbs that it lacks: those that were answered with `Not supported`.
    pub lacks: Vec<String>,
    /// True if a volume was mounted and unmounted again.
    pub mounts: bool,
    /// Reason if it was not.
    pub why_not: String,
    /// True if kubelet could read every answer that was meant to be a success.
    pub clean: bool,
    /// True if the output of a call was still open after the driver had ended.
    pub lingers: bool,
    /// True if a call had to be stopped.
    pub hangs: bool,
    /// True if a call was stopped while the machine was too busy, so that little is known.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub busy: bool,
    /// Size of the file system, in bytes.
    pub size: u64,
    /// Type of the file system that was mounted.
    pub file_system: String,
    /// True if a file could be made in it.
    pub writable: bool,
    /// True if the file was there again at the next mount.
    pub keeps_data: bool,
    /// Processes that ran while it was mounted, but not before: its daemons.
    pub daemons: Vec<String>,
    /// Files and directories that it leaves after each volume in the same place, because it keeps
    /// its data there.
    pub keeps: Vec<PathBuf>,
    /// True if mounts, devices or processes were left after the first volume.
    pub litters: bool,
    /// Duration of a mount, in milliseconds.
    pub mount_took: u64,
    /// Duration of an unmount, in milliseconds.
    pub unmount_took: u64,
    /// Modes of all that the first mount made, by path; the volume's root has an empty path.
    pub modes: BTreeMap<String, u32>,
}

impl Facts {
    /// Returns the verbs that it has.
    pub fn verbs(&self) -> VerbSet {
        let verbs: Vec<_> = self.verbs.iter().filter_map(|name| Verb::parse(name.as_ref())).collect();
        VerbSet::of(&verbs)
    }

    /// Reports whether it answered a verb with `Not supported`.
    pub fn leaves_to_kubelet(&self, verb: Verb) -> bool {
        self.lacks.iter().any(|name| name == verb.name())
    }

    /// Reports whether it has a verb.
    pub fn has(&self, verb: Verb) -> bool {
        self.verbs().contains(verb)
    }
}
