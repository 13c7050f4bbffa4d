//! `bind`: a directory or file of the node as a volume.
//!
//! The source must lie below a root the node's admin allowed (`policy.bindRoots`; none by default).
//! It is opened from there without following a symlink, so neither `..` nor a symlink that a pod
//! swaps in can lead out.
//!
//! Capabilities: no attach; no relabelling and no chown, because the files belong to the node and
//! others may use them; no metrics, because statfs would report the node's disk and may hang on a
//! source that is itself a dead network mount.

use super::{access, flags_alone};
use crate::driver::{Driver, Request};
use crate::plan::{Goal, Ownership, Plan, Propagation, Source, Step, View};
use crate::schema::{Id, Mode, OptionSpec, OptionValue};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::{Capabilities, TargetPath};
use std::path::{Component, Path, PathBuf};

/// The driver.
pub struct Bind;

crate::options! {
    /// Options of a PV.
    pub struct BindOptions {
        /// The directory or file of the node, below a root the node's policy allows.
        source: String = "source" { aliases: ["path", "hostPath"], example: "/srv/volumes/web" },
        /// A path below the source to use instead of it.
        sub_path: Option<String> = "subPath" {},
        /// Make the directory if it is missing, with the mode and owner below.
        create: bool = "create" { default: "false" },
        /// Mode of a new directory.
        mode: Mode = "mode" { default: "0755" },
        /// Owner of a new directory.
        uid: Id = "uid" { default: "0" },
        /// Group of a new directory. The default is the pod's fsGroup, else 0.
        gid: Option<Id> = "gid" {},
        /// Include mounts below the source.
        recursive: bool = "recursive" { default: "false" },
        /// Mount propagation: private, rslave (from the node to the pod) or rshared (both ways, if
        /// the node's policy allows it).
        propagation: Propagation = "propagation" { default: "private" },
        /// Comma list of further flags: noexec, noatime, ro and the like.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"] },
    }
}

impl OptionValue for Propagation {
    const KIND: &'static str = "private, rslave or rshared";

    /// Accepts the kernel's words, and those of `volumeMounts[].mountPropagation`.
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "private" | "None" => Ok(Self::Private),
            "rslave" | "HostToContainer" => Ok(Self::HostToContainer),
            "rshared" | "Bidirectional" => Ok(Self::Bidirectional),
            _ => Err(format!("{text:?} is not {}", Self::KIND)),
        }
    }
}

impl Driver for Bind {
    fn name(&self) -> &'static str {
        "bind"
    }

    fn summary(&self) -> &'static str {
        "a directory or file of the node"
    }

    fn hint(&self) -> Option<String> {
        let text = "The node allows no source until its admin names the directories below which one may lie, in the \
            side file .flexvol.json beside the executable: {\"policy\": {\"bindRoots\": [\"/srv\"]}}";
        Some(text.to_owned())
    }

    fn options(&self) -> &'static [OptionSpec] {
        BindOptions::SPECS
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities {
            attach: false,
            selinux_relabel: false,
            supports_metrics: false,
            fs_group: false,
            requires_fs_resize: false,
        }
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let options = BindOptions::parse(&request.options.own)?;
        let source = source(&options)?;
        let flags = flags_alone(options.mount_options.as_deref(), request.options, "a bind")?;
        let gid = options.gid.map(|gid| gid.0).or(request.options.fs_group.as_ref().map(|group| group.gid));
        let owner = Ownership { mode: options.mode.0, uid: options.uid.0, gid: gid.unwrap_or(0) };
        let create = options.create.then(|| Step::MakeDirectory { path: source.clone(), owner });
        let bind = Step::Bind {
            target: target.clone(),
            source: source.clone(),
            recursive: options.recursive,
            flags,
            propagation: options.propagation,
        };
        let steps =
            create.into_iter().chain([Step::PrepareTarget { target: target.clone() }, bind]).collect();
        let view = View { file_system: None, source: Source::Node(source), access: access(flags) };
        Ok(Plan { goal: Goal::Mounted { target: target.clone(), view }, steps })
    }
}

/// Returns the source with its sub-path, as text: the policy and the executor check the rest.
fn source(options: &BindOptions) -> Result<PathBuf> {
    let source = Path::new(&options.source);
    let Some(below) = options.sub_path.as_deref().map(Path::new) else {
        return Ok(source.to_owned());
    };
    let plain = below.components().all(|part| matches!(part, Component::Normal(_)));
    if !plain {
        return Err(Failure::options("option \"subPath\" must be a relative path without . and .."));
    }
    Ok(source.join(below))
}
