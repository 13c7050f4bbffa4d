//! Secrets, of which a driver gets every key if the type is its name.

use super::Key;
use super::fields::Field;
use crate::failure::{Failure, Result};
use crate::protocol::DriverName;
use crate::secret::Secret;
use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use std::collections::BTreeMap;

/// Go's standard encoding, which does not look at the bits behind the last byte.
const GO: GeneralPurpose =
    GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// What a Secret without a type is.
const DEFAULT_TYPE: &str = "Opaque";

/// A Secret, decoded.
#[derive(Clone, Debug)]
pub(super) struct SecretObject {
    kind: String,
    data: BTreeMap<String, Secret>,
}

impl SecretObject {
    /// `stringData` is written over `data`, as the API server does.
    pub(super) fn read(field: &Field<'_>) -> Result<Self> {
        let (encoded, plain) = (field.get("data")?, field.get("stringData")?);
        let mut data = BTreeMap::new();
        for (key, text) in encoded.texts()? {
            let secret = decode(&text).ok_or_else(|| {
                encoded
                    .error(&format!("has the key {key:?} that is not base64: encode it, or use stringData"))
            })?;
            data.insert(key, secret);
        }
        data.extend(plain.texts()?.into_iter().map(|(key, text)| (key, Secret::new(text.into_bytes()))));
        if let Some(key) = data.keys().find(|key| !is_key(key)) {
            let text = format!("has the key {key:?}: use letters, digits, '-', '_' and '.'");
            return Err(field.error(&text));
        }
        let kind = field.get("type")?.text()?.filter(|kind| !kind.is_empty()).unwrap_or(DEFAULT_TYPE);
        Ok(Self { kind: kind.to_owned(), data })
    }

    /// All keys, if kubelet would hand them to this driver.
    pub(super) fn for_driver(&self, key: &Key, driver: &DriverName) -> Result<BTreeMap<String, Secret>> {
        if self.kind == driver.to_string() {
            return Ok(self.data.clone());
        }
        Err(Failure::options(format!(
            "Secret {}/{} is of type {:?}, and kubelet gives {driver} only secrets of its own type: \
             make it again with type: {driver}",
            key.0, key.1, self.kind
        )))
    }
}

/// Go skips line breaks.
fn decode(text: &str) -> Option<Secret> {
    let text: String = text.chars().filter(|c| !['\r', '\n'].contains(c)).collect();
    GO.decode(text).ok().map(Secret::new)
}

fn is_key(key: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !key.is_empty() && key.len() <= 253 && key.bytes().all(plain) && key != "." && !key.starts_with("..")
}
