//! Where records are kept: one trait, by compare-and-swap.
//!
//! A store promises one thing: of two writes that were decided on the same version, one fails. It
//! may forget to answer. [`settle`](super::settle) lives with that.

pub mod file;
pub mod kubernetes;
#[cfg(test)]
pub(crate) mod memory;

use super::decide::Task;
use super::evidence::Ending;
use super::progress::Progress;
use super::record::{Node, Record};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// What was read: a record, and by what the store tells it from any other state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// `None` where there is none.
    pub record: Option<Record>,
    /// Means something to the store alone.
    pub version: String,
    /// Whether the record is to go.
    pub ending: Ending,
}

/// Why a store did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Someone else has written since: read again, and decide again.
    Conflict,
    /// No one knows whether it has been written: read again to learn it.
    Unsure(String),
    /// It has not, and will not be.
    Failed(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Conflict => f.write_str("another node has changed the lock record"),
            Self::Unsure(reason) | Self::Failed(reason) => f.write_str(reason),
        }
    }
}

impl std::error::Error for StoreError {}

/// What a store may do.
pub type Result<T> = std::result::Result<T, StoreError>;

/// A node that an administrator has asserted to be off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Off {
    /// Its name.
    pub node: String,
    /// Which boots of it are meant: those that held anything then.
    pub boots: Vec<String>,
}

impl Off {
    /// Whether that is said of a node as it was when it held something.
    pub fn is_about(&self, node: &Node) -> bool {
        self.node == node.name && self.boots.contains(&node.boot)
    }
}

/// Where records are kept.
pub trait RecordStore: Send + Sync {
    /// The newest state of a storage's record. Later than the deadline no one waits for it.
    fn read(&self, handle: &str, deadline: Instant) -> Result<Read>;

    /// What a record is read as that nobody has written, if reading costs a round trip: whoever
    /// wants storage for itself writes at once, and is told by the conflict that there is a record.
    fn unread(&self) -> Option<Read> {
        None
    }

    /// Replaces a record, or removes it, if it is still what was read.
    fn write(&self, handle: &str, read: &Read, next: Option<&Record>, deadline: Instant) -> Result<()>;

    /// All records, for scans.
    fn list(&self) -> Result<Vec<Record>>;

    /// Those in which a node is a holder, and perhaps others.
    fn list_of(&self, _: &Node, _: Instant) -> Result<Vec<Record>> {
        self.list()
    }

    /// Leaves a task for a holder's node. One that is there already stays as it is.
    fn note(&self, task: &Task, deadline: Instant) -> Result<()>;

    /// What a node has to clean up.
    fn tasks(&self, node: &Node, deadline: Instant) -> Result<Vec<Task>>;

    /// Calls from now on whenever a task for the node may have come, if the store hears of them.
    fn hear_of_tasks(&self, _: &Node, _: Arc<dyn Fn() + Send + Sync>) {}

    /// What all nodes have to clean up, for who looks after those that are gone; nothing in a store
    /// that no one looks after.
    fn all_tasks(&self, _: Instant) -> Result<Vec<Task>> {
        Ok(Vec::new())
    }

    /// Says how far a task has come, where anybody reads that.
    fn report(&self, _: &Task, _: &Progress) -> Result<()> {
        Ok(())
    }

    /// Removes a task that is done.
    fn finish(&self, task: &Task) -> Result<()>;

    /// The nodes that an administrator has asserted to be off; none in a store where others say so.
    fn off(&self) -> Result<Vec<Off>> {
        Ok(Vec::new())
    }

    /// Whether a node may hold anything, in the boot that it runs in; else why not. Asked when its
    /// agent starts, because others judge it by what is said there.
    fn admits(&self, _: &Node, _: Instant) -> Result<()> {
        Ok(())
    }

    /// What to do about a node that holds what another one wants.
    fn how_to_take(&self, node: &str) -> String {
        format!("delete that pod; only if the node is off for good: flexvold locks --off {node}")
    }
}
