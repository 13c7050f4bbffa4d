//! Steps on an attached device: recognise its content, format it, check it, and grow its file
//! system.
//!
//! The origin of the device does not matter here, except inside a [`Disk`]. A lock, of the image
//! file or of the store, keeps every other call for the same device out until this call ends.

use super::context::{Context, denied, open_place};
use super::disk::Disk;
use super::undo::Undo;
use crate::hints::to_failure;
use anyhow::{Context as _, Result, bail};
use flexvol_linux::block::block_device::number_of;
use flexvol_linux::block::image_file::Formatting;
use flexvol_linux::block::window::Window;
use flexvol_linux::block::{format, other_devices, signature};
use flexvol_linux::errno::{Errno, errno_of};
use flexvol_linux::fs::opened::sync;
use flexvol_linux::mount::mount_table;
use flexvol_linux::mount::place::Look;
use flexvol_linux::mount::{NewMount, Parameter, Value};
use flexvol_linux::proc::deadline::Deadline;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::file_system::FileSystem;
use flexvol_protocol::mount_options::MountFlags;
use flexvol_protocol::{TargetPath, Verb};
use std::time::Duration;

/// Limit for an mkfs to run on after its call's deadline: the time until it is killed, and the
/// rounding of time stamps.
const AFTER_DEADLINE: Duration = Duration::from_secs(20);

/// Limit for another process's exclusive claim on a device. A process that looks for a free loop
/// device claims the one that the kernel named for a moment, even if another call has taken it
/// meanwhile.
const CLAIMED: Duration = Duration::from_millis(500);

/// Device that was checked and can be mounted.
pub(super) struct Recognised {
    pub(super) kind: FileSystem,
    pub(super) path: String,
    pub(super) read_only: bool,
}

