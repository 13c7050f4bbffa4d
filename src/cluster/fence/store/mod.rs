//! Where records are kept: one trait, by compare-and-swap.
//!
//! A store promises one thing: of two writes that were decided on the same version, one fails. It
//! may forget to answer. [`settle`](super::settle) lives with that.

pub mod file;
#[cfg(test)]
pub(crate) mod memory;

use super::decide::Task;
use super::record::{Node, Record};
use std::fmt;

/// What was read: a record, and by what the store tells it from any other state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// `None` where there is none.
    pub record: Option<Record>,
    /// Means something to the store alone.
    pub version: String,
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

/// Where records are kept.
pub trait RecordStore: Send + Sync {
    /// The newest state of a storage's record.
    fn read(&self, handle: &str) -> Result<Read>;

    /// Replaces a record, or removes it, if it is still what was read.
    fn write(&self, handle: &str, read: &Read, next: Option<&Record>) -> Result<()>;

    /// All records, for scans.
    fn list(&self) -> Result<Vec<Record>>;

    /// Leaves a task for a holder's node. One that is there already stays as it is.
    fn note(&self, task: &Task) -> Result<()>;

    /// What a node has to clean up.
    fn tasks(&self, node: &Node) -> Result<Vec<Task>>;

    /// Removes a task that is done.
    fn finish(&self, task: &Task) -> Result<()>;
}
