//! Events that a prober reports.

use flexvol_kubelet::scan::{Failed, Loaded};
use flexvol_protocol::Capabilities;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// Change of a driver's state, or note about the watch itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Kind of the event.
    pub kind: EventKind,
    /// Name of the driver directory in the plugin directory; for a note, path of the plugin
    /// directory.
    pub directory: OsString,
    /// Name of the driver in manifests, even if no manifest can use it; `None` for a note.
    pub driver: Option<String>,
    /// Capabilities that its `init` reported; `None` if it is not in service.
    pub capabilities: Option<Capabilities>,
    /// Reason; for a failure, in kubelet's words.
    pub reason: Option<String>,
    /// Problem and fix, if they are known.
    pub fix: Option<String>,
}

/// Kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// A driver is newly in service.
    Added,
    /// Its `init` ran again and succeeded: it may have other capabilities, and verbs that were `Not
    /// supported` are tried again.
    Updated,
    /// It is out of service, because it is gone.
    Removed,
    /// Its `init` failed: it is out of service.
    Failed,
    /// Note about the watch itself, not about a driver.
    Noted,
}

impl EventKind {
    /// Returns the kind as a word: `added`.
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
    /// Creates an event of a driver, of which this is known now; `None` if it is gone.
    pub(super) fn of(kind: EventKind, directory: &OsStr, known: Option<&Result<Loaded, Failed>>) -> Self {
        let failed = known.and_then(|known| known.as_ref().err());
        Self {
            kind,
            directory: directory.to_owned(),
            driver: Some(directory.to_string_lossy().replace('~', "/")),
            capabilities: known.and_then(|known| Some(known.as_ref().ok()?.capabilities)),
            reason: failed.map(|failed| failed.logged.clone()),
            fix: failed.and_then(|failed| failed.fix.clone()),
        }
    }

    /// Creates a note about the watch itself.
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
}
