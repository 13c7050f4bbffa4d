//! Real calls of kubelet, recorded without their secrets, so that another person can repeat them.
//!
//! Masks the values of all keys of the Secret and of all options whose names look like credentials.
//! In other options, masks the text after `password=` and similar keys. Masks an argument as a
//! whole if it looks like options but cannot be parsed.

use super::asked::{Asked, PREFIX};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flexvol_protocol::TargetPath;
use flexvol_protocol::secret::MASK;
use flexvol_protocol::volume_dir::VolumeDir;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::path::Path;

/// Parts of option names that mark the value as a credential, in lower case.
const CREDENTIALS: &[&str] = &[
    "pass",
    "secret",
    "token",
    "cred",
    "akid",
    "apikey",
    "accesskey",
    "accountkey",
    "privatekey",
    "sastoken",
    "signature",
];

/// Replacement for a masked secret when the call is repeated.
const STAND_IN: &str = "replayed";

/// One call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Captured {
    /// Time of the call.
    pub time: String,
    /// The driver's directory.
    pub driver: String,
    /// Arguments from the verb on, masked.
    pub arguments: Vec<String>,
}

impl Captured {
    /// Returns the record of a call with these arguments, verb first.
    pub fn of(time: String, driver: String, arguments: Vec<OsString>) -> Self {
        let shown = Asked::new(arguments).shown;
        Self { time, driver, arguments: shown.iter().map(|word| masked(word)).collect() }
    }

    /// Returns the arguments for another call of a driver: kubelet's directory becomes `root`, and
    /// masked secrets become placeholders.
    pub fn to_arguments(&self, root: &Path) -> Vec<OsString> {
        self.arguments.iter().map(|word| moved(word, root).unwrap_or_else(|| unmasked(word))).collect()
    }
}

fn masked(word: &str) -> String {
    if !word.trim_start().starts_with('{') {
        return word.to_owned();
    }
    let Ok(mut options) = serde_json::from_str::<Map<String, Value>>(word) else { return MASK.to_owned() };
    for (key, value) in &mut options {
        let small = key.to_lowercase();
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let is_credential =
            !key.starts_with("kubernetes.io/") && CREDENTIALS.iter().any(|word| small.contains(word));
        let text = if is_credential && !text.is_empty() { MASK.to_owned() } else { without_passwords(&text) };
        *value = Value::String(text);
    }
    Value::Object(options).to_string()
}

/// Returns `username=u,password=***`, and `//***@host` for credentials before the host of an
/// address.
fn without_passwords(text: &str) -> String {
    let word = |word: &str| match word.split_once('=') {
        Some((key, _)) if CREDENTIALS.iter().any(|name| key.to_lowercase().contains(name)) => {
            format!("{key}={MASK}")
        }
        _ => match word.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.split_once('@')?))) {
            Some((scheme, (before, rest))) if before.contains(':') => format!("{scheme}://{MASK}@{rest}"),
            _ => word.to_owned(),
        },
    };
    text.split(',').map(word).collect::<Vec<_>>().join(",")
}

fn moved(word: &str, root: &Path) -> Option<OsString> {
    let dir = VolumeDir::of(&TargetPath::parse(word.as_ref()).ok()?);
    dir.driver.as_ref()?;
    Some(root.join(dir.below).into_os_string())
}

fn unmasked(word: &str) -> OsString {
    let Ok(mut options) = serde_json::from_str::<Map<String, Value>>(word) else { return word.into() };
    for (key, value) in &mut options {
        if key.starts_with(PREFIX) && value == MASK {
            *value = STANDARD.encode(STAND_IN).into();
        }
    }
    Value::Object(options).to_string().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = "/var/lib/kubelet/pods/7/volumes/fstab~cifs/data";

    fn captured(options: &str) -> Captured {
        let arguments = ["mount", ROOT, options].map(OsString::from).into();
        Captured::of("now".into(), "fstab~cifs".into(), arguments)
    }

    #[test]
    fn no_secret_is_written_down_in_whatever_form() {
        let options = r#"{"kubernetes.io/secret/password":"aHVudGVyMg==","akSecret":"hunter2","mountOptions":"vers=3.0,password=hunter2","url":"https://me:hunter2@nas/a","server":"nas","kubernetes.io/readwrite":"rw"}"#;
        let text = serde_json::to_string(&captured(options)).unwrap();
        assert!(!text.contains("hunter2") && !text.contains("aHVu"), "{text}");
        assert!(text.contains("vers=3.0") && text.contains("nas") && text.contains("@nas/a"), "{text}");
        assert_eq!(captured(r#"{"password":"hunter2""#).arguments[2], MASK);
    }

    #[test]
    fn it_can_be_made_again_elsewhere() {
        let again = captured(r#"{"kubernetes.io/secret/password":"aHVudGVyMg==","a":"b"}"#);
        let again = again.to_arguments(Path::new("/tmp/k"));
        assert_eq!(again[..2], ["mount", "/tmp/k/pods/7/volumes/fstab~cifs/data"].map(OsString::from));
        let asked = Asked::new(again);
        assert_eq!(asked.secrets["password"].expose(), STAND_IN.as_bytes());
        assert_eq!(asked.options().unwrap().own["a"], "b");
    }
}
