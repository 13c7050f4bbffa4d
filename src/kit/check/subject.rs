//! The driver under test, as a case sees it: it is called as kubelet calls it, and every call is
//! recorded.

use super::answer::Answer;
use super::evidence::{Stopped, skip};
use super::facts::Facts;
use super::given::Given;
use super::in_time::Pace;
use crate::fault_injection::{FaultInjection, Injector};
use crate::sandbox::{Inside, Isolation};
use crate::tracer::Trace;
use flexvol_kubelet::{Asked, Caller, PodVolume, Reader, Run, Stop, Terms};
use flexvol_protocol::Call;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Kubelet's directory in the sandbox: an empty file system of its own.
pub(super) const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// Name of the node.
pub(super) const NODE: &str = "node-1.check";

/// Limit for the time that the output may stay open after the driver has ended.
/// Kubelet waits for ever.
const LINGER: Duration = Duration::from_secs(1);

/// The same for a driver that is known to leave it open: one case reports that, the others go on.
const SHORT_LINGER: Duration = Duration::from_millis(100);

/// Umask of kubelet, as systemd sets it.
const UMASK: u32 = 0o022;

/// The driver, in the sandbox of one case.
#[derive(Debug)]
pub struct Subject<'a> {
    /// Input from the author.
    pub given: &'a Given,
    /// Facts about the driver.
    pub facts: &'a Facts,
    /// Sandbox that the driver runs in.
    pub inside: &'a Inside,
    /// Terms of its execution; a case may change them.
    pub terms: Terms,
    /// Fault to inject while it runs.
    pub fault: Option<FaultInjection>,
    /// Tracing of the driver. If tracing is not permitted, the driver is not executed; see
    /// [`is_possible`](crate::tracer::is_possible).
    pub trace: Option<Trace>,
    /// Path to execute: the driver, or another path to it.
    pub executable: PathBuf,
    /// True if the case alone judges the calls that come now: no watched case looks at them.
    pub excused: bool,
    /// Random numbers: different for each case, but the same for the same seed.
    pub random: fastrand::Rng,
    answers: Vec<Answer>,
    pods: usize,
    /// Device from the last `waitforattach`; empty without one.
    pub(super) device: String,
    ours: Vec<PathBuf>,
}

impl<'a> Subject<'a> {
    /// Creates a subject in a new sandbox.
    pub fn new(given: &'a Given, facts: &'a Facts, inside: &'a Inside, seed: u64) -> Self {
        let linger = if facts.lingers { SHORT_LINGER } else { LINGER };
        let (patience, linger, umask) = (given.patience, Some(linger), Some(UMASK));
        Self {
            given,
            facts,
            inside,
            terms: Terms { patience, linger, umask, ..Terms::default() },
            fault: None,
            trace: None,
            executable: given.driver.clone(),
            excused: false,
            random: fastrand::Rng::with_seed(seed),
            answers: Vec::new(),
            pods: 0,
            device: String::new(),
            ours: Vec::new(),
        }
    }

    /// Declares that the case, not the driver, has made or changed a path, everything below it, or
    /// the device of that name.
    pub fn ours(&mut self, path: impl Into<PathBuf>) {
        self.ours.push(path.into());
    }

    /// Reports whether a path was declared so.
    pub(super) fn is_ours(&self, path: &Path) -> bool {
        self.ours.iter().any(|ours| path.starts_with(ours))
    }

    /// Returns all calls so far, in order.
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// Reports whether a call was stopped while the machine may have been too busy for it.
    pub(super) fn is_unclear(&self) -> bool {
        self.answers.iter().any(|answer| answer.unclear)
    }

    /// Returns the number of repetitions, where repeating is useful.
    pub fn repeat(&self) -> usize {
        self.given.repeat
    }

    /// Calls the driver, as kubelet does or as [`Subject::terms`] say.
    pub fn call(&mut self, call: &Call) -> Answer {
        self.execute(&call.to_arguments())
    }

    /// Does the same with any arguments.
    pub fn execute(&mut self, arguments: &[OsString]) -> Answer {
        let executable = self.executable.clone();
        self.execute_as(&executable, arguments)
    }

