//! The built program as a process: argv in, exit status and output out. Nothing is mounted, and no
//! root is needed but where a test says SKIP.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "kubelet's side: programs are started plainly")]
#![allow(unreachable_pub, reason = "the readers are a library for fuzzers")]

mod answers;
mod call;
mod cli;
mod examples;
mod helm;
mod manifest;
mod prober;
mod process;
#[path = "../../fuzz/src/node.rs"]
#[allow(dead_code, reason = "some of it is for fuzzers")]
mod readers;
#[path = "../support/trust/report.rs"]
#[allow(dead_code, reason = "some of it is for crashes")]
mod report;
mod scarce;
mod startup;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod translate;
mod validate;
mod validate_cluster;
