//! What went wrong, in the one form the rest of the world sees.
//!
//! Inside, code that touches the OS returns [`anyhow::Result`] and adds context (`mount tmpfs on /a/b`). Pure
//! code returns [`Result`] with a [`Failure`] made on the spot. At the edge everything becomes a `Failure`: a
//! [`Code`] for whoever branches on it (exit status of the admin commands, later gRPC status), one line of
//! text for people and the pod's Event, and the residue an undo could not remove.
//!
//! Texts are one line, lower case, without a full stop, and name the next step. They never hold a secret: who
//! builds one from a helper's output passes it through [`crate::secret::Redactor`] first.

use rustix::io::Errno;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::io;

/// `Result` of pure code.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// The longest message a reply carries, in bytes: it becomes a pod Event, which people read in a terminal.
pub const MESSAGE_LIMIT: usize = 1024;

/// Why a call failed, for whoever has to branch on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The arguments are not those of the verb: kubelet never sends such a call.
    BadCall,
    /// The volume's options are wrong: only an edit of the PV or pod mends it.
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

/// A failed call: code, message, and what could not be undone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    code: Code,
    message: String,
    residue: Vec<String>,
}

impl Failure {
    /// A failure with a message in house style (one line, lower case, the next step in it).
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), residue: Vec::new() }
    }

    /// The volume's options are wrong.
    pub fn options(message: impl Into<String>) -> Self {
        Self::new(Code::BadOptions, message)
    }

    /// The arguments are not those of the verb.
    pub fn call(message: impl Into<String>) -> Self {
        Self::new(Code::BadCall, message)
    }

    /// Adds something that is still there although the call failed, e.g. `still mounted at /a/b`.
    #[must_use]
    pub fn with_residue(mut self, residue: impl Into<String>) -> Self {
        self.residue.push(residue.into());
        self
    }

    /// The error of something that was then taken back. If that failed, too, `what` is still there.
    pub fn after(error: anyhow::Error, undone: anyhow::Result<()>, what: impl fmt::Display) -> anyhow::Error {
        match undone {
            Ok(()) => error,
            Err(left) => Self::from(error).with_residue(format!("{what} ({left:#})")).into(),
        }
    }

    /// For whoever branches on it.
    pub fn code(&self) -> Code {
        self.code
    }

    /// What an undo could not remove; empty when the world is as it was.
    pub fn residue(&self) -> &[String] {
        &self.residue
    }

    /// The whole text as people and the pod's Event see it: one line, printable, at most [`MESSAGE_LIMIT`]
    /// bytes.
    pub fn message(&self) -> String {
        let text = if self.residue.is_empty() {
            Cow::from(&self.message)
        } else {
            format!("{}; left behind: {}", self.message, self.residue.join(", ")).into()
        };
        one_line(&text, MESSAGE_LIMIT)
    }
}

/// Whether a terminal does something with a character instead of showing it: control characters, and those of Unicode that
/// turn or hide what stands beside them (General Category Cf, U+202E among them, and the separators of lines).
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}' | '\u{8e2}'
            | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}' | '\u{13430}'..='\u{1343f}'
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e007f}')
}

/// `text` as one printable line of at most `limit` bytes: line breaks become `; `, what is [unprintable](is_unprintable) `?`.
pub fn one_line(text: &str, limit: usize) -> String {
    let joined = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("; ");
    let mut line: String = joined.chars().map(|c| if is_unprintable(c) { '?' } else { c }).collect();
    if line.len() > limit {
        line.truncate(line.floor_char_boundary(limit.saturating_sub('…'.len_utf8())));
        line.push('…');
    }
    line
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())
    }
}

impl Error for Failure {}

impl From<anyhow::Error> for Failure {
    /// Finds the code in the chain: a `Failure` made further down keeps its own, an errno gets the obvious
    /// one.
    fn from(error: anyhow::Error) -> Self {
        let message = format!("{error:#}");
        match error.downcast_ref::<Self>() {
            Some(inner) => Self { code: inner.code, message, residue: Vec::new() },
            None => Self::new(errno_of(&error).map_or(Code::Internal, code_of), message),
        }
    }
}

/// The kernel's number, if one of the causes is one, in whatever library's words: for those who go by what went wrong.
pub(crate) fn errno_of(error: &anyhow::Error) -> Option<Errno> {
    let number = |cause: &(dyn Error + 'static)| {
        cause
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
            .or_else(|| cause.downcast_ref::<nix::Error>().map(|errno| *errno as i32))
            .or_else(|| cause.downcast_ref::<Errno>().map(|errno| errno.raw_os_error()))
    };
    error.chain().find_map(number).map(Errno::from_raw_os_error)
}

fn code_of(errno: Errno) -> Code {
    match errno {
        Errno::NOENT | Errno::NXIO | Errno::NODEV => Code::NotFound,
        Errno::BUSY => Code::Busy,
        Errno::ACCESS | Errno::PERM | Errno::ROFS => Code::Denied,
        Errno::TIMEDOUT => Code::Timeout,
        _ => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn nothing_that_turns_text_around_is_shown() {
        for c in [
            '\u{202e}',
            '\u{2066}',
            '\u{200b}',
            '\u{feff}',
            '\u{e0041}',
            '\u{2028}',
            '\u{ad}',
            '\u{85}',
            '\x1b',
        ] {
            let line = one_line(&format!("pod-{c}a"), usize::MAX);
            assert_eq!(line, "pod-?a", "{}", c.escape_unicode());
        }
        assert_eq!(one_line("größe ü 名 🦀", usize::MAX), "größe ü 名 🦀");
    }

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

    #[test]
    fn what_could_not_be_taken_back_is_named() {
        let failed = || anyhow::Error::from(Failure::new(Code::Busy, "attach failed"));
        assert_eq!(Failure::after(failed(), Ok(()), "a device").to_string(), "attach failed");
        let left = Failure::from(Failure::after(failed(), Err(anyhow::anyhow!("it hangs")), "a device"));
        assert_eq!(left.code(), Code::Busy);
        assert_eq!(left.message(), "attach failed; left behind: a device (it hangs)");
    }

    #[test]
    fn code_survives_context() {
        let inner: anyhow::Result<()> = Err(Failure::new(Code::Conflict, "in use").into());
        let outer = Failure::from(inner.context("mount /a").unwrap_err());
        assert_eq!((outer.code(), outer.message().as_str()), (Code::Conflict, "mount /a: in use"));
        let errno: anyhow::Result<()> = Err(nix::Error::EBUSY).context("umount /a");
        assert_eq!(Failure::from(errno.unwrap_err()).code(), Code::Busy);
    }
}
