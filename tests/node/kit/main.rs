//! The conformance kit: `flexvol check` on our own drivers, on popular ones, and on those that
//! misbehave.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "the tests start the command")]

mod check;
mod check_native;
mod check_peers;
mod check_self;
mod faults;
#[path = "../../support/mod.rs"]
mod support;