    /// Does the same with words.
    pub fn words(&mut self, words: &[&str]) -> Answer {
        self.execute(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    /// Does the same by another path to the driver.
    pub fn execute_as(&mut self, executable: &Path, arguments: &[OsString]) -> Answer {
        let answer = self.executed(executable, arguments);
        self.answers.push(answer.clone());
        answer
    }

    /// Makes several calls at the same moment. Returns their answers in the order of the calls.
    pub fn at_once(&mut self, calls: &[Vec<OsString>]) -> Vec<Answer> {
        let subject = &*self;
        let answers: Vec<_> = std::thread::scope(|scope| {
            let play = |call: &'_ [OsString]| subject.executed(&subject.executable, call);
            let threads: Vec<_> = calls.iter().map(|call| scope.spawn(move || play(call))).collect();
            threads.into_iter().filter_map(|thread| thread.join().ok()).collect()
        });
        self.answers.extend(answers.iter().cloned());
        answers
    }

    /// Makes one call in the background, and does something else meanwhile.
    /// Returns the answer and the result of `deed`.
    pub fn beside<T>(&mut self, call: &[OsString], deed: impl FnOnce(&mut Self) -> T) -> (Option<Answer>, T) {
        let (executable, execution) = (self.executable.clone(), self.execution());
        let (answer, done) = std::thread::scope(|scope| {
            let thread = scope.spawn(|| execution.play(&executable, call));
            let done = deed(self);
            (thread.join().ok(), done)
        });
        self.answers.extend(answer.clone());
        (answer, done)
    }

    /// Returns the volume for another pod, where it was never mounted.
    pub fn volume(&mut self) -> Result<PodVolume, Stopped> {
        self.volume_below(Path::new(KUBELET_ROOT))
    }

    /// Does the same below another kubelet root.
    pub fn volume_below(&mut self, kubelet_root: &Path) -> Result<PodVolume, Stopped> {
        let Some(volume) = &self.given.volume else {
            return skip("needs a volume: give --options or --volume");
        };
        self.pods += 1;
        let mut volume = volume.clone();
        kubelet_root.clone_into(&mut volume.kubelet_root);
        volume.pod_uid = format!("0c8e1f5a-1d5b-4a2e-9c53-{:012x}", self.pods);
        volume.options.pod.uid = Some(volume.pod_uid.clone());
        Ok(volume)
    }

    /// Returns the device of the volume that was attached last; empty without one.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Reports whether the volume must be attached and its device mounted before a pod can have it.
    pub fn attaches(&self) -> bool {
        self.facts.attaches
    }

    /// Reports whether nothing outside sees the mounts and files that are made here.
    pub fn is_contained(&self) -> bool {
        self.inside.isolation() != Isolation::None
    }

    fn executed(&self, executable: &Path, arguments: &[OsString]) -> Answer {
        self.execution().play(executable, arguments)
    }

    fn execution(&self) -> Execution {
        let (fault, trace) = (self.fault, self.trace.clone());
        let (terms, pace) = (self.terms.clone(), Pace::recent());
        Execution { terms, pace, fault, trace, disturbed: self.disturbs() }
    }

    /// Reports whether the driver is executed in a way that may prevent an answer.
    fn disturbs(&self) -> bool {
        let terms = &self.terms;
        self.excused
            || terms.patience < self.given.patience
            || self.fault.is_some()
            || terms.reader != Reader::All
    }
}

/// Settings of one call.
struct Execution {
    terms: Terms,
    /// Pace of the machine before the call.
    pace: Pace,
    fault: Option<FaultInjection>,
    trace: Option<Trace>,
    disturbed: bool,
}

impl Execution {
    /// Executes one call as kubelet does. Remembers nothing: each call is judged on its own.
    fn play(self, executable: &Path, arguments: &[OsString]) -> Answer {
        let injector = Injector::new(self.fault, self.trace);
        let mut caller = Caller::new(executable);
        let (pace, patience, linger) = (self.pace, self.terms.patience, self.terms.linger);
        caller.terms = Terms {
            observer: Some(injector.clone()),
            patience: pace.generous(patience),
            linger: linger.map(|linger| pace.generous(linger)),
            ..self.terms
        };
        let exchange = caller.execute(arguments);
        let run = exchange.run.unwrap_or_else(Run::nothing);
        let limit = if run.exited.is_some() { linger.unwrap_or(patience) } else { patience };
        let unclear = run.stopped == Some(Stop::Patience) && !pace.allows_to_hang(limit);
        let asked = Asked::new(arguments.to_vec());
        let answer = Answer::new(executable.to_owned(), asked, run, exchange.verdict);
        let disturbed = self.disturbed || unclear;
        Answer { disturbed, unclear, observed: injector.observed(), ..answer }
    }
}
