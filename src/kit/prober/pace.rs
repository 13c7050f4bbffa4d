//! When a prober probes.

use super::behaviour::Behaviour;
use std::time::{Duration, Instant};

/// The clockwork, without a clock.
#[derive(Debug)]
pub(super) struct Pace {
    /// Of the design: not before this, but then at once. Of a kubelet: the next look-up.
    next: Instant,
    period: Duration,
    /// Look-ups come by the clock, and not because something changed.
    by_clock: bool,
}

impl Pace {
    /// The first probe may be at once.
    pub(super) fn new(behaviour: Behaviour, period: Duration, now: Instant) -> Self {
        let period = period.max(Duration::from_millis(1));
        Self { next: now, period, by_clock: behaviour != Behaviour::Design }
    }

    /// Something is to be probed, and nothing was: the look-ups until now found nothing to do.
    pub(super) fn rouse(&mut self, now: Instant) {
        if self.by_clock && self.next <= now {
            self.advance(now);
        }
    }

    /// How long until the next probe may be.
    pub(super) fn wait(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// A probe begins.
    pub(super) fn went(&mut self, now: Instant) {
        if self.by_clock {
            self.advance(now);
        } else {
            self.next = now + self.period;
        }
    }

    /// To the first look-up after now.
    fn advance(&mut self, now: Instant) {
        let missed = now.saturating_duration_since(self.next).as_nanos() / self.period.as_nanos();
        let missed = u32::try_from(missed + 1).unwrap_or(u32::MAX);
        self.next += self.period * missed;
    }
}
