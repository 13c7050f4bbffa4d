//! Options of a volume: one JSON object of strings, in which kubelet's own keys begin with
//! `kubernetes.io/`.
//!
//! Kubelet writes the user's keys over its own, and only API validation keeps users from
//! `kubernetes.io/`. So everything that two parsers could read differently is refused here instead
//! of guessed: duplicate keys, values that are not strings, anything around the object. No error
//! repeats a value, because it may be a secret.

use super::{decimal, go_json};
use crate::failure::{Failure, Result};
use crate::secret::Secret;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::error::Category;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt;

/// Prefix of Kubernetes' keys, in exactly this case. `KUBERNETES.IO/x` is a user's key.
const PREFIX: &str = "kubernetes.io/";
/// Prefix of the keys of secrets.
pub const SECRET: &str = "kubernetes.io/secret/";
const FS_TYPE: &str = "kubernetes.io/fsType";
const READ_WRITE: &str = "kubernetes.io/readwrite";
const VOLUME_NAME: &str = "kubernetes.io/pvOrVolumeName";
const POD_NAME: &str = "kubernetes.io/pod.name";
const POD_NAMESPACE: &str = "kubernetes.io/pod.namespace";
const POD_UID: &str = "kubernetes.io/pod.uid";
const SERVICE_ACCOUNT: &str = "kubernetes.io/serviceAccount.name";
const FS_GROUP: &str = "kubernetes.io/mounterArgs.FsGroup";
const LEGACY_FS_GROUP: &str = "kubernetes.io/fsGroup";

/// Options of one call. Every verb with options sends `fs_type`, `access`, `volume_name` and `own`;
/// only `mount` sends the rest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// `fsType` as it was sent: kubelet always sends it, mostly empty. Drivers use
    /// [`Options::fs_type`].
    pub fs_type: Option<String>,
    /// `readwrite` as it was sent. Drivers use [`Options::access`].
    pub access: Option<Access>,
    /// Name of the PV, or of the pod's volume for an inline volume; many pods may share the latter.
    pub volume_name: Option<String>,
    /// Pod of the mount.
    pub pod: PodRef,
    /// `fsGroup` of the pod, sent even to drivers without that capability.
    pub fs_group: Option<FsGroup>,
    /// Every key of the Secret that `secretRef` names, decoded: raw bytes, including a final
    /// newline.
    pub secrets: BTreeMap<String, Secret>,
    /// Options of the user. They may be any text: tenants write them, while the driver runs as
    /// root.
    pub own: BTreeMap<String, String>,
    /// Keys of a Kubernetes newer than this code, by their full name. Drivers ignore them.
    pub reserved: BTreeMap<String, String>,
}

/// Access to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// `rw`
    ReadWrite,
    /// `ro`
    ReadOnly,
}

/// Pod of a `mount`. Other verbs have none of these; a static pod has an empty service account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRef {
    /// Name.
    pub name: Option<String>,
    /// Namespace.
    pub namespace: Option<String>,
    /// UID, which is a directory name below kubelet's `pods`.
    pub uid: Option<String>,
    /// Name of the service account.
    pub service_account: Option<String>,
}

/// Group that shall own the volume's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FsGroup {
    /// At most 4294967294: for chown(2) the next number means "leave unchanged".
    pub gid: u32,
    /// Key in which it was sent.
    pub spelling: FsGroupSpelling,
}

/// Spelling of the key, which Kubernetes 1.15 renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsGroupSpelling {
    /// `kubernetes.io/mounterArgs.FsGroup`
    Current,
    /// `kubernetes.io/fsGroup`, up to 1.14
    Legacy,
}

