//! One thing that is wrong.

use super::repair::Repair;
use flexvol_model::diagnostics::KnownError;
use flexvol_protocol::text::one_line;
use serde::{Deserialize, Serialize};

/// The longest evidence and fix, in bytes: a check's answer is read up to 64 KiB.
const LONGEST: usize = 512;

/// How bad it is; the worst comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Volumes fail, or will.
    Error,
    /// Some volumes may, or something is left that should not be.
    Warning,
    /// Worth knowing.
    Note,
}

/// One thing that is wrong, or worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// What it is: stays the same from release to release.
    pub id: String,
    /// How bad.
    pub severity: Severity,
    /// What was seen.
    pub evidence: String,
    /// What to do.
    pub fix: String,
    /// What can be fixed from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<Repair>,
}

impl Finding {
    /// Something that makes volumes fail.
    pub fn error(id: &str, evidence: &str, fix: &str) -> Self {
        let text = |text: &str| one_line(text, LONGEST);
        let (evidence, fix) = (text(evidence), text(fix));
        Self { id: id.to_owned(), severity: Severity::Error, evidence, fix, repair: None }
    }

    /// Something that may.
    pub fn warning(id: &str, evidence: &str, fix: &str) -> Self {
        Self { severity: Severity::Warning, ..Self::error(id, evidence, fix) }
    }

    /// Something to know.
    pub fn note(id: &str, evidence: &str, fix: &str) -> Self {
        Self { severity: Severity::Note, ..Self::error(id, evidence, fix) }
    }

    /// What the table of known errors knows about it.
    pub fn of_known_error(id: &str, evidence: &str, known_error: &KnownError) -> Self {
        Self::error(id, &format!("{evidence}: {}", known_error.cause), known_error.fix)
    }

    /// The same, that can be fixed from here.
    #[must_use]
    pub fn with(self, repair: Repair) -> Self {
        Self { repair: Some(repair), ..self }
    }
}

/// A message of ours, `what is wrong: what to do`, in two. Whatever looks for plugin directories
/// writes them so.
pub(super) fn halves(message: &str) -> (&str, &str) {
    message.rsplit_once(": ").unwrap_or((message, "see flexvol list and flexvol probe"))
}
