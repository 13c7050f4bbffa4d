//! The plugin directory: where it is, and drivers that are installed, kept and removed in it, on
//! real directories, watched, killed and crowded.
//!
//! Many tests start processes called kubelet: each looks for its own only.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "tests start programs and write files as they need")]

mod advice;
mod bad_input;
mod busy;
mod crowd;
mod daemons;
mod deploy;
mod events;
mod halfway;
mod heal;
mod life;
mod locate;
mod node;
mod proof;
#[path = "../../support/mod.rs"]
mod support;
#[path = "../../support/trust/mod.rs"]
mod trust;
mod trust_scenarios;
