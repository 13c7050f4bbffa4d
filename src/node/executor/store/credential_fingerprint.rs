//! Fingerprint of the credentials that a store was opened with. Its server is asked once for all
//! pods of the node. A later pod must have the same credentials, or it would see what its own would
//! not open.

use flexvol_protocol::failure::{Code, Failure, Result};
use flexvol_protocol::secret::Secret;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;

type Credentials = BTreeMap<&'static str, Secret>;

/// Fingerprint of credentials, in a record that only root can read. It does not contain the
/// credentials, but is enough to recognise them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct CredentialFingerprint {
    salt: u128,
    digest: [u8; 32],
}

impl CredentialFingerprint {
    /// Returns `None` for a store that is opened without a Secret: there is nothing to compare.
    pub(super) fn of(credentials: &Credentials) -> Option<Box<Self>> {
        let salt = fastrand::u128(..);
        (!credentials.is_empty()).then(|| Box::new(Self { salt, digest: digest(salt, credentials) }))
    }

    /// Fails if these are different credentials.
    pub(super) fn verify(&self, credentials: &Credentials, store: &str) -> Result<()> {
        if digest(self.salt, credentials) == self.digest {
            return Ok(());
        }
        let text = format!(
            "{store} is open on this node by another Secret than this one: correct it, or, if the password was changed, end the pods that use the volume first"
        );
        Err(Failure::new(Code::Denied, text))
    }
}

fn digest(salt: u128, credentials: &Credentials) -> [u8; 32] {
    let mut digest = Sha256::new_with_prefix(salt.to_le_bytes());
    for part in credentials.iter().flat_map(|(key, secret)| [key.as_bytes(), secret.expose()]) {
        digest.update(part.len().to_le_bytes());
        digest.update(part);
    }
    digest.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording_of;

    fn credentials(pairs: &[(&'static str, &str)]) -> Credentials {
        pairs.iter().map(|(key, secret)| (*key, Secret::new(secret.as_bytes().to_vec()))).collect()
    }

    #[test]
    fn only_the_same_credentials_are_let_in() {
        let first = credentials(&[("user", "web"), ("password", "hunter2")]);
        let opener = CredentialFingerprint::of(&first).unwrap();
        assert!(opener.verify(&first, "x").is_ok());
        for others in [
            &[][..],
            &[("user", "web")],
            &[("user", "web"), ("password", "hunter")],
            &[("user", "webhunter2"), ("password", "")],
        ] {
            let failure = opener.verify(&credentials(others), "image a/b").unwrap_err();
            assert_eq!(failure.code(), Code::Denied);
            assert!(failure.message().starts_with(wording_of("open-by-other-secret", ["image a/b"])));
        }
        assert_eq!(CredentialFingerprint::of(&credentials(&[])), None);
    }

    #[test]
    fn what_is_remembered_is_no_secret() {
        let credentials = credentials(&[("key", "hunter2")]);
        let [one, other] =
            [(); 2].map(|()| serde_json::to_string(&CredentialFingerprint::of(&credentials)).unwrap());
        assert!(!one.contains("hunter2") && one != other);
        let read: Option<Box<CredentialFingerprint>> = serde_json::from_str(&one).unwrap();
        assert!(read.unwrap().verify(&credentials, "x").is_ok());
    }
}
