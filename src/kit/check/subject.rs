//! The driver under test, as a case sees it: called as kubelet calls it, every call remembered.

use super::answer::Answer;
use super::evidence::Stopped;
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

/// Where kubelet's directory is, in the sandbox: an empty file system of its own.
pub(super) const KUBELET_ROOT: &str = "/var/lib/kubelet";

/// The node's name.
pub(super) const NODE: &str = "node-1.check";

/// How long the output may stay open after the driver has ended. Kubelet waits for ever.
const LINGER: Duration = Duration::from_secs(1);

/// The same with a driver that is known to leave it open: one case tells that, all others get on.
const SHORT_LINGER: Duration = Duration::from_millis(100);

/// Kubelet's, as systemd sets it.
const UMASK: u32 = 0o022;

/// The driver, in the sandbox of one case.
#[derive(Debug)]
pub struct Subject<'a> {
    /// What the author told.
    pub given: &'a Given,
    /// What is known of the driver.
    pub facts: &'a Facts,
    /// Where it is.
    pub inside: &'a Inside,
    /// How it is executed; a case may change that.
    pub terms: Terms,
    /// What is done to it while it runs.
    pub fault: Option<FaultInjection>,
    /// What is followed of it. Where that is not permitted it is not executed; see
    /// [`is_possible`](crate::tracer::is_possible).
    pub trace: Option<Trace>,
    /// What is executed: the driver, or another way to it.
    pub executable: PathBuf,
    /// Whether the calls that come now are judged by the case alone: no watched case looks at them.
    pub excused: bool,
    /// Different for each case, and the same for the same seed.
    pub random: fastrand::Rng,
    answers: Vec<Answer>,
    pods: usize,
    /// What `waitforattach` said last; empty without one.
    pub(super) device: String,
    ours: Vec<PathBuf>,
}

impl<'a> Subject<'a> {
    /// In a sandbox that was just made.
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

    /// What is at a path or below it, or is a device of that name, was made or changed by the case
    /// and not by the driver.
    pub fn ours(&mut self, path: impl Into<PathBuf>) {
        self.ours.push(path.into());
    }

    /// Whether it was.
    pub(super) fn is_ours(&self, path: &Path) -> bool {
        self.ours.iter().any(|ours| path.starts_with(ours))
    }

    /// Every call so far, in order.
    pub fn answers(&self) -> &[Answer] {
        &self.answers
    }

    /// Whether a call was stopped for which the machine may have been too busy.
    pub(super) fn is_unclear(&self) -> bool {
        self.answers.iter().any(|answer| answer.unclear)
    }

    /// How often to repeat what is worth it.
    pub fn repeat(&self) -> usize {
        self.given.repeat
    }

    /// Executes the driver, as kubelet does or as [`Subject::terms`] say.
    pub fn call(&mut self, call: &Call) -> Answer {
        self.execute(&call.to_arguments())
    }

    /// The same with any arguments at all.
    pub fn execute(&mut self, arguments: &[OsString]) -> Answer {
        let executable = self.executable.clone();
        self.execute_as(&executable, arguments)
    }

    /// The same by words.
    pub fn words(&mut self, words: &[&str]) -> Answer {
        self.execute(&words.iter().map(OsString::from).collect::<Vec<_>>())
    }

    /// The same by another path to the driver.
    pub fn execute_as(&mut self, executable: &Path, arguments: &[OsString]) -> Answer {
        let answer = self.executed(executable, arguments);
        self.answers.push(answer.clone());
        answer
    }

    /// Several calls at the same moment; their answers in the order of the calls.
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

    /// One call in the background, and meanwhile something else; the answer to it, and what came of
    /// the other.
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

    /// The volume for another pod, which no one has mounted yet.
    pub fn volume(&mut self) -> Result<PodVolume, Stopped> {
        self.volume_below(Path::new(KUBELET_ROOT))
    }

    /// The same below another kubelet root.
    pub fn volume_below(&mut self, kubelet_root: &Path) -> Result<PodVolume, Stopped> {
        let Some(volume) = &self.given.volume else {
            return Err(Stopped::Skipped("needs a volume: give --options or --volume".to_owned()));
        };
        self.pods += 1;
        let mut volume = volume.clone();
        kubelet_root.clone_into(&mut volume.kubelet_root);
        volume.pod_uid = format!("0c8e1f5a-1d5b-4a2e-9c53-{:012x}", self.pods);
        volume.options.pod.uid = Some(volume.pod_uid.clone());
        Ok(volume)
    }

    /// The device of the volume that was attached last; empty if there is none.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Whether it must be attached and its device mounted before a pod can have it.
    pub fn attaches(&self) -> bool {
        self.facts.attaches
    }

    /// Whether what is mounted and written here is seen nowhere else.
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

    /// Whether the driver is executed in a way that may keep it from answering.
    fn disturbs(&self) -> bool {
        let terms = &self.terms;
        self.excused
            || terms.patience < self.given.patience
            || self.fault.is_some()
            || terms.reader != Reader::All
    }
}

/// How a call is made.
struct Execution {
    terms: Terms,
    /// Of the machine, before it.
    pace: Pace,
    fault: Option<FaultInjection>,
    trace: Option<Trace>,
    disturbed: bool,
}

impl Execution {
    /// Kubelet, for one call. Nothing is remembered: each call is judged by itself.
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