impl Options {
    /// Parses the options argument of a call.
    pub fn parse(json: impl AsRef<OsStr>) -> Result<Self> {
        let json =
            json.as_ref().to_str().ok_or_else(|| Failure::options("options are not UTF-8: send JSON"))?;
        let entries: Entries = serde_json::from_str(json).map_err(|error| malformed(&error))?;
        let mut options = Self::default();
        let mut seen = BTreeSet::new();
        for (key, value) in entries.0 {
            let Value::String(text) = value else {
                let fix = "must be a string: put its value in double quotes";
                return Err(Failure::options(format!("option {key:?} {fix}")));
            };
            if !seen.insert(key.clone()) {
                return Err(Failure::options(format!("option {key:?} is there twice: remove one")));
            }
            options.insert(key, text)?;
        }
        Ok(options)
    }

    /// Renders the options byte for byte as kubelet does. If two fields claim one key, the typed
    /// one wins.
    pub fn to_json(&self) -> String {
        let typed = [
            (FS_TYPE, self.fs_type.clone()),
            (READ_WRITE, self.access.map(|access| access.word().to_owned())),
            (VOLUME_NAME, self.volume_name.clone()),
            (POD_NAME, self.pod.name.clone()),
            (POD_NAMESPACE, self.pod.namespace.clone()),
            (POD_UID, self.pod.uid.clone()),
            (SERVICE_ACCOUNT, self.pod.service_account.clone()),
        ];
        let mut members: BTreeMap<_, _> = self.own.clone();
        members.extend(self.reserved.clone());
        members.extend(typed.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
        members.extend(self.fs_group.map(|group| (group.spelling.key().to_owned(), group.gid.to_string())));
        members.extend(self.secrets.iter().map(|(key, secret)| {
            let encoded = STANDARD.encode(secret.expose());
            (format!("{SECRET}{key}"), encoded)
        }));
        go_json::object(members.into_iter().map(|(key, value)| (key, go_json::quote(&value))))
    }

    /// Returns the access; the default is to read and write.
    pub fn access(&self) -> Access {
        self.access.unwrap_or(Access::ReadWrite)
    }

    /// Returns the requested file system; `None` leaves it to the driver.
    pub fn fs_type(&self) -> Option<&str> {
        self.fs_type.as_deref().filter(|name| !name.is_empty())
    }

    fn insert(&mut self, key: String, text: String) -> Result<()> {
        match key.as_str() {
            FS_TYPE => self.fs_type = Some(text),
            READ_WRITE => self.access = Some(Access::parse(&text)?),
            VOLUME_NAME => self.volume_name = Some(text),
            POD_NAME => self.pod.name = Some(text),
            POD_NAMESPACE => self.pod.namespace = Some(text),
            POD_UID => self.pod.uid = Some(text),
            SERVICE_ACCOUNT => self.pod.service_account = Some(text),
            FS_GROUP => self.set_fs_group(FsGroupSpelling::Current, &text)?,
            LEGACY_FS_GROUP => self.set_fs_group(FsGroupSpelling::Legacy, &text)?,
            _ => self.insert_keyed(key, text)?,
        }
        Ok(())
    }

    fn insert_keyed(&mut self, key: String, text: String) -> Result<()> {
        if let Some(name) = key.strip_prefix(SECRET) {
            self.secrets.insert(name.to_owned(), decode(name, &text)?);
        } else if key.starts_with(PREFIX) {
            self.reserved.insert(key, text);
        } else {
            self.own.insert(key, text);
        }
        Ok(())
    }

    /// Stores the group. Both spellings may come, from a caller that serves old and new drivers,
    /// but they must agree. The current spelling is kept.
    fn set_fs_group(&mut self, spelling: FsGroupSpelling, text: &str) -> Result<()> {
        let gid = decimal(text).filter(|gid| *gid != u32::MAX).ok_or_else(|| {
            Failure::options(format!("option {:?} must be a group id from 0 to 4294967294", spelling.key()))
        })?;
        match self.fs_group {
            Some(other) if other.gid != gid => {
                let message =
                    format!("options {FS_GROUP:?} and {LEGACY_FS_GROUP:?} differ: send one of them");
                return Err(Failure::options(message));
            }
            Some(FsGroup { spelling: FsGroupSpelling::Current, .. }) => {}
            _ => self.fs_group = Some(FsGroup { gid, spelling }),
        }
        Ok(())
    }
}

impl Serialize for Access {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

impl Access {
    fn parse(word: &str) -> Result<Self> {
        match word {
            "rw" => Ok(Self::ReadWrite),
            "ro" => Ok(Self::ReadOnly),
            _ => Err(Failure::options(format!("option {READ_WRITE:?} must be ro or rw"))),
        }
    }

