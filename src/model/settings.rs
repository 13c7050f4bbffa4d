//! The side file: what the admin says about one installed driver.
//!
//! `.flexvol.json` lies beside the executable, because a controller-manager's container sees only
//! that directory, and its name starts with a dot, because kubelet's prober ignores such names. It
//! is written by whoever installs the driver and only ever read here.
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

/// One driver's settings. An absent side file is the default of everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Which driver this is, when neither the directory nor the file name says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// The option dialect it speaks (see [`crate::profiles`]), where the directory does not say so;
    /// `none` for flexvol's own in the directory of a driver that has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Options a volume has unless it says otherwise.
    pub options: BTreeMap<String, String>,
    /// Whether kubelet shall chown volumes to the pod's fsGroup, if otherwise than the driver says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs_group: Option<bool>,
    /// Whether volumes are attached to a node before they are mounted, if otherwise than the driver
    /// or its profile says; only for a driver that can do both. It must not change while a volume
    /// is in use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attach: Option<bool>,
    /// The CSI driver that serves the volumes, whose options stay those of the directory's driver,
    /// or the profile's: only of the driver `csi` ([`through`](crate::translate::through)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub through_csi: Option<String>,
    /// What tenants may ask for.
    pub policy: Policy,
    /// How long a verb may take.
    pub deadlines: Deadlines,
    /// Whether the node's agent holds the storage of mounted volumes.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub agent: BTreeMap<String, String>,
    /// Where the programs are that serve volumes: `auto` (the default), in the mount pod that has
    /// registered for the driver, else on the node; `cri`, in that pod by the container runtime;
    /// `chroot:DIR`, in a directory of the node; `host`, on the node ([`mounter`](crate::mounter)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mounter: Option<String>,
    /// What is done where a registered mount pod does not answer: `fail` (the default), or `host`,
    /// use the programs of the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mounter_fallback: Option<String>,
    /// The commands of the `exec` driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecSettings>,
    /// The version that was installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The hash of the executable that was installed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
}

impl Settings {
    /// Whether the executable beside is another's, which `flexvol install --binary` has put there:
    /// flexvol's own have a version.
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

/// How long a verb may take, in seconds. Undoing what a late verb began takes up to ten more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Deadlines {
    /// `mount` and `mountdevice`. kubelet stops waiting for a pod's volumes after 123 s.
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

impl Settings {
    /// Reads a side file's text; whether what it says fits together,
    /// [`side_file`](crate::side_file) knows. The error names keys but repeats no value: old
    /// drivers take passwords as options.
    pub(crate) fn from_json(text: &str) -> Result<Self> {
        serde_json::from_str(text).map_err(|error| malformed(&error))
    }
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
