//! Questions that `kubectl flexvol` answers about a cluster: the holders of storage, the reason why
//! a claim waits, the list of volumes.
//!
//! The cluster is read through the user's own kubectl: with its configuration, its permissions and
//! its connection. The answers depend only on the objects, and a node is judged as the controller
//! judges it.

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
