//! One driver call: the driver's executable in its own process.

use super::Programs;
use super::order::Order;
use crate::agent::driver::Driver;
use crate::agent::fault::{Code, Fault};
use flexvol_kubelet::{Caller, End, Observer, Run};
use flexvol_linux::proc::child::Pid;
use flexvol_model::agent::FROM_INPUT;
use flexvol_protocol::Reply;
use rustix::process::{WaitOptions, waitpid};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Grace period after the time limit of a call, in which the driver rolls back and reports that.
const GRACE: Duration = Duration::from_secs(15);

/// Limit for a reply, in bytes. A driver prints a single line.
const LONGEST: usize = 1 << 20;

/// Result of a call.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Reply of the driver, or the fault that explains why there is none.
    pub(super) said: Result<String, Fault>,
    /// Process that could not be ended.
    pub(super) stuck: Option<i32>,
}

impl Outcome {
    /// Reports whether the driver failed, so that the next caller must be told.
    pub(super) fn is_failure(&self) -> bool {
        self.said.as_ref().is_ok_and(|line| matches!(Reply::from_line(line), Some(Reply::Failure(_))))
    }
}

/// A call under way.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) order: Order,
    executable: PathBuf,
    within: Duration,
    since: Instant,
    driver: Arc<Driver>,
    waiting: AtomicUsize,
    outcome: OnceLock<Outcome>,
}

impl Job {
    /// Creates a job. An unmount must end before the deadline: then the calling driver takes over.
    pub(super) fn new(order: Order, programs: &Programs, deadline: Instant) -> Self {
        let executable = programs.plugin_dir.join(order.driver.directory()).join(order.driver.executable());
        let left = deadline.saturating_duration_since(Instant::now());
        let within = if order.unmounts() { left } else { programs.longest };
        Self {
            order,
            executable,
            within,
            since: Instant::now(),
            driver: Arc::default(),
            waiting: AtomicUsize::new(0),
            outcome: OnceLock::new(),
        }
    }

    /// Adds a waiting caller.
    pub(super) fn joined(self: &Arc<Self>) -> Arc<Self> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Arc::clone(self)
    }

    /// Removes a waiting caller.
    pub(super) fn left(&self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub(super) fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    pub(super) fn set(&self, outcome: Outcome) {
        let _ = self.outcome.set(outcome);
    }

    /// Asks the driver to end and to roll back.
    pub(super) fn stop(&self) {
        self.driver.stop();
    }

    /// Runs the driver until it ends. A process that cannot be ended is left behind.
    pub(super) fn run(&self) -> Outcome {
        let mut caller = Caller::new(&self.executable);
        caller.terms.patience = self.within + GRACE;
        caller.terms.output_limit = LONGEST;
        caller.terms.input = Some(Arc::new(self.order.input(self.within.as_millis())));
        caller.terms.observer = Some(Arc::clone(&self.driver) as Arc<dyn Observer>);
        let run = caller.execute(&[FROM_INPUT.into()]).run.unwrap_or_else(Run::nothing);
        let stuck = (run.end == End::Immortal).then(|| self.driver.pid()).flatten();
        let said = self.said(&run, stuck);
        tracing::info!(
            driver = %self.order.driver,
            verb = self.order.verb.name(),
            target = self.order.target(),
            seconds = run.took.as_secs_f64(),
            replied = said.is_ok(),
            "carried out"
        );
        Outcome { said, stuck }
    }

    fn said(&self, run: &Run, stuck: Option<i32>) -> Result<String, Fault> {
        let line = || Reply::from_line(std::str::from_utf8(&run.output).ok()?);
        let why = match (&run.end, run.stopped) {
            (End::Exited(0), None) => match line() {
                Some(Reply::Failure(text)) => {
                    return Ok(Reply::Failure(self.order.masked.clean(&text)).to_line());
                }
                Some(reply) => return Ok(reply.to_line()),
                None => "it gave no reply".to_owned(),
            },
            (End::NotStarted(why), _) => {
                format!("{why}: mount the node's plugin directory into the agent's pod, at the same path")
            }
            (End::Immortal, _) => {
                let pid = stuck.map_or_else(String::new, |pid| format!(" (process {pid})"));
                format!("it cannot be ended{pid}: its storage does not answer")
            }
            (end, _) => format!("it was ended ({end})"),
        };
        let text = format!("the agent cannot execute {}: {why}", self.executable.display());
        Err(Fault::new(Code::Failed, text))
    }

    /// Returns the error for a driver that even SIGKILL has not ended.
    #[cfg(test)]
    pub(super) fn immortal(&self, pid: i32) -> Result<String, Fault> {
        self.said(&Run { end: End::Immortal, ..Run::nothing() }, Some(pid))
    }

    pub(super) fn status(&self) -> Value {
        json!({
            "driver": self.order.driver.to_string(),
            "verb": self.order.verb.name(),
            "target": self.order.target(),
            "seconds": self.since.elapsed().as_secs(),
        })
    }
}

/// Abandoned process, until it ends.
#[derive(Debug)]
pub(super) struct Stuck {
    pid: i32,
    status: Value,
}

impl Stuck {
    pub(super) fn new(pid: i32, job: &Job) -> Self {
        let mut status = job.status();
        status["pid"] = json!(pid);
        Self { pid, status }
    }

    /// Reports whether the child has not ended. Its PID is not reused before it is reaped here.
    pub(super) fn is_there(&self) -> bool {
        Pid::from_raw(self.pid).is_some_and(|pid| matches!(waitpid(Some(pid), WaitOptions::NOHANG), Ok(None)))
    }

    pub(super) fn status(&self) -> Value {
        self.status.clone()
    }
}
