//! The record of what kubelet did, step by step.

use super::caller::{Caller, Exchange};
use super::verdict::Verdict;
use anyhow::Result;
use flexvol_linux::errno::to_failure;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::{Call, Capabilities, Verb};
use std::fmt;
use std::time::{Duration, Instant};

/// All steps of one operation on a volume.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    /// What kubelet calls the operation, or the part of it that was under way at the end; begins
    /// the pod's Event.
    pub stage: &'static str,
    /// In order.
    pub records: Vec<Record>,
    /// Why the operation failed, if it did: what the pod's Event would say.
    pub failure: Option<Failure>,
}

/// One step.
#[derive(Clone, Debug)]
pub struct Record {
    /// What was done.
    pub action: Action,
    /// How long it took.
    pub took: Duration,
    /// The call, if it was one.
    pub exchange: Option<Exchange>,
    /// What went wrong. Kubelet forgives some of it; [`Journal::failure`] tells.
    pub error: Option<String>,
}

/// What kubelet does besides and by calling a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Looks whether something is mounted at the pod's directory.
    Look,
    /// Found a mount there, and so takes the volume for mounted without a call.
    FindMounted,
    /// Makes the pod's directory and those above it.
    MakeDirectory,
    /// Calls the driver.
    Call(Verb),
    /// Gives all files to the pod's fsGroup.
    ChangeGroup,
    /// Unmounts by itself, for a driver that lacks `unmount`.
    Unmount,
    /// Removes the pod's directory, which must be empty and unmounted.
    RemoveDirectory,
    /// Removes the empty directories above it.
    RemovePod,
    /// Looks at the node's global directory.
    LookGlobal,
    /// Found the device mounted on the node, and so does not call the driver.
    FindStaged,
    /// Found the volume attached to the node already.
    FindAttached,
    /// Makes the node's global directory and those above it.
    MakeGlobal,
    /// Formats the device if it is blank and mounts it by itself, for a driver that lacks
    /// `mountdevice`.
    MountDevice,
    /// Binds the global directory to the pod's by itself, for a driver that lacks `mount`.
    Bind,
    /// Grows the file system by itself, for a driver that lacks `expandfs`.
    Grow,
    /// Unmounts the global directory by itself, for a driver that lacks `unmountdevice`.
    UnmountGlobal,
    /// Removes the global directory, which must be empty and unmounted.
    RemoveGlobal,
    /// Looks whether anybody holds the device open.
    LookDevice,
    /// Keeps or drops the note that the volume is attached.
    Note,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Look => "look at directory",
            Self::FindMounted => "already mounted, no call",
            Self::MakeDirectory => "make directory",
            Self::Call(verb) => verb.name(),
            Self::ChangeGroup => "change group",
            Self::Unmount => "unmount without driver",
            Self::RemoveDirectory => "remove directory",
            Self::RemovePod => "remove pod directories",
            Self::LookGlobal => "look at global directory",
            Self::FindStaged => "device mounted, no call",
            Self::FindAttached => "already attached, no call",
            Self::MakeGlobal => "make global directory",
            Self::MountDevice => "mount device without driver",
            Self::Bind => "bind without driver",
            Self::Grow => "grow without driver",
            Self::UnmountGlobal => "unmount device without driver",
            Self::RemoveGlobal => "remove global directory",
            Self::LookDevice => "look at device",
            Self::Note => "note attachment",
        })
    }
}

impl Journal {
    /// Runs an operation that writes its own journal.
    pub(super) fn keep(stage: &'static str, operation: impl FnOnce(&mut Self) -> Result<()>) -> Self {
        let mut journal = Self { stage, ..Self::default() };
        journal.failure = operation(&mut journal).err().map(to_failure);
        journal
    }

    /// Loads a driver: kubelet's `init`, and what the driver can do if that went well.
    pub fn init(caller: &mut Caller) -> (Self, Option<Capabilities>) {
        let (exchange, capabilities) = caller.init();
        let failure = capabilities.as_ref().err().cloned();
        let error = failure.as_ref().map(Failure::message);
        let record = Record {
            action: Action::Call(Verb::Init),
            took: exchange.took(),
            exchange: Some(exchange),
            error,
        };
        (Self { stage: "", records: vec![record], failure }, capabilities.ok())
    }

    /// One call outside any operation, as when an answer was lost.
    pub fn of_call(caller: &mut Caller, call: &Call) -> Self {
        Self::keep("", |journal| match journal.call(caller, call) {
            Verdict::Success(_) => Ok(()),
            other => Err(failed(&other)),
        })
    }

    /// Does something and records it.
    pub(super) fn perform<T>(&mut self, action: Action, deed: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let result = deed();
        let error = result.as_ref().err().map(|error| format!("{error:#}"));
        self.records.push(Record { action, took: start.elapsed(), exchange: None, error });
        result
    }

    /// Calls the driver and records it.
    pub(super) fn call(&mut self, caller: &mut Caller, call: &Call) -> Verdict {
        let exchange = caller.call(call);
        let verdict = exchange.verdict.clone();
        self.records.push(Record {
            action: Action::Call(call.verb()),
            took: exchange.took(),
            error: (!verdict.is_success()).then(|| verdict.to_string()),
            exchange: Some(exchange),
        });
        verdict
    }

    /// What the pod's Event would say, if the operation failed.
    pub fn event(&self, volume: &str) -> Option<String> {
        let failure = self.failure.as_ref()?.message();
        Some(format!("{} failed for volume {volume:?} : {failure}", self.stage))
    }

    /// Whether the operation succeeded.
    pub fn is_success(&self) -> bool {
        self.failure.is_none()
    }
}

/// An answer that ends the operation.
pub(super) fn failed(verdict: &Verdict) -> anyhow::Error {
    Failure::new(Code::Internal, verdict.to_string()).into()
}
