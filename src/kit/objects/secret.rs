//! Secrets. A driver gets every key of a Secret if the type is its name.

use super::Key;
use super::fields::Field;
use super::rules::{decode, is_secret_key};
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::secret::Secret;
use std::collections::BTreeMap;

/// Type of a Secret that names no type.
const DEFAULT_TYPE: &str = "Opaque";

/// Decoded Secret.
#[derive(Clone, Debug)]
pub(super) struct SecretObject {
    kind: String,
    data: BTreeMap<String, Secret>,
}

impl SecretObject {
    /// Reads a Secret. `stringData` overrides `data`, as in the API server.
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
        if let Some(key) = data.keys().find(|key| !is_secret_key(key)) {
            let text = format!("has the key {key:?}: use letters, digits, '-', '_' and '.'");
            return Err(field.error(&text));
        }
        let kind = field.get("type")?.text()?.filter(|kind| !kind.is_empty()).unwrap_or(DEFAULT_TYPE);
        Ok(Self { kind: kind.to_owned(), data })
    }

    /// Returns all keys, if kubelet would pass them to this driver.
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
