//! Installing and removing drivers: the built command on real directories, watched, killed and
//! crowded.
#![cfg(test)]
#![expect(clippy::disallowed_methods, reason = "tests start programs")]

mod advice;
mod bad_input;
mod busy;
mod crowd;
mod daemons;
mod events;
mod halfway;
mod heal;
mod life;
mod node;
mod proof;
#[path = "../support/mod.rs"]
mod support;
#[path = "../support/trust/mod.rs"]
mod trust;
mod trust_scenarios;
