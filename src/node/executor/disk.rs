//! Attached device, as the steps that format, check and mount it see it: nothing here depends on
//! the device's origin.

use anyhow::{Context as _, Result};
use flexvol_linux::block::image_file::Formatting;
use flexvol_linux::fs::lock::Lock;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::Tools;
use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

/// State that the steps of one call hand to each other.
#[derive(Default)]
pub(super) struct DeviceContext {
    pub(super) lock: Option<Guard>,
    pub(super) device: Option<Box<dyn Disk>>,
    /// True if something is mounted from the device already, or is about to be.
    pub(super) in_use: bool,
    pub(super) formatted: bool,
}

/// The lock that keeps other calls away from the device.
pub(super) enum Guard {
    /// The lock of an image file.
    File(OwnedFd),
    /// The lock of a store.
    Store(Lock),
}

impl AsFd for Guard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::File(fd) => fd.as_fd(),
            Self::Store(lock) => lock.as_fd(),
        }
    }
}

/// Block device for a file system.
pub(super) trait Disk: Any {
    /// Returns the word for it in messages.
    fn noun(&self) -> &'static str;

    /// Returns its name for people: the file, or the origin of the device.
    fn name(&self) -> String;

    /// Returns the device node, which cannot become another device as long as this value exists.
    fn path(&self) -> &Path;

    /// Returns the open device.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Reports whether the device is read-only.
    fn is_read_only(&self) -> bool;

    /// Fails unless every byte is zero. With `sampled`, samples are enough if reading everything
    /// takes more than one call.
    fn prove_blank(&self, sampled: bool, tools: Tools<'_>) -> Result<()>;

    /// Returns the state of an earlier mkfs from its note. That mkfs may have run for at most
    /// `allowed`.
    fn formatting(&self, allowed: Duration, deadline: &Deadline) -> Result<Formatting>;

    /// Notes that an mkfs begins; it may run for at most `allowed`.
    fn note_formatting(&self, allowed: Duration);

    /// Removes the note: the file system is complete and on the disk.
    fn forget_formatting(&self) -> Result<()>;

    /// Erases what a failed mkfs has left, after its end, or notes it so that the next call
    /// recognizes it.
    fn blank_again(&self) -> Result<()>;
}

impl DeviceContext {
    /// Returns the device, if it is of this kind.
    pub(super) fn device_as<D: Disk>(&self) -> Option<&D> {
        let device: &dyn Any = self.device.as_deref()?;
        device.downcast_ref()
    }

    /// Returns the device for changes, if it is of this kind.
    pub(super) fn device_as_mut<D: Disk>(&mut self) -> Option<&mut D> {
        let device: &mut dyn Any = self.device.as_deref_mut()?;
        device.downcast_mut()
    }

    /// Takes the device out, and returns it if it is of this kind.
    pub(super) fn take_device_as<D: Disk>(&mut self) -> Option<Box<D>> {
        let device: Box<dyn Any> = self.device.take()?;
        device.downcast().ok()
    }

    /// Releases the device; the lock stays.
    pub(super) fn release(&mut self) {
        self.device = None;
    }

    pub(super) fn disk(&self) -> Result<&dyn Disk> {
        Ok(self.device.as_ref().context("no device is attached: the plan lacks a step")?.as_ref())
    }

    pub(super) fn lock(&self) -> Result<BorrowedFd<'_>> {
        Ok(self.lock.as_ref().context("nothing is locked: the plan lacks a step")?.as_fd())
    }
}
