//! Logical volumes of LVM, made on demand, by its own program.
//!
//! * Whether a volume is active the kernel says, without asking the disks of the group.
//! * A volume that is made bears a tag from its first moment on until it is complete: one that a
//!   killed call left is removed and made again, since nobody can have used it. Then another says
//!   that nothing was written to it.
//! * In a group that several nodes see and nothing guards (no lvmlockd, no system ID), the node
//!   that uses a volume puts its name on it as a tag. Another one refuses it, and any other volume
//!   of the same thin pool, which only one node may have active. After a reboot the tag is still
//!   this node's; one of a node that is gone for good has to be removed by hand, by somebody who
//!   knows that it is. Volumes that are only read, and not thin, may be on many nodes.
//! * A volume that was active before stays so. Another tag says that it was not, and in which boot
//!   of the node: a record may be lost. A volume that many nodes read, and nothing guards, has
//!   none, since two that write down something at the same time would damage the group.

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
use report::{Report, Volume};
use std::path::Path;

/// The driver of such devices.
pub(super) const DRIVER: &str = "lvm";

/// On a volume that nothing was written to since it was made.
const FRESH: &str = "flexvol.unformatted";

/// On one that is not complete.
const BEGUN: &str = "flexvol.being-made";

/// And the name of the node that uses it.
const IN_USE: &str = "flexvol.in-use.";

/// And of the node and its boot that has activated it.
const ACTIVATED: &str = "flexvol.activated.";

/// What LVM's names in device mapper begin with, and how long they are for a volume that is
/// nobody's part.
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

    /// One in a thin pool, which is one node's at a time, or in a group that LVM guards.
    fn is_of_node(&self, at: &Site<'_>) -> Result<bool> {
        let volume = report(self, at)?.and_then(|mut report| report.take(&self.volume));
        Ok(volume.is_some_and(|volume| volume.is_guarded() || volume.is_thin()))
    }

    fn attach(&self, at: &Site<'_>, with: &With<'_>) -> Result<Found> {
        let is_active = self.find(at)?.is_some();
        claim(self, at, with, is_active)?;
        let activate = ["lvchange", "--activate", "ey", "--ignoreactivationskip"];
        if self.find(at)?.is_none() {
            // Without a node its making was cut short, and LVM may take it for active.
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

/// Its name in device mapper.
fn mapped(lv: &LogicalVolume) -> String {
    let double = |name: &str| name.replace('-', "--");
    format!("{}-{}", double(&lv.group), double(&lv.volume))
}

/// The volume that a device shows.
pub(super) fn on(device: &Path) -> Option<LogicalVolume> {
    let name = device_mapper::name_of(number_of(device.as_os_str()), KIND)?;
    // Single dashes are between the parts of a name.
    let name = name.replace("--", "\n");
    let (group, volume) = name.split_once('-')?;
    let [group, volume] = [group, volume].map(|part| part.replace('\n', "-"));
    Some(LogicalVolume { group, volume, size: None, thin_pool: None })
}

/// Of a volume without a record, what its tags say that we have done.
pub(super) fn let_go(lv: &LogicalVolume, at: &Site<'_>) -> Result<()> {
    if lv.is_ours(at)? { lv.detach(at, None) } else { lv.release(at) }
}

/// The volume, which is there now, can be mounted, and is no other node's.
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
    // What a boot before has left.
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

/// The kernel may have it still if the disks of the group are gone, or its making was cut short.
fn deactivate(lv: &LogicalVolume, tools: Tools<'_>) -> Result<()> {
    let outcome = run(lv, tools, &["lvchange", "--activate", "n"], &[&lv.name()])?;
    if !outcome.success() && !is_gone(&outcome) {
        return Err(refused(lv, &outcome)).with_context(|| format!("deactivate {}", lv.name()));
    }
    device_mapper::remove(&mapped(lv), tools)
}

/// Adds tags and takes them away, if there are any to.
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

/// Without a copy of what the group was before: it is the same.
fn change(lv: &LogicalVolume, at: &Site<'_>, words: &[&str]) -> Result<()> {
    let words: Vec<&str> = ["lvchange", "--autobackup", "n"].iter().chain(words).copied().collect();
    lvm(lv, at.tools(), &words, &[&lv.name()]).with_context(|| format!("mark {}", lv.name())).map(drop)
}

/// What is in the group; `None` if there is no such group.
fn report(lv: &LogicalVolume, at: &Site<'_>) -> Result<Option<Report>> {
    let words = ["lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "--options", report::FIELDS];
    let outcome = run(lv, at.tools(), &words, &[&lv.group])?;
    match outcome.success() {
        true => Report::parse(&outcome.answer).map(Some),
        false if is_gone(&outcome) => Ok(None),
        false => Err(refused(lv, &outcome)),
    }
}

/// The volume, which has to be there.
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

/// LVM's own words, and what to do about those that people see most.
fn refused(lv: &LogicalVolume, outcome: &HelperExit) -> anyhow::Error {
    let (text, group) = (describe(outcome, "lvm"), &lv.group);
    let (code, fix) = match &outcome.output.to_lowercase() {
        said if said.contains("insufficient free space") => {
            (Code::Conflict, format!(": give group {group} more disks (vgextend), or ask for less"))
        }
        said if said.contains("not found in volume group") && said.contains("pool") => (
            Code::NotFound,
            ": make the pool (lvcreate --type thin-pool), or correct option thinPool".to_owned(),
        ),
        said if said.contains("system id") => {
            (Code::Busy, ": the group is another node's (vgchange --systemid)".to_owned())
        }
        said if said.contains("lock") => (
            Code::Busy,
            ": another node may have it, or lvmlockd does not serve the group (vgchange --lockstart)"
                .to_owned(),
        ),
        _ => (Code::Internal, String::new()),
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

/// LVM takes no size that is not of whole sectors.
fn sectors(size: u64) -> String {
    format!("{}s", size.div_ceil(512))
}

/// This node's own.
struct Tags {
    /// That it uses a volume.
    in_use: String,
    /// That it has activated it, in this boot.
    activated: String,
    /// How those of all its boots begin.
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
