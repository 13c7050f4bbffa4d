//! Unmounting by force: what an administrator asks for when a volume does not let go, and what
//! becomes of one that another node was given.
//!
//! ```text
//! driver's unmount ─▶ abort ─▶ lazy unmount ─▶ driver's unmount again ─▶ is anything left?
//!   60 s                10 s      10 s             60 s
//! ```
//!
//! Each step is a process, and is taken only if something is mounted or attached still. The driver
//! comes first because it alone unmounts without losing anything, and last because it alone knows
//! what else belongs to the volume. What cannot be ended is abandoned: then no further process is
//! begun for the volume before it is gone.
//!
//! Nothing is released by anything here. That nothing is left is seen by whoever releases, and a
//! mount that was only taken off its directory still has its device.

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
use flexvol_protocol::{Call, DriverName, TargetPath};
use flexvol_terminal::driver_dir::executable;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a driver may take, if nobody says so.
pub const DRIVER: Duration = Duration::from_mins(1);

/// How long a system call may, that is made by a process of its own.
const SYSTEM_CALL: Duration = Duration::from_secs(10);

/// So many volumes are worked at at once; further ones wait.
const MOST: usize = 8;

/// Before all steps are tried again, doubled each time; and the longest.
const AGAIN: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_mins(1);

/// What can be done to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The driver's own verb.
    Driver,
    /// What waits for the mount ends.
    Abort,
    /// The mount is taken off its directory.
    TakeOff,
}

impl Action {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "unmount by the driver",
            Self::Abort => "abort, umount -f",
            Self::TakeOff => "umount -l",
        }
    }
}

/// In this order.
pub const PLAN: [Action; 4] = [Action::Driver, Action::Abort, Action::TakeOff, Action::Driver];

/// What came of an action.
#[derive(Clone, Debug)]
pub struct Performed {
    /// Why it failed; nothing if it succeeded.
    pub failed: Option<String>,
    /// What it has started and could not be ended.
    pub stuck: Vec<Stuck>,
}

/// Who acts on volumes.
pub trait Hands: Send + Sync {
    /// Why nothing that is unmounted here would be on the node; nothing if it would.
    fn hindrance(&self, target: &TargetPath) -> Option<String>;

    /// Does it, within its time.
    fn perform(&self, action: Action, target: &TargetPath) -> Performed;
}

/// Processes of this node.
#[expect(missing_debug_implementations, reason = "a function has none")]
pub struct Processes {
    /// Finds kubelet's plugin directory: when the agent starts, kubelet may not run yet.
    pub plugin_dir: Box<dyn Fn() -> anyhow::Result<PathBuf> + Send + Sync>,
    /// How long a driver may take.
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
    // Whatever else has outlived its leader's death waits in the kernel as well.
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

/// A volume that is to be unmounted.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Who holds it.
    pub id: String,
    /// What.
    pub handle: String,
    /// Where.
    pub target: String,
}

impl Subject {
    /// What an entry of the journal is about.
    pub fn of(entry: &Entry) -> Self {
        let Entry { id, handle, target, .. } = entry.clone();
        Self { id, handle, target }
    }
}

/// All that is unmounted by force on this node.
pub struct Force {
    hands: Box<dyn Hands>,
    works: Mutex<BTreeMap<String, Work>>,
    look: Arc<dyn Look>,
    /// Called whenever there is something to tell.
    tell: Mutex<Option<Arc<dyn Fn() + Send + Sync>>>,
}

/// One of them.
#[derive(Debug)]
struct Work {
    handle: String,
    steps: Vec<Step>,
    /// Whether a thread works at it.
    runs: bool,
    stuck: Vec<Stuck>,
    hindrance: Option<String>,
    tries: u32,
    /// When it may be tried again.
    due: Instant,
    reported: Option<Progress>,
}

impl Force {
    /// Of a node.
    pub fn new(hands: Box<dyn Hands>, look: Arc<dyn Look>) -> Self {
        Self { hands, works: Mutex::default(), look, tell: Mutex::default() }
    }

    /// From now on this is called when a step has begun or ended.
    pub fn tell(&self, tell: Arc<dyn Fn() + Send + Sync>) {
        *self.tell.lock().unwrap_or_else(PoisonError::into_inner) = Some(tell);
    }

    /// Begins to unmount it, unless that is under way or was tried a moment ago. Whether a thread
    /// works at it now: then nothing is decided yet.
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

    /// All steps.
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
            let pause = AGAIN.saturating_mul(1 << work.tries.min(8)).min(LONGEST);
            (work.runs, work.hindrance, work.due) = (false, hindrance, Instant::now() + pause);
            work.tries += 1;
        }
        self.told();
    }

    fn steps(&self, subject: &Subject, target: &TargetPath) {
        for (number, action) in PLAN.into_iter().enumerate() {
            let left = self.look.left_of(&subject.handle, &subject.target);
            let needed = match action {
                // It may have more to end than is seen, and has to say that nothing is left.
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

    /// Whether its driver has said in this try that it is unmounted.
    fn is_said(&self, subject: &Subject) -> bool {
        self.works().get(&subject.id).is_some_and(Work::is_said)
    }

    /// Nothing if it was forgotten meanwhile.
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

    /// What is to be said of it, if that has not been said yet.
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

    /// Whether its driver has said that it is unmounted, in the last try: so no call of it that
    /// mounts was under way then.
    pub fn is_unmounted(&self, id: &str) -> bool {
        self.works().get(id).is_some_and(|work| !work.runs && work.is_said())
    }

    /// What nobody wants any more is forgotten, once no thread works at it.
    pub fn keep(&self, wanted: &BTreeSet<&str>) {
        self.works().retain(|id, work| work.runs || wanted.contains(&**id));
    }

    /// It could not be said.
    pub fn unsaid(&self, id: &str) {
        if let Some(work) = self.works().get_mut(id) {
            work.reported = None;
        }
    }

    /// It is over.
    pub fn forget(&self, id: &str) {
        self.works().remove(id);
    }

    /// Whether some holder's volume of this storage is being unmounted.
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
