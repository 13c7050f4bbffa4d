//! What a prober tells of.

use flexvol_kubelet::scan::{Failed, Loaded};
use flexvol_protocol::Capabilities;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// One thing that became true of a driver, or of the watch itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// The driver directory's name in the plugin directory; of the watch itself, the plugin
    /// directory's path.
    pub directory: OsString,
    /// What the driver is called in manifests, or would be; `None` of the watch itself.
    pub driver: Option<String>,
    /// What it said in the `init` that is in force; `None` if no version of it is in service.
    pub capabilities: Option<Capabilities>,
    /// Why: of a failure in kubelet's words.
    pub reason: Option<String>,
    /// What is wrong and how it is fixed, where that can be said.
    pub fix: Option<String>,
}

/// What became true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A driver is in service that was not.
    Added,
    /// Its `init` ran again and succeeded: it may have other capabilities, and verbs that were `Not
    /// supported` are tried again.
    Updated,
    /// It is out of service, because it is gone.
    Removed,
    /// Its `init` failed. With [`Event::capabilities`] an older version is still in service, which
    /// no prober but kubelet's would do; else none is.
    Failed,
    /// Nothing of a driver: the watch itself has something to say.
    Noted,
}

/// What a prober knows of one driver directory.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The version in service.
    pub loaded: Option<Loaded>,
    /// What the last `init` failed with, if it did.
    pub failed: Option<Failed>,
}

impl EventKind {
    /// As a word: `added`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Updated => "updated",
            Self::Removed => "removed",
            Self::Failed => "failed",
            Self::Noted => "noted",
        }
    }
}

impl Event {
    /// Of a driver.
    pub(super) fn of(kind: EventKind, directory: &OsStr, known: &Known) -> Self {
        Self {
            kind,
            directory: directory.to_owned(),
            driver: Some(directory.to_string_lossy().replace('~', "/")),
            capabilities: known.loaded.as_ref().map(|loaded| loaded.capabilities),
            reason: None,
            fix: None,
        }
    }

    /// Of the watch itself.
    pub(super) fn note(plugin_dir: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self {
            kind: EventKind::Noted,
            directory: plugin_dir.into().into_os_string(),
            driver: None,
            capabilities: None,
            reason: Some(reason.into()),
            fix: None,
        }
    }

    pub(super) fn because(self, failed: &Failed) -> Self {
        Self { reason: Some(failed.logged.clone()), fix: failed.fix.clone(), ..self }
    }
}
