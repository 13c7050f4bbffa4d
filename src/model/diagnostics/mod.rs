//! Causes and fixes of error texts.
//!
//! ```text
//! text of an Event, a log or a helper ─▶ wrapping: kubelet's operation, and the text inside
//!                                         │
//!                         known errors (data) ─▶ KnownError: cause, fix, next command
//! ```
//!
//! There is one table, [`known_errors::all`]. A [`KnownError`] is recognised by a number of the
//! kernel and the kind of share that reported it, or by words: of kubelet, or of the kernel and its
//! helpers. The executor and the runner of helpers put cause and fix into the
//! [`Failure`](flexvol_protocol::failure::Failure) itself, so a reader of the Event needs no other
//! document. `flexvol explain-error` and `doctor` analyse a text from any source.
//!
//! Pure: words in, words out. The result repeats only names of verbs, volumes and directories of a
//! text: an Event or a line of a log may hold a secret.
//!
//! ```
//! # use flexvol_model::diagnostics;
//! let text = r#"MountVolume.SetUp failed for volume "v" : mount command failed, status: Failure, reason: mount error(13): Permission denied"#;
//! let explained = diagnostics::explain(text).unwrap();
//! assert!(explained.did[0].contains("mount") && explained.known_error.cause.contains("user and password"));
//! ```

pub mod known_errors;
mod remarks;
mod vague;
mod wrapping;

pub use wrapping::Wrapped;

use flexvol_protocol::text::find_word;
use flexvol_protocol::{Argument, Verb, errno_words};
use known_errors::says_little;
use std::borrow::Cow;

/// One known error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownError {
    /// Name, which stays the same from release to release.
    pub id: &'static str,
    /// Sign by which it is recognised.
    pub sign: Sign,
    /// Cause of the error.
    pub cause: &'static str,
    /// Fix of the error.
    pub fix: &'static str,
    /// Command to run next.
    pub next: &'static str,
}

/// Sign by which a known error is recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Any of these texts in kubelet's words, in lower case. `…` stands for any text.
    Kubelet(&'static [&'static str]),
    /// Any of these texts in the words of the kernel and of helper programs, in the same form.
    Words(&'static [&'static str]),
    /// Any of these numbers of the kernel, from a share of one of these kinds.
    Number(&'static [Share], &'static [i32]),
}

/// Kind of share that reports a number. The same number has another meaning for each kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// cifs.
    Smb,
    /// nfs and nfs4.
    Nfs,
    /// ceph.
    Ceph,
}

impl Share {
    fn of(file_system: &str) -> Option<Self> {
        match file_system {
            "cifs" | "smb3" => Some(Self::Smb),
            "nfs" | "nfs4" => Some(Self::Nfs),
            "ceph" => Some(Self::Ceph),
            _ => None,
        }
    }

    /// Returns the kind that a text mentions. Only mount.cifs writes `mount error(13)`.
    fn named_in(text: &str) -> Option<Self> {
        let of = [
            (Self::Smb, &["mount error(", "cifs", "smb"][..]),
            (Self::Nfs, &["nfs", "showmount"]),
            (Self::Ceph, &["ceph", "mount error "]),
        ];
        of.into_iter().find(|(_, words)| words.iter().any(|word| text.contains(word))).map(|(share, _)| share)
    }
}

impl KnownError {
    /// Returns cause and fix, as they end a message.
    pub fn hint(&self) -> String {
        format!("{}: {}", self.cause, self.fix)
    }

    /// Reports whether a text in lower case has its sign.
    fn is_in(&self, text: &str) -> bool {
        match self.sign {
            Sign::Kubelet(patterns) | Sign::Words(patterns) => {
                text.lines().any(|line| patterns.iter().any(|it| holds(line, it)))
            }
            Sign::Number(shares, numbers) => text.lines().any(|line| {
                Share::named_in(line).is_some_and(|share| shares.contains(&share))
                    && number_in(line).is_some_and(|number| numbers.contains(&number))
            }),
        }
    }
}

/// Returns the meaning of the kernel's number when a share of this kind cannot be mounted.
pub fn of_share(file_system: &str, number: i32) -> Option<&'static KnownError> {
    let share = Share::of(file_system)?;
    known_errors::all().find(|known_error| {
        matches!(known_error.sign, Sign::Number(shares, numbers) if shares.contains(&share) && numbers.contains(&number))
    })
}

/// Returns the meaning of a helper program's last words; `None` if they are not known, or already
/// contain the cause.
pub fn of_helper(words: &str) -> Option<&'static KnownError> {
    let text = small(words);
    let known =
        |known_error: &&KnownError| !matches!(known_error.sign, Sign::Kubelet(_)) && known_error.is_in(&text);
    known_errors::all().find(known).filter(|known_error| !words.contains(known_error.cause))
}

/// Returns a helper program's last words, with cause and fix if they are known.
pub fn with_hint(words: String) -> String {
    match of_helper(&words) {
        Some(known_error) => format!("{words}: {}", known_error.hint()),
        None => words,
    }
}

