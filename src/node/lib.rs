//! What a driver does on a node: one process for each call of kubelet's.
//!
//! 1. [`skeleton`] owns the process: it takes the reply pipe away from everybody, lets a worker do
//!    the work, and replies exactly once, whatever becomes of the worker.
//! 2. [`executor`] makes a plan true: locked, idempotent, verified, within a deadline, and undone
//!    if a step fails.
//! 3. [`hints`] adds to an error why it happened and what to do about it.
//! 4. [`driver_log`] is what the verbs leave for people.

mod agent_client;
pub mod driver_log;
pub mod executor;
pub mod hints;
pub mod skeleton;

#[cfg(test)]
#[path = "../../tests/support/pace.rs"]
mod pace;
#[cfg(test)]
#[path = "../../tests/support/wording.rs"]
mod wording;
