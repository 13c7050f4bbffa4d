//! One executable that speaks FlexVolume: a driver, or [what kubelet does without
//! one](super::by_kubelet).
//!
//! Executed as kubelet would, each call in a process and a group of its own, by a thread that waits
//! for it. It is stopped at the deadline of the call, with all of its group.

use super::codes;
use super::habits::Habits;
use super::locks::Guard;
use super::metrics::Calls;
use flexvol_kubelet::{Caller, Exchange, Verdict};
use flexvol_protocol::{Call, DriverStatus};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Status;

/// The longest that any call may take, whatever its caller allows: kubelet gives up after 120 s.
const LONGEST: Duration = Duration::from_secs(110);

/// What a call gets at least, however little its caller has left: rolling back takes a moment.
const SHORTEST: Duration = Duration::from_millis(500);

/// How long a call may take yet.
#[derive(Clone, Copy, Debug)]
pub struct Budget(Instant);

impl Budget {
    /// As much as the caller allows, and no more than a call may take.
    pub fn new(allowed: Option<Duration>) -> Self {
        Self(Instant::now() + allowed.unwrap_or(LONGEST).min(LONGEST))
    }

    /// What is left of it.
    pub fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now()).max(SHORTEST)
    }

    /// For undoing what a call that is out of time has begun.
    #[must_use]
    pub fn extended(self, by: Duration) -> Self {
        Self(self.0.max(Instant::now() + by))
    }
}

/// What a program answers that did not fail.
#[derive(Debug)]
pub enum Answer {
    /// It has done it.
    Done(DriverStatus),
    /// It leaves it to others.
    NotSupported,
}

/// The executable.
#[derive(Debug)]
pub struct Program {
    caller: Caller,
    habits: Habits,
    calls: Arc<Calls>,
}

impl Program {
    /// Executed as `caller` has it.
    pub fn new(caller: Caller, habits: Habits, calls: Arc<Calls>) -> Self {
        Self { caller, habits, calls }
    }

    /// What is executed.
    pub fn path(&self) -> &Path {
        &self.caller.executable
    }

    /// Calls it; the guard outlives the process.
    pub fn call(&self, call: &Call, guard: &Guard, budget: Budget) -> Result<Answer, Status> {
        let exchange = self.execute(call, Some(guard), budget);
        match exchange.verdict {
            Verdict::Success(status) => Ok(Answer::Done(status)),
            Verdict::NotSupported => Ok(Answer::NotSupported),
            Verdict::Failure(_) => Err(codes::of_exchange(&exchange, &self.habits)),
        }
    }

    /// Calls it. Nothing is remembered of a verb that it lacks: its executable may be replaced.
    pub fn execute(&self, call: &Call, guard: Option<&Guard>, budget: Budget) -> Exchange {
        let mut caller = self.caller.clone();
        caller.terms.patience = budget.left();
        if let Some(guard) = guard {
            caller.terms.observer = Some(guard.note());
        }
        let running = self.calls.begin(call.verb());
        let exchange = caller.call(call);
        drop(running);
        tracing::debug!(
            verb = call.verb().name(),
            seconds = exchange.took().as_secs_f64(),
            verdict = %exchange.verdict,
            "called"
        );
        exchange
    }
}
