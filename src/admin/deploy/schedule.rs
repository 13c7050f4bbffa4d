//! When a driver is looked at again.
//!
//! At rest there is nothing to wait for but a change. A change is looked at a moment later, so that
//! who replaces a directory can finish; at most once a second, so that a storm of changes costs
//! little. What had to be fixed again and again is fixed ever less often, up to once a minute: then
//! someone else keeps the same driver in another shape, and kubelet must not run `init` for that
//! all the time. What cannot be put in place is tried ever less often in the same way.

use std::time::{Duration, Instant};

/// From the first change of several to the look.
const SETTLE: Duration = Duration::from_millis(50);

/// Between two looks, and the first pause of those that double.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause.
const LONGEST: Duration = Duration::from_mins(1);

/// Undisturbed for so long, everything is as if nothing had been.
const CALM: Duration = Duration::from_mins(5);

/// How a look ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All was well.
    Well,
    /// It had to be put in place, and is now.
    Fixed,
    /// It is not in place.
    Failed,
}

/// When one driver is due.
#[derive(Debug)]
pub struct Schedule {
    due: Option<Instant>,
    not_before: Instant,
    /// How often in a row it was fixed, and when last.
    fixed: (u32, Option<Instant>),
    /// How often in a row it failed.
    failed: u32,
}

impl Schedule {
    /// Due at once.
    pub fn new(now: Instant) -> Self {
        Self { due: Some(now), not_before: now, fixed: (0, None), failed: 0 }
    }

    /// When to look; `None` if nothing is to be done until something changes.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Something about it has changed.
    pub fn changed(&mut self, now: Instant) {
        let look = self.not_before.max(now + SETTLE);
        // A failure that waits for its next try is looked at as soon as something changes.
        self.due = Some(self.due.map_or(look, |due| due.min(look)));
    }

    /// It has been looked at.
    pub fn ended(&mut self, now: Instant, ended: Ended) {
        let (count, last) = self.fixed;
        self.failed = if ended == Ended::Failed { self.failed + 1 } else { 0 };
        if ended == Ended::Fixed {
            let calm = last.is_none_or(|last| now.saturating_duration_since(last) > CALM);
            self.fixed = (if calm { 1 } else { count + 1 }, Some(now));
        }
        let pause = if ended == Ended::Fixed { doubled(self.fixed.0) } else { PAUSE };
        // What was fixed lately is not fixed sooner for having been well, or failed, in between.
        self.not_before = (now + pause).max(if ended == Ended::Fixed { now } else { self.not_before });
        self.due = (ended == Ended::Failed).then(|| now + doubled(self.failed));
    }
}

/// The pause after the first, second, third time.
fn doubled(count: u32) -> Duration {
    PAUSE.saturating_mul(1 << count.saturating_sub(1).min(16)).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(duration: Duration) -> f64 {
        duration.as_secs_f64()
    }

    /// Changes that come all the time: when each look ends as `ended`, in seconds after the first.
    fn under_fire(ended: Ended, looks: usize) -> Vec<f64> {
        let start = Instant::now();
        let (mut now, mut schedule) = (start, Schedule::new(start));
        let mut times = Vec::new();
        for _ in 0..looks {
            times.push(seconds(now - start));
            schedule.ended(now, ended);
            schedule.changed(now);
            now = schedule.due().unwrap();
        }
        times
    }

    #[test]
    fn at_rest_nothing_is_due() {
        let now = Instant::now();
        let mut schedule = Schedule::new(now);
        assert_eq!(schedule.due(), Some(now));
        schedule.ended(now, Ended::Well);
        assert_eq!(schedule.due(), None);
        schedule.changed(now + Duration::from_secs(9));
        assert_eq!(schedule.due(), Some(now + Duration::from_secs(9) + SETTLE));
        schedule.changed(now + Duration::from_secs(9) + SETTLE / 2);
        assert_eq!(schedule.due(), Some(now + Duration::from_secs(9) + SETTLE));
    }

    #[test]
    fn looks_are_a_second_apart_and_fixing_ever_further() {
        assert_eq!(under_fire(Ended::Well, 4), [0.0, 1.0, 2.0, 3.0]);
        assert_eq!(under_fire(Ended::Fixed, 9), [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0, 123.0, 183.0]);
    }

    #[test]
    fn a_failure_is_tried_again_by_itself_and_at_once_when_something_changes() {
        let start = Instant::now();
        let (mut now, mut schedule) = (start, Schedule::new(start));
        for expected in [1, 2, 4, 8, 16, 32, 60, 60] {
            schedule.ended(now, Ended::Failed);
            let due = schedule.due().unwrap();
            assert_eq!((due - now).as_secs(), expected);
            now = due;
        }
        schedule.ended(now, Ended::Failed);
        schedule.changed(now);
        assert_eq!(schedule.due(), Some(now + PAUSE));
        schedule.ended(now, Ended::Well);
        schedule.ended(now, Ended::Failed);
        assert_eq!(schedule.due(), Some(now + PAUSE));
    }

    #[test]
    fn a_look_in_between_does_not_shorten_the_pause() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        for _ in 0..5 {
            schedule.ended(start, Ended::Fixed);
        }
        schedule.changed(start);
        assert_eq!(schedule.due(), Some(start + Duration::from_secs(16)));
        schedule.ended(start, Ended::Well);
        schedule.changed(start);
        assert_eq!(schedule.due(), Some(start + Duration::from_secs(16)));
    }

    #[test]
    fn after_a_calm_everything_begins_anew() {
        let start = Instant::now();
        let mut schedule = Schedule::new(start);
        for _ in 0..8 {
            schedule.ended(start, Ended::Fixed);
        }
        let later = start + CALM + PAUSE;
        schedule.changed(later);
        assert_eq!(schedule.due(), Some(later + SETTLE));
        schedule.ended(later, Ended::Fixed);
        schedule.changed(later);
        assert_eq!(schedule.due(), Some(later + PAUSE));
    }
}
