//! Attached device of a store, as the steps of a disk see it.

use super::attachment_record::AttachmentRecord;
use super::{Found, open_device, proof, unfinished};
use crate::executor::disk::Disk;
use anyhow::Result;
use flexvol_linux::block::blank::READ_WHOLE;
use flexvol_linux::block::block_status::Zeros;
use flexvol_linux::block::image_file::Formatting;
use flexvol_linux::block::loop_device::LoopDevice;
use flexvol_linux::block::signature;
use flexvol_linux::block::window::Window;
use flexvol_linux::fs::bytes::size_of;
use flexvol_linux::proc::clock;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::Tools;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Device of a store, or the layer above it.
pub(in crate::executor) struct Attached {
    pub(super) record: AttachmentRecord,
    pub(super) path: PathBuf,
    pub(super) fd: OwnedFd,
    pub(super) read_only: bool,
    pub(super) fresh: bool,
    /// Ranges that are known to be blank.
    pub(super) zeros: Zeros,
    pub(super) held: Option<LoopDevice>,
}

impl Attached {
    pub(super) fn open(record: AttachmentRecord, found: Found, read_only: bool) -> Result<Self> {
        let (fd, read_only) = open_device(&found.path, read_only)?;
        Ok(Self {
            record,
            path: found.path,
            fd,
            read_only,
            fresh: false,
            zeros: Zeros::default(),
            held: found.held,
        })
    }

    /// Reports whether the device may be blank, and the proof of that would take a while.
    pub(super) fn is_to_be_proven(&self, reader: bool) -> Result<bool> {
        let is_large = || Ok::<_, anyhow::Error>(size_of(self.fd())? > READ_WHOLE);
        Ok(!reader && is_large()? && signature::identify(self.fd(), &Window::default())?.is_none())
    }

    fn note(&self, formatting: Option<u64>) -> Result<()> {
        // Other targets may have been added to the record since.
        let record = AttachmentRecord::read(&self.record.id()).unwrap_or_else(|| self.record.clone());
        AttachmentRecord { formatting, ..record }.write()
    }
}

impl Disk for Attached {
    fn noun(&self) -> &'static str {
        "device"
    }

    fn name(&self) -> String {
        self.record.store.name()
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn prove_blank(&self, sampled: bool, tools: Tools<'_>) -> Result<()> {
        if self.fresh { Ok(()) } else { proof::prove_blank(self, sampled, tools) }
    }

    fn formatting(&self, _: Duration, deadline: &Deadline) -> Result<Formatting> {
        let is_unfinished = unfinished::is_all(&self.record.id(), self.fd(), deadline)?
            || unfinished::is_begun(self.record.formatting, self.fd())?;
        Ok(if is_unfinished { Formatting::Interrupted } else { Formatting::Never })
    }

    fn note_formatting(&self, allowed: Duration) {
        // If this fails, the remains of a killed mkfs are refused.
        let _ = self
            .note(Some(clock::seconds() + allowed.as_secs()))
            .and_then(|()| unfinished::forget(&self.record.id()));
        proof::forget(self);
    }

    fn forget_formatting(&self) -> Result<()> {
        unfinished::forget(&self.record.id())?;
        self.note(None)
    }

    /// Notes the remains: to write all of a large device would take hours. The next call begins
    /// again.
    fn blank_again(&self) -> Result<()> {
        unfinished::note(&self.record.id(), self.fd())
    }
}
