//! Fencing: a volume is never written from two places.
//!
//! Whoever is about to attach a volume asks for it first, and gives it back after the last detach.
//! What is locked is the *storage*, by a name that all its volumes share: its handle
//! (`rbd:<fsid>/<pool>/<image>`). For each handle there is one [`Record`](record::Record), kept
//! where every node can see it, that says which pods hold the storage.
//!
//! ```text
//!   request ──┐
//!   record ───┼──▶ decide (pure) ──▶ decision: what to do first, what to write, what to answer
//!   evidence ─┘                          │
//!                                        ▼
//!                          compare-and-swap into the store; if another was faster, once more
//! ```
//!
//! * [`record`] is what is written: the holders, how they share, and an *epoch*.
//! * [`request`] is what is asked: a pod mounts, a volume was attached, an unmount begins or ends.
//! * [`evidence`] is what is known about nodes and pods just now.
//! * [`decide`](mod@decide) has every rule, as a table of 31 rows; nothing else decides anything.
//! * [`settle`](mod@settle) has it written, and [`store`] is where.
//!
//! Three things hold, whatever crashes, and `model.rs` looks for a way around them:
//!
//! 1. *Never two writers.* A holder is removed by itself, or because of evidence that its **node**
//!    can no longer write. That a pod is missing is no evidence: the processes of a pod that was
//!    deleted by force may still run on a node that no one reaches.
//! 2. *Released after detached.* A holder removes itself only after it has seen that nothing is
//!    mounted or attached any more.
//! 3. *Epochs never fall.* Each time a holder is removed by another one, the epoch rises. A node
//!    that comes back with a lower one has lost its volumes and ends them before it serves.

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
