//! Why the agent does not do what it was asked. Pure.

use crate::fence::decide::{Reason, Refusal};
use crate::fence::record::Holder;
use crate::fence::store::{RecordStore, StoreError};
use serde_json::{Value, json};

/// In one word, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The request is none.
    BadRequest,
    /// It is of another version of the protocol.
    UnsupportedVersion,
    /// Someone else has the storage.
    Fenced,
    /// The records cannot be reached, or the journal not written.
    Unavailable,
    /// This node has lost storage that it still uses.
    NotReady,
    /// The same volume is being held or released by another call.
    InProgress,
    /// So many others are served that it has not begun: whoever has time asks again.
    Crowded,
    /// Whoever asked has given up by now.
    Late,
    /// A container has no such program.
    Missing,
    /// A program has not ended in time.
    Timeout,
    /// The container of a mount pod does not run.
    Gone,
    /// No runtime answers.
    NoRuntime,
    /// A container or its runtime has not done it.
    Failed,
}

impl Code {
    /// As it is sent.
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

/// A code, and a line for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// For programs.
    pub code: Code,
    /// For people.
    pub message: String,
}

impl Fault {
    /// With a message in house style.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    /// What was sent is no request.
    pub fn bad(why: impl std::fmt::Display) -> Self {
        Self::new(Code::BadRequest, format!("the request is not valid: {why}"))
    }

    /// Whoever asked does not wait any more.
    pub fn late() -> Self {
        Self::new(Code::Late, "the request came too late: its caller does not wait any more")
    }

    /// A container or its runtime has not answered in time: nobody knows what it has done.
    pub fn late_in(pod: &str) -> Self {
        Self::new(Code::Timeout, format!("{pod} or its runtime did not answer in time"))
    }

    /// The store did not do it, or no one knows whether it did.
    pub fn store(handle: &str, store: &str, error: &StoreError) -> Self {
        let text = format!("{handle} cannot be held: {error}: check the locks in {store}");
        Self::new(Code::Unavailable, text)
    }

    /// The journal could not be written: nothing was asked for.
    pub fn journal(error: &anyhow::Error) -> Self {
        Self::new(Code::Unavailable, format!("the agent's journal cannot be written: {error:#}"))
    }

    /// Someone else is in the way. What a pod is called is told to its own namespace.
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

    /// As it is sent.
    pub fn to_json(&self) -> Value {
        json!({"code": self.code.name(), "msg": self.message})
    }
}

/// Told by another node's clock: for people, and only if it is a time.
fn since(text: &str) -> String {
    let is_time = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-:.+".contains(&byte));
    if is_time && !text.is_empty() { format!(" since {text}") } else { String::new() }
}
