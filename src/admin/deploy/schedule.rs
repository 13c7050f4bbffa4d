//! Schedule of one driver: when it is checked again.
//!
//! At rest, only a change triggers a check. The check follows a moment later, so that another
//! program can finish replacing a directory; and at most once a second, so that many changes cost
//! little. A driver that needs a fix again and again is fixed less and less often, down to once a
//! minute: then another program keeps the same driver in another form, and kubelet must not run
//! `init` for that all the time. A driver that cannot be put in place is retried with the same
//! backoff.

use flexvol_protocol::backoff;
use std::time::{Duration, Instant};

/// Delay between the first of several changes and the check.
const SETTLE: Duration = Duration::from_millis(50);

/// Pause between two checks, and the first pause of the backoff.
const PAUSE: Duration = Duration::from_secs(1);

/// Longest pause of the backoff.
const LONGEST: Duration = Duration::from_mins(1);

/// Time without a fix after which the backoff starts again from the beginning.
const CALM: Duration = Duration::from_mins(5);

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The driver was in place.
    Well,
    /// The driver had to be put in place, and is now.
    Fixed,
    /// The driver is not in place.
    Failed,
}

/// Time of the next check of one driver.
#[derive(Debug)]
pub struct Schedule {
    due: Option<Instant>,
    not_before: Instant,
    /// Number of fixes in a row, and the time of the last one.
    fixed: (u32, Option<Instant>),
    /// Number of failures in a row.
    failed: u32,
}

impl Schedule {
    /// Makes a schedule that is due at once.
    pub fn new(now: Instant) -> Self {
        Self { due: Some(now), not_before: now, fixed: (0, None), failed: 0 }
    }

    /// Returns the time of the next check; `None` if only a change triggers one.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Notes that something about the driver has changed.
    pub fn changed(&mut self, now: Instant) {
        let look = self.not_before.max(now + SETTLE);
        // A change also ends the wait for the retry of a failure.
        self.due = Some(self.due.map_or(look, |due| due.min(look)));
    }

    /// Notes the result of a check.
    pub fn ended(&mut self, now: Instant, ended: Ended) {
        let (count, last) = self.fixed;
        self.failed = if ended == Ended::Failed { self.failed + 1 } else { 0 };
        if ended == Ended::Fixed {
            let calm = last.is_none_or(|last| now.saturating_duration_since(last) > CALM);
            self.fixed = (if calm { 1 } else { count + 1 }, Some(now));
        }
        let pause = if ended == Ended::Fixed { doubled(self.fixed.0) } else { PAUSE };
        // A check in between, successful or failed, does not shorten the pause after a fix.
        self.not_before = (now + pause).max(if ended == Ended::Fixed { now } else { self.not_before });
        self.due = (ended == Ended::Failed).then(|| now + doubled(self.failed));
    }
}

/// Returns the pause after the first, second, third time.
fn doubled(count: u32) -> Duration {
    backoff(PAUSE, LONGEST, count.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(duration: Duration) -> f64 {
        duration.as_secs_f64()
    }

    /// Simulates permanent changes, where each check ends as `ended`. Returns the time of each
    /// check, in seconds after the first.
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
