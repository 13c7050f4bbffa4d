//! The cases, as data.

use super::answer::Answer;
use super::evidence::{Evidence, Played};
use super::facts::Facts;
use super::left::Left;
use super::subject::Subject;
use flexvol_protocol::VerbSet;
use serde::Serialize;
use std::fmt;

/// How much a case matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A kubelet that exists makes it so: a run of one is cited ([`Case::run`]).
    Must,
    /// Robustness that users gain from.
    Should,
    /// No kubelet sends it; other callers may.
    Harden,
}

impl Level {
    /// All of them, the gravest first.
    pub const ALL: [Self; 3] = [Self::Must, Self::Should, Self::Harden];
}

/// Which drivers a case is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Every driver; needs no volume.
    All,
    /// With a volume to mount.
    Volume,
    /// Whose `init` says, or leaves to kubelet's default, that it attaches.
    Attach,
    /// That leave a process running for each mount.
    Daemon,
    /// That have `expandfs`.
    Expand,
    /// With a volume to mount, which gets secrets.
    Secrets,
}

/// One thing that must hold.
#[derive(Debug)]
pub struct Case {
    /// `group::name`.
    pub id: &'static str,
    /// How much it matters.
    pub level: Level,
    /// Which drivers it is for.
    pub scope: Scope,
    /// Verbs the driver must have; of one that leaves them to kubelet there is nothing to check.
    pub needs: VerbSet,
    /// The points of CONFORMANCE.md it covers.
    pub items: &'static [u8],
    /// What holds of a driver that passes; one line.
    pub claim: &'static str,
    /// What kubelet does that makes it matter; one line, with the source file where there is one.
    pub reason: &'static str,
    /// What to do about a failure, unless the [`Evidence`] knows better; one line.
    pub fix: &'static str,
    /// How it is found out.
    pub how: How,
}

/// How a case is found out.
#[derive(Clone, Copy)]
pub enum How {
    /// A scene is played in a sandbox of its own.
    Played(fn(&mut Subject<'_>) -> Played),
    /// Looked for in every played case. `None` if there was nothing to look at, else what is wrong.
    Watched(fn(&Seen<'_>) -> Option<Vec<Evidence>>),
}

/// What a watched case looks at: one played case, after its end.
#[derive(Debug)]
pub struct Seen<'a> {
    /// Which.
    pub case: &'a Case,
    /// Its calls, in order.
    pub answers: &'a [Answer],
    /// What is known of the driver.
    pub facts: &'a Facts,
    /// What it left behind; `None` if it did not come to its good end, and so could not clean up.
    pub left: Option<&'a Left>,
}

impl Seen<'_> {
    /// Looks at each call that was not disturbed; `None` if there was none.
    pub fn calls(&self, look: impl Fn(&Answer) -> Option<Evidence>) -> Option<Vec<Evidence>> {
        self.calls_that(|_| true, look)
    }

    /// Looks at each call of a kind that was not disturbed; `None` if there was none.
    pub fn calls_that(
        &self,
        wanted: impl Fn(&Answer) -> bool,
        look: impl Fn(&Answer) -> Option<Evidence>,
    ) -> Option<Vec<Evidence>> {
        let mut calls = self.answers.iter().filter(|answer| !answer.disturbed && wanted(answer)).peekable();
        calls.peek()?;
        Some(calls.filter_map(look).collect())
    }
}

impl fmt::Debug for How {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Played(_) => "Played",
            Self::Watched(_) => "Watched",
        })
    }
}

impl Case {
    /// The same, at another level.
    #[must_use]
    pub(super) const fn at(self, level: Level) -> Self {
        Self { level, ..self }
    }

    /// The part of the id before `::`.
    pub fn group(&self) -> &'static str {
        self.id.split("::").next().unwrap_or(self.id)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Must => "must",
            Self::Should => "should",
            Self::Harden => "harden",
        })
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "all",
            Self::Volume => "volume",
            Self::Attach => "attach",
            Self::Daemon => "daemon",
            Self::Expand => "expand",
            Self::Secrets => "secrets",
        })
    }
}

/// Whether an id is meant by a pattern, in which `*` stands for anything.
pub fn matching(pattern: &str, id: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == id };
    let Some(id) = id.strip_prefix(start) else { return false };
    id.char_indices().map(|(at, _)| at).chain([id.len()]).any(|at| matching(rest, &id[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ids_are_unique_and_have_a_group() {
        let mut ids = BTreeSet::new();
        for case in Case::all() {
            assert!(ids.insert(case.id), "{} is there twice", case.id);
            let (group, name) = case.id.split_once("::").unwrap();
            let plain = |text: &str| {
                text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
            };
            assert!(plain(group) && plain(name) && !name.is_empty(), "{}", case.id);
        }
    }

    #[test]
    fn every_case_says_what_and_why_and_how_to_fix_it() {
        for case in Case::all() {
            for text in [case.claim, case.reason, case.fix] {
                assert!(
                    text.len() > 10 && !text.ends_with('.') && !text.contains('\n'),
                    "{}: {text}",
                    case.id
                );
                assert!(text.len() <= 160, "{}: {} characters: {text}", case.id, text.len());
            }
            assert!(
                !case.items.is_empty() && case.items.iter().all(|item| (1..=143).contains(item)),
                "{}",
                case.id
            );
        }
    }

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, id, meant) in [
            ("mount::*", "mount::twice", true),
            ("mount::*", "unmount::twice", false),
            ("*::twice", "mount::twice", true),
            ("*", "a", true),
            ("a*b*", "axxb", true),
            ("a*b", "axxbc", false),
            ("a", "ab", false),
        ] {
            assert_eq!(matching(pattern, id), meant, "{pattern} {id}");
        }
    }
}
