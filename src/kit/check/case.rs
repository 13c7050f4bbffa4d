//! Cases, as data.

use super::answer::Answer;
use super::evidence::{Evidence, Played};
use super::facts::Facts;
use super::left::Left;
use super::subject::Subject;
use clap::ValueEnum;
use flexvol_protocol::VerbSet;
use serde::Serialize;
use std::fmt;

/// Importance of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// Required by a kubelet that exists: the case cites a run of one.
    Must,
    /// Robustness that users benefit from.
    Should,
    /// Robustness against input that no kubelet sends, but other callers may.
    Harden,
}

impl Level {
    /// All levels, the most severe first.
    pub const ALL: [Self; 3] = [Self::Must, Self::Should, Self::Harden];
}

/// Drivers that a case is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Every driver; needs no volume.
    All,
    /// Drivers with a volume to mount.
    Volume,
    /// Drivers that attach: their `init` says so, or leaves it to kubelet's default.
    Attach,
    /// Drivers that leave a process running for each mount.
    Daemon,
    /// Drivers that have `expandfs`.
    Expand,
    /// Drivers with a volume to mount that gets secrets.
    Secrets,
}

/// One requirement that must hold.
#[derive(Debug)]
pub struct Case {
    /// `group::name`.
    pub id: &'static str,
    /// Importance of the case.
    pub level: Level,
    /// Drivers that the case is for.
    pub scope: Scope,
    /// Verbs that the driver must have. There is nothing to check if it leaves one to kubelet.
    pub needs: VerbSet,
    /// Points of CONFORMANCE.md that the case covers.
    pub items: Vec<u8>,
    /// Statement that is true for a driver that passes; one line.
    pub claim: &'static str,
    /// Behaviour of kubelet that makes it matter; one line, with the source file if there is one.
    pub reason: &'static str,
    /// Fix for a failure, unless the [`Evidence`] has a better one; one line.
    pub fix: &'static str,
    /// Case of `tests/cluster` in which a kubelet made this case a must; `None` for other levels.
    pub run: Option<&'static str>,
    /// Method of the check.
    pub how: How,
}

/// Id of a case, and the method to check it.
pub(super) type Scene = (&'static str, How);

/// Method to check a case.
#[derive(Clone, Copy, Debug)]
pub enum How {
    /// Plays a scene in a sandbox of its own.
    Played(fn(&mut Subject<'_>) -> Played),
    /// Checks each played case. Returns the problems, or `None` if there was nothing to check.
    Watched(fn(&Seen<'_>) -> Option<Vec<Evidence>>),
}

/// Input of a watched case: one played case, after its end.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The played case.
    pub case: &'a Case,
    /// Calls of the case, in order.
    pub answers: &'a [Answer],
    /// Facts about the driver.
    pub facts: &'a Facts,
    /// Leftovers of the case; `None` if it did not end well, and so could not clean up.
    pub left: Option<&'a Left>,
}

impl Seen<'_> {
    /// Checks each call that was not disturbed; returns `None` if there was no such call.
    pub fn calls(&self, look: impl Fn(&Answer) -> Option<Evidence>) -> Option<Vec<Evidence>> {
        self.calls_that(|_| true, look)
    }

    /// Checks each wanted call that was not disturbed; returns `None` if there was no such call.
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

impl Case {
    /// Returns the part of the id before `::`.
    pub fn group(&self) -> &'static str {
        self.id.split("::").next().unwrap_or(self.id)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        named(self, f)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        named(self, f)
    }
}

fn named(value: &impl ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    value.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
}

/// Reports whether a pattern matches an id; `*` stands for any text.
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
    fn each_must_cites_a_run_and_nothing_else_does() {
        for case in Case::all() {
            assert_eq!(case.run.is_some(), case.level == Level::Must, "{}", case.id);
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
