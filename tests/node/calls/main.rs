//! Calls of drivers that are small scripts, and what the admin is told of them and of their
//! volumes: each test in a mount namespace of its own, all in the process namespace of the test
//! program. Only tests of `doctor`, which looks at all of them, have processes called kubelet here.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "kubelet's side: programs are started plainly")]

mod doctor;
mod driver_log;
mod exec;
mod memory;
mod pod;
mod profiles;
#[path = "../../support/trust/report.rs"]
#[allow(dead_code, reason = "some of it is for crashes and races")]
mod report;
mod served;
mod status;
mod supervision;
#[path = "../../support/mod.rs"]
mod support;
