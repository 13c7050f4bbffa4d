//! Cases, one file for each group.

mod attach;
mod crash;
mod daemon;
mod environment;
mod expand;
mod init;
mod install;
mod left;
mod log;
mod mount;
mod nature;
mod options;
mod output;
mod secrets;
mod sequence;
mod storm;
mod unmount;
mod verbs;

use super::case::{Case, Level, Scene, Scope};
use clap::ValueEnum as _;
use flexvol_protocol::{Verb, VerbSet};
use std::sync::LazyLock;

/// All cases, group by group, in the order in which they are reported. A case is a line with its
/// id, its level, its scope and its points of CONFORMANCE.md, and below it a line for each text.
const TEXT: &str = include_str!("../cases.txt");

static CASES: LazyLock<Vec<Case>> = LazyLock::new(|| TEXT.split("\n\n").filter_map(read).collect());

static SCENES: &[&[Scene]] = &[
    output::SCENES,
    output::played::SCENES,
    init::SCENES,
    verbs::SCENES,
    environment::SCENES,
    options::SCENES,
    mount::SCENES,
    crash::SCENES,
    unmount::SCENES,
    nature::SCENES,
    secrets::SCENES,
    log::SCENES,
    attach::SCENES,
    attach::device::SCENES,
    attach::disk::SCENES,
    expand::SCENES,
    install::SCENES,
    install::executable::SCENES,
    storm::SCENES,
    daemon::SCENES,
    sequence::SCENES,
    sequence::node::SCENES,
    left::SCENES,
];

/// Reads a case. Returns `None` if anything is missing or unknown.
fn read(case: &'static str) -> Option<Case> {
    let (first, rest) = case.split_once('\n')?;
    let [id, level, scope, items] = first.split(' ').collect::<Vec<_>>().try_into().ok()?;
    let texts: Vec<_> = rest.lines().filter_map(|line| line.trim_start().split_once(' ')).collect();
    let text = |key| texts.iter().find(|(name, _)| *name == key).map(|(_, text)| text.trim_start());
    let verbs = text("needs").unwrap_or_default().split_whitespace();
    let needs: Option<Vec<_>> = verbs.map(|verb| Verb::parse(verb.as_ref())).collect();
    Some(Case {
        id,
        level: Level::from_str(level, false).ok()?,
        scope: Scope::from_str(scope, false).ok()?,
        needs: VerbSet::of(&needs?),
        items: items.split(',').map(|item| item.parse().ok()).collect::<Option<_>>()?,
        claim: text("claim")?,
        reason: text("reason")?,
        fix: text("fix")?,
        run: text("run"),
        how: SCENES.iter().copied().flatten().find(|(name, _)| *name == id)?.1,
    })
}

impl Case {
    /// Returns all cases.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        CASES.iter()
    }

    /// Returns the case with that id.
    pub fn named(id: &str) -> Option<&'static Self> {
        Self::all().find(|case| case.id == id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_read_and_every_scene_is_of_a_case() {
        for text in TEXT.split("\n\n") {
            assert!(read(text).is_some(), "{text}");
        }
        assert_eq!(Case::all().count(), SCENES.iter().copied().flatten().count());
    }
}
