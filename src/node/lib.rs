//! Driver side of a node: one process for each call from kubelet.
//!
//! 1. [`skeleton`] owns the process: it keeps the reply pipe from all other processes, runs the
//!    work in a worker, and replies exactly once, whatever happens to the worker.
//! 2. [`executor`] carries out a plan: locked, idempotent, verified and within a deadline. It rolls
//!    back if a step fails.
//! 3. [`hints`] adds to an error its cause and what to do about it.
//! 4. [`driver_log`] keeps a record of the calls for people.

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
