//! Settings of the `exec` driver in its side file.

use crate::json_object::{members, mistake, plain};
use flexvol_protocol::failure::Result;
use flexvol_protocol::{Capabilities, Verb};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The commands of the `exec` driver; see [`exec`](super).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecSettings {
    /// Program and arguments by verb. `mount` is required; no shell is involved.
    pub commands: BTreeMap<String, Vec<String>>,
    /// Options that a volume may set; others are refused.
    pub options: BTreeSet<String>,
    /// True if the commands read the volume's secrets from standard input.
    pub secrets_on_stdin: bool,
    /// Name of the volume on its storage, made of the options that identify it. Volumes with
    /// different names are never confused, even if a PV or a pod gives them the same name in
    /// kubelet. If absent, volumes with different options are different volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The file system type that must be at the target after `mount`; absent accepts any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_system: Option<String>,
    /// Capabilities that `init` reports.
    pub capabilities: ExecCapabilities,
}

members!(ExecSettings {
    "commands" => commands by plain,
    "options" => options by plain,
    "secretsOnStdin" => secrets_on_stdin by plain,
    "identity" => identity by plain,
    "fileSystem" => file_system by plain,
    "capabilities" => capabilities by plain,
});

/// The capabilities of an `exec` driver: none, unless the admin claims them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_excessive_bools, reason = "kubelet's own five")]
pub struct ExecCapabilities {
    /// True if the attach verbs exist.
    pub attach: bool,
    /// True if the mounted file system stores labels.
    pub selinux_relabel: bool,
    /// True if statfs of the mount never hangs.
    pub supports_metrics: bool,
    /// True if kubelet should chown the volume to the pod's fsGroup.
    pub fs_group: bool,
    /// True if kubelet should call `expandfs`.
    #[serde(rename = "requiresFSResize")]
    pub requires_fs_resize: bool,
}

members!(ExecCapabilities {
    "attach" => attach by plain,
    "selinuxRelabel" => selinux_relabel by plain,
    "supportsMetrics" => supports_metrics by plain,
    "fsGroup" => fs_group by plain,
    "requiresFSResize" => requires_fs_resize by plain,
});

impl From<ExecCapabilities> for Capabilities {
    fn from(from: ExecCapabilities) -> Self {
        Self {
            attach: from.attach,
            selinux_relabel: from.selinux_relabel,
            supports_metrics: from.supports_metrics,
            fs_group: from.fs_group,
            requires_fs_resize: from.requires_fs_resize,
        }
    }
}

impl ExecSettings {
    /// Refuses commands that would never run: their author would believe that they do.
    pub(crate) fn check(&self) -> Result<()> {
        self.commands.keys().try_for_each(|name| match Verb::parse(name.as_ref()) {
            None => Err(mistake(&format!("exec.commands: {name:?} is not a verb of kubelet's"))),
            Some(Verb::Init) => Err(mistake(
                "exec.commands: \"init\" is never run: say in exec.capabilities what it shall answer",
            )),
            Some(_) => Ok(()),
        })
    }
}
