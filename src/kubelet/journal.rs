//! Record of kubelet's steps.

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
    /// Kubelet's name for the operation, or for the part of it that ran last. The pod's Event
    /// begins with it.
    pub stage: &'static str,
    /// Steps, in order.
    pub records: Vec<Record>,
    /// Reason why the operation failed, if it did: the text of the pod's Event.
    pub failure: Option<Failure>,
}

/// One step.
#[derive(Clone, Debug)]
pub struct Record {
    /// Action that was done.
    pub action: Action,
    /// Duration of the step.
    pub took: Duration,
    /// Call and answer, if the step was a call.
    pub exchange: Option<Exchange>,
    /// Error of the step. Kubelet ignores some errors; see [`Journal::failure`].
    pub error: Option<String>,
}

/// Actions of kubelet: calls of the driver, and steps without it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Checks whether the pod's directory is a mount point.
    Look,
    /// Found a mount there: treats the volume as mounted, without a call.
    FindMounted,
    /// Creates the pod's directory and its parents.
    MakeDirectory,
    /// Calls the driver.
    Call(Verb),
    /// Changes the group of all files to the pod's fsGroup.
    ChangeGroup,
    /// Unmounts without a call, for a driver that lacks `unmount`.
    Unmount,
    /// Removes the pod's directory, which must be empty and unmounted.
    RemoveDirectory,
    /// Removes the empty parents of that directory.
    RemovePod,
    /// Inspects the node's global directory.
    LookGlobal,
    /// Found the device mounted on the node: skips the call.
    FindStaged,
    /// Found the volume already attached to the node.
    FindAttached,
    /// Creates the node's global directory and its parents.
    MakeGlobal,
    /// Formats the device if it is blank and mounts it without a call, for a driver that lacks
    /// `mountdevice`.
    MountDevice,
    /// Bind-mounts the global directory to the pod's directory, for a driver that lacks `mount`.
    Bind,
    /// Grows the file system without a call, for a driver that lacks `expandfs`.
    Grow,
    /// Unmounts the global directory without a call, for a driver that lacks `unmountdevice`.
    UnmountGlobal,
    /// Removes the global directory, which must be empty and unmounted.
    RemoveGlobal,
    /// Checks whether a process holds the device open.
    LookDevice,
    /// Stores or removes the record that the volume is attached.
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
    /// Runs an operation that writes its own journal, and adds the operation's failure.
    pub(super) fn keep(stage: &'static str, operation: impl FnOnce(&mut Self) -> Result<()>) -> Self {
        let mut journal = Self { stage, ..Self::default() };
        journal.failure = operation(&mut journal).err().map(to_failure);
        journal
    }

    /// Loads a driver with kubelet's `init`; returns its capabilities if the call succeeded.
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

    /// Makes one call outside any operation, for example to repeat a call whose answer was lost.
    pub fn of_call(caller: &mut Caller, call: &Call) -> Self {
        Self::keep("", |journal| match journal.call(caller, call) {
            Verdict::Success(_) => Ok(()),
            other => Err(failed(&other)),
        })
    }

    /// Does one step and records it.
    pub(super) fn perform<T>(&mut self, action: Action, deed: impl FnOnce() -> Result<T>) -> Result<T> {
        let start = Instant::now();
        let result = deed();
        let error = result.as_ref().err().map(|error| format!("{error:#}"));
        self.records.push(Record { action, took: start.elapsed(), exchange: None, error });
        result
    }

    /// Calls the driver and records the call.
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

    /// Returns the text of the pod's Event, if the operation failed.
    pub fn event(&self, volume: &str) -> Option<String> {
        let failure = self.failure.as_ref()?.message();
        Some(format!("{} failed for volume {volume:?} : {failure}", self.stage))
    }

    /// Reports whether the operation succeeded.
    pub fn is_success(&self) -> bool {
        self.failure.is_none()
    }
}

/// Returns the error for an answer that ends the operation.
pub(super) fn failed(verdict: &Verdict) -> anyhow::Error {
    Failure::new(Code::Internal, verdict.to_string()).into()
}