impl Context<'_> {
    /// Returns the longest time for which an mkfs can have run since its note says that it began.
    pub(super) fn longest_formatting(&self) -> Duration {
        self.settings.deadlines.of(Verb::Mount) + AFTER_DEADLINE
    }

    /// Formats only a device that is proven blank, or that this very step left half formatted when
    /// killed.
    pub(super) fn format(&mut self, kind: FileSystem, words: &[String]) -> Result<()> {
        let disk = self.disk.disk()?;
        if disk.formatting(self.longest_formatting(), &self.deadline)? == Formatting::Never {
            if signature::identify(disk.fd(), &Window::default())?.is_some() {
                return self.note_written();
            }
            disk.prove_blank(self.settings.policy.allow_sampling, self.tools())
                .with_context(|| disk.name())?;
        }
        if disk.is_read_only() {
            let text = format!(
                "{} cannot be written, and holds no file system: its file is immutable (chattr -i), or lies on a file system that is read-only",
                disk.name()
            );
            return Err(denied(text));
        }
        if self.disk.in_use {
            let (noun, path) = (disk.noun(), disk.path().display());
            let text = format!("the blank {noun} is attached to {path} already: detach it (losetup -d)");
            return Err(Failure::new(Code::Busy, text).into());
        }
        disk.note_formatting(self.longest_formatting());
        let made = format::make_file_system(kind, disk.path(), words, self.disk.lock()?, self.tools())
            .and_then(|()| sync(disk.fd()).context("write the new file system to disk"));
        if let Err(error) = made {
            return Err(unmake(disk, error));
        }
        disk.forget_formatting()?;
        self.note_written()?;
        self.disk.formatted = true;
        Ok(())
    }

    pub(super) fn check_file_system(&self, kind: Option<FileSystem>) -> Result<()> {
        let disk = self.disk.disk()?;
        if self.disk.in_use || self.disk.formatted || disk.is_read_only() {
            return Ok(());
        }
        // The mount step refuses a blank or a different file system; a checker would only guess at
        // it.
        match identify(disk)? {
            Some(found) if kind.is_none_or(|kind| kind == found) => {
                refuse_wishes_of(disk, found)?;
                format::check_file_system(found, disk.path(), self.disk.lock()?, self.tools()).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Identifies the content of the device. Fails unless it is as requested and can be mounted so.
    pub(super) fn recognise(&self, wanted: Option<&str>, flags: MountFlags) -> Result<Recognised> {
        let disk = self.disk.disk()?;
        let noun = disk.noun();
        if disk.formatting(self.longest_formatting(), &self.deadline)? == Formatting::Interrupted {
            let text =
                format!("mkfs was interrupted on this {noun}: mount it read-write with format: ifBlank once");
            bail!(Failure::new(Code::Conflict, text));
        }
        let kind = identify(disk)?.ok_or_else(|| {
            let text = format!(
                "the {noun} holds no file system: set option format to ifBlank and mount it read-write once, or copy one into it"
            );
            Failure::new(Code::NotFound, text)
        })?;
        refuse_wishes_of(disk, kind)?;
        if let Some(wanted) = wanted.filter(|wanted| *wanted != kind.name()) {
            let found = kind.name();
            let text =
                format!("the {noun} holds {found}, but fsType says {wanted}: correct the volume's fsType");
            bail!(Failure::new(Code::Conflict, text));
        }
        let read_only = disk.is_read_only() || kind.read_only();
        if read_only && !flags.read_only {
            let text = format!(
                "the {} {noun} cannot be written: set readOnly: true on the pod's flexVolume or persistentVolumeClaim",
                kind.name()
            );
            bail!(Failure::new(Code::Denied, text));
        }
        Ok(Recognised { kind, path: disk.path().display().to_string(), read_only })
    }

    /// Mounts the device. The whole file system is read-only if the device is, unless another mount
    /// of it on this node is writable: then only this mount is read-only.
    pub(super) fn mount_device(
        &mut self,
        target: &TargetPath,
        wanted: Option<&str>,
        flags: MountFlags,
        options: &[Parameter<'_>],
    ) -> Result<Option<Undo>> {
        let device = self.recognise(wanted, flags)?;
        self.note_written()?;
        let (file_system, source) = (device.kind.name(), device.path.as_str());
        let options = &with_safeguard(device.kind, options);
        let superblock_read_only = device.read_only;
        let new = NewMount { file_system, source, flags, superblock_read_only, options };
        let patience = Deadline::for_undo(CLAIMED);
        loop {
            match self.mount(target, &new) {
                Err(error) if errno_of(&error) != Some(Errno::BUSY) => return Err(error),
                Err(_) if superblock_read_only => {
                    return self.mount(target, &NewMount { superblock_read_only: false, ..new });
                }
                Err(_) if !patience.expired() => std::thread::sleep(Duration::from_millis(10)),
                mounted => return mounted,
            }
        }
    }

    pub(super) fn grow_file_system(&self, target: &TargetPath) -> Result<()> {
        let disk = self.disk.disk()?;
        let place = open_place(target)?;
        let Look::Mount(mounted) = place.look()? else {
            bail!(Failure::new(Code::NotFound, format!("{target} is not mounted: mount it before it grows")));
        };
        let entry = mount_table::by_id(mounted.id)?.context("the mount is gone")?;
        if number_of(&entry.source) != number_of(disk.path().as_os_str()) {
            let (source, noun) = (entry.source.to_string_lossy(), disk.noun());
            let text = format!("{target} shows {source} and not the volume's {noun}: unmount it first");
            bail!(Failure::new(Code::Conflict, text));
        }
        let kind = FileSystem::parse(&entry.file_system)?;
        format::grow_file_system(kind, disk.path(), target.as_path(), self.tools())
    }
}

/// Returns the volume's options, and adds the file system's safeguard unless the volume sets it.
fn with_safeguard<'a>(kind: FileSystem, options: &[Parameter<'a>]) -> Vec<Parameter<'a>> {
    let missing = kind.safeguard().filter(|(key, _)| options.iter().all(|option| option.key != *key));
    options
        .iter()
        .copied()
        .chain(missing.map(|(key, text)| Parameter { key, value: Value::Text(text) }))
        .collect()
}

/// Rolls back a failed mkfs: the device was blank, and becomes blank again where that is possible.
/// Does nothing while mkfs may still write to it.
pub(super) fn unmake(disk: &dyn Disk, error: anyhow::Error) -> anyhow::Error {
    let still_runs = error.downcast_ref().is_some_and(|failure: &Failure| !failure.residue().is_empty());
    if still_runs {
        return error;
    }
    match disk.blank_again() {
        Ok(()) => error,
        Err(left) => to_failure(error).with_residue(format!("a half made file system: {left:#}")).into(),
    }
}

/// Refuses a file system with parts on other devices or forbidden options, before anything else
/// reads it.
fn refuse_wishes_of(disk: &dyn Disk, kind: FileSystem) -> Result<()> {
    let looked = other_devices::refuse(kind, disk.fd());
    looked.with_context(|| format!("the {} cannot be mounted", disk.noun()))
}

/// Identifies the file system. ext2 and ext3 count as ext4, because the kernel's ext4 serves them.
fn identify(disk: &dyn Disk) -> Result<Option<FileSystem>> {
    let Some(found) = signature::identify(disk.fd(), &Window::default())? else { return Ok(None) };
    let name = match found.name() {
        "ext2" | "ext3" => "ext4",
        name => name,
    };
    match FileSystem::ALL.into_iter().find(|kind| kind.name() == name) {
        Some(kind) => Ok(Some(kind)),
        None => Err(Failure::new(
            Code::Conflict,
            format!("the {} holds {}, which this driver does not mount", disk.noun(), found.describe()),
        )
        .into()),
    }
}
