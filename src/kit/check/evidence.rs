//! What a case found.

use serde::{Deserialize, Serialize};

/// Why a case is skipped that is played again when less is going on.
pub(super) const BUSY: &str = "not judged: the machine is busy";

/// How a played case ends.
pub type Played = Result<(), Stopped>;

/// Why a case did not come to its good end.
#[derive(Debug)]
pub enum Stopped {
    /// The driver does what it must not.
    Failed(Box<Evidence>),
    /// What has to work first does not; which case is about that, and what happened.
    Blocked(&'static str, Box<Evidence>),
    /// There is nothing to check in this driver, on this machine, in this sandbox; why.
    Skipped(String),
    /// The kit itself could not go on.
    Broken(anyhow::Error),
}

/// What is wrong, and all that an author needs to fix it. Secrets are masked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Evidence {
    /// What was seen, against what should be; one line.
    pub problem: String,
    /// The driver's arguments in the call that shows it; empty if no call does.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sent: Vec<String>,
    /// What it printed and how it ended.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub came_back: String,
    /// What kubelet does with that.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kubelet: String,
    /// What to do, if that is more than the case says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Evidence {
    /// Something that no single call shows.
    pub fn new(problem: impl Into<String>) -> Self {
        Self { problem: problem.into(), ..Self::default() }
    }

    /// With a better fix than the case's.
    #[must_use]
    pub fn fix(mut self, fix: impl Into<String>) -> Self {
        self.fix = Some(fix.into());
        self
    }
}

impl Stopped {
    /// The driver was slow, and so is the machine.
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
