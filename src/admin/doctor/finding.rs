//! Result of a check: a problem, or something worth knowing.

use super::repair::Repair;
use flexvol_model::diagnostics::KnownError;
use flexvol_protocol::text::one_line;
use serde::{Deserialize, Serialize};

/// Limit for the evidence and for the fix, in bytes: a check's answer is read up to 64 KiB.
const LONGEST: usize = 512;

/// Severity; the most severe comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Severity {
    /// Volumes fail, or will fail.
    Error,
    /// Some volumes may fail, or something is left that should not be.
    Warning,
    /// Something worth knowing.
    Note,
}

/// A problem, or something worth knowing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// Identifier: stays the same from release to release.
    pub id: String,
    /// Severity of the problem.
    pub severity: Severity,
    /// Observed facts.
    pub evidence: String,
    /// Recommended steps.
    pub fix: String,
    /// Repair that `doctor` can carry out, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repair: Option<Repair>,
}

impl Finding {
    /// Returns a problem that makes volumes fail.
    pub fn error(id: &str, evidence: &str, fix: &str) -> Self {
        let text = |text: &str| one_line(text, LONGEST);
        let (evidence, fix) = (text(evidence), text(fix));
        Self { id: id.to_owned(), severity: Severity::Error, evidence, fix, repair: None }
    }

    /// Returns a problem that may make volumes fail.
    pub fn warning(id: &str, evidence: &str, fix: &str) -> Self {
        Self { severity: Severity::Warning, ..Self::error(id, evidence, fix) }
    }

    /// Returns a note: something worth knowing.
    pub fn note(id: &str, evidence: &str, fix: &str) -> Self {
        Self { severity: Severity::Note, ..Self::error(id, evidence, fix) }
    }

    /// Returns an error with cause and fix from the table of known errors.
    pub fn of_known_error(id: &str, evidence: &str, known_error: &KnownError) -> Self {
        Self::error(id, &format!("{evidence}: {}", known_error.cause), known_error.fix)
    }

    /// Returns the same finding with a repair.
    #[must_use]
    pub fn with(self, repair: Repair) -> Self {
        Self { repair: Some(repair), ..self }
    }
}

/// Splits one of our messages, `what is wrong: what to do`, into two. The search for plugin
/// directories writes its messages in this form.
pub(super) fn halves(message: &str) -> (&str, &str) {
    message.rsplit_once(": ").unwrap_or((message, "see flexvol list and flexvol probe"))
}
