//! Fencing: a volume is never written from two places.
//!
//! A node requests the storage before it attaches a volume, and releases it after the last detach.
//! The lock is on the *storage*, under a name that all its volumes share: its handle
//! (`rbd:<fsid>/<pool>/<image>`). Each handle has one [`Record`](record::Record), which every node
//! can see, with the pods that hold the storage.
//!
//! ```text
//!   request ──┐
//!   record ───┼──▶ decide (pure) ──▶ decision: tasks first, then the record, then the reply
//!   evidence ─┘                          │
//!                                        ▼
//!                          compare-and-swap into the store; retried after a conflict
//! ```
//!
//! * [`record`]: the holders, their sharing, and an *epoch*.
//! * [`request`]: a pod mounts, a volume was attached, an unmount begins or ends.
//! * [`evidence`]: the state of nodes and pods at the time of the decision.
//! * [`decide`](mod@decide): all rules, as a table of 31 rows. No other module decides anything.
//! * [`settle`](mod@settle): writes the decision into a [`store`].
//!
//! Three invariants hold after every crash. `model.rs` searches for a way around them:
//!
//! 1. *Never two writers.* A holder is removed by itself, or because of evidence that its **node**
//!    can no longer write. A missing pod is no evidence: the processes of a pod that was deleted by
//!    force may still run on an unreachable node.
//! 2. *Released after detached.* A holder removes itself only after it has seen that nothing is
//!    mounted or attached any more.
//! 3. *Epochs never fall.* Each time a holder is removed by another one, the epoch rises. A node
//!    that returns with a lower epoch has lost its volumes, and unmounts them before it serves.

pub mod decide;
pub mod evidence;
pub mod progress;
pub mod record;
pub mod request;
pub mod sharing;

pub mod settle;
pub mod store;

#[cfg(test)]
pub(crate) mod contract;
#[cfg(test)]
mod model;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod rows;
#[cfg(test)]
mod store_tests;
#[cfg(test)]
mod world;
