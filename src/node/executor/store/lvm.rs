//! Logical volumes of LVM, made on demand, by LVM's own program.
//!
//! * The kernel tells whether a volume is active, without asking the disks of the group.
//! * A volume has a tag from its creation until it is complete. A volume that a killed call left
//!   with this tag is removed and made again, since it cannot have been used. After that, another
//!   tag says that nothing was written to the volume.
//! * In a group that several nodes see and nothing guards (no lvmlockd, no system ID), the node
//!   that uses a volume adds a tag with its name. Another node refuses this volume, and any other
//!   volume of the same thin pool, which only one node may have active. After a reboot the tag is
//!   still this node's. The tag of a node that is gone for good has to be removed by hand, by a
//!   person who knows that. Volumes that are only read, and not thin, may be on many nodes.
//! * A volume that was active before us stays active. Another tag says that we have activated it,
//!   and in which boot of the node: a record may be lost. A volume that many nodes read, and
//!   nothing guards, has no such tag, since two nodes that write a tag at the same time would
//!   damage the group.

mod report;

use super::{Backend, Found, Site, With};
use crate::hints::describe;
use anyhow::{Context as _, Result};
use flexvol_linux::block::block_device::number_of;
use flexvol_linux::block::device_mapper;
use flexvol_linux::proc::helper::{HelperExit, Invocation, Tools};
use flexvol_linux::proc::host;
use flexvol_model::plan::LogicalVolume;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::text::find_word;
use report::{Report, Volume};
use std::path::Path;

/// Driver of such devices.
pub(super) const DRIVER: &str = "lvm";

/// Tag of a volume that was never written to.
const FRESH: &str = "flexvol.unformatted";

/// Tag of a volume that is not complete.
const BEGUN: &str = "flexvol.being-made";

/// Prefix for the tag of a volume in use; the node's name follows.
const IN_USE: &str = "flexvol.in-use.";

/// Prefix for the tag of an activated volume; the node's name and its boot follow.
const ACTIVATED: &str = "flexvol.activated.";

/// Prefix of LVM's names in device mapper, and their length for a volume that is not part of
/// another one.
const KIND: (&str, usize) = ("LVM-", 4 + 64);

impl Backend for LogicalVolume {
    fn find(&self, _: &Site<'_>) -> Result<Option<Found>> {
        let path = device_mapper::find(&mapped(self), KIND)?;
        Ok(path.map(|path| Found { path, held: None }))
    }

    fn is_ours(&self, at: &Site<'_>) -> Result<bool> {
        let volume = report(self, at)?.and_then(|mut report| report.take(&self.volume));
        let tags = Tags::own()?;
        Ok(volume.is_some_and(|volume| volume.is_tagged(&tags.activated)))
    }

    /// Reports whether only one node can have the volume: it is in a thin pool, or in a group that
    /// LVM guards.
    fn is_of_node(&self, at: &Site<'_>) -> Result<bool> {
        let volume = report(self, at)?.and_then(|mut report| report.take(&self.volume));
        Ok(volume.is_some_and(|volume| volume.is_guarded() || volume.is_thin()))
    }

    fn attach(&self, at: &Site<'_>, with: &With<'_>) -> Result<Found> {
        let is_active = self.find(at)?.is_some();
        claim(self, at, with, is_active)?;
        let activate = ["lvchange", "--activate", "ey", "--ignoreactivationskip"];
        if self.find(at)?.is_none() {
            // A device without a node was not completed, and LVM may take it for active.
            device_mapper::remove(&mapped(self), at.tools())?;
            lvm(self, at.tools(), &activate, &[&self.name()])
                .with_context(|| format!("activate {}", self.name()))?;
        }
        self.find(at)?.ok_or_else(|| {
            let text = format!(
                "{} did not become active: look at activation/volume_list in lvm.conf and at lvs -o lv_active",
                self.name()
            );
            Failure::new(Code::Internal, text).into()
        })
    }

    fn adopt(&self, at: &Site<'_>, with: &With<'_>) -> Result<()> {
        claim(self, at, with, true)
    }

    fn detach(&self, at: &Site<'_>, _: Option<&Path>) -> Result<()> {
        deactivate(self, at.tools())?;
        self.release(at)
    }

    fn release(&self, at: &Site<'_>) -> Result<()> {
        let Some(volume) = report(self, at)?.and_then(|mut report| report.take(&self.volume)) else {
            return Ok(());
        };
        let tags = Tags::own()?;
        mark(self, at, volume.tags().filter(|tag| tags.include(tag)).map(|tag| ("--deltag", tag)))
    }

    fn grow(&self, at: &Site<'_>, _: &Path, size: u64) -> Result<()> {
        if look(self, at)?.size()? >= size {
            return Ok(());
        }
        lvm(self, at.tools(), &["lvextend", "--size", &sectors(size)], &[&self.name()])
            .map(drop)
            .with_context(|| format!("grow {}", self.name()))
    }

    fn is_fresh(&self, at: &Site<'_>) -> Result<bool> {
        Ok(look(self, at)?.is_tagged(FRESH))
    }

