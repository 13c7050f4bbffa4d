//! The only place that touches the operating system.
//!
//! Everything here is told what to do and knows nothing of drivers, verbs or pods. Errors are [`anyhow::Error`] with
//! the action as context; where a caller has to branch, there is a [`crate::failure::Failure`] in the chain.

pub mod blank;
pub mod bytes;
pub mod deadline;
pub mod format;
pub mod helper;
pub mod loop_device;
mod packages;
pub mod partition;
mod raw;
pub mod signal;
pub mod signature;
mod supervise;
pub mod window;
