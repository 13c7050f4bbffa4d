//! `tmpfs`: memory of the node as a volume. The smallest real driver, and the template for a new
//! one.
//!
//! Capabilities: no attach; labels are stored, so relabelling works; statfs never hangs; kubelet
//! does not need to chown, because the pod's fsGroup becomes the root directory's group with the
//! setgid bit, which new files inherit.

use super::{access, flags};
use crate::driver::{Driver, Request};
use crate::plan::{Goal, MountFrom, Plan, Source, Step, View};
use crate::schema::{Id, Mode, OptionSpec, OptionValue};
use crate::settings::Settings;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::mount_options::{self, FsOption};
use flexvol_protocol::quantity::Quantity;
use flexvol_protocol::{Capabilities, Options, TargetPath};

/// The driver.
pub struct Tmpfs;

crate::options! {
    /// Options of a PV.
    pub struct TmpfsOptions {
        /// Capacity: a size, or a percentage of the node's memory. The kernel's default is half the
        /// memory. The content counts as memory of the containers that wrote it.
        size: Option<TmpfsSize> = "size" { example: "64Mi" },
        /// Limit for files and directories. The kernel's default depends on the memory.
        nr_inodes: Option<Quantity> = "nrInodes" { aliases: ["nr_inodes"] },
        /// Mode of the root directory. The default is 0777, and 2777 with an fsGroup, so that any
        /// user of the pod can write.
        mode: Option<Mode> = "mode" {},
        /// Owner of the root directory.
        uid: Id = "uid" { default: "0" },
        /// Group of the root directory. The default is the pod's fsGroup, else 0.
        gid: Option<Id> = "gid" {},
        /// Never move its pages to swap: for secrets. Needs Linux 6.4.
        noswap: bool = "noswap" { default: "false" },
        /// Use of huge pages.
        huge: Option<Huge> = "huge" {},
        /// Comma list of further flags: noexec, noatime, ro and the like.
        mount_options: Option<String> = "mountOptions" { aliases: ["mountoptions"], example: "noexec" },
    }
}

/// Size in bytes, or as a share of the node's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TmpfsSize {
    /// At most this many bytes.
    Bytes(Quantity),
    /// At most this percentage of the memory.
    Percent(u32),
}

impl OptionValue for TmpfsSize {
    const KIND: &'static str = "size or percentage";

    fn parse(text: &str) -> Result<Self, String> {
        match text.strip_suffix('%') {
            Some(share) => match u32::parse(share)? {
                share @ 1..=100 => Ok(Self::Percent(share)),
                _ => Err(format!("{text:?} is not between 1% and 100%")),
            },
            // The kernel reads 0 as "no limit", which no tenant may have.
            None => match Quantity::parse(text)? {
                Quantity(0) => Err("0 would be no limit at all: write a size such as 64Mi".into()),
                size => Ok(Self::Bytes(size)),
            },
        }
    }
}

/// The kernel's huge page policies for tmpfs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Huge(&'static str);

impl OptionValue for Huge {
    const KIND: &'static str = "never, always, within_size or advise";

    fn parse(text: &str) -> Result<Self, String> {
        let known = ["never", "always", "within_size", "advise"];
        known
            .into_iter()
            .find(|word| *word == text)
            .map(Self)
            .ok_or_else(|| format!("{text:?} is not {}", Self::KIND))
    }
}

impl Driver for Tmpfs {
    fn name(&self) -> &'static str {
        "tmpfs"
    }

    fn summary(&self) -> &'static str {
        "memory of the node"
    }

    fn options(&self) -> &'static [OptionSpec] {
        TmpfsOptions::SPECS
    }

    fn capabilities(&self, _: &Settings) -> Capabilities {
        Capabilities {
            attach: false,
            selinux_relabel: true,
            supports_metrics: true,
            fs_group: false,
            requires_fs_resize: false,
        }
    }

    fn mount(&self, target: &TargetPath, request: &Request<'_>) -> Result<Plan> {
        let options = TmpfsOptions::parse(&request.options.own)?;
        check_size(&options, request.settings)?;
        let list = options.mount_options.as_deref().unwrap_or_default();
        let (flags, further) = mount_options::parse(list, flags(request.options), &[])?;
        let view = View {
            file_system: Some("tmpfs".into()),
            source: Source::Name("tmpfs".into()),
            access: access(flags),
        };
        let mount = Step::Mount {
            target: target.clone(),
            file_system: Some("tmpfs".into()),
            from: MountFrom::Name("tmpfs".into()),
            flags,
            options: own_options(&options, request.options).into_iter().chain(further).collect(),
        };
        Ok(Plan {
            goal: Goal::Mounted { target: target.clone(), view },
            steps: vec![Step::PrepareTarget { target: target.clone() }, mount],
        })
    }
}

/// Checks the size. A node that limits sizes requires a size in bytes, which it can compare.
fn check_size(options: &TmpfsOptions, settings: &Settings) -> Result<()> {
    if options.nr_inodes == Some(Quantity(0)) {
        return Err(Failure::options(
            "option \"nrInodes\": 0 would be no limit at all: write a number such as 10k",
        ));
    }
    match (options.size, settings.policy.max_size) {
        (Some(TmpfsSize::Bytes(size)), _) => settings.policy.check_size(size.0),
        (_, None) => Ok(()),
        (_, Some(limit)) => Err(Failure::options(format!(
            "this node limits sizes: give option \"size\" in bytes, at most {limit}"
        ))),
    }
}

fn own_options(options: &TmpfsOptions, volume: &Options) -> Vec<FsOption> {
    let group = volume.fs_group.as_ref().map(|group| group.gid);
    let mode = options.mode.map_or(if group.is_some() { 0o2777 } else { 0o777 }, |mode| mode.0);
    let setgid = if group.is_some() { 0o2000 } else { 0 };
    let gid = options.gid.map(|gid| gid.0).or(group).unwrap_or(0);
    let size = options.size.map(|size| match size {
        TmpfsSize::Bytes(bytes) => FsOption::new("size", bytes.0),
        TmpfsSize::Percent(share) => FsOption::new("size", format_args!("{share}%")),
    });
    let given = [
        size,
        options.nr_inodes.map(|count| FsOption::new("nr_inodes", count.0)),
        Some(FsOption::new("mode", format_args!("{:o}", mode | setgid))),
        Some(FsOption::new("uid", options.uid.0)),
        Some(FsOption::new("gid", gid)),
        options.noswap.then(|| FsOption::flag("noswap")),
        options.huge.map(|huge| FsOption::new("huge", huge.0)),
    ];
    given.into_iter().flatten().collect()
}
