//! Driver calls that the agent carries out, with the programs in the agent's image.
//!
//! ```text
//! driver ──call──▶ Order ─▶ Calls ─ same call for the same volume under way? join it
//!                             └─ thread ─▶ driver's executable, once ─▶ reply to all callers
//! ```
//!
//! * A call continues after its callers have given up: kubelet repeats the same call, and joins it.
//!   If it has failed meanwhile, the next caller gets the failure.
//! * An unmount stops a mount of the same target that is under way.
//! * A process that cannot be ended is abandoned: it frees its slot and is reported until it ends.
//! * The arguments of a call are secret: they go from the socket to the driver's standard input,
//!   and nowhere else.

mod job;
mod order;

pub use order::Order;

use super::fault::{Code, Fault};
use job::{Job, Outcome, Stuck};
use order::Subject;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Limit for calls that run at the same time; further calls wait.
const MOST: usize = 32;

/// Limit for drivers that wait for calls. The other connections serve requests that take no time.
const WAITING: usize = 40;

/// Time before the driver's deadline at which the agent answers that the call continues.
const MARGIN: Duration = Duration::from_millis(500);

/// Time for which a failure is kept that no caller has received.
const KEPT: Duration = Duration::from_mins(5);

/// Executables of the drivers whose calls are carried out.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The plugin directory, as this process sees it.
    pub plugin_dir: PathBuf,
    /// Limit for one of their calls, independent of its callers.
    pub longest: Duration,
}

/// The calls of one agent.
#[derive(Debug)]
pub struct Calls {
    programs: Option<Programs>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<Subject, Arc<Job>>,
    unheard: BTreeMap<Subject, (Arc<Job>, Instant)>,
    stuck: Vec<Stuck>,
    waiting: usize,
    closed: bool,
}

