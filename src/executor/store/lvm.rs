//! Logical volumes of LVM, made on demand, by its own program.
//!
//! * Whether a volume is active the kernel says, without asking the disks of the group.
//! * A volume that is made bears a tag from its first moment on until it is complete: one that a killed call left is
//!   removed and made anew, since nobody can have used it. Then another says that nothing was written to it.
//! * In a group that several nodes see and nothing guards (no lvmlockd, no system ID), the node that uses a volume puts its
//!   name on it as a tag. Another one refuses it, and any other volume of the same thin pool, which only one node may have
//!   active. After a reboot the tag is still this node's; one of a node that is gone for good has to be
//!   removed by hand, by somebody who knows that it is. Volumes that are only read, and not thin, may be on many nodes.

mod report;

use super::{Backend, Found, Site, With};
use crate::failure::{Code, Failure};
use crate::plan::LogicalVolume;
use crate::sys::deadline::Deadline;
use crate::sys::helper::{Helper, Outcome};
use crate::sys::{device_mapper, host};
use anyhow::{Context, Result};
use report::{Report, Volume};
use std::path::Path;

/// On a volume that nothing was written to since it was made.
const FRESH: &str = "flexvol.unformatted";

/// On one that is not complete.
const BEGUN: &str = "flexvol.being-made";

/// And the name of the node that uses it.
const IN_USE: &str = "flexvol.in-use.";

/// What LVM's names in device mapper begin with, and how long they are for a volume that is nobody's part.
const KIND: (&str, usize) = ("LVM-", 4 + 64);

impl Backend for LogicalVolume {
    fn find(&self, _: &Site<'_>) -> Result<Option<Found>> {
        let path = device_mapper::find(&self.mapped(), KIND)?;
        Ok(path.map(|path| Found { path, held: None }))
    }

    /// Whoever activated it, it does no harm.
    fn is_ours(&self) -> bool {
        false
    }

    fn attach(&self, at: &Site<'_>, with: &With<'_>) -> Result<Found> {
        self.claim(at, with)?;
        let activate = ["lvchange", "--activate", "ey", "--ignoreactivationskip"];
        if self.find(at)?.is_none() {
            // Without a node its making was cut short, and LVM may take it for active.
            device_mapper::remove(&self.mapped(), at.deadline)?;
            self.lvm(at.deadline, &activate, &[&self.name()])
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
        self.claim(at, with)
    }

    fn detach(&self, at: &Site<'_>, _: Option<&Path>) -> Result<()> {
        self.deactivate(at.deadline)?;
        self.release(at)
    }

    fn release(&self, at: &Site<'_>) -> Result<()> {
        let Some(volume) = self.report(at)?.and_then(|mut report| report.take(&self.volume)) else {
            return Ok(());
        };
        let tag = own_tag()?;
        if volume.is_tagged(&tag) { self.untag(at, &tag) } else { Ok(()) }
    }

    fn grow(&self, at: &Site<'_>, _: &Path, size: u64) -> Result<()> {
        if self.look(at)?.size()? >= size {
            return Ok(());
        }
        self.lvm(at.deadline, &["lvextend", "--size", &sectors(size)], &[&self.name()])
            .map(drop)
            .with_context(|| format!("grow {}", self.name()))
    }

    fn is_fresh(&self, at: &Site<'_>) -> Result<bool> {
        Ok(self.look(at)?.is_tagged(FRESH))
    }

    fn is_written(&self, at: &Site<'_>) -> Result<()> {
        self.untag(at, FRESH)
    }
}

impl LogicalVolume {
    /// Its name in device mapper.
    fn mapped(&self) -> String {
        let double = |name: &str| name.replace('-', "--");
        format!("{}-{}", double(&self.group), double(&self.volume))
    }

    /// The volume, which is there now, can be mounted, and is no other node's.
    fn claim(&self, at: &Site<'_>, with: &With<'_>) -> Result<()> {
        let mut report = self.report(at)?.ok_or_else(|| self.no_group())?;
        let (tag, thin) = (own_tag()?, report.get(&self.volume).map(|volume| volume.pool.clone()));
        report.refuse_other_nodes(self, thin.as_ref().or(self.thin_pool.as_ref()), &tag)?;
        let volume = match report.take(&self.volume) {
            Some(volume) if volume.is_tagged(BEGUN) => {
                volume.refuse_unfit(self)?;
                self.lvm(at.deadline, &["lvremove", "--yes"], &[&self.name()])
                    .context("remove half a volume")?;
                None
            }
            volume => volume,
        };
        let Some(volume) = volume else {
            return match self.size.filter(|_| !with.read_only) {
                Some(size) => self.make(at, size, &tag),
                None => Err(self.absent().into()),
            };
        };
        volume.refuse_unfit(self)?;
        if !volume.is_tagged(&tag) && volume.needs_tag(with.read_only) {
            self.change(at, &["--addtag", &tag])?;
        }
        Ok(())
    }

