//! Time limits that also hold on a busy machine.
//!
//! A limit is the time that a call may take if it has the machine to itself. On a busy machine the
//! same call waits for a CPU most of the time, which is not the driver's fault. So an exceeded
//! limit is judged by the [`Pace`] of the machine: the time that a little work takes now, compared
//! with the CPU time that it needs. The two are equal on an idle machine, however slow, so its
//! usual speed need not be known. The kernel adds the share of time since the last measurement that
//! was lost to disks and to lack of memory (`/proc/pressure`), because that may be over by now.
//!
//! ```text
//! 0 ───────────── limit ─────────────────── limit × pace ─────────────▶ time taken
//!     in time       idle: late
//!                   busy: not judged            busy: late
//! ```
//!
//! * [`is_late`] judges a measured time. A case without a verdict ends as skipped
//!   ([`Stopped::busy`]), and is played again, alone, after the others.
//! * A [`Deadline`] limits the wait for something to end. It moves away while the machine is busy.
//! * A call that may hang has a [generous](Pace::generous) limit. If the machine has become even
//!   slower meanwhile, the call is [unclear](super::Answer::unclear).
//!
//! No limit grows more than [`MOST`] times, so a driver that hangs is found on every machine.

use super::evidence::Stopped;
use nix::time::{ClockId, clock_gettime};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// CPU time that a measurement needs: several time slices of the scheduler.
const WORK: Duration = Duration::from_millis(10);

/// Pace from which the machine counts as busy. Below it, the limits have enough reserve.
const BUSY: f64 = 2.0;

/// Limit for the factor by which a limit grows.
const MOST: f64 = 20.0;

/// Age up to which a measurement counts as recent.
const RECENT: Duration = Duration::from_secs(1);

/// Limit for the share of time that counts as lost to disks and memory: others may have lost it.
const MOST_LOST: f64 = 0.8;

/// Last measurement of this process, or of the one it was forked from.
static LAST: Mutex<Option<Measurement>> = Mutex::new(None);

/// Time and result of a measurement, and the total time lost up to then.
#[derive(Clone, Copy)]
struct Measurement {
    at: Instant,
    pace: Pace,
    lost: Duration,
}

/// Factor by which everything takes longer than on an idle machine; 1 on an idle one.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Pace(f64);

/// Judgement of a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    InTime,
    Late,
    /// The machine was busy, which may be the cause.
    Unclear,
}

/// Two clocks with any starting points.
trait Clock {
    fn wall(&mut self) -> Duration;
    /// Returns the CPU time of the calling thread.
    fn cpu(&mut self) -> Duration;
}

/// Clocks of the kernel. If it has none, no time passes, and the machine counts as idle.
struct Kernel;

impl Clock for Kernel {
    fn wall(&mut self) -> Duration {
        clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from)
    }

    fn cpu(&mut self) -> Duration {
        clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::MAX, Duration::from)
    }
}

impl Pace {
    /// Does a little work and measures how long it takes.
    fn measured(clock: &mut dyn Clock) -> Self {
        let (wall, cpu) = (clock.wall(), clock.cpu());
        let mut worked = Duration::ZERO;
        while worked < WORK {
            let now = clock.cpu();
            worked = if now == Duration::MAX { WORK } else { now.saturating_sub(cpu) };
        }
        let took = clock.wall().saturating_sub(wall);
        Self(took.as_secs_f64() / worked.as_secs_f64()).at_least(Self(1.0))
    }

    /// Measures the pace now.
    pub(super) fn now() -> Self {
        Self::known(Duration::ZERO)
    }

    /// Returns the pace of a moment ago, if a thread measured it; otherwise measures it now.
    pub(super) fn recent() -> Self {
        Self::known(RECENT)
    }

    /// Returns the slower pace of a moment ago and now: the judged call may have waited with
    /// others.
    fn slowest() -> Self {
        Self::recent().at_least(Self::now())
    }

