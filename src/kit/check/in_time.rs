//! Limits of time that hold on a busy machine too.
//!
//! A limit is what a call may take where it has the machine to itself. On a busy machine the same
//! call waits for a CPU most of the time, and that is no fault of the driver. So a limit that is
//! exceeded is judged by the [`Pace`] of the machine: how long a little work takes now, against the
//! CPU time that it needs. The two are the same on an idle machine, however slow, so nobody has to
//! know what is usual on it. The kernel adds how much of the time since the last measurement was
//! lost to disks and to lack of memory (`/proc/pressure`), which may be over by now.
//!
//! ```text
//! 0 ───────────── limit ─────────────────── limit × slowness ─────────▶ time taken
//!     in time       calm: late
//!                   busy: not judged                busy: late
//! ```
//!
//! * What was measured is judged by [`is_late`]. A case that finds no verdict ends as skipped
//!   ([`Stopped::busy`]), and is played again, alone, when the others are through.
//! * Who waits for something to end has a [`Deadline`], which moves away while the machine is busy.
//! * A call that may hang has a [generous](Pace::generous) limit. If the machine has become even
//!   slower meanwhile, the call is [unclear](super::Answer::unclear).
//!
//! No limit grows more than [`MOST`] times: a driver that hangs is found on every machine.

use super::evidence::Stopped;
use nix::time::{ClockId, clock_gettime};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

/// The CPU time that a measurement needs: several slices of the scheduler.
const WORK: Duration = Duration::from_millis(10);

/// From here on the machine counts as busy. Below, the limits have enough to spare.
const BUSY: f64 = 2.0;

/// How many times a limit grows at most.
const MOST: f64 = 20.0;

/// How long a measurement stands for the present.
const RECENT: Duration = Duration::from_secs(1);

/// The share of the time that counts as lost to disks and memory at most: others may have lost it.
const MOST_LOST: f64 = 0.8;

/// The last measurement of this process, or of the one it was forked from.
static LAST: Mutex<Option<Measurement>> = Mutex::new(None);

/// When, what, and how much time had been lost up to then.
#[derive(Clone, Copy)]
struct Measurement {
    at: Instant,
    pace: Pace,
    lost: Duration,
}

/// How many times longer everything takes than with the machine to oneself; 1 on an idle one.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Pace(f64);

/// What is known of something that took so long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    InTime,
    Late,
    /// The machine was busy, which may be why.
    Unclear,
}

/// Two clocks that start anywhere.
trait Clock {
    fn wall(&mut self) -> Duration;
    /// Of the calling thread.
    fn cpu(&mut self) -> Duration;
}

/// Those of the kernel. Where it has none, no time passes, and the machine counts as idle.
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
    /// Works a little and looks how long it takes.
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

    /// Measured now.
    pub(super) fn now() -> Self {
        Self::known(Duration::ZERO)
    }

    /// Measured a moment ago, by whoever did.
    pub(super) fn recent() -> Self {
        Self::known(RECENT)
    }

    /// Of a moment ago and now: whoever was measured for may have waited with others.
    fn slowest() -> Self {
        Self::recent().at_least(Self::now())
    }

    /// One thread measures; the others would only see each other.
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

    /// Of a machine that has lost so much of the time.
    fn with(self, lost: Duration, of: Duration) -> Self {
        let share = (lost.as_secs_f64() / of.as_secs_f64().max(f64::MIN_POSITIVE)).min(MOST_LOST);
        Self(self.0 / (1.0 - share))
    }

    /// The slower of two.
    #[must_use]
    pub(super) fn at_least(self, other: Self) -> Self {
        if other > self { other } else { self }
    }

    /// What takes as long at this pace as the limit with the machine to oneself.
    pub(super) fn limit(self, limit: Duration) -> Duration {
        if self.0 < BUSY { limit } else { limit.mul_f64(self.0.min(MOST)) }
    }

    /// The same for what may hang, and is seldom played to its end: the machine may become slower
    /// meanwhile.
    pub(super) fn generous(self, limit: Duration) -> Duration {
        if self.0 < BUSY { limit } else { Self(self.0 * 2.0).limit(limit) }
    }

    /// Whether the [generous](Self::generous) limit, now that it is over, was enough for all but
    /// what hangs.
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

/// How long processes have waited for disks or for memory since the machine started; nothing where
/// the kernel does not count it.
fn lost() -> Duration {
    let of = |what: &str| {
        let text = std::fs::read_to_string(format!("/proc/pressure/{what}")).ok()?;
        total(&text)
    };
    of("io").unwrap_or_default().max(of("memory").unwrap_or_default())
}

/// In the first line: `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`.
fn total(text: &str) -> Option<Duration> {
    let (_, total) = text.lines().next()?.rsplit_once("total=")?;
    total.parse().ok().map(Duration::from_micros)
}

/// Whether something that is over took too long; an error where that cannot be said, as the machine
/// is busy.
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

/// Until when to wait for what should happen by itself.
#[derive(Debug)]
pub(super) struct Deadline {
    start: Instant,
    limit: Duration,
    pace: Pace,
}

impl Deadline {
    /// From now on.
    pub(super) fn new(limit: Duration) -> Self {
        Self { start: Instant::now(), limit, pace: Pace(1.0) }
    }

    /// Whether it is over, at the pace of the machine. That is measured only when it matters.
    pub(super) fn is_over(&mut self) -> bool {
        let limit = self.limit;
        self.passes(self.start.elapsed(), limit, Pace::now)
    }

    /// The same of a limit that has changed.
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

/// What `work` returns, or `None` if that takes too long: looking at a volume whose server does not
/// answer may hang. Then it goes on until the sandbox ends.
pub(super) fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, Stopped> {
    let pace = Pace::recent();
    let (tell, told) = sync_channel(1);
    // The reader may be gone.
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

    /// The driver's share of the CPU is one of so many; each look takes a tenth of a millisecond.
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
