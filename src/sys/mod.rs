//! The only place that touches the operating system.
//!
//! Everything here is told what to do and knows nothing of drivers, verbs or pods. Errors are [`anyhow::Error`] with
//! the action as context; where a caller has to branch, there is a [`crate::failure::Failure`] in the chain.

pub mod bytes;
pub mod deadline;

pub mod helper;
pub mod loop_device;
mod packages;

mod raw;
pub mod signal;

mod supervise;
pub mod window;