    /// Measures if the last measurement is older than `age`.
    /// One thread measures at a time: several would only measure each other.
    fn known(age: Duration) -> Self {
        let mut kept = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(recent) = kept.filter(|before| before.at.elapsed() < age) {
            return recent.pace;
        }
        let (pace, lost) = (Self::measured(&mut Kernel), lost());
        let pace =
            kept.map_or(pace, |before| pace.with(lost.saturating_sub(before.lost), before.at.elapsed()));
        *kept = Some(Measurement { at: Instant::now(), pace, lost });
        pace
    }

    /// Adds the time lost to disks and memory: `lost` out of `of`.
    fn with(self, lost: Duration, of: Duration) -> Self {
        let share = (lost.as_secs_f64() / of.as_secs_f64().max(f64::MIN_POSITIVE)).min(MOST_LOST);
        Self(self.0 / (1.0 - share))
    }

    /// Returns the slower of two.
    #[must_use]
    pub(super) fn at_least(self, other: Self) -> Self {
        if other > self { other } else { self }
    }

    /// Scales the limit of an idle machine to this pace.
    pub(super) fn limit(self, limit: Duration) -> Duration {
        if self.0 < BUSY { limit } else { limit.mul_f64(self.0.min(MOST)) }
    }

    /// Scales the limit of a call that may hang, with a reserve: the machine may become slower
    /// meanwhile. Such a limit is seldom used up.
    pub(super) fn generous(self, limit: Duration) -> Duration {
        if self.0 < BUSY { limit } else { Self(self.0 * 2.0).limit(limit) }
    }

    /// Reports whether the [generous](Self::generous) limit, which is over now, was enough for
    /// every call that does not hang.
    pub(super) fn allows_to_hang(self, limit: Duration) -> bool {
        Self::slowest().judge(self.generous(limit), limit) != Judgement::Unclear
    }

    fn judge(self, took: Duration, limit: Duration) -> Judgement {
        match () {
            () if took <= limit => Judgement::InTime,
            () if took >= self.limit(limit) => Judgement::Late,
            () => Judgement::Unclear,
        }
    }
}

/// Returns how long processes have waited for disks or for memory since the machine started; zero
/// if the kernel does not count it.
fn lost() -> Duration {
    let of = |what: &str| {
        let text = std::fs::read_to_string(format!("/proc/pressure/{what}")).ok()?;
        total(&text)
    };
    of("io").unwrap_or_default().max(of("memory").unwrap_or_default())
}

/// Reads the total of the first line: `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
fn total(text: &str) -> Option<Duration> {
    let (_, total) = text.lines().next()?.rsplit_once("total=")?;
    total.parse().ok().map(Duration::from_micros)
}

/// Reports whether something that has ended took too long.
/// Fails if the machine is too busy to tell.
pub(super) fn is_late(took: Duration, limit: Duration) -> Result<bool, Stopped> {
    if took <= limit {
        return Ok(false);
    }
    match Pace::slowest().judge(took, limit) {
        Judgement::InTime => Ok(false),
        Judgement::Late => Ok(true),
        Judgement::Unclear => Err(Stopped::busy()),
    }
}

/// Deadline for something that should happen on its own.
#[derive(Debug)]
pub(super) struct Deadline {
    start: Instant,
    limit: Duration,
    pace: Pace,
}

impl Deadline {
    /// Creates a deadline that starts now.
    pub(super) fn new(limit: Duration) -> Self {
        Self { start: Instant::now(), limit, pace: Pace(1.0) }
    }

    /// Reports whether the deadline has passed, at the pace of the machine.
    /// Measures the pace only when it matters.
    pub(super) fn is_over(&mut self) -> bool {
        let limit = self.limit;
        self.passes(self.start.elapsed(), limit, Pace::now)
    }

    /// Does the same for a limit that has changed.
    pub(super) fn is_over_after(&mut self, limit: Duration) -> bool {
        self.passes(self.start.elapsed(), limit, Pace::now)
    }

    fn passes(&mut self, elapsed: Duration, limit: Duration, pace: impl FnOnce() -> Pace) -> bool {
        if elapsed < self.pace.limit(limit) {
            return false;
        }
        self.pace = self.pace.at_least(pace());
        elapsed >= self.pace.limit(limit)
    }
}

