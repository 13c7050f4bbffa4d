//! Deviations of a driver from what CSI expects, as data. Pure.
//!
//! A driver that works with kubelet needs no entry here: a driver that prints its failure on
//! standard error, or that fails when a volume is mounted already, is handled as kubelet does it.
//! Habits of widely used drivers are in `habits.json` beside this file; an admin's own file has the
//! same form and takes precedence.

use flexvol_model::drivers;
use flexvol_model::installed::Installed;
use flexvol_model::profiles;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::{Capabilities, DriverName};
use serde::Deserialize;
use std::collections::BTreeMap;
use tonic::Code;

/// Built-in habits of known drivers.
const KNOWN: &str = include_str!("habits.json");

/// Our own name for the option with further mount options.
const MOUNT_OPTIONS: &str = "mountOptions";

/// Habits of one driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a habit of its own, and a key of the file")]
pub struct Habits {
    /// True if its `mount` writes files into the directory and mounts nothing; `unmount` is called
    /// whether or not anything is mounted.
    pub mountless: bool,
    /// True if its `mount` deletes or hides the content of the directory: it gets only an empty
    /// one.
    pub empty_directory: bool,
    /// True if its `unmount` fails when nothing is mounted, and is not called then.
    pub unmount_needs_mount: bool,
    /// True if its `mountdevice` gets the secrets of `NodeStageVolume`, which kubelet gave to
    /// `mount` alone.
    pub stage_secrets: bool,
    /// True if it answers `expandfs` only with its usage text: the server decides the size of its
    /// volumes, and growth is not offered.
    pub fixed_size: bool,
    /// True if it works only in directories of FlexVolume's shape,
    /// `pods/*/volumes/VENDOR~DRIVER/NAME`: it gets them in our own tree, even if it does not
    /// attach.
    pub own_tree: bool,
    /// Option of the driver that takes mount options.
    pub mount_options: Option<MountOptions>,
    /// Meanings of its messages; the first match counts.
    pub messages: Vec<Meaning>,
}

/// Option that takes the mount flags of a PersistentVolume.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MountOptions {
    /// Its name.
    pub option: String,
    /// Separator between two mount flags.
    #[serde(default = "comma")]
    pub separator: String,
}

fn comma() -> String {
    ",".to_owned()
}

/// Meaning of a failure, by a text in its message.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Meaning {
    /// Text to find, compared without regard to case.
    pub contains: String,
    /// gRPC code, such as `NOT_FOUND`.
    #[serde(deserialize_with = "code")]
    pub code: Code,
}

/// Codes that a driver's message can mean, by their names in gRPC.
const CODES: [(&str, Code); 8] = [
    ("INVALID_ARGUMENT", Code::InvalidArgument),
    ("NOT_FOUND", Code::NotFound),
    ("PERMISSION_DENIED", Code::PermissionDenied),
    ("RESOURCE_EXHAUSTED", Code::ResourceExhausted),
    ("FAILED_PRECONDITION", Code::FailedPrecondition),
    ("ABORTED", Code::Aborted),
    ("UNAVAILABLE", Code::Unavailable),
    ("UNAUTHENTICATED", Code::Unauthenticated),
];

fn code<'de, D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Code, D::Error> {
    let name = String::deserialize(deserializer)?;
    let found = CODES.iter().find(|(known, _)| *known == name);
    found.map(|(_, code)| *code).ok_or_else(|| {
        let known = CODES.map(|(name, _)| name).join(", ");
        serde::de::Error::custom(format!("code {name:?} is not known: write one of {known}"))
    })
}

impl Habits {
    /// Returns the habits of the driver `name`. `own` is the admin's file, `installed` identifies
    /// the driver if it is one of ours.
    pub fn of(name: &DriverName, own: Option<&str>, installed: Option<&Installed>) -> Result<Self> {
        let name = name.to_string();
        let known = parse("the built-in habits", KNOWN)?.remove(&name);
        let own = own.map(|text| parse("the file of habits", text)).transpose()?;
        let mut habits = own.and_then(|mut own| own.remove(&name)).or(known).unwrap_or_default();
        habits.mount_options = habits.mount_options.or_else(|| mount_options(&name, installed));
        Ok(habits)
    }

    /// Derives the driver's capabilities from the answer of its `init`.
    pub fn of_init(&self, said: Capabilities) -> Capabilities {
        Capabilities { requires_fs_resize: said.requires_fs_resize && !self.fixed_size, ..said }
    }
}

