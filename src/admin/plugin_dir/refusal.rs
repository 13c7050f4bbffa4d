//! Refusals of an installer, for people and for scripts.

use std::error::Error;
use std::fmt;

/// Reason on which a script can branch; the command line gives each an exit status of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The request makes no sense.
    Usage,
    /// A foreign driver is in the way.
    Foreign,
    /// A newer version is installed.
    Newer,
    /// Volumes of the driver are mounted.
    InUse,
    /// The node or the plugin directory does not meet the requirements.
    Preflight,
    /// The driver failed its own `init`, so it never became visible.
    SelfCheck,
    /// It is installed, but kubelet did not call it in time.
    NotCalled,
    /// Another installer holds the plugin directory.
    Locked,
}

/// Refusal. Nothing has changed, except for [`Reason::NotCalled`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The reason, for scripts.
    pub reason: Reason,
    /// The message, for people: one line that includes the next step.
    pub message: String,
}

impl Refusal {
    /// Makes a refusal; its message says what is wrong, then what to do.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// Returns the reason in an error's chain; `None` if it is not a refusal.
    pub fn reason_of(error: &anyhow::Error) -> Option<Reason> {
        error.downcast_ref::<Self>().map(|refusal| refusal.reason)
    }
}

impl Reason {
    /// Returns its word in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Self::Usage => "usage",
            Self::Foreign => "foreign",
            Self::Newer => "newer",
            Self::InUse => "in use",
            Self::Preflight => "preflight",
            Self::SelfCheck => "self-check",
            Self::NotCalled => "not called",
            Self::Locked => "locked",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Refusal {}
