//! Schedule of a prober's probes.

use super::behaviour::Behaviour;
use std::time::{Duration, Instant};

/// Schedule of probes; it has no clock of its own.
#[derive(Debug)]
pub(super) struct Pace {
    /// Design: earliest time of the next probe. Kubelet: time of the next look-up.
    next: Instant,
    period: Duration,
    /// True if look-ups come by the clock, and not because something changed.
    by_clock: bool,
}

impl Pace {
    /// Creates a schedule; the first probe may start at once.
    pub(super) fn new(behaviour: Behaviour, period: Duration, now: Instant) -> Self {
        let period = period.max(Duration::from_millis(1));
        Self { next: now, period, by_clock: behaviour != Behaviour::Design }
    }

    /// Notes that something is to be probed again: the look-ups until now found nothing to do.
    pub(super) fn rouse(&mut self, now: Instant) {
        if self.by_clock && self.next <= now {
            self.advance(now);
        }
    }

    /// Returns the time until the next probe may start.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// Notes that a probe begins.
    pub(super) fn went(&mut self, now: Instant) {
        if self.by_clock {
            self.advance(now);
        } else {
            self.next = now + self.period;
        }
    }

    /// Advances to the first look-up after now.
    fn advance(&mut self, now: Instant) {
        let missed = now.saturating_duration_since(self.next).as_nanos() / self.period.as_nanos();
        let missed = u32::try_from(missed + 1).unwrap_or(u32::MAX);
        self.next += self.period * missed;
    }
}
