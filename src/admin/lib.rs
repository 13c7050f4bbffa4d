//! Administration of the drivers of a node.
//!
//! 1. [`plugin_dir`] changes the directory that kubelet reads: kubelet never sees half of a driver.
//!    [`deploy`] keeps drivers there, and [`manifest`] prints the objects that bring it to a
//!    cluster. 2. [`inventory`] lists every flex volume of the node with its state; [`doctor`]
//!    finds what is wrong
//!    with a node, and repairs what it can. [`kubelet_log`] reads kubelet's log for both. 3.
//!    [`cli`] implements the commands: thin adapters for people.

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
