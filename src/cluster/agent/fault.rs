//! Reasons why the agent does not carry out a request. Pure.

use crate::fence::decide::{Reason, Refusal};
use crate::fence::record::Holder;
use crate::fence::store::{RecordStore, StoreError};
use serde_json::{Value, json};

/// Error code, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request is not valid.
    BadRequest,
    /// The request has another version of the protocol.
    UnsupportedVersion,
    /// The storage has another holder.
    Fenced,
    /// The records cannot be reached, or the journal cannot be written.
    Unavailable,
    /// The agent accepts no such request now, for example because the node still uses lost storage.
    NotReady,
    /// A call for the same volume is under way.
    InProgress,
    /// Too many requests are served, so this one was not started. A caller with time left retries.
    Crowded,
    /// The caller has given up already.
    Late,
    /// The container has no such program.
    Missing,
    /// The program has not ended in time.
    Timeout,
    /// The container of a mount pod does not run, or the CSI driver does not serve.
    Gone,
    /// No container runtime answers.
    NoRuntime,
    /// The operation failed in a container, its runtime or a driver.
    Failed,
}

impl Code {
    /// Returns the name that is sent.
    pub fn name(self) -> &'static str {
        match self {
            Self::BadRequest => "BAD_REQUEST",
            Self::UnsupportedVersion => "UNSUPPORTED_VERSION",
            Self::Fenced => "FENCED",
            Self::Unavailable => "STORE_UNAVAILABLE",
            Self::NotReady => "NOT_READY",
            Self::InProgress => "IN_PROGRESS",
            Self::Crowded => "CROWDED",
            Self::Late => "LATE",
            Self::Missing => "MISSING",
            Self::Timeout => "TIMEOUT",
            Self::Gone => "GONE",
            Self::NoRuntime => "NO_RUNTIME",
            Self::Failed => "FAILED",
        }
    }
}

/// Error code with a message for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// For programs.
    pub code: Code,
    /// For people.
    pub message: String,
}

impl Fault {
    /// Creates a fault. The message follows the style of all messages.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// Creates the fault for an invalid request.
    pub fn bad(why: impl std::fmt::Display) -> Self {
        Self::new(Code::BadRequest, format!("the request is not valid: {why}"))
    }

    /// Creates the fault for a request whose caller no longer waits.
    pub fn late() -> Self {
        Self::new(Code::Late, "the request came too late: its caller does not wait any more")
    }

    /// Creates the fault for a container or runtime that timed out: its effects are unknown.
    pub fn late_in(pod: &str) -> Self {
        Self::new(Code::Timeout, format!("{pod} or its runtime did not answer in time"))
    }

    /// Creates the fault for a store that has failed, or whose result is unknown.
    pub fn store(handle: &str, store: &str, error: &StoreError) -> Self {
        let text = format!("{handle} cannot be held: {error}: check the locks in {store}");
        Self::new(Code::Unavailable, text)
    }

    /// Creates the fault for a journal that could not be written.
    pub fn journal(error: &anyhow::Error) -> Self {
        Self::new(Code::Unavailable, format!("the agent's journal cannot be written: {error:#}"))
    }

    /// Creates the fault for storage with another holder. Only its namespace sees the pod's name.
    pub fn refused(handle: &str, refusal: &Refusal, namespace: &str, store: &dyn RecordStore) -> Self {
        let holder = refusal.holder.as_ref();
        let shown = |holder: &Holder| {
            if holder.pod.namespace == namespace {
                return holder.shown();
            }
            format!("a pod of another namespace on node {}", holder.node.name)
        };
        let who = holder.map_or_else(|| "others".to_owned(), |holder| shown(holder));
        let text = match refusal.reason {
            Reason::HeldHere => format!("{handle} is held by {who}, on this node: delete that pod first"),
            Reason::AccessDiffers => {
                format!("{handle} is mounted otherwise by {who}: unmount it first")
            }
            Reason::TooMany => format!("{handle} is held by as many pods as can be: delete one of them"),
            Reason::StillMounted => format!("{handle} is still mounted by {who}: unmount it"),
            Reason::Draining => {
                format!("{handle} cannot be held: its FlexAttachment is being deleted: wait until it is gone")
            }
            _ => format!(
                "{handle} is held by {who}{}: {}",
                holder.map_or_else(String::new, |holder| since(&holder.since)),
                store.how_to_take(holder.map_or("NODE", |holder| &holder.node.name))
            ),
        };
        Self::new(Code::Fenced, text)
    }

    /// Returns the JSON form that is sent.
    pub fn to_json(&self) -> Value {
        json!({"code": self.code.name(), "msg": self.message})
    }
}

/// Formats the start of a hold for people, if it is a time. Another node's clock set it.
fn since(text: &str) -> String {
    let is_time = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-:.+".contains(&byte));
    if is_time && !text.is_empty() { format!(" since {text}") } else { String::new() }
}
