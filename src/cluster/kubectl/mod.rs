//! What `kubectl flexvol` asks of a cluster, and says to people: who holds which storage, why a
//! claim waits, which volumes there are.
//!
//! The cluster is asked through the user's own kubectl: its configuration, its rights, its way
//! there, whatever that is. What is shown is decided by the objects alone, and a node is judged as
//! the controller judges it.

pub mod asking;
pub mod forced;
pub mod held;
pub mod mount_pods;
pub mod objects;
pub mod session;
pub mod upgrade;
pub mod volumes;

#[cfg(test)]
mod tests;
