//! What root code is trusted by: whatever becomes of a call, the next one finds a node it can work
//! on.
//!
//! A driver's scenario is a [`Volume`]: its name, the calls that bring it to a pod and take it
//! away, how its store is made what it was at first, and what must be intact whenever it is there.
//! Everything else follows from that:
//!
//! * [`crash`]: SIGKILL before each system call of each call, of the worker, the supervisor, both,
//!   or of a program they run; then kubelet's next move;
//! * [`faults`]: each system call fails, with each error; one reply, and nothing of a call that
//!   failed stays;
//! * [`races`]: calls for one target at the same time, and many pods at once;
//! * [`endures`]: what is done thousands of times leaves no more than what is done once.
//!
//! After each, [`Inventory`] says what is left: mounts, loop devices, processes, control groups,
//! files, records, locks, hidden directories. In the gate a sample is tried, by a fixed seed; with
//! `FULL=1` in the environment all there is. `FLEXVOL_KIND` names one of `crash`, `fault`, `race`
//! and `endurance`, where no other is wanted. Every run adds a line to the file that
//! `FLEXVOL_TRUST` names, of which the page of results is made.
#![allow(dead_code, unused_imports, reason = "each test binary uses its part")]

mod alone;
mod endurance;
mod inventory;
mod points;
mod races;
mod report;
mod tracer;

pub(crate) use alone::{alone, has, is_inside};
pub(crate) use endurance::endures;
pub(crate) use inventory::{Inventory, groups};
pub(crate) use points::{crash, faults};
pub(crate) use races::races;
pub(crate) use report::{Dice, Report, is_full, is_wanted, sample_of, seed};
pub(crate) use tracer::{CAN_FAIL, FaultInjection, Role, play};

use serde_json::Value;
use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What a driver's scenario says.
pub(crate) struct Volume<'a> {
    /// As the results call it: the driver, and what of it: `image/ext4`.
    pub(crate) name: &'a str,
    /// The calls that bring it to a pod, in order: `mount`, or `attach`, `mountdevice`, ... Each is
    /// repeatable.
    pub(crate) up: Vec<Rung<'a>>,
    /// The calls that take it away, in order. Each works where there is nothing to take away.
    pub(crate) down: Vec<Rung<'a>>,
    /// Makes the store what it was at first; the volume is down.
    pub(crate) fresh: &'a dyn Fn(),
    /// Holds whenever it is up.
    pub(crate) intact: &'a dyn Fn(),
    /// Holds whatever has just been killed or has failed.
    pub(crate) always: &'a dyn Fn(),
    /// Who reads the answers.
    pub(crate) speaks: Speaks,
    /// How many points of each call are tried in the gate.
    pub(crate) sample: usize,
    /// How much of the whole the long form tries.
    pub(crate) whole: Whole,
    /// Whether the programs it runs are struck, too: not those with threads, which never do the
    /// same twice.
    pub(crate) programs: bool,
    /// Where files may be left, besides the places of our own.
    pub(crate) places: Vec<std::path::PathBuf>,
}

/// One call.
pub(crate) struct Rung<'a> {
    pub(crate) verb: &'static str,
    /// Made again each time, with what kubelet does before it: the directory of the target.
    pub(crate) command: Box<dyn Fn() -> Command + 'a>,
}

/// Who reads the answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Speaks {
    /// kubelet: exit 0 and a driver's reply.
    Kubelet,
    /// The admin's scripts: `--json`.
    Admin,
}

/// What the long form tries.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Whole {
    /// Every point, with every victim and every error.
    All,
    /// Every point with one victim and one error each, in turn: where each call takes its time. The
    /// seed says which is first, so eight seeds in a row try all.
    EachOnce,
}

/// What a caller gets.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: String,
    pub(crate) message: String,
    pub(crate) took: Duration,
}

impl Answer {
    #[track_caller]
    pub(crate) fn success(self) -> Self {
        assert_eq!(self.status, "Success", "{self:?}");
        self
    }
}

