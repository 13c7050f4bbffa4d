//! Whatever others write: the committed inputs of the fuzzers, options that would like to be more
//! than one, names that would like to be paths, arguments without end; and what is left in memory
//! of a secret.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "kubelet's side: programs are started plainly")]
#![allow(unreachable_pub, reason = "the readers are a library for fuzzers")]

mod answers;
mod corpus;
mod injection;
mod memory;
mod names;
#[path = "../../fuzz/src/lib.rs"]
mod readers;
#[path = "../support/trust/report.rs"]
#[allow(dead_code, reason = "some of it is for crashes and races")]
mod report;
#[path = "../support/mod.rs"]
mod support;

/// How many times something is tried: so many in the gate, so many with `FULL=1`.
pub(crate) fn rounds(gate: u32, full: u32) -> u32 {
    if report::is_full() { full } else { gate }
}
