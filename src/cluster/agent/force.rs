//! Forced unmount: for volumes that an administrator wants unmounted although they are in use, and
//! for volumes whose storage another node was given.
//!
//! ```text
//! driver's unmount ─▶ abort ─▶ lazy unmount ─▶ driver's unmount again ─▶ is anything left?
//!   60 s                10 s      10 s             60 s
//! ```
//!
//! Each step runs in its own process, and only if something is still mounted or attached. The
//! driver comes first because only it unmounts without loss, and last because only it knows what
//! else belongs to the volume. A process that cannot be ended is abandoned; until it is gone,
//! neither the driver nor a new try is started for the volume.
//!
//! This module releases no storage. The code that releases checks that nothing is left: a mount
//! that was only removed from its directory still has its device.

use super::by_force::{self, ABORT, LAZILY};
use super::driver::Driver;
use super::journal::Entry;
use super::usage::Look;
use crate::executed;
use crate::fence::progress::{Outcome, Phase, Progress, Step};
use crate::fence::request::Left;
use flexvol_kubelet::{Caller, End, Exchange, Observer, Verdict};
use flexvol_linux::mount::mount_table;
use flexvol_linux::proc::process;
use flexvol_linux::proc::stuck::{self, Stuck};
use flexvol_protocol::volume_dir::VolumeDir;
use flexvol_protocol::{Call, DriverName, TargetPath, backoff};
use flexvol_terminal::driver_dir::executable;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Default time limit for a driver.
pub const DRIVER: Duration = Duration::from_mins(1);

/// Time limit for a system call, which runs in its own process.
const SYSTEM_CALL: Duration = Duration::from_secs(10);

/// Limit for volumes that are unmounted at the same time; further volumes wait.
const MOST: usize = 8;

/// Pause before all steps are retried, doubled each time, and its limit.
const AGAIN: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_mins(1);

/// Action on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Unmount by the driver's own verb.
    Driver,
    /// End of the mount's pending requests.
    Abort,
    /// Removal of the mount from its directory.
    TakeOff,
}

impl Action {
    /// Returns the name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "unmount by the driver",
            Self::Abort => "abort, umount -f",
            Self::TakeOff => "umount -l",
        }
    }
}

/// Order of the actions.
pub const PLAN: [Action; 4] = [Action::Driver, Action::Abort, Action::TakeOff, Action::Driver];

/// Result of an action.
#[derive(Clone, Debug)]
pub struct Performed {
    /// Reason for the failure; `None` after success.
    pub failed: Option<String>,
    /// Processes of the action that could not be ended.
    pub stuck: Vec<Stuck>,
}

/// Executor of actions on volumes.
pub trait Hands: Send + Sync {
    /// Returns why an unmount here has no effect on the node; `None` if it has an effect.
    fn hindrance(&self, target: &TargetPath) -> Option<String>;

    /// Performs the action, within its limit.
    fn perform(&self, action: Action, target: &TargetPath) -> Performed;
}

/// Executor that starts processes on this node.
#[expect(missing_debug_implementations, reason = "a function has none")]
pub struct Processes {
    /// Finds kubelet's plugin directory. When the agent starts, kubelet may not run yet.
    pub plugin_dir: Box<dyn Fn() -> anyhow::Result<PathBuf> + Send + Sync>,
    /// Time limit for a driver.
    pub longest: Duration,
}

impl Hands for Processes {
    fn hindrance(&self, target: &TargetPath) -> Option<String> {
        if !process::may_mount() {
            return Some(
                "the agent may not unmount: print it with flexvold manifest agent --plugin-dir".into(),
            );
        }
        let around = target.as_path().parent().unwrap_or(target.as_path());
        if process::is_on_host() || matches!(mount_table::is_shared(around), Ok(Some(true))) {
            return None;
        }
        Some(format!(
            "what the agent unmounts below {} stays mounted on the node: make it shared",
            around.display()
        ))
    }

    fn perform(&self, action: Action, target: &TargetPath) -> Performed {
        let word = |word: &str| vec![OsString::from(word), target.as_path().into()];
        match action {
            Action::Abort => run(executed::caller(by_force::NAME), &word(ABORT), SYSTEM_CALL),
            Action::TakeOff => run(executed::caller(by_force::NAME), &word(LAZILY), SYSTEM_CALL),
            Action::Driver => {
                let volume = VolumeDir::of(target);
                let name = volume.driver.as_deref().and_then(|name| DriverName::from_directory(name).ok());
                let Some(name) = name else {
                    return Performed::failed("no driver has such a directory");
                };
                let target = target.clone();
                let call = if volume.is_staging() {
                    Call::UnmountDevice { target }
                } else {
                    Call::Unmount { target }
                };
                match (self.plugin_dir)().and_then(|plugins| executable(&plugins, &name)) {
                    Ok(executable) => run(Caller::new(executable), &call.to_arguments(), self.longest),
                    Err(error) => Performed::failed(format!("{error:#}")),
                }
            }
        }
    }
}