    /// Returns `rw` or `ro`.
    pub fn word(self) -> &'static str {
        match self {
            Self::ReadWrite => "rw",
            Self::ReadOnly => "ro",
        }
    }
}

impl FsGroupSpelling {
    fn key(self) -> &'static str {
        match self {
            Self::Current => FS_GROUP,
            Self::Legacy => LEGACY_FS_GROUP,
        }
    }
}

/// Decodes a secret. Kubelet sends standard base64 with padding; a lenient decoder would accept two
/// texts for one secret.
fn decode(name: &str, text: &str) -> Result<Secret> {
    STANDARD.decode(text).map(Secret::new).map_err(|_| {
        Failure::options(format!("secret {name:?} is not standard base64 with padding: encode it again"))
    })
}

/// Makes a failure of an error of `serde_json`. Its text repeats the unexpected input, so only the
/// position is used.
fn malformed(error: &serde_json::Error) -> Failure {
    let (line, column) = (error.line(), error.column());
    Failure::options(match error.classify() {
        Category::Data => "options must be one JSON object of strings, such as {\"size\":\"64\"}".to_owned(),
        Category::Eof => "options end too early: send one whole JSON object".to_owned(),
        Category::Io | Category::Syntax => {
            format!("options are not JSON: look at line {line}, column {column}")
        }
    })
}

/// Members of an object as they come, including duplicates: a map would silently keep the last one.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(EntriesVisitor)
    }
}

struct EntriesVisitor;

