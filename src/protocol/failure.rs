//! Failures in the one form that callers outside of flexvol see.
//!
//! Inside, code that uses the OS returns `anyhow::Result` and adds context (`mount tmpfs on /a/b`).
//! Pure code returns [`Result`] with a [`Failure`] that it makes itself. At the edge everything
//! becomes a `Failure`. It has a [`Code`] for programs that branch on it (exit status of the admin
//! commands, later gRPC status), one line of text for people and the pod's Event, and the residue
//! that an undo could not remove.
//!
//! Texts are one line, lower case, without a full stop, and name the next step. They never contain
//! a secret: a text that is built from a helper's output passes through [`crate::secret::Redactor`]
//! first.

use crate::text::one_line;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// `Result` of pure code.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Limit for the message of a reply, in bytes: it becomes a pod Event, which people read in a
/// terminal.
pub const MESSAGE_LIMIT: usize = 1024;

/// Reason why a call failed, for programs that branch on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The arguments do not fit the verb: kubelet never sends such a call.
    BadCall,
    /// The volume's options are wrong: only an edit of the PV or pod fixes it.
    BadOptions,
    /// Something named does not exist on this node.
    NotFound,
    /// The target or the backing store is in use for something else.
    Conflict,
    /// In use right now: a retry may succeed.
    Busy,
    /// The node's policy or the kernel's permissions forbid it.
    Denied,
    /// The deadline passed or the call was told to stop.
    Timeout,
    /// A helper program or kernel feature is missing on this node.
    ToolMissing,
    /// Everything else.
    Internal,
}

/// Failed call: code, message, and what could not be undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    code: Code,
    message: String,
    residue: Vec<String>,
}

impl Failure {
    /// Makes a failure with a message in house style (one line, lower case, the next step in it).
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), residue: Vec::new() }
    }

    /// Makes a failure: the volume's options are wrong.
    pub fn options(message: impl Into<String>) -> Self {
        Self::new(Code::BadOptions, message)
    }

    /// Makes a failure: the arguments do not fit the verb.
    pub fn call(message: impl Into<String>) -> Self {
        Self::new(Code::BadCall, message)
    }

    /// Adds something that is still there although the call failed, e.g. `still mounted at /a/b`.
    #[must_use]
    pub fn with_residue(mut self, residue: impl Into<String>) -> Self {
        self.residue.push(residue.into());
        self
    }

    /// Returns the code, for programs that branch on it.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Returns what an undo could not remove; empty if everything is as it was before.
    pub fn residue(&self) -> &[String] {
        &self.residue
    }

    /// Returns the whole text for people and the pod's Event: one line, printable, at most
    /// [`MESSAGE_LIMIT`] bytes.
    pub fn message(&self) -> String {
        let text = if self.residue.is_empty() {
            Cow::from(&self.message)
        } else {
            format!("{}; left behind: {}", self.message, self.residue.join(", ")).into()
        };
        one_line(&text, MESSAGE_LIMIT)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

impl Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_one_bounded_printable_line() {
        let failure = Failure::options(format!("first\nsecond\u{7}{}", "ä".repeat(2000)));
        let message = failure.message();
        assert!(message.starts_with("first; second?ä"), "{message}");
        assert!(message.len() <= MESSAGE_LIMIT && message.ends_with('…'));
    }

    #[test]
    fn residue_is_named() {
        let failure = Failure::new(Code::Busy, "unmount failed").with_residue("still mounted at /a");
        assert_eq!(failure.message(), "unmount failed; left behind: still mounted at /a");
    }
}
