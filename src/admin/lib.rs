//! What looks after the drivers of a node.
//!
//! 1. [`plugin_dir`] changes the directory that kubelet reads, so that it never sees half a driver;
//!    [`deploy`] keeps drivers there, and [`manifest`] prints what brings that to a cluster.
//! 2. [`inventory`] finds every flex volume of the node and how it is; [`doctor`] says what is
//!    wrong with a node, and fixes what it can.
//!    [`kubelet_log`] is what kubelet has to say of that.
//! 3. [`cli`] has the commands: thin adapters for people.

pub mod cli;
pub mod deploy;
pub mod doctor;
pub mod inventory;
pub mod kubelet_log;
pub mod manifest;
pub mod plugin_dir;

#[cfg(test)]
#[path = "../../tests/support/wording.rs"]
mod wording;