fn run(mut caller: Caller, arguments: &[OsString], patience: Duration) -> Performed {
    let driver = Arc::new(Driver::default());
    caller.terms.patience = patience;
    caller.terms.output_limit = 1 << 20;
    caller.terms.observer = Some(Arc::clone(&driver) as Arc<dyn Observer>);
    let exchange = caller.execute(arguments);
    let immortal = exchange.run.as_ref().is_some_and(|run| run.end == End::Immortal);
    // A process of the group that outlives its killed leader is blocked in the kernel as well.
    let stopped = exchange.run.as_ref().is_some_and(|run| run.stopped.is_some());
    let mut stuck = match driver.group() {
        Some(group) if immortal || stopped => stuck::in_group(group),
        _ => Vec::new(),
    };
    if immortal && stuck.is_empty() {
        stuck.extend(driver.pid().and_then(Stuck::of));
    }
    Performed { failed: why(&exchange), stuck }
}

fn why(exchange: &Exchange) -> Option<String> {
    match &exchange.verdict {
        Verdict::Success(_) => None,
        Verdict::NotSupported => Some("not supported".to_owned()),
        Verdict::Failure(fault) => Some(exchange.hint().unwrap_or_else(|| fault.to_string())),
    }
}

impl Performed {
    fn failed(why: impl Into<String>) -> Self {
        Self { failed: Some(why.into()), stuck: Vec::new() }
    }
}

/// Volume to unmount.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Id of the holder.
    pub id: String,
    /// Handle of the storage.
    pub handle: String,
    /// Directory of the mount.
    pub target: String,
}

impl Subject {
    /// Returns the volume of a journal entry.
    pub fn of(entry: &Entry) -> Self {
        let Entry { id, handle, target, .. } = entry.clone();
        Self { id, handle, target }
    }
}

/// All forced unmounts of this node.
pub struct Force {
    hands: Box<dyn Hands>,
    works: Mutex<BTreeMap<String, Work>>,
    look: Arc<dyn Look>,
    /// Called whenever the progress changes.
    tell: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

/// Forced unmount of one volume.
#[derive(Debug)]
struct Work {
    handle: String,
    steps: Vec<Step>,
    /// True while a thread works on it.
    runs: bool,
    stuck: Vec<Stuck>,
    hindrance: Option<String>,
    tries: u32,
    /// Earliest time of the next try.
    due: Instant,
    reported: Option<Progress>,
}

impl Force {
    /// Creates the forced unmounts of a node: none yet.
    pub fn new(hands: Box<dyn Hands>, look: Arc<dyn Look>) -> Self {
        Self { hands, works: Mutex::default(), look, tell: Mutex::default() }
    }

    /// Sets the function that is called when a step has begun or ended.
    pub fn tell(&self, tell: Arc<dyn Fn() + Send + Sync>) {
        *self.tell.lock().unwrap_or_else(PoisonError::into_inner) = Some(tell);
    }

    /// Starts the unmount, unless it is under way or was tried a moment ago. Returns true if its
    /// result is still open: a thread works on it, or it waits for one.
    pub fn advance(self: &Arc<Self>, subject: &Subject) -> bool {
        let mut works = self.works();
        let running = works.values().filter(|work| work.runs).count();
        let work = works.entry(subject.id.clone()).or_insert_with(|| Work::of(subject));
        work.stuck.retain(Stuck::is_there);
        if work.runs || running >= MOST {
            return true;
        }
        if !work.stuck.is_empty() || Instant::now() < work.due {
            return false;
        }
        let (force, subject) = (Arc::clone(self), subject.clone());
        let thread = std::thread::Builder::new().name("force".to_owned());
        work.runs = thread.spawn(move || force.work(&subject)).is_ok();
        work.steps.clear();
        work.runs
    }

    /// Performs all steps.
    fn work(&self, subject: &Subject) {
        let target = TargetPath::parse(subject.target.as_ref());
        let hindrance = match &target {
            Ok(target) => self.hands.hindrance(target),
            Err(failure) => Some(failure.message()),
        };
        if let (Ok(target), None) = (&target, &hindrance) {
            self.steps(subject, target);
        }
        if let Some(work) = self.works().get_mut(&subject.id) {
            let pause = backoff(AGAIN, LONGEST, work.tries);
            (work.runs, work.hindrance, work.due) = (false, hindrance, Instant::now() + pause);
            work.tries += 1;
        }
        self.told();
    }

