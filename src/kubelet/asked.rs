//! Arguments of a call that a user requests, valid or not, and the secrets in them.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flexvol_protocol::Options;
use flexvol_protocol::secret::{MASK, Redactor, Secret};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ffi::OsString;

/// Prefix of the key of each secret.
pub(super) const PREFIX: &str = "kubernetes.io/secret/";

/// Arguments of one call, verb first; they may be invalid.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Arguments as the driver receives them.
    pub arguments: Vec<OsString>,
    /// Secrets in the arguments by key, as far as they can be recognized.
    pub secrets: BTreeMap<String, Secret>,
    /// Arguments for display, with the secrets masked.
    pub shown: Vec<String>,
}

impl Asked {
    /// Finds the secrets in the arguments. An argument that may hold secrets but cannot be parsed
    /// is masked as a whole.
    pub fn new(arguments: Vec<OsString>) -> Self {
        let (mut secrets, mut shown) = (BTreeMap::new(), Vec::new());
        for argument in &arguments {
            let text = argument.to_string_lossy();
            shown.push(if text.contains(PREFIX) {
                mask(&text, &mut secrets).unwrap_or_else(|| MASK.to_owned())
            } else {
                text.into_owned()
            });
        }
        Self { arguments, secrets, shown }
    }

    /// Returns the verb; empty if it is missing.
    pub fn verb(&self) -> &str {
        self.shown.first().map_or("", String::as_str)
    }

    /// Returns a redactor that masks these secrets in the output of the driver.
    pub fn redactor(&self) -> Redactor {
        Redactor::new(self.secrets.values())
    }

    /// Returns the options, if one of the arguments holds valid ones.
    pub fn options(&self) -> Option<Options> {
        self.arguments.iter().skip(1).find_map(|argument| Options::parse(argument).ok())
    }
}

/// Returns the JSON object with its secrets masked; `None` if the text is not a JSON object.
fn mask(text: &str, secrets: &mut BTreeMap<String, Secret>) -> Option<String> {
    let mut object: Map<String, Value> = serde_json::from_str(text).ok()?;
    for (key, value) in &mut object {
        if let Some(key) = key.strip_prefix(PREFIX) {
            let raw = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let bytes = STANDARD.decode(&raw).unwrap_or_else(|_| raw.into_bytes());
            secrets.insert(key.to_owned(), Secret::new(bytes));
            *value = Value::String(MASK.to_owned());
        }
    }
    Some(Value::Object(object).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_found_and_masked_in_whatever_form() {
        let asked = |text: &str| Asked::new(vec!["mount".into(), text.into()]);
        let good = asked(r#"{"a":"b","kubernetes.io/secret/k":"aHVudGVyMg=="}"#);
        assert_eq!(good.shown, ["mount", r#"{"a":"b","kubernetes.io/secret/k":"***"}"#]);
        assert_eq!(good.secrets["k"].expose(), b"hunter2");
        let plain = asked(r#"{"kubernetes.io/secret/k":"hunter2","a":1}"#);
        assert_eq!(plain.secrets["k"].expose(), b"hunter2");
        assert!(plain.options().is_none() && good.options().is_some());
        assert_eq!(asked(r#"{"kubernetes.io/secret/k":"hunter2""#).shown, ["mount", "***"]);
        assert_eq!(asked("x").shown, ["mount", "x"]);
        assert_eq!(Asked::new(Vec::new()).verb(), "");
    }
}