    fn is_written(&self, at: &Site<'_>) -> Result<()> {
        untag(self, at, FRESH)
    }
}

/// Returns the volume's name in device mapper.
fn mapped(lv: &LogicalVolume) -> String {
    let double = |name: &str| name.replace('-', "--");
    format!("{}-{}", double(&lv.group), double(&lv.volume))
}

/// Returns the volume that a device shows.
pub(super) fn on(device: &Path) -> Option<LogicalVolume> {
    let name = device_mapper::name_of(number_of(device.as_os_str()), KIND)?;
    // Single dashes separate the parts of a name.
    let name = name.replace("--", "\n");
    let (group, volume) = name.split_once('-')?;
    let [group, volume] = [group, volume].map(|part| part.replace('\n', "-"));
    Some(LogicalVolume { group, volume, size: None, thin_pool: None })
}

/// Releases a volume without a record: undoes what we have done according to its tags.
pub(super) fn let_go(lv: &LogicalVolume, at: &Site<'_>) -> Result<()> {
    if lv.is_ours(at)? { lv.detach(at, None) } else { lv.release(at) }
}

/// Claims the volume: afterwards it exists, can be mounted, and is not in use by another node.
fn claim(lv: &LogicalVolume, at: &Site<'_>, with: &With<'_>, is_active: bool) -> Result<()> {
    let mut report = report(lv, at)?.ok_or_else(|| no_group(lv))?;
    let (tags, thin) = (Tags::own()?, report.get(&lv.volume).map(|volume| volume.pool.clone()));
    report.refuse_other_nodes(lv, thin.as_ref().or(lv.thin_pool.as_ref()), &tags.in_use)?;
    let volume = match report.take(&lv.volume) {
        Some(volume) if volume.is_tagged(BEGUN) => {
            volume.refuse_unfit(lv)?;
            lvm(lv, at.tools(), &["lvremove", "--yes"], &[&lv.name()]).context("remove half a volume")?;
            None
        }
        volume => volume,
    };
    let Some(volume) = volume else {
        return match lv.size.filter(|_| !with.reader) {
            Some(size) => make(lv, at, size, &tags),
            None => Err(absent(lv).into()),
        };
    };
    volume.refuse_unfit(lv)?;
    let needs_tag = volume.needs_tag(with.read_only);
    let in_use = needs_tag.then_some(tags.in_use.as_str());
    let activated = (!is_active && (needs_tag || volume.is_guarded())).then_some(tags.activated.as_str());
    let new = in_use.into_iter().chain(activated).filter(|tag| !volume.is_tagged(tag));
    // Tags of an earlier boot.
    let old = volume.tags().filter(|tag| tags.include(tag) && *tag != tags.in_use && *tag != tags.activated);
    mark(lv, at, new.map(|tag| ("--addtag", tag)).chain(old.map(|tag| ("--deltag", tag))))
}

fn make(lv: &LogicalVolume, at: &Site<'_>, size: u64, tags: &Tags) -> Result<()> {
    let size = sectors(size);
    let common = ["lvcreate", "--yes", "--wipesignatures", "y", "--addtag", BEGUN];
    let common = common.into_iter().chain(["--addtag", &tags.in_use, "--addtag", &tags.activated]);
    let own = match &lv.thin_pool {
        Some(pool) => vec!["--virtualsize", &size, "--thinpool", pool],
        None => vec!["--zero", "y", "--size", &size],
    };
    let words: Vec<&str> = common.chain(own).chain(["--name", &lv.volume]).collect();
    lvm(lv, at.tools(), &words, &[&lv.group]).with_context(|| format!("make {}", lv.name()))?;
    change(lv, at, &["--deltag", BEGUN, "--addtag", FRESH])
}

/// Deactivates the volume. The kernel may still have it after its disks are gone, or its creation
/// was interrupted.
fn deactivate(lv: &LogicalVolume, tools: Tools<'_>) -> Result<()> {
    let outcome = run(lv, tools, &["lvchange", "--activate", "n"], &[&lv.name()])?;
    if !outcome.success() && !is_gone(&outcome) {
        return Err(refused(lv, &outcome)).with_context(|| format!("deactivate {}", lv.name()));
    }
    device_mapper::remove(&mapped(lv), tools)
}

/// Adds and removes tags, if there are any.
fn mark<'a>(
    lv: &LogicalVolume,
    at: &Site<'_>,
    tags: impl Iterator<Item = (&'static str, &'a str)>,
) -> Result<()> {
    let words: Vec<&str> = tags.flat_map(|(what, tag)| [what, tag]).collect();
    if words.is_empty() { Ok(()) } else { change(lv, at, &words) }
}

fn untag(lv: &LogicalVolume, at: &Site<'_>, tag: &str) -> Result<()> {
    change(lv, at, &["--deltag", tag])
}

/// Changes tags, without a backup of the group's metadata: the group stays the same.
fn change(lv: &LogicalVolume, at: &Site<'_>, words: &[&str]) -> Result<()> {
    let words: Vec<&str> = ["lvchange", "--autobackup", "n"].iter().chain(words).copied().collect();
    lvm(lv, at.tools(), &words, &[&lv.name()]).with_context(|| format!("mark {}", lv.name())).map(drop)
}

