//! Selection of the cases of a run.

use super::case::{Case, How, Level, matching};
use std::collections::BTreeSet;

/// Cases of one run.
#[derive(Clone, Debug)]
pub struct Chosen {
    /// Cases to report, in the order of the table.
    pub reported: Vec<&'static Case>,
    /// Cases to play: everything that can be watched, if a watched case is selected.
    pub played: Vec<&'static Case>,
    /// Lowest level whose failures decide the exit status.
    pub decides: Level,
}

impl Chosen {
    /// Selects the cases that match any of the patterns, or all cases if there is no pattern.
    /// With a level, only cases up to that level are selected, and all of them decide. Without one,
    /// the musts decide. An error names a pattern that matches no case.
    pub fn new(patterns: &[String], level: Option<Level>) -> Result<Self, String> {
        let of_level = || Case::all().filter(move |case| level.is_none_or(|level| case.level <= level));
        let mut meant = BTreeSet::new();
        for pattern in patterns {
            let ids: Vec<_> = Case::all().map(|case| case.id).filter(|id| matching(pattern, id)).collect();
            if ids.is_empty() {
                return Err(pattern.clone());
            }
            meant.extend(ids);
        }
        let reported: Vec<_> =
            of_level().filter(|case| patterns.is_empty() || meant.contains(case.id)).collect();
        let watches = reported.iter().any(|case| matches!(case.how, How::Watched(_)));
        let is_played = |case: &&'static Case| matches!(case.how, How::Played(_));
        let played = if watches {
            of_level().filter(is_played).collect()
        } else {
            reported.iter().copied().filter(is_played).collect()
        };
        Ok(Self { reported, played, decides: level.unwrap_or(Level::Must) })
    }

    /// Reports whether a case is selected for the report.
    pub fn reports(&self, id: &str) -> bool {
        self.reported.iter().any(|case| case.id == id)
    }

    /// Adds cases to the report. Returns those of them that are new and still have to be played.
    pub(super) fn add(&mut self, cases: &[&'static Case]) -> Vec<&'static Case> {
        let is_new = |case: &&'static Case| cases.iter().any(|other| other.id == case.id);
        let new: Vec<_> = Case::all().filter(is_new).filter(|case| !self.reports(case.id)).collect();
        let reported = std::mem::take(&mut self.reported);
        let all = reported.iter().chain(&new);
        let ids: BTreeSet<_> = all.map(|case| case.id).collect();
        self.reported = Case::all().filter(|case| ids.contains(case.id)).collect();
        let unplayed = |case: &&'static Case| self.played.iter().all(|other| other.id != case.id);
        let to_play: Vec<_> = new.into_iter().filter(unplayed).collect();
        self.played.extend(&to_play);
        to_play
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_as_far_as_cases_go_and_what_decides() {
        let up_to = |level| {
            let chosen = Chosen::new(&[], level).unwrap();
            let lowest = chosen.reported.iter().map(|case| case.level).max().unwrap();
            (lowest, chosen.decides)
        };
        for level in Level::ALL {
            assert_eq!(up_to(Some(level)), (level, level));
        }
        assert_eq!(up_to(None), (Level::Harden, Level::Must));
    }

    #[test]
    fn a_pattern_that_means_nothing_is_named() {
        let patterns = ["mount::*".to_owned(), "nothing::*".to_owned()];
        assert_eq!(Chosen::new(&patterns, None).unwrap_err(), "nothing::*");
    }

    #[test]
    fn to_watch_is_to_play_everything() {
        let watched = Chosen::new(&["output::one_object".to_owned()], None).unwrap();
        assert_eq!(
            (watched.reported.len(), watched.played.len()),
            (1, Chosen::new(&[], None).unwrap().played.len())
        );
        let played = Chosen::new(&["mount::twice".to_owned()], None).unwrap();
        assert_eq!((played.reported.len(), played.played.len()), (1, 1));
    }
}
