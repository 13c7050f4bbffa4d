//! Side file: the admin's settings for one installed driver.
//!
//! `.flexvol.json` is beside the executable, because a controller-manager's container sees only
//! that directory. Its name starts with a dot, because kubelet's prober ignores such names. The
//! installer of the driver writes it, and this code only reads it.
//!
//! ```
//! let settings = flexvol_model::side_file::parse(r#"{
//!     "driver": "image",
//!     "options": {"fsType": "xfs"},
//!     "policy": {"imageRoots": ["/srv/images"]},
//!     "deadlines": {"mount": 90}
//! }"#).unwrap();
//! assert_eq!(settings.driver.as_deref(), Some("image"));
//! assert_eq!(settings.deadlines.unmount, 60);
//! ```

use crate::drivers::exec::settings::ExecSettings;
pub use crate::json_object::SIDE_FILE;
use crate::json_object::{members, plain};
use crate::policy::Policy;
use flexvol_protocol::Verb;
use flexvol_protocol::failure::{Failure, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// The largest side file that is read, in bytes.
pub const SIZE_LIMIT: usize = 1 << 20;

/// Settings of one driver. If the side file is absent, everything has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Driver, if neither the directory nor the file name determines it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// Dialect of the options (see [`crate::profiles`]), if the directory does not determine it.
    /// `none` selects flexvol's own dialect in the directory of a driver that has a profile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Default options, for volumes that do not set them.
    pub options: BTreeMap<String, String>,
    /// True if kubelet shall chown volumes to the pod's fsGroup; absent leaves it to the driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs_group: Option<bool>,
    /// True if volumes are attached to a node before they are mounted; absent leaves it to the
    /// driver or its profile. Only for a driver that supports both. It must not change while a
    /// volume is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attach: Option<bool>,
    /// CSI driver that serves the volumes. Their options stay those of the directory's driver or of
    /// the profile. Only for the driver `csi` ([`through`](crate::translate::through)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub through_csi: Option<String>,
    /// Policy for what tenants may ask for.
    pub policy: Policy,
    /// Deadlines of the verbs.
    pub deadlines: Deadlines,
    /// Settings of the node's agent, such as whether it holds the storage of mounted volumes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub agent: BTreeMap<String, String>,
    /// Place of the programs that serve volumes. `auto` (the default): the mount pod that has
    /// registered for the driver, else the node. `cri`: that pod, through the container runtime.
    /// `chroot:DIR`: a directory of the node. `host`: the node ([`mounter`](crate::mounter)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mounter: Option<String>,
    /// Action if a registered mount pod does not answer: `fail` (the default), or `host` to use the
    /// programs of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mounter_fallback: Option<String>,
    /// Commands of the `exec` driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecSettings>,
    /// Version that was installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// Hash of the executable that was installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

impl Settings {
    /// Reports whether the executable beside the side file is another vendor's, put there by
    /// `flexvol install --binary`. Only flexvol's own have a version.
    pub fn is_beside_another_s(&self) -> bool {
        self.hash.is_some() && self.version.is_none()
    }
}

members!(Settings {
    "driver" => driver by plain,
    "profile" => profile by plain,
    "options" => options by plain,
    "fsGroup" => fs_group by plain,
    "attach" => attach by plain,
    "throughCsi" => through_csi by plain,
    "policy" => policy by plain,
    "deadlines" => deadlines by plain,
    "agent" => agent by plain,
    "mounter" => mounter by plain,
    "mounterFallback" => mounter_fallback by plain,
    "exec" => exec by plain,
    "version" => version by plain,
    "hash" => hash by plain,
});

/// Deadlines of the verbs, in seconds. The rollback of a late verb takes up to ten more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// `mount` and `mountdevice`. Kubelet stops waiting for a pod's volumes after 123 s.
    pub mount: u32,
    /// `unmount` and `unmountdevice`.
    pub unmount: u32,
    /// Every other verb.
    pub other: u32,
}

members!(Deadlines {
    "mount" => mount by plain,
    "unmount" => unmount by plain,
    "other" => other by plain,
});

impl Default for Deadlines {
    fn default() -> Self {
        Self { mount: 110, unmount: 60, other: 30 }
    }
}

impl Deadlines {
    /// Returns the time that `verb` may take.
    pub fn of(&self, verb: Verb) -> Duration {
        let seconds = match verb {
            Verb::Mount | Verb::MountDevice => self.mount,
            Verb::Unmount | Verb::UnmountDevice => self.unmount,
            _ => self.other,
        };
        Duration::from_secs(seconds.into())
    }
}

impl Settings {
    /// Parses a side file's text. [`side_file`](crate::side_file) checks whether its parts fit
    /// together. The error names keys but repeats no value, because old drivers take passwords as
    /// options.
    pub(crate) fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| malformed(&error))
    }
}

/// Keeps the end of `invalid type: string "hunter2", expected u32 at line 1 column 9` only.
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
        assert_eq!(Settings::from_json("{}").unwrap(), Settings::default());
        let text = serde_json::to_string(&Settings::default()).unwrap();
        assert_eq!(Settings::from_json(&text).unwrap(), Settings::default());
    }

    #[test]
    fn mistakes_are_named() {
        assert!(Settings::from_json(r#"{"polcy":{}}"#).unwrap_err().message().contains("polcy"));
        let arrays = [
            r#"{"policy":[]}"#,
            r#"{"deadlines":[1]}"#,
            r#"{"exec":[]}"#,
            r#"{"exec":{"capabilities":[true]}}"#,
        ];
        for text in ["", "[]", " [\"image\"]", "null", "1"].into_iter().chain(arrays) {
            assert!(Settings::from_json(text).unwrap_err().message().contains(SIDE_FILE), "{text}");
        }
        for text in [
            r#"{"options":"hunter2"}"#,
            r#"{"options":{"a":["hunter2"]}}"#,
            r#"{"exec":{"secretsOnStdin":"hunter2"}}"#,
        ] {
            let message = Settings::from_json(text).unwrap_err().message();
            assert!(
                message.starts_with(".flexvol.json: expected a") && !message.contains("hunter2"),
                "{message}"
            );
        }
    }
}