impl Calls {
    /// Creates the calls of an agent. Without `programs`, the agent refuses every call.
    pub fn new(programs: Option<Programs>) -> Self {
        Self { programs, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Carries out a call and returns the driver's reply. Starts nothing if the caller is gone.
    pub fn carry_out(
        self: &Arc<Self>,
        order: Order,
        deadline: Instant,
        is_there: impl Fn() -> bool,
    ) -> Result<String, Fault> {
        let deadline = deadline.checked_sub(MARGIN).unwrap_or(deadline);
        {
            let mut state = self.state();
            if state.waiting >= WAITING {
                return Err(order.under_way("too many calls wait for the agent"));
            }
            state.waiting += 1;
        }
        let outcome = self.join(order, deadline, is_there).and_then(|job| self.outcome_of(&job, deadline));
        self.state().waiting -= 1;
        outcome
    }

    /// Joins the same call if it is under way, otherwise starts this one.
    fn join(
        self: &Arc<Self>,
        order: Order,
        deadline: Instant,
        is_there: impl Fn() -> bool,
    ) -> Result<Arc<Job>, Fault> {
        let Some(programs) = &self.programs else {
            let text = "this agent carries out no calls: start it with --plugin-dir, or remove \"run\" from \
                        the side file";
            return Err(Fault::new(Code::NotReady, text));
        };
        let mut state = self.state();
        state.unheard.retain(|_, (_, ended)| ended.elapsed() < KEPT);
        loop {
            if state.closed {
                return Err(Fault::new(Code::NotReady, "the agent is ending: kubelet tries again"));
            }
            match state.running.get(&order.subject) {
                Some(job) if job.order.is_same(&order) => return Ok(job.joined()),
                // The mount is no longer wanted.
                Some(job) if order.unmounts() && !job.order.unmounts() => job.stop(),
                Some(_) => {}
                None => match state.unheard.remove(&order.subject) {
                    Some((job, _)) if job.order.is_same(&order) => return Ok(job.joined()),
                    _ if state.running.len() >= MOST => {}
                    _ if !is_there() => return Err(Fault::late()),
                    _ => return self.begin(&mut state, Job::new(order, programs, deadline)),
                },
            }
            state = self.wait(state, deadline).ok_or_else(|| order.under_way("another call goes on"))?;
        }
    }

    fn begin(self: &Arc<Self>, state: &mut State, job: Job) -> Result<Arc<Job>, Fault> {
        let job = Arc::new(job);
        let (calls, running) = (Arc::clone(self), Arc::clone(&job));
        let thread = std::thread::Builder::new().name("call".to_owned()).spawn(move || {
            let outcome = running.run();
            calls.end(&running, outcome);
        });
        thread.map_err(|error| Fault::new(Code::NotReady, format!("a call cannot begin: {error}")))?;
        state.running.insert(job.order.subject.clone(), Arc::clone(&job));
        Ok(job.joined())
    }

    fn end(&self, job: &Arc<Job>, outcome: Outcome) {
        let mut state = self.state();
        state.running.remove(&job.order.subject);
        let unheard = outcome.is_failure() && !job.is_waited_for() && !job.order.unmounts();
        if let Some(pid) = outcome.stuck {
            state.stuck.push(Stuck::new(pid, job));
        }
        job.set(outcome);
        if unheard {
            state.unheard.insert(job.order.subject.clone(), (Arc::clone(job), Instant::now()));
        }
        drop(state);
        self.changed.notify_all();
    }

    fn outcome_of(&self, job: &Arc<Job>, deadline: Instant) -> Result<String, Fault> {
        let mut state = self.state();
        let outcome = loop {
            if let Some(outcome) = job.outcome() {
                break outcome.said.clone();
            }
            match self.wait(state, deadline) {
                Some(woken) => state = woken,
                None => break Err(job.order.under_way("it goes on in the agent")),
            }
        };
        job.left();
        outcome
    }

    /// Waits until something has changed. Returns `None` after the deadline.
    fn wait<'a>(&self, state: MutexGuard<'a, State>, deadline: Instant) -> Option<MutexGuard<'a, State>> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        Some(self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Refuses new calls, stops running mounts, and waits up to `patience` for the running calls.
    pub fn close(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut state = self.state();
        state.closed = true;
        self.changed.notify_all();
        state.running.values().filter(|job| !job.order.unmounts()).for_each(|job| job.stop());
        while !state.running.is_empty() {
            match self.wait(state, deadline) {
                Some(woken) => state = woken,
                None => return,
            }
        }
    }

    /// Returns the numbers of running and of abandoned calls.
    pub fn count(&self) -> (usize, usize) {
        let mut state = self.state();
        state.stuck.retain(Stuck::is_there);
        (state.running.len(), state.stuck.len())
    }

    /// Returns the running and the abandoned calls, for people.
    pub fn status(&self) -> Value {
        let mut state = self.state();
        state.stuck.retain(Stuck::is_there);
        let running = state.running.values().map(|job| job.status()).collect::<Vec<_>>();
        let stuck = state.stuck.iter().map(Stuck::status).collect::<Vec<_>>();
        json!({"carriesOut": self.programs.is_some(), "running": running, "stuck": stuck})
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    fn order(words: &str) -> Order {
        use base64::Engine as _;
        let call = base64::engine::general_purpose::STANDARD.encode(words);
        Order::parse(json!({"driver": "example~disk", "call": call})).unwrap()
    }

    /// Starts a child that the code under test reaps, not this thread.
    #[expect(clippy::disallowed_methods, reason = "it stands for a driver in the kernel")]
    fn sleeper() -> Child {
        Command::new("sleep").arg("600").spawn().unwrap()
    }

    /// Test 38.
    #[test]
    fn t38_what_cannot_be_ended_is_named_until_it_is_gone() {
        let programs = Programs { plugin_dir: "/p".into(), longest: Duration::from_secs(1) };
        let job = Arc::new(Job::new(order("unmount\0/k/v"), &programs, Instant::now()));
        let calls = Calls::new(Some(programs));
        let mut child = sleeper();
        let pid = i32::try_from(child.id()).unwrap();
        calls.end(&job, Outcome { said: job.immortal(pid), stuck: Some(pid) });
        let said = job.outcome().unwrap().said.clone().unwrap_err().message;
        assert!(said.contains(&format!("process {pid}")) && said.contains("/p/example~disk/disk"), "{said}");
        assert_eq!(calls.count(), (0, 1));
        let status = calls.status();
        assert_eq!(
            (&status["stuck"][0]["pid"], &status["stuck"][0]["target"]),
            (&json!(pid), &json!("/k/v"))
        );
        child.kill().unwrap();
        while calls.count() != (0, 0) {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(child.wait().is_err(), "it was reaped");
    }

    #[test]
    fn nothing_of_a_call_is_shown() {
        let words = "mount\0/k/v\0{\"kubernetes.io/secret/p\":\"aHVudGVyMg==\"}";
        let order = order(words);
        let shown = format!("{order:?} {}", order.under_way("why").message);
        assert!(!shown.contains("aHVudGVyMg") && shown.contains("/k/v"), "{shown}");
        assert_eq!(order.masked.clean("hunter2 aHVudGVyMg=="), "*** ***");
        assert_eq!(order.input(7).expose(), [b"7\0", words.as_bytes()].concat());
    }

    /// No call starts for a driver that is gone, or in an agent that is ending.
    #[test]
    fn nothing_is_begun_for_no_one() {
        let programs = Programs { plugin_dir: "/p".into(), longest: Duration::from_secs(1) };
        let calls = Arc::new(Calls::new(Some(programs)));
        let until = Instant::now() + crate::pace::deadline(20);
        let code = |there| calls.carry_out(order("unmount\0/k/v"), until, || there).unwrap_err().code;
        assert_eq!((code(false), code(true)), (Code::Late, Code::Failed));
        calls.close(Duration::ZERO);
        assert_eq!((code(true), calls.count()), (Code::NotReady, (0, 0)));
        let none = Arc::new(Calls::new(None));
        assert_eq!(none.carry_out(order("unmount\0/k/v"), until, || true).unwrap_err().code, Code::NotReady);
    }
}