/// Explanation of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explained {
    /// Operations of kubelet that led to the text, the first one first.
    pub did: Vec<String>,
    /// Verb of the failed call, if the text names it.
    pub verb: Option<Verb>,
    /// Confidence: the text names the cause, or only shows where to look.
    pub confidence: Confidence,
    /// Cause and fix.
    pub known_error: &'static KnownError,
}

/// Confidence of an explanation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confidence {
    /// The text names the cause.
    Cause,
    /// The text reports a failure, but not its cause.
    Hint,
}

impl Explained {
    /// Returns the command to run next. If it is a call by hand, it is the call that failed.
    pub fn next(&self) -> String {
        match self.verb.filter(|_| self.known_error.next == known_errors::CALL) {
            Some(verb) => by_hand(verb),
            None => self.known_error.next.to_owned(),
        }
    }
}

/// Returns the call of a verb, with placeholders for the values of the caller.
fn by_hand(verb: Verb) -> String {
    let word = |argument: &Argument| match argument {
        Argument::Options => "-o KEY=VALUE",
        Argument::Node => "NODE",
        Argument::Volume => "VOLUME",
        Argument::Device => "DEVICE",
        Argument::Target => "/mnt",
        Argument::NewBytes | Argument::OldBytes => "BYTES",
    };
    let words = [verb.name()].into_iter().chain(verb.spec().arguments.iter().map(word));
    known_errors::CALL.replace("init", &words.collect::<Vec<_>>().join(" "))
}

/// Explains the text of an Event, a line of kubelet's log, a driver's message or a helper's words;
/// `None` if nothing in it is known.
pub fn explain(text: &str) -> Option<Explained> {
    let causes = remarks::left_out(text);
    let Cow::Owned(causes) = causes else { return explained(text) };
    let is_cause = |explained: &Explained| explained.confidence == Confidence::Cause;
    // Beside another complaint, a remark is at most a hint.
    let hint = || explained(text).map(|whole| Explained { confidence: Confidence::Hint, ..whole });
    explained(&causes).filter(is_cause).or_else(hint)
}

fn explained(text: &str) -> Option<Explained> {
    let wrapped = Wrapped::of(text);
    // The innermost text says most. If it says little, another line may say more.
    let inside = known_error_of(wrapped.inside);
    let outside = || known_error_of(text).filter(|it| inside.is_none() || !says_little(it));
    let clear = inside.filter(|it| !says_little(it));
    let known_error = clear.or_else(outside).or(inside).or_else(|| wrapped.by_itself())?;
    let small = small(text);
    let is_certain = is_certain(known_error, &small) && is_alone(known_error, &small);
    let confidence = if is_certain { Confidence::Cause } else { Confidence::Hint };
    Some(Explained { did: wrapped.did, verb: wrapped.verb, confidence, known_error })
}

/// Returns the text in lower case, with glibc's words for errno, and single spaces where programs
/// align with several.
fn small(text: &str) -> String {
    let mut small = errno_words::translated(&text.to_lowercase());
    while small.contains("  ") {
        small = small.replace("  ", " ");
    }
    small
}

/// Finds the known error of a text. An error whose cause is in the text comes first: our own
/// drivers write it. Then the sign decides, certain errors before others, and then the order of the
/// table, which has the particular before the general.
fn known_error_of(text: &str) -> Option<&'static KnownError> {
    let small = small(text);
    let said = known_errors::all().find(|known_error| text.contains(known_error.cause));
    let signs = || known_errors::all().filter(|known_error| known_error.is_in(&small));
    said.or_else(|| signs().find(|known_error| is_certain(known_error, &small))).or_else(|| signs().next())
}

/// Reports whether no other line has the sign of another error. If one has, the text does not tell
/// which of the two is the cause.
fn is_alone(known_error: &KnownError, text: &str) -> bool {
    let lines = text.lines().filter(|line| !known_error.is_in(line));
    let others = || known_errors::all().filter(|other| is_certain(other, text));
    lines.into_iter().all(|line| !others().any(|other| other.is_in(line)))
}

/// Reports whether a text with its sign, in lower case, belongs to this error and to no other.
fn is_certain(known_error: &KnownError, text: &str) -> bool {
    !says_little(known_error) && !vague::is_vague(known_error, text)
}

/// Reports whether the pieces of a pattern are in the text in this order, and the first piece is
/// not in the middle of a word.
fn holds(text: &str, pattern: &str) -> bool {
    found(text, pattern).is_some()
}

/// Returns the start of a pattern in a text, if it is there.
fn found(text: &str, pattern: &str) -> Option<usize> {
    let mut pieces = pattern.split('…');
    let first = pieces.next()?;
    let at = find_word(text, first)?;
    let mut rest = &text[at + first.len()..];
    for piece in pieces {
        rest = rest.split_once(piece)?.1;
    }
    Some(at)
}

/// Returns the kernel's number in a text, in the notations of various programs.
fn number_in(text: &str) -> Option<i32> {
    let after = ["mount error(", "os error ", "mount error ", "errno ", "errno="];
    after.into_iter().find_map(|word| {
        let (_, rest) = text.split_once(word)?;
        let rest = rest.trim_start_matches(['=', ' ', '-']);
        rest[..rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len())].parse().ok()
    })
}

#[cfg(test)]
mod tests;
