//! Findings of a case.

use serde::{Deserialize, Serialize};

/// Reason of a skipped case that is played again when the machine is less busy.
pub(super) const BUSY: &str = "not judged: the machine is busy";

/// Result of a played case.
pub type Played = Result<(), Stopped>;

/// Reason why a case did not end well.
#[derive(Debug)]
pub enum Stopped {
    /// The driver does something that it must not do.
    Failed(Box<Evidence>),
    /// A precondition does not work: the case about it, and what happened.
    Blocked(&'static str, Box<Evidence>),
    /// There is nothing to check with this driver, machine or sandbox; the reason.
    Skipped(String),
    /// The kit itself could not continue.
    Broken(anyhow::Error),
}

/// A problem, and all that an author needs to fix it. Secrets are masked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Evidence {
    /// Observation, compared with what should be; one line.
    pub problem: String,
    /// Arguments of the driver in the call that shows it; empty if no call does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sent: Vec<String>,
    /// Output of the driver, and how it ended.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub came_back: String,
    /// Reaction of kubelet to that.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kubelet: String,
    /// Fix, if there is a better one than the case's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Evidence {
    /// Builds evidence that no single call shows.
    pub fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), ..Self::default() }
    }

    /// Replaces the case's fix by a better one.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

/// Skips the case: there is nothing to check.
pub(super) fn skip<T>(why: &str) -> Result<T, Stopped> {
    Err(Stopped::Skipped(why.to_owned()))
}

impl Stopped {
    /// Skips the case: the driver was slow, but so is the machine.
    pub fn busy() -> Self {
        Self::Skipped(BUSY.to_owned())
    }
}

impl From<Evidence> for Stopped {
    fn from(evidence: Evidence) -> Self {
        Self::Failed(Box::new(evidence))
    }
}

impl From<anyhow::Error> for Stopped {
    fn from(error: anyhow::Error) -> Self {
        Self::Broken(error)
    }
}

impl From<std::io::Error> for Stopped {
    fn from(error: std::io::Error) -> Self {
        Self::Broken(error.into())
    }
}

impl From<rustix::io::Errno> for Stopped {
    fn from(errno: rustix::io::Errno) -> Self {
        Self::Broken(errno.into())
    }
}

impl From<flexvol_protocol::failure::Failure> for Stopped {
    fn from(failure: flexvol_protocol::failure::Failure) -> Self {
        Self::Broken(failure.into())
    }
}
