//! `overlay`: directories of the node, one above the other, with the pod's own layer on top.
//!
//! Writes of the pod go to its own layer, in memory or in a directory of the node. The directories
//! below stay unchanged and can serve any number of pods: reference data that programs want to
//! write to, or caches that are ready when a pod starts.
//!
//! All directories must lie below a root the node's admin allowed (`policy.bindRoots`), and are
//! opened from there without following a symlink. Needs Linux 5.2.
//!
//! Capabilities: no attach; no chown by kubelet, which would copy every file to the pod's layer; no
//! labels; metrics, because the layers are local.

use super::{access, flags_alone};
use crate::driver::{Driver, Needs, Request};
use crate::plan::{Goal, Overlay, Ownership, Plan, Source, Step, Upper, View};
use crate::schema::{Id, Mode, OptionSpec, OptionValue};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::quantity::Quantity;
use flexvol_protocol::{Capabilities, TargetPath};
use std::path::{Path, PathBuf};

/// The driver.
pub struct OverlayDriver;

crate::options! {
    /// Options of a PV.
    pub struct OverlayOptions {
        /// Directories of the node with a colon between them, the topmost first, below a root the
        /// node's policy allows.
        lower: Directories = "lower" { aliases: ["lowerdir"], example: "/srv/data/patches:/srv/data/base" },
        /// Directory of the node for what is written, below a root the node's policy allows: it is
        /// kept when the pod ends, and only one pod at a time may use it. The default is memory,
        /// which is lost.
        upper: Option<String> = "upper" { aliases: ["upperdir"] },
        /// Limit for what is written to memory.
        size: Option<Quantity> = "size" { example: "64Mi" },
        /// Mode of the root directory. The default is 0777, and 2777 with an fsGroup.
        mode: Option<Mode> = "mode" {},
        /// Owner of the root directory.
        uid: Id = "uid" { default: "0" },
        /// Group of the root directory. The default is the pod's fsGroup, else 0.
        gid: Option<Id> = "gid" {},
        /// Comma list of further flags: noexec, noatime, ro and the like.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noexec" },
    }
}

/// Directories, the topmost first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directories(Vec<PathBuf>);

/// Limit for the number of directories: the kernel takes no more in one string.
const MOST: usize = 12;

impl OptionValue for Directories {
    const KIND: &'static str = "directories with a colon between them";

    fn parse(text: &str) -> Result<Self, String> {
        let all: Vec<_> = text.split(':').map(PathBuf::from).collect();
        match all.iter().find(|path| !path.is_absolute()) {
            Some(path) => Err(format!("{} is no absolute path", path.display())),
            None if all.len() > MOST => Err(format!("more than {MOST} directories are too many")),
            None => Ok(Self(all)),
        }
    }
}

impl Driver for OverlayDriver {
    fn name(&self) -> &'static str {
        "overlay"
    }

    fn summary(&self) -> &'static str {
        "directories of the node with a writable layer"
    }

    fn needs(&self) -> Needs {
        Needs { file_system: Some("overlay"), ..Needs::NOTHING }
    }

    fn options(&self) -> &'static [OptionSpec] {
        OverlayOptions::SPECS
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities { supports_metrics: true, ..Capabilities::NONE }
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let options = OverlayOptions::parse(&request.options.own)?;
        let flags = flags_alone(options.mount_options.as_deref(), request.options, "an overlay")?;
        let group = request.options.fs_group.as_ref().map(|group| group.gid);
        let owner = Ownership {
            mode: options.mode.map_or(if group.is_some() { 0o2777 } else { 0o777 }, |mode| mode.0),
            uid: options.uid.0,
            gid: options.gid.map(|gid| gid.0).or(group).unwrap_or(0),
        };
        let overlay = Overlay { upper: upper(&options)?, lower: options.lower.0, owner, flags };
        let view = View {
            file_system: Some("overlay".into()),
            source: Source::Name("overlay".into()),
            access: access(flags),
        };
        Ok(Plan {
            goal: Goal::Mounted { target: target.clone(), view },
            steps: vec![
                Step::PrepareTarget { target: target.clone() },
                Step::MountOverlay { target: target.clone(), overlay },
            ],
        })
    }
}

fn upper(options: &OverlayOptions) -> Result<Upper> {
    match (&options.upper, options.size) {
        (Some(_), Some(_)) => Err(Failure::options(
            "option \"size\" limits what is written to memory: leave it out, or leave out \"upper\"",
        )),
        (Some(path), None) => Ok(Upper::Directory(Path::new(path).to_owned())),
        (None, size) => Ok(Upper::Memory(size.map(|size| size.0))),
    }
}
