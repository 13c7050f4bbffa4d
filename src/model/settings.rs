//! The side file: what the admin says about one installed driver.
//!
//! `.flexvol.json` lies beside the executable, because a controller-manager's container sees only that
//! directory, and its name starts with a dot, because kubelet's prober ignores such names. It is written by
//! whoever installs the driver and only ever read here.
//!
//! ```
//! let settings = flexvol_model::settings::Settings::parse(r#"{
//!     "driver": "image",
//!     "options": {"fsType": "xfs"},
//!     "policy": {"imageRoots": ["/srv/images"]},
//!     "deadlines": {"mount": 90}
//! }"#).unwrap();
//! assert_eq!(settings.driver.as_deref(), Some("image"));
//! assert_eq!(settings.deadlines.unmount, 60);
//! ```

use crate::policy::Policy;
use crate::profiles;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::{Capabilities, Verb};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

/// The side file's name.
pub const SIDE_FILE: &str = ".flexvol.json";

/// The largest side file that is read, in bytes.
pub const SIZE_LIMIT: usize = 1 << 20;

/// One driver's settings. An absent side file is the default of everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Settings {
    /// Which driver this is, when neither the directory nor the file name says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The option dialect it speaks (see [`crate::profiles`]), where the directory does not say so; `none` for
    /// flexvol's own in the directory of a driver that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Options a volume has unless it says otherwise.
    pub options: BTreeMap<String, String>,
    /// Whether kubelet shall chown volumes to the pod's fsGroup, if otherwise than the driver says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs_group: Option<bool>,
    /// Whether volumes are attached to a node before they are mounted, if otherwise than the driver or its profile
    /// says; only for a driver that can do both. It must not change while a volume is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attach: Option<bool>,
    /// What tenants may ask for.
    #[serde(deserialize_with = "object")]
    pub policy: Policy,
    /// How long a verb may take.
    #[serde(deserialize_with = "object")]
    pub deadlines: Deadlines,
    /// The commands of the `exec` driver.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "object_or_null")]
    pub exec: Option<Exec>,
    /// The version that was installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The hash of the executable that was installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

/// How long a verb may take, in seconds. Undoing what a late verb began takes up to ten more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Deadlines {
    /// `mount` and `mountdevice`. kubelet stops waiting for a pod's volumes after 123 s.
    pub mount: u32,
    /// `unmount` and `unmountdevice`.
    pub unmount: u32,
    /// Every other verb.
    pub other: u32,
}

impl Default for Deadlines {
    fn default() -> Self {
        Self { mount: 110, unmount: 60, other: 30 }
    }
}

impl Deadlines {
    /// How long `verb` may take.
    pub fn of(&self, verb: Verb) -> Duration {
        let seconds = match verb {
            Verb::Mount | Verb::MountDevice => self.mount,
            Verb::Unmount | Verb::UnmountDevice => self.unmount,
            _ => self.other,
        };
        Duration::from_secs(seconds.into())
    }
}

/// The commands of the `exec` driver; see [`crate::drivers::exec`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Exec {
    /// Program and arguments by verb. `mount` is required; no shell is involved.
    pub commands: BTreeMap<String, Vec<String>>,
    /// The options a volume may give; others are refused.
    pub options: BTreeSet<String>,
    /// Whether the commands read the volume's secrets from standard input.
    pub secrets_on_stdin: bool,
    /// What the volume is called by its storage, of the options that name it: two volumes of different names are never
    /// taken for each other, also where kubelet does, by a PV or a pod that calls its volume the same. Absent, volumes
    /// with other options are other volumes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// The file system type that must be at the target after `mount`; absent accepts any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file_system: Option<String>,
    /// What `init` answers.
    #[serde(deserialize_with = "object")]
    pub capabilities: ExecCapabilities,
}

/// The capabilities of an `exec` driver: none, unless the admin claims them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "kubelet's own five")]
pub struct ExecCapabilities {
    /// The attach verbs exist.
    pub attach: bool,
    /// The mounted file system stores labels.
    pub selinux_relabel: bool,
    /// statfs of the mount never hangs.
    pub supports_metrics: bool,
    /// kubelet shall chown the volume to the pod's fsGroup.
    pub fs_group: bool,
    /// `expandfs` is wanted.
    #[serde(rename = "requiresFSResize")]
    pub requires_fs_resize: bool,
}

impl From<ExecCapabilities> for Capabilities {
    fn from(from: ExecCapabilities) -> Self {
        Self {
            attach: from.attach,
            selinux_relabel: from.selinux_relabel,
            supports_metrics: from.supports_metrics,
            fs_group: from.fs_group,
            requires_fs_resize: from.requires_fs_resize,
        }
    }
}

impl Settings {
    /// Reads a side file's text. The error names keys but repeats no value: old drivers take passwords as
    /// options.
    pub fn parse(text: &str) -> Result<Self> {
        let Object(settings): Object<Self> = serde_json::from_str(text).map_err(|error| malformed(&error))?;
        settings.check()?;
        Ok(settings)
    }

