//! Why an installer did not do what it was asked to, for people and for scripts.

use std::error::Error;
use std::fmt;

/// What a script branches on; the command line gives each an exit status of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// What was asked for cannot be meant.
    Usage,
    /// A driver of someone else is in the way.
    Foreign,
    /// A newer version is installed.
    Newer,
    /// Volumes of the driver are mounted.
    InUse,
    /// The node or the plugin directory is not fit for it.
    Preflight,
    /// The driver failed its own `init`, so it never became visible.
    SelfCheck,
    /// It is installed, but kubelet did not call it in time.
    NotCalled,
    /// Another installer holds the plugin directory.
    Locked,
}

/// A refusal. The world is as it was, but for [`Reason::NotCalled`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For scripts.
    pub reason: Reason,
    /// For people: one line with the next step in it.
    pub message: String,
}

impl Refusal {
    /// A refusal with a message in house style.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }

    /// The reason in an error's chain; `None` if it simply failed.
    pub fn reason_of(error: &anyhow::Error) -> Option<Reason> {
        error.downcast_ref::<Self>().map(|refusal| refusal.reason)
    }
}

impl Reason {
    /// The word for it in JSON.
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