/// Returns the result of `work`, or `None` if that takes too long: looking at a volume may hang if
/// its server does not answer. The work then goes on until the sandbox ends.
pub(super) fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, Stopped> {
    let pace = Pace::recent();
    let (tell, told) = sync_channel(1);
    // The receiver may be gone.
    Builder::new().spawn(move || drop(tell.send(work())))?;
    match told.recv_timeout(pace.generous(patience)) {
        Ok(found) => Ok(Some(found)),
        Err(_) if pace.allows_to_hang(patience) => Ok(None),
        Err(_) => Err(Stopped::busy()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Clocks of a driver that gets one of `among` shares of the CPU; each look takes 0.1 ms.
    struct Shared {
        among: u32,
        wall: Duration,
        cpu: Duration,
    }

    impl Shared {
        fn look(&mut self) {
            let step = Duration::from_micros(100);
            self.cpu += step;
            self.wall += step * self.among;
        }
    }

    impl Clock for Shared {
        fn wall(&mut self) -> Duration {
            self.wall
        }

        fn cpu(&mut self) -> Duration {
            self.look();
            self.cpu
        }
    }

    fn pace(among: u32) -> Pace {
        Pace::measured(&mut Shared { among, wall: SECOND, cpu: SECOND })
    }

    #[test]
    fn the_pace_is_the_share_of_the_cpu() {
        assert!((1.0..1.1).contains(&pace(1).0), "{:?}", pace(1));
        assert!((8.0..8.2).contains(&pace(8).0), "{:?}", pace(8));
    }

    #[test]
    fn who_is_slow_on_a_busy_machine_is_not_judged_and_who_hangs_is() {
        for (among, tenths, expected) in [
            (1, 10, Judgement::InTime),
            (1, 11, Judgement::Late),
            (8, 10, Judgement::InTime),
            (8, 11, Judgement::Unclear),
            (8, 75, Judgement::Unclear),
            (8, 90, Judgement::Late),
            (500, 199, Judgement::Unclear),
            (500, 200, Judgement::Late),
        ] {
            let judged = pace(among).judge(SECOND * tenths / 10, SECOND);
            assert_eq!(judged, expected, "one of {among}, {tenths} tenths of a second");
        }
    }

    #[test]
    fn time_that_was_lost_to_disks_counts() {
        let file = "some avg10=9.00 avg60=1.00 avg300=0.00 total=750000\nfull avg10=0.00 total=5\n";
        let lost = total(file).unwrap();
        assert_eq!((lost, total("")), (SECOND * 3 / 4, None));
        assert_eq!(Pace(1.0).with(lost, SECOND), Pace(4.0));
        assert!(Pace(1.0).with(SECOND * 9, SECOND).0 < 6.0);
        assert_eq!(Pace(2.0).with(Duration::ZERO, Duration::ZERO), Pace(2.0));
    }

    #[test]
    fn a_call_has_time_to_hang_at_the_pace_of_before() {
        for among in [1, 2, 8, 500] {
            let allowed = pace(among).generous(SECOND);
            assert_ne!(pace(among).judge(allowed + SECOND / 100, SECOND), Judgement::Unclear, "{among}");
        }
        assert_eq!(pace(8).judge(pace(1).generous(SECOND) + SECOND / 100, SECOND), Judgement::Unclear);
    }

    #[test]
    fn a_deadline_moves_away_while_the_machine_is_busy() {
        let mut deadline = Deadline::new(SECOND);
        let unasked = || -> Pace { panic!("nothing to measure for yet") };
        assert!(!deadline.passes(SECOND / 2, SECOND, unasked));
        assert!(!deadline.passes(SECOND, SECOND, || pace(4)));
        assert!(!deadline.passes(SECOND * 3, SECOND, unasked));
        assert!(!deadline.passes(SECOND * 5, SECOND, || pace(8)));
        assert!(deadline.passes(SECOND * 9, SECOND, || pace(1)));
        assert!(Deadline::new(SECOND).passes(SECOND, SECOND, || pace(1)));
        assert!(Deadline::new(SECOND).passes(SECOND * 20, SECOND, || pace(500)));
    }
}