    fn steps(&self, subject: &Subject, target: &TargetPath) {
        for (number, action) in PLAN.into_iter().enumerate() {
            let left = self.look.left_of(&subject.handle, &subject.target);
            let needed = match action {
                // The driver may clean up more than is visible, and must confirm the unmount.
                Action::Driver => number == 0 || left != Left::Nothing || !self.is_said(subject),
                Action::Abort | Action::TakeOff => left == Left::Mounted,
            };
            if !needed {
                continue;
            }
            let waits = self.change(subject, |work| {
                let waits = action == Action::Driver && work.stuck.iter().any(Stuck::is_there);
                let outcome = if waits { Outcome::Stuck } else { Outcome::Running };
                work.steps.push(Step { name: action.name(), outcome, message: String::new() });
                waits
            });
            if waits == Some(false) {
                let performed = self.hands.perform(action, target);
                self.change(subject, |work| work.ended(performed));
            }
        }
    }

    /// Reports whether the driver has confirmed the unmount in this try.
    fn is_said(&self, subject: &Subject) -> bool {
        self.works().get(&subject.id).is_some_and(Work::is_said)
    }

    /// Changes the state of a volume. Returns `None` if the volume was forgotten meanwhile.
    fn change<T>(&self, subject: &Subject, change: impl FnOnce(&mut Work) -> T) -> Option<T> {
        let changed = self.works().get_mut(&subject.id).map(change);
        self.told();
        changed
    }

    fn told(&self) {
        let tell = self.tell.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(tell) = tell {
            tell();
        }
    }

    /// Returns the progress of a volume, if it has not been reported yet.
    pub fn news(&self, id: &str, phase: Phase, left: &str) -> Option<Progress> {
        let mut works = self.works();
        let steps = works.get(id).map_or_else(Vec::new, |work| work.steps.clone());
        let work = works.get_mut(id);
        let message = match (&work, phase) {
            (Some(work), Phase::Stuck) => work.what_is_left(left),
            _ => String::new(),
        };
        let progress = Progress { phase, steps, message };
        let Some(work) = work else { return Some(progress) };
        if work.reported.as_ref() == Some(&progress) {
            return None;
        }
        work.reported = Some(progress.clone());
        Some(progress)
    }

    /// Reports whether the driver has confirmed the unmount in the last try. Then none of its mount
    /// calls was under way.
    pub fn is_unmounted(&self, id: &str) -> bool {
        self.works().get(id).is_some_and(|work| !work.runs && work.is_said())
    }

    /// Forgets volumes that are no longer wanted, unless a thread works on them.
    pub fn keep(&self, wanted: &BTreeSet<&str>) {
        self.works().retain(|id, work| work.runs || wanted.contains(&**id));
    }

    /// Marks the progress as not reported, after its report has failed.
    pub fn unsaid(&self, id: &str) {
        if let Some(work) = self.works().get_mut(id) {
            work.reported = None;
        }
    }

    /// Forgets a volume whose unmount is over.
    pub fn forget(&self, id: &str) {
        self.works().remove(id);
    }

    /// Reports whether a volume of this storage is being unmounted, for any holder.
    pub fn is_about(&self, handle: &str) -> bool {
        self.works().values().any(|work| work.handle == handle)
    }

    fn works(&self) -> MutexGuard<'_, BTreeMap<String, Work>> {
        self.works.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    fn of(subject: &Subject) -> Self {
        Self {
            handle: subject.handle.clone(),
            steps: Vec::new(),
            runs: false,
            stuck: Vec::new(),
            hindrance: None,
            tries: 0,
            due: Instant::now(),
            reported: None,
        }
    }

    fn is_said(&self) -> bool {
        let done = |step: &Step| step.name == Action::Driver.name() && step.outcome == Outcome::Done;
        self.steps.iter().any(done)
    }

    fn ended(&mut self, performed: Performed) {
        let Some(step) = self.steps.last_mut() else { return };
        step.outcome = match (&performed.failed, performed.stuck.is_empty()) {
            (_, false) => Outcome::Stuck,
            (Some(_), true) => Outcome::Failed,
            (None, true) => Outcome::Done,
        };
        step.message = performed.failed.unwrap_or_default();
        self.stuck.extend(performed.stuck);
    }

    fn what_is_left(&self, left: &str) -> String {
        if let Some(hindrance) = &self.hindrance {
            return hindrance.clone();
        }
        let stuck: Vec<_> =
            self.stuck.iter().filter(|stuck| stuck.is_there()).map(Stuck::to_string).collect();
        if stuck.is_empty() {
            return left.to_owned();
        }
        format!("no signal ends {}: restart the node if that lasts; {left}", stuck.join(", "))
    }
}