impl Speaks {
    /// What was said: exactly one well-formed answer, or the reason why it is none.
    pub(crate) fn read(self, text: &str, took: Duration) -> Result<Answer, String> {
        let reply: Value = serde_json::from_str(text).map_err(|error| format!("{error}: {text:?}"))?;
        let reply = if reply.is_array() { reply[0].clone() } else { reply };
        let word = |key: &str| reply[key].as_str().unwrap_or_default().to_owned();
        let (status, message) = match self {
            Self::Kubelet => (word("status"), word("message")),
            Self::Admin if reply["error"].is_string() => ("Failure".to_owned(), word("error")),
            Self::Admin => ("Success".to_owned(), String::new()),
        };
        let known = ["Success", "Failure"].contains(&status.as_str());
        let one_line = self == Self::Admin || text.trim_end().lines().count() == 1;
        if !known || (status == "Failure" && message.is_empty()) || !one_line {
            return Err(format!("no well-formed answer: {text:?}"));
        }
        Ok(Answer { status, message, took })
    }

    /// One call, to its end.
    #[track_caller]
    pub(crate) fn call(self, mut command: Command) -> Answer {
        let (mut reader, writer) = std::io::pipe().unwrap();
        command.stdin(Stdio::null()).stdout(writer.try_clone().unwrap());
        command.stderr(if self == Self::Kubelet {
            writer.try_clone().unwrap().into()
        } else {
            Stdio::null()
        });
        drop(writer);
        let (start, mut text) = (Instant::now(), String::new());
        let mut child = command.spawn().unwrap();
        let what = format!("{command:?}");
        drop(command);
        reader.read_to_string(&mut text).unwrap();
        let status = child.wait().unwrap();
        assert!(status.success() || self == Self::Admin, "{what}: {status}: {text}");
        self.read(&text, start.elapsed()).unwrap_or_else(|error| panic!("{what}: {error}"))
    }
}

impl<'a> Rung<'a> {
    pub(crate) fn new(verb: &'static str, command: impl Fn() -> Command + 'a) -> Self {
        Self { verb, command: Box::new(command) }
    }
}

impl<'a> Volume<'a> {
    /// One that is mounted and unmounted, and has nothing to look after.
    pub(crate) fn new(name: &'a str, up: Vec<Rung<'a>>, down: Vec<Rung<'a>>) -> Self {
        Self {
            name,
            up,
            down,
            fresh: &|| (),
            intact: &|| (),
            always: &|| (),
            speaks: Speaks::Kubelet,
            sample: 6,
            whole: Whole::All,
            programs: true,
            places: Vec::new(),
        }
    }

    /// Brings it up, but for the last calls, of which there are so many.
    #[track_caller]
    fn raise(&self, but: usize) {
        for rung in &self.up[..self.up.len() - but] {
            self.speaks.call((rung.command)()).success();
        }
    }

    /// Takes it away, but for the last calls.
    #[track_caller]
    fn lower(&self, but: usize) {
        for rung in &self.down[..self.down.len() - but] {
            self.speaks.call((rung.command)()).success();
        }
    }

    /// Up and intact, and down again: what must work whatever happened before.
    #[track_caller]
    fn lives(&self) {
        self.raise(0);
        (self.intact)();
        self.lower(0);
    }

    /// Everything there is to try with it, whatever comes out of the first; so many cycles in the
    /// gate, and the other number in the long form.
    #[track_caller]
    pub(crate) fn withstands(&self, cycles: [usize; 2]) {
        let kinds: [&dyn Fn(); 4] =
            [&|| crash(self), &|| faults(self), &|| races(self), &|| endures(self, cycles)];
        let failed = kinds.iter().filter(|run| catch_unwind(AssertUnwindSafe(run)).is_err()).count();
        assert_eq!(failed, 0, "{}: kinds of misfortune that it does not withstand", self.name);
    }

    fn inventory(&self) -> Inventory {
        Inventory::take(&self.places)
    }

    /// From which on a leak is one: what is made once on a node is there.
    fn baseline(&self) -> Inventory {
        (self.fresh)();
        self.lives();
        (self.fresh)();
        self.inventory()
    }
}
