//! Common parts of the drivers whose volume is a file system on a device: its type, its creation,
//! its check and its mount.

use super::{access, flags};
use crate::plan::{MountFrom, Step};
use crate::schema::OptionValue;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::file_system::FileSystem;
use flexvol_protocol::mount_options::{FsOption, MountFlags};
use flexvol_protocol::{Access, Options, TargetPath};
use flexvol_protocol::{mkfs_options, mount_options};

/// Rule for formatting a blank device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Never format.
    Never,
    /// Format if the device is proven blank.
    IfBlank,
}

impl OptionValue for Format {
    const KIND: &'static str = "never or ifBlank";

    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "never" => Ok(Self::Never),
            "ifBlank" => Ok(Self::IfBlank),
            _ => Err(format!("{text:?} is not {}", Self::KIND)),
        }
    }
}

/// Settings of the file system as the volume's options give them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said<'a> {
    pub(super) fs_type: Option<&'a str>,
    pub(super) format: Format,
    pub(super) mkfs_options: Option<&'a str>,
    pub(super) fsck: bool,
    pub(super) discard: bool,
    pub(super) mount_options: Option<&'a str>,
}

/// The file system on a device.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    /// Type; `None` means whatever the device holds.
    pub(super) kind: Option<FileSystem>,
    pub(super) flags: MountFlags,
    format: bool,
    mkfs_options: Vec<String>,
    fsck: bool,
    options: Vec<FsOption>,
}

impl Disk {
    pub(super) fn new(said: &Said<'_>, volume: &Options) -> Result<Self> {
        let kind = file_system(said.fs_type, volume.fs_type())?;
        if said.discard && kind.is_some_and(FileSystem::read_only) {
            return Err(Failure::options("option \"discard\": nothing is ever deleted there: leave it out"));
        }
        let (flags, mut options) = mount_options(kind, said.mount_options, volume)?;
        options.extend(said.discard.then(|| FsOption::flag("discard")));
        let words = said.mkfs_options.unwrap_or_default().split_whitespace();
        let mkfs_options: Vec<_> = words.map(str::to_owned).collect();
        mkfs_options::validate(kind.unwrap_or(FileSystem::Ext4), &mkfs_options)?;
        let format = said.format == Format::IfBlank;
        Ok(Self { kind, flags, format, mkfs_options, fsck: said.fsck, options })
    }

    pub(super) fn access(&self) -> Access {
        access(self.flags)
    }

    /// Reports whether pods can write to it.
    fn writable(&self) -> bool {
        self.access() == Access::ReadWrite && !self.kind.is_some_and(FileSystem::read_only)
    }

    /// Returns the name in the mount table, if it is known before the mount.
    pub(super) fn name(&self) -> Option<String> {
        self.kind.map(|kind| kind.name().to_owned())
    }

    /// Reports whether a blank device gets a file system. A read-only volume is not formatted:
    /// nothing could ever be written to it.
    pub(super) fn formats(&self) -> bool {
        self.format && self.writable()
    }

    /// Returns the steps from the attached device to the mount. A device that is only read is not
    /// checked, because a checker writes.
    pub(super) fn steps(&self, target: &TargetPath) -> Result<Vec<Step>> {
        if let Some(kind) = self.kind.filter(|kind| kind.read_only() && self.access() == Access::ReadWrite) {
            return Err(Failure::options(format!(
                "{} cannot be written: set readOnly: true on the pod's flexVolume or persistentVolumeClaim",
                kind.name()
            )));
        }
        let file_system = self.kind.unwrap_or(FileSystem::Ext4);
        let format = Step::Format { file_system, options: self.mkfs_options.clone() };
        let check = Step::CheckFileSystem { file_system: self.kind };
        let mount = Step::Mount {
            target: target.clone(),
            file_system: self.name(),
            from: MountFrom::AttachedDevice,
            flags: self.flags,
            options: self.options.clone(),
        };
        let check = (self.fsck && self.writable()).then_some(check);
        Ok([self.formats().then_some(format), check, Some(mount)].into_iter().flatten().collect())
    }

    /// Fails for a file system that cannot grow.
    pub(super) fn refuse_to_grow(&self) -> Result<()> {
        match self.kind.filter(|kind| kind.read_only()) {
            Some(kind) => {
                Err(Failure::options(format!("{} cannot grow: make a larger image of it", kind.name())))
            }
            None => Ok(()),
        }
    }
}

/// Returns the programs for all file systems.
pub(super) fn programs() -> impl Iterator<Item = &'static str> {
    FileSystem::ALL.into_iter().flat_map(FileSystem::programs).copied()
}

fn mount_options(
    kind: Option<FileSystem>,
    list: Option<&str>,
    volume: &Options,
) -> Result<(MountFlags, Vec<FsOption>)> {
    let rules = kind.map_or(&[][..], FileSystem::rules);
    mount_options::parse(list.unwrap_or_default(), flags(volume), rules).map_err(|failure| match kind {
        Some(_) => failure,
        None => Failure::options(format!("{failure}; options of a file system's own need fsType")),
    })
}

/// Returns the file system. The option and `flexVolume.fsType` must not contradict each other.
fn file_system(option: Option<&str>, field: Option<&str>) -> Result<Option<FileSystem>> {
    match (option, field) {
        (Some(option), Some(field)) if option != field => Err(Failure::options(format!(
            "option \"fsType\" says {option:?} but flexVolume.fsType says {field:?}: remove one of them"
        ))),
        (option, field) => option.or(field).map(FileSystem::parse).transpose(),
    }
}