    fn make(&self, at: &Site<'_>, size: u64, tag: &str) -> Result<()> {
        let size = sectors(size);
        let common = ["lvcreate", "--yes", "--wipesignatures", "y", "--addtag", BEGUN, "--addtag", tag];
        let own = match &self.thin_pool {
            Some(pool) => vec!["--virtualsize", &size, "--thinpool", pool],
            None => vec!["--zero", "y", "--size", &size],
        };
        let words: Vec<&str> = common.into_iter().chain(own).chain(["--name", &self.volume]).collect();
        self.lvm(at.deadline, &words, &[&self.group]).with_context(|| format!("make {}", self.name()))?;
        self.change(at, &["--deltag", BEGUN, "--addtag", FRESH])
    }

    /// The kernel may have it still if the disks of the group are gone, or its making was cut short.
    fn deactivate(&self, deadline: &Deadline) -> Result<()> {
        let outcome = self.run(deadline, &["lvchange", "--activate", "n"], &[&self.name()])?;
        if !outcome.success() && !is_gone(&outcome) {
            return Err(self.refused(&outcome)).with_context(|| format!("deactivate {}", self.name()));
        }
        device_mapper::remove(&self.mapped(), deadline)
    }

    fn untag(&self, at: &Site<'_>, tag: &str) -> Result<()> {
        self.change(at, &["--deltag", tag])
    }

    /// Without a copy of what the group was before: it is the same.
    fn change(&self, at: &Site<'_>, words: &[&str]) -> Result<()> {
        let words: Vec<&str> = ["lvchange", "--autobackup", "n"].iter().chain(words).copied().collect();
        self.lvm(at.deadline, &words, &[&self.name()])
            .with_context(|| format!("mark {}", self.name()))
            .map(drop)
    }

    /// What is in the group; `None` if there is no such group.
    fn report(&self, at: &Site<'_>) -> Result<Option<Report>> {
        let words =
            ["lvs", "--reportformat", "json", "--units", "b", "--nosuffix", "--options", report::FIELDS];
        let outcome = self.run(at.deadline, &words, &[&self.group])?;
        match outcome.success() {
            true => Report::parse(&outcome.answer).map(Some),
            false if is_gone(&outcome) => Ok(None),
            false => Err(self.refused(&outcome)),
        }
    }

    /// The volume, which has to be there.
    fn look(&self, at: &Site<'_>) -> Result<Volume> {
        let report = self.report(at)?.ok_or_else(|| self.no_group())?;
        { report }.take(&self.volume).ok_or_else(|| self.absent().into())
    }

    fn lvm(&self, deadline: &Deadline, words: &[&str], names: &[&str]) -> Result<Outcome> {
        match self.run(deadline, words, names)? {
            outcome if outcome.success() => Ok(outcome),
            outcome => Err(self.refused(&outcome)),
        }
    }

    fn run(&self, deadline: &Deadline, words: &[&str], names: &[&str]) -> Result<Outcome> {
        let helper = device_mapper::without_udev(Helper::find("lvm")?);
        let wait = || format!("ask LVM about {}, whose disks or locks may not answer", self.group);
        helper.answering().args(words).args(names).run(deadline).with_context(wait)
    }

    /// LVM's own words, and what to do about those that people see most.
    fn refused(&self, outcome: &Outcome) -> anyhow::Error {
        let (text, group) = (outcome.describe("lvm"), &self.group);
        let (code, mend) = match &outcome.output.to_lowercase() {
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
        Failure::new(code, format!("{text}{mend}")).into()
    }

    fn no_group(&self) -> Failure {
        let text = "is not on this node: attach its disks, make it (vgcreate), or correct option volumeGroup";
        Failure::new(Code::NotFound, format!("volume group {} {text}", self.group))
    }

    fn absent(&self) -> Failure {
        let text = "is not there: make it (lvcreate), or give option size and mount it read-write";
        Failure::new(Code::NotFound, format!("logical volume {} {text}", self.name()))
    }
}

fn is_gone(outcome: &Outcome) -> bool {
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

/// The tag that says that this node uses a volume.
fn own_tag() -> Result<String> {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "_.-".contains(c) { c } else { '_' };
    Ok(format!("{IN_USE}{}", host::name()?.chars().map(plain).collect::<String>()))
}
