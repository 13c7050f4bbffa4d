//! Stores of records: one trait, with compare-and-swap.
//!
//! A store guarantees that of two writes that were decided on the same version, one fails. Its
//! answer may be lost: [`settle`](super::settle) handles that.

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

/// Record that was read, and the version by which the store recognises this state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// Record; `None` if it does not exist.
    pub record: Option<Record>,
    /// Version, which only the store interprets.
    pub version: String,
    /// Deletion state of the record.
    pub ending: Ending,
}

/// Reason why a store did not carry out a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// Another process has written since: read again, and decide again.
    Conflict,
    /// It is unknown whether the record was written: read again to find out.
    Unsure(String),
    /// The record was not written, and will not be.
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

/// Result of a store operation.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Node that an administrator has declared off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Off {
    /// Name of the node.
    pub node: String,
    /// Boots that are meant: those in which the node held storage at that time.
    pub boots: Vec<String>,
}

impl Off {
    /// Reports whether the node is declared off, in the boot in which it held storage.
    pub fn is_about(&self, node: &Node) -> bool {
        self.node == node.name && self.boots.contains(&node.boot)
    }
}

/// Store of records.
pub trait RecordStore: Send + Sync {
    /// Returns the newest state of a storage's record. Waits no longer than the deadline.
    fn read(&self, handle: &str, deadline: Instant) -> Result<Read>;

    /// Returns the assumed state of a record that was not read, if a read costs a round trip. A
    /// request for exclusive use then writes at once; a conflict shows that there is a record.
    fn unread(&self) -> Option<Read> {
        None
    }

    /// Replaces or removes a record, if it is still in the state that was read.
    fn write(&self, handle: &str, read: &Read, next: Option<&Record>, deadline: Instant) -> Result<()>;

    /// Returns all records, for scans.
    fn list(&self) -> Result<Vec<Record>>;

    /// Returns the records in which a node is a holder, and perhaps others.
    fn list_of(&self, _: &Node, _: Instant) -> Result<Vec<Record>> {
        self.list()
    }

    /// Leaves a task for a holder's node. An existing task stays unchanged.
    fn note(&self, task: &Task, deadline: Instant) -> Result<()>;

    /// Returns the cleanup tasks of a node.
    fn tasks(&self, node: &Node, deadline: Instant) -> Result<Vec<Task>>;

    /// Calls the function whenever a task for the node may have arrived, if the store can tell.
    fn hear_of_tasks(&self, _: &Node, _: Arc<dyn Fn() + Send + Sync>) {}

    /// Returns the cleanup tasks of all nodes, for a controller that handles nodes that are gone;
    /// empty in a store without such a controller.
    fn all_tasks(&self, _: Instant) -> Result<Vec<Task>> {
        Ok(Vec::new())
    }

    /// Reports the progress of a task, if the store can show it.
    fn report(&self, _: &Task, _: &Progress) -> Result<()> {
        Ok(())
    }

    /// Removes a task that is done.
    fn finish(&self, task: &Task) -> Result<()>;

    /// Returns the nodes that an administrator has declared off; empty if declared elsewhere.
    fn off(&self) -> Result<Vec<Off>> {
        Ok(Vec::new())
    }

    /// Fails with the reason if a node may not hold storage in its current boot. Called when its
    /// agent starts, because other nodes judge it by the state that is shown there.
    fn admits(&self, _: &Node, _: Instant) -> Result<()> {
        Ok(())
    }

    /// Returns advice about a node that holds storage which another node requests.
    fn how_to_take(&self, node: &str) -> String {
        format!("delete that pod; only if the node is off for good: flexvold locks --off {node}")
    }
}
