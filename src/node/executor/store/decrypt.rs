//! Step that puts encryption between a device and its file system, and notes about either being
//! blank.

use super::attachment_record::{AttachmentRecord, Id};
use super::{Attached, Found, backend, luks, no_store};
use crate::executor::context::Context;
use crate::executor::disk::Disk;
use crate::executor::file_system::unmake;
use anyhow::{Result, bail};
use flexvol_linux::block::image_file::Formatting;
use flexvol_linux::block::signature::{self, Signature};
use flexvol_linux::block::window::Window;
use flexvol_model::plan::Encryption;
use flexvol_protocol::failure::{Code, Failure};
use std::os::fd::AsFd;

/// Explains why a device without a layer gets none.
fn no_layer(what: Option<&str>) -> String {
    match what {
        Some(what) => format!(
            "the device holds {what}, which encryption would destroy: mount it without option luks, or name an empty device"
        ),
        None => "the device holds nothing that is encrypted: set option format to ifBlank and mount it read-write once"
            .to_owned(),
    }
}

impl Context<'_> {
    pub(super) fn decrypt(&mut self, encryption: &Encryption) -> Result<()> {
        let Some(below) = self.disk.take_device_as::<Attached>() else { bail!(no_store()) };
        let id = below.record.id();
        let record = AttachmentRecord { encrypted: true, ..below.record.clone() };
        record.write()?;
        if luks::is_open(&id) {
            // A pod whose passphrase does not open it must not get what another pod has opened.
            luks::test(below.path(), &encryption.passphrase, self.tools())?;
        } else {
            self.open_encryption(&id, &below, encryption)?;
        }
        let fresh = luks::is_fresh(below.fd.as_fd())?;
        let found = Found { path: luks::path(&id), held: below.held };
        let above = Attached::open(record, found, below.read_only)?;
        self.disk.device = Some(Box::new(Attached { fresh, ..above }));
        Ok(())
    }

    fn open_encryption(&self, id: &Id, below: &Attached, encryption: &Encryption) -> Result<()> {
        let may_format = encryption.format && !below.read_only;
        match signature::identify(below.fd(), &Window::default())? {
            Some(Signature::Luks) if may_format && luks::is_half(below.fd.as_fd())? => {
                self.encrypt(id, below, encryption)?;
            }
            Some(Signature::Luks) => self.keep_below(id, below)?,
            None if may_format => {
                if below.formatting(self.longest_formatting(), &self.deadline)? == Formatting::Never {
                    below.prove_blank(self.settings.policy.allow_sampling, self.tools())?;
                }
                self.encrypt(id, below, encryption)?;
            }
            found => {
                bail!(Failure::new(Code::Conflict, no_layer(found.map(Signature::describe))));
            }
        }
        luks::open(below.path(), id, &encryption.passphrase, below.read_only, self.tools())
    }

    fn encrypt(&self, id: &Id, below: &Attached, encryption: &Encryption) -> Result<()> {
        below.note_formatting(self.longest_formatting());
        luks::format(below.path(), &encryption.passphrase, self.tools())
            .map_err(|error| unmake(below, error))?;
        below.forget_formatting()?;
        self.keep_below(id, below)
    }

    /// Notes that the device below the encryption is no longer fresh.
    fn keep_below(&self, id: &Id, below: &Attached) -> Result<()> {
        if below.fresh { backend(&below.record.store).is_written(&self.site(id)) } else { Ok(()) }
    }

    /// Notes that a device that is formatted, or about to be mounted, is no longer fresh.
    pub(in crate::executor) fn note_written(&mut self) -> Result<()> {
        let Some(attached) = self.disk.device_as::<Attached>() else { return Ok(()) };
        let Attached { fresh: true, record, .. } = attached else {
            return Ok(());
        };
        match &record.device {
            Some(below) if record.encrypted => luks::is_written(below, self.tools())?,
            _ => backend(&record.store).is_written(&self.site(&record.id()))?,
        }
        if let Some(attached) = self.disk.device_as_mut::<Attached>() {
            attached.fresh = false;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_no_reason_to_format() {
        let text = no_layer(Some("ext4"));
        assert!(text.contains("holds ext4") && !text.contains("ifBlank"), "{text}");
        assert!(no_layer(None).contains("ifBlank"));
    }
}
