//! One executable that speaks FlexVolume: a driver, or [what kubelet does without
//! one](super::by_kubelet).
//!
//! Executed as kubelet would, each call in a process and a group of its own, by a thread that waits
//! for it. It is stopped at the deadline of the call, with all of its group.

use super::habits::Habits;
use super::locks::Guard;
use super::metrics::Calls;
use super::running::Id;
use super::{by_kubelet, codes};
use crate::executed;
use flexvol_kubelet::{Caller, Exchange, Verdict};
use flexvol_protocol::{Call, DriverStatus, TargetPath};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::Status;

/// The longest that any call may take, whatever its caller allows: kubelet gives up after 120 s.
const LONGEST: Duration = Duration::from_secs(110);

/// How long it may take to find what a driver has left, and to end it.
const END_WAIT: Duration = Duration::from_secs(10);

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

    /// The same, but so long at most.
    #[must_use]
    pub fn at_most(self, most: Duration) -> Self {
        Self(self.0.min(Instant::now() + most))
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
        if exchange.run.as_ref().is_some_and(|run| run.stopped.is_some()) {
            end_what_it_left(guard);
        }
        match exchange.verdict {
            Verdict::Success(status) => Ok(Answer::Done(status)),
            Verdict::NotSupported => Ok(Answer::NotSupported),
            Verdict::Failure(_) => Err(codes::of_exchange(&exchange, &self.habits)),
        }
    }

    /// Asks it with words that are none of FlexVolume's; what it says is in `device`.
    pub fn ask(
        &self,
        verb: &str,
        target: &TargetPath,
        guard: &Guard,
        budget: Budget,
    ) -> Result<String, Status> {
        let words = [verb.into(), target.as_path().into()];
        let exchange = self.caller(Some(guard), budget).execute(&words);
        match exchange.verdict {
            Verdict::Success(status) => Ok(status.device),
            _ => Err(codes::of_exchange(&exchange, &self.habits)),
        }
    }

    fn caller(&self, guard: Option<&Guard>, budget: Budget) -> Caller {
        let mut caller = self.caller.clone();
        caller.terms.patience = budget.left();
        if let Some(guard) = guard {
            caller.terms.observer = Some(guard.note());
        }
        caller
    }

    /// Calls it. Nothing is remembered of a verb that it lacks: its executable may be replaced.
    pub fn execute(&self, call: &Call, guard: Option<&Guard>, budget: Budget) -> Exchange {
        let mut caller = self.caller(guard, budget);
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

/// Ends what a stopped driver has started outside its process group, which would go on with the
/// volume. Such processes are found by their environment.
fn end_what_it_left(guard: &Guard) {
    let Some(call) = guard.last_call() else { return };
    let mut helper = executed::caller(by_kubelet::NAME);
    helper.terms.patience = END_WAIT;
    let exchange = helper.execute(&[by_kubelet::END.into(), call.into()]);
    match exchange.verdict {
        Verdict::Success(status) => {
            let left = status.device.split_whitespace().filter_map(|pid| pid.parse().ok());
            guard.keep_for(left.map(Id::of));
        }
        verdict => tracing::warn!(reason = %verdict, "what a driver has left could not be ended"),
    }
}
