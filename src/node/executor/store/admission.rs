//! Admission to a device that is attached already: it requires the credentials used for the
//! attachment.

use super::attachment_record::AttachmentRecord;
use super::credential_fingerprint::CredentialFingerprint;
use super::{Found, let_go};
use crate::executor::context::Context;
use anyhow::Result;
use flexvol_model::plan::{Attachment, Store};
use flexvol_protocol::TargetPath;

impl Context<'_> {
    /// Refuses a store that another pod has open if the credentials differ from its opener's. A
    /// store that is not in use any more is released, and its server asked again.
    pub(super) fn admitted(
        &self,
        found: Option<Found>,
        record: AttachmentRecord,
        target: &TargetPath,
        attachment: &Attachment,
    ) -> Result<(Option<Found>, AttachmentRecord)> {
        let (id, credentials) = (record.id(), &attachment.credentials);
        let verify = |record: &AttachmentRecord| match &record.opener {
            Some(opener) => opener.verify(credentials, &attachment.store.to_string()),
            None => Ok(()),
        };
        let found = match found {
            Some(found) => match verify(&record) {
                Ok(()) => return Ok((Some(found), record)),
                Err(failure) if self.disk.in_use || !record.ours => return Err(failure.into()),
                Err(_) => {
                    drop(found);
                    let_go(&self.site(&id), record.clone(), target)?;
                    None
                }
            },
            None => None,
        };
        let shared =
            |other: &AttachmentRecord| other.id() != id && shares_login(&other.store, &attachment.store);
        AttachmentRecord::all()?.iter().filter(|other| shared(other)).try_for_each(verify)?;
        Ok((found, AttachmentRecord { opener: CredentialFingerprint::of(credentials), ..record }))
    }
}

/// Reports whether both stores share a login: a session gives access to all units of its target.
fn shares_login(one: &Store, other: &Store) -> bool {
    matches!((one, other), (Store::Iscsi(one), Store::Iscsi(other)) if one.target == other.target)
}