/// Returns the option of our own driver, or the one that a foreign driver's profile translates into
/// it.
fn mount_options(name: &str, installed: Option<&Installed>) -> Option<MountOptions> {
    let ours =
        installed.map(|installed| installed.driver.options().iter().any(|each| each.name == MOUNT_OPTIONS));
    let option = match ours {
        Some(ours) => ours.then_some(MOUNT_OPTIONS),
        None => profiles::find(name).and_then(|profile| {
            profile.keys.iter().find(|key| key.ours == Some(MOUNT_OPTIONS)).map(|key| key.theirs)
        }),
    };
    option.map(|option| MountOptions { option: option.to_owned(), separator: comma() })
}

/// Identifies an executable as one of our drivers, by its side file. A side file beside a foreign
/// executable, from `flexvol install --binary`, identifies none.
pub fn installed(name: &DriverName, side_file: Option<&str>) -> Result<Option<Installed>> {
    let Some(text) = side_file else { return Ok(None) };
    let settings = flexvol_model::side_file::parse(text)?;
    if settings.is_beside_another_s() {
        return Ok(None);
    }
    Installed::identify(Some(name.directory()), name.executable(), settings).map(Some)
}

/// Returns the names of the drivers with built-in habits, for documents and tests.
pub fn known() -> Result<Vec<String>> {
    Ok(parse("the built-in habits", KNOWN)?.into_keys().collect())
}

/// Reports whether one of our drivers has this name.
pub fn is_ours(name: &DriverName) -> bool {
    drivers::find(name.driver()).is_some()
}

fn parse(what: &str, text: &str) -> Result<BTreeMap<String, Habits>> {
    serde_json::from_str(text).map_err(|error| {
        let fix = "write {\"vendor/driver\": {\"mountless\": true}}";
        Failure::options(format!("{what} cannot be read: {error}: {fix}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, own: Option<&str>) -> Result<Habits> {
        Habits::of(&DriverName::parse(name).unwrap(), own, None)
    }

    #[test]
    fn the_known_habits_are_of_valid_names() {
        for name in known().unwrap() {
            DriverName::parse(&name).unwrap();
            of(&name, None).unwrap();
        }
        let cifs = of("fstab/cifs", None).unwrap();
        assert!(cifs.empty_directory && !cifs.of_init(Capabilities::KUBELET_DEFAULT).requires_fs_resize);
        assert_eq!(of("example.com/other", None), Ok(Habits::default()));
    }

    #[test]
    fn mount_flags_go_where_the_profile_has_them() {
        let option =
            |name| of(name, None).unwrap().mount_options.map(|found| (found.option, found.separator));
        assert_eq!(option("juliohm/cifs"), Some(("opts".into(), ",".into())));
        assert_eq!(option("fstab/cifs"), Some(("mountOptions".into(), ",".into())));
        assert_eq!(option("azure/blobfuse"), Some(("mountoptions".into(), " ".into())));
        assert_eq!(option("example.com/other"), None);
    }

    #[test]
    fn our_own_driver_says_so_itself() {
        let name = DriverName::parse("example/tmpfs").unwrap();
        let installed = installed(&name, Some("{}")).unwrap();
        let habits = Habits::of(&name, None, installed.as_ref()).unwrap();
        assert_eq!(habits.mount_options.unwrap().option, "mountOptions");
        assert!(super::installed(&name, None).unwrap().is_none());
    }

    /// A foreign driver may even have the name of one of ours.
    #[test]
    fn a_driver_of_another_s_that_was_installed_is_none_of_ours() {
        for name in ["example.com/pydrv", "example.com/tmpfs"] {
            let name = DriverName::parse(name).unwrap();
            assert_eq!(installed(&name, Some(r#"{"hash":"00"}"#)).unwrap().map(|found| found.settings), None);
        }
        let name = DriverName::parse("example.com/tmpfs").unwrap();
        assert!(installed(&name, Some(r#"{"hash":"00","version":"1"}"#)).unwrap().is_some());
    }

    #[test]
    fn an_admin_s_file_wins_and_is_checked() {
        let own = r#"{"fstab/cifs":{"messages":[{"contains":"no such share","code":"NOT_FOUND"}]}}"#;
        let habits = of("fstab/cifs", Some(own)).unwrap();
        assert!(!habits.empty_directory && habits.messages[0].code == Code::NotFound);
        for wrong in
            ["{", r#"{"a/b":{"mountles":true}}"#, r#"{"a/b":{"messages":[{"contains":"x","code":"OK"}]}}"#]
        {
            assert!(of("a/b", Some(wrong)).is_err(), "{wrong}");
        }
    }
}