impl<'de> Visitor<'de> for EntriesVisitor {
    type Value = Entries;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Entries, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Entries(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Code;
    use crate::wording::{wording, wording_of};

    fn error(json: &str) -> String {
        let failure = Options::parse(json).unwrap_err();
        assert_eq!(failure.code(), Code::BadOptions);
        failure.message()
    }

    #[test]
    fn every_key_finds_its_field() {
        let json = concat!(
            r#"{"":"empty key","KUBERNETES.IO/readwrite":"ro","kubernetes.io":"own","kubernetes.io/fsGroup":"7","#,
            r#""kubernetes.io/fsType":"","kubernetes.io/new":"n","kubernetes.io/pod.name":"p","#,
            r#""kubernetes.io/pod.namespace":"ns","kubernetes.io/pod.uid":"u","kubernetes.io/pvOrVolumeName":"v","#,
            r#""kubernetes.io/readwrite":"rw","kubernetes.io/secret/k":"AP8K","#,
            r#""kubernetes.io/serviceAccount.name":""}"#
        );
        let options = Options::parse(json).unwrap();
        let some = |text: &str| Some(text.to_owned());
        let map = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        let expected = Options {
            fs_type: some(""),
            access: Some(Access::ReadWrite),
            volume_name: some("v"),
            pod: PodRef { name: some("p"), namespace: some("ns"), uid: some("u"), service_account: some("") },
            fs_group: Some(FsGroup { gid: 7, spelling: FsGroupSpelling::Legacy }),
            secrets: [("k".into(), Secret::new(vec![0, 0xff, b'\n']))].into(),
            own: map(&[("", "empty key"), ("KUBERNETES.IO/readwrite", "ro"), ("kubernetes.io", "own")]),
            reserved: map(&[("kubernetes.io/new", "n")]),
        };
        assert_eq!(options, expected);
        assert_eq!(options.to_json(), json);
        assert!(!format!("{options:?}").contains("AP8K"));
    }

    #[test]
    fn absent_and_empty_mean_the_defaults_but_stay_apart() {
        let absent = Options::parse("{}").unwrap();
        let empty = Options::parse(r#"{"kubernetes.io/fsType":""}"#).unwrap();
        assert_eq!((absent.access(), absent.fs_type(), empty.fs_type()), (Access::ReadWrite, None, None));
        assert_ne!(absent, empty);
        let read_only = Options::parse(r#" { "kubernetes.io/readwrite" : "ro" } "#).unwrap();
        assert_eq!(read_only.access(), Access::ReadOnly);
    }

    #[test]
    fn refusals_name_the_key_and_the_fix_but_no_value() {
        for (json, expected) in [
            ("", wording("options-cut")),
            (r#"{"a":"hunter2"#, wording("options-cut")),
            (r#"{"a":"hunter2"} x"#, wording_of("options-malformed", ["1", "17"])),
            (r#"{"a":"\ud800"}"#, wording_of("options-malformed", ["1", "13"])),
            ("[]", wording("options-no-object")),
            (r#""hunter2""#, wording("options-no-object")),
            ("null", wording("options-no-object")),
            (r#"{"size":64}"#, wording_of("option-not-text", ["\"size\""])),
            (r#"{"a":{"b":"hunter2"}}"#, wording_of("option-not-text", ["\"a\""])),
            (r#"{"a":"1","\u0061":"1"}"#, wording_of("twice", ["option \"a\""])),
            (r#"{"kubernetes.io/readwrite":"RO"}"#, wording_of("ro-or-rw", ["kubernetes.io/readwrite"])),
            (r#"{"kubernetes.io/secret/k":"hunter2"}"#, wording_of("secret-not-base64", ["k"])),
            (
                r#"{"kubernetes.io/fsGroup":"1","kubernetes.io/mounterArgs.FsGroup":"2"}"#,
                wording_of("groups-differ", ["kubernetes.io/mounterArgs.FsGroup", "kubernetes.io/fsGroup"]),
            ),
        ] {
            assert_eq!(error(json), expected, "{json}");
        }
    }

    #[test]
    fn only_standard_padded_base64_is_a_secret() {
        for text in ["YQ", "YQ=", "YR==", "YQ==\\n", "_-8=", " YQ==", "*"] {
            let message = error(&format!(r#"{{"kubernetes.io/secret/k":"{text}"}}"#));
            assert!(message.starts_with("secret \"k\" is not"), "{text}: {message}");
        }
        let options =
            Options::parse(r#"{"kubernetes.io/secret/k":"","kubernetes.io/secret/":"YQ=="}"#).unwrap();
        assert_eq!((options.secrets["k"].expose(), options.secrets[""].expose()), (&b""[..], &b"a"[..]));
    }

    #[test]
    fn fs_group_is_a_group_id() {
        for text in ["abc", "-1", "+1", "", " 1", "1e3", "4294967295", "99999999999999999999"] {
            let message = error(&format!(r#"{{"kubernetes.io/fsGroup":"{text}"}}"#));
            assert!(message.ends_with(wording("no-group-id")), "{text}: {message}");
        }
        for (json, gid, spelling) in [
            (r#"{"kubernetes.io/fsGroup":"0"}"#, 0, FsGroupSpelling::Legacy),
            (r#"{"kubernetes.io/mounterArgs.FsGroup":"4294967294"}"#, u32::MAX - 1, FsGroupSpelling::Current),
            (
                r#"{"kubernetes.io/mounterArgs.FsGroup":"5","kubernetes.io/fsGroup":"5"}"#,
                5,
                FsGroupSpelling::Current,
            ),
            (
                r#"{"kubernetes.io/fsGroup":"5","kubernetes.io/mounterArgs.FsGroup":"5"}"#,
                5,
                FsGroupSpelling::Current,
            ),
        ] {
            assert_eq!(Options::parse(json).unwrap().fs_group, Some(FsGroup { gid, spelling }), "{json}");
        }
    }

    #[test]
    fn own_keys_never_replace_typed_ones() {
        let options = Options {
            access: Some(Access::ReadOnly),
            own: [(READ_WRITE.to_owned(), "rw".to_owned())].into(),
            ..Options::default()
        };
        assert_eq!(options.to_json(), r#"{"kubernetes.io/readwrite":"ro"}"#);
    }
}