/// Returns the volumes in the group; `None` if there is no such group.
fn report(lv: &LogicalVolume, at: &Site<'_>) -> Result<Option<Report>> {
    let words = ["lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "--options", report::FIELDS];
    let outcome = run(lv, at.tools(), &words, &[&lv.group])?;
    match outcome.success() {
        true => Report::parse(&outcome.answer).map(Some),
        false if is_gone(&outcome) => Ok(None),
        false => Err(refused(lv, &outcome)),
    }
}

/// Returns the volume; fails if it does not exist.
fn look(lv: &LogicalVolume, at: &Site<'_>) -> Result<Volume> {
    let report = report(lv, at)?.ok_or_else(|| no_group(lv))?;
    { report }.take(&lv.volume).ok_or_else(|| absent(lv).into())
}

fn lvm(lv: &LogicalVolume, tools: Tools<'_>, words: &[&str], names: &[&str]) -> Result<HelperExit> {
    match run(lv, tools, words, names)? {
        outcome if outcome.success() => Ok(outcome),
        outcome => Err(refused(lv, &outcome)),
    }
}

fn run(lv: &LogicalVolume, tools: Tools<'_>, words: &[&str], names: &[&str]) -> Result<HelperExit> {
    let program = device_mapper::without_udev(Invocation::of("lvm"));
    let wait = || format!("ask LVM about {}, whose disks or locks may not answer", lv.group);
    tools.run(program.answering().args(words).args(names)).with_context(wait)
}

/// Returns LVM's error, with a fix for the most common ones.
fn refused(lv: &LogicalVolume, outcome: &HelperExit) -> anyhow::Error {
    let (text, group) = (describe(outcome, "lvm"), &lv.group);
    let said = outcome.output.to_lowercase();
    let says = |word| find_word(&said, word).is_some();
    let (code, fix) = match () {
        () if says("insufficient free space") => {
            (Code::Conflict, format!(": give group {group} more disks (vgextend), or ask for less"))
        }
        () if says("not found in volume group") && says("pool") => (
            Code::NotFound,
            ": make the pool (lvcreate --type thin-pool), or correct option thinPool".to_owned(),
        ),
        () if says("system id") => {
            (Code::Busy, ": the group is another node's (vgchange --systemid)".to_owned())
        }
        () if says("lock") || says("lvmlockd") => (
            Code::Busy,
            ": another node may have it, or lvmlockd does not serve the group (vgchange --lockstart)"
                .to_owned(),
        ),
        () => (Code::Internal, String::new()),
    };
    Failure::new(code, format!("{text}{fix}")).into()
}

fn no_group(lv: &LogicalVolume) -> Failure {
    let text = "is not on this node: attach its disks, make it (vgcreate), or correct option volumeGroup";
    Failure::new(Code::NotFound, format!("volume group {} {text}", lv.group))
}

fn absent(lv: &LogicalVolume) -> Failure {
    let text = "is not there: make it (lvcreate), or give option size and mount it read-write";
    Failure::new(Code::NotFound, format!("logical volume {} {text}", lv.name()))
}

fn is_gone(outcome: &HelperExit) -> bool {
    ["Volume group", "Failed to find logical volume"].iter().any(|what| {
        outcome.output.lines().any(|line| {
            line.trim_start().starts_with(what) && (what.starts_with("Failed") || line.contains("not found"))
        })
    })
}

/// Formats a size in whole sectors: LVM accepts no other.
fn sectors(size: u64) -> String {
    format!("{}s", size.div_ceil(512))
}

/// Tags of this node.
struct Tags {
    /// Tag of a volume that it uses.
    in_use: String,
    /// Tag of a volume that it has activated in this boot.
    activated: String,
    /// Prefix for the activation tags of all its boots.
    of_boots: String,
}

impl Tags {
    fn own() -> Result<Self> {
        let plain = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' };
        let node: String = host::name()?.chars().map(plain).collect();
        let of_boots = format!("{ACTIVATED}{node}:");
        let activated = format!("{of_boots}{}", host::boot()?);
        Ok(Self { in_use: format!("{IN_USE}{node}"), activated, of_boots })
    }

    fn include(&self, tag: &str) -> bool {
        tag == self.in_use || tag.starts_with(&self.of_boots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_linux::errno::to_failure;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    #[test]
    fn only_a_lock_means_that_another_node_has_the_group() {
        let lv = LogicalVolume { group: "g".into(), volume: "v".into(), size: None, thin_pool: None };
        let code = |said: &str| {
            let (output, answer) = (said.to_owned(), String::new());
            to_failure(refused(&lv, &HelperExit { status: ExitStatus::from_raw(5 << 8), output, answer }))
                .code()
        };
        for said in [
            "VG g lock failed: held by other host.",
            "lvmlockd process is not running.",
            "LV locked by other host: g/v",
        ] {
            assert_eq!(code(said), Code::Busy, "{said}");
        }
        for said in ["/dev/sdb: not a block device", "Number of blocks is too large"] {
            assert_eq!(code(said), Code::Internal, "{said}");
        }
    }
}