    /// Words that would do nothing are refused: who wrote them believes that they do.
    pub fn check(&self) -> Result<()> {
        self.check_profile()?;
        self.driver.as_deref().map_or(Ok(()), |driver| self.check_driver(driver))?;
        let mut names = self.exec.iter().flat_map(|exec| exec.commands.keys());
        names.try_for_each(|name| match Verb::parse(name.as_ref()) {
            None => Err(mistake(&format!("exec.commands: {name:?} is not a verb of kubelet's"))),
            Some(Verb::Init) => Err(mistake(
                "exec.commands: \"init\" is never run: say in exec.capabilities what it shall answer",
            )),
            Some(_) => Ok(()),
        })
    }

    fn check_profile(&self) -> Result<()> {
        let Some(name) = self.profile.as_deref().filter(|name| *name != profiles::NONE) else {
            return Ok(());
        };
        if profiles::find(name).is_some() {
            return Ok(());
        }
        let hint = profiles::nearest(name).map_or_else(
            || "see flexvol drivers --profiles".to_owned(),
            |near| format!("did you mean {near:?}?"),
        );
        Err(mistake(&format!("there is no profile {name:?}: {hint}")))
    }

    /// Whether the settings can be those of this driver, which may be named elsewhere.
    pub fn check_driver(&self, driver: &str) -> Result<()> {
        if let Some(profile) = profiles::named(self).filter(|profile| profile.driver.name() != driver) {
            let text = format!(
                "the profile {} is for the driver {}, and this is {driver}: leave out one of them",
                profile.name,
                profile.driver.name()
            );
            return Err(mistake(&text));
        }
        if self.exec.is_some() && driver != "exec" {
            let text = format!(
                "\"exec\" is for the driver exec, and this is {driver}: leave it out or name exec as \"driver\""
            );
            return Err(mistake(&text));
        }
        Ok(())
    }
}

/// A JSON object and nothing else: serde would take an array for the fields in their order.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(Members(PhantomData))
    }
}

fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|Object(value)| value)
}

fn object_or_null<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    Option::deserialize(deserializer).map(|value| value.map(|Object(value)| value))
}

fn mistake(text: &str) -> Failure {
    Failure::options(format!("{SIDE_FILE}: {text}"))
}

/// Of `invalid type: string "hunter2", expected u32 at line 1 column 9` only the end.
fn malformed(error: &serde_json::Error) -> Failure {
    let text = error.to_string();
    let harmless = match text.rsplit_once(", expected ") {
        // All whole numbers of a side file are deadlines.
        Some((found, expected)) if found.starts_with("invalid ") => {
            format!("expected {}", expected.replacen("u32", "a number of seconds", 1))
        }
        _ => text,
    };
    Failure::options(format!("{SIDE_FILE}: {harmless}: fix it or install the driver again"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_everything_s_default() {
        assert_eq!(Settings::parse("{}").unwrap(), Settings::default());
        let text = serde_json::to_string(&Settings::default()).unwrap();
        assert_eq!(Settings::parse(&text).unwrap(), Settings::default());
    }

    #[test]
    fn mistakes_are_named() {
        assert!(Settings::parse(r#"{"polcy":{}}"#).unwrap_err().message().contains("polcy"));
        let arrays = [
            r#"{"policy":[]}"#,
            r#"{"deadlines":[1]}"#,
            r#"{"exec":[]}"#,
            r#"{"exec":{"capabilities":[true]}}"#,
        ];
        for text in ["", "[]", " [\"image\"]", "null", "1"].into_iter().chain(arrays) {
            assert!(Settings::parse(text).unwrap_err().message().contains(SIDE_FILE), "{text}");
        }
        for text in [
            r#"{"options":"hunter2"}"#,
            r#"{"options":{"a":["hunter2"]}}"#,
            r#"{"exec":{"secretsOnStdin":"hunter2"}}"#,
        ] {
            let message = Settings::parse(text).unwrap_err().message();
            assert!(
                message.starts_with(".flexvol.json: expected a") && !message.contains("hunter2"),
                "{message}"
            );
        }
        let verb = Settings::parse(r#"{"exec":{"commands":{"umount":["/bin/x"]}}}"#).unwrap_err();
        assert!(verb.message().contains("\"umount\" is not a verb"));
    }
    #[test]
    fn words_that_do_nothing_are_refused() {
        for (text, expected) in [
            (r#"{"profile":"kvaps/lop"}"#, "did you mean \"kvaps/loop\"?"),
            (r#"{"profile":"kvaps/loop","driver":"tmpfs"}"#, "is for the driver image, and this is tmpfs"),
            (r#"{"exec":{"commands":{"init":["/bin/x"]}}}"#, "\"init\" is never run"),
            (r#"{"driver":"tmpfs","exec":{"commands":{"mount":["/bin/x"]}}}"#, "and this is tmpfs"),
        ] {
            let message = Settings::parse(text).unwrap_err().message();
            assert!(message.starts_with(SIDE_FILE) && message.contains(expected), "{message}");
        }
        let settings = Settings::parse(r#"{"exec":{}}"#).unwrap();
        assert!(settings.check_driver("exec").is_ok() && settings.check_driver("image").is_err());
    }
}
