//! Executable that speaks FlexVolume: a driver, or [the work of kubelet](super::by_kubelet).
//!
//! It is executed as kubelet would, each call in a process and a group of its own, by a thread that
//! waits for it. At the deadline of the call, the process is stopped with its whole group.

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

/// Limit for a call, whatever its caller allows: kubelet gives up after 120 s.
const LONGEST: Duration = Duration::from_secs(110);

/// Deadline for finding and ending the processes that a driver has left.
const END_WAIT: Duration = Duration::from_secs(10);

/// Shortest time for a call, even if its caller has less left: a rollback takes a moment.
const SHORTEST: Duration = Duration::from_millis(500);

/// Time that a call may still take.
#[derive(Clone, Copy, Debug)]
pub struct Budget(Instant);

impl Budget {
    /// Creates the budget: the time that the caller allows, up to the limit for a call.
    pub fn new(allowed: Option<Duration>) -> Self {
        Self(Instant::now() + allowed.unwrap_or(LONGEST).min(LONGEST))
    }

    /// Returns the time that is left.
    pub fn left(&self) -> Duration {
        self.0.saturating_duration_since(Instant::now()).max(SHORTEST)
    }

    /// Returns the same budget, but with at most this time from now on.
    #[must_use]
    pub fn at_most(self, most: Duration) -> Self {
        Self(self.0.min(Instant::now() + most))
    }

    /// Returns a budget for undoing the work of a call that is out of time.
    #[must_use]
    pub fn extended(self, by: Duration) -> Self {
        Self(self.0.max(Instant::now() + by))
    }
}

/// Answer of a program that did not fail.
#[derive(Debug)]
pub enum Answer {
    /// It has done the work.
    Done(DriverStatus),
    /// It leaves the work to others.
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
    /// Creates a program that is executed with the settings of `caller`.
    pub fn new(caller: Caller, habits: Habits, calls: Arc<Calls>) -> Self {
        Self { caller, habits, calls }
    }

    /// Returns the path of the executable.
    pub fn path(&self) -> &Path {
        &self.caller.executable
    }

    /// Calls the program; the guard outlives the process.
    pub fn call(&self, call: &Call, guard: &Guard, budget: Budget) -> Result<Answer, Status> {
        self.judge(self.execute(call, Some(guard), budget), guard)
    }

    #[inline(never)]
    fn judge(&self, exchange: Exchange, guard: &Guard) -> Result<Answer, Status> {
        if exchange.run.as_ref().is_some_and(|run| run.stopped.is_some()) {
            end_what_it_left(guard);
        }
        match exchange.verdict {
            Verdict::Success(status) => Ok(Answer::Done(status)),
            Verdict::NotSupported => Ok(Answer::NotSupported),
            Verdict::Failure(_) => Err(codes::of_exchange(&exchange, &self.habits)),
        }
    }

    /// Calls a verb that FlexVolume does not have, and returns the `device` of the reply.
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

    /// Calls the program. A missing verb is not remembered: the executable may be replaced.
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
#[cold]
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
