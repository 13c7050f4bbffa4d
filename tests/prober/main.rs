//! The prober on real directories, with the kernel's own news of their changes: the library's
//! `Watcher`, and the commands `probe` and `watch`.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "tests start programs and threads as they need")]

mod command_line;
mod design;
mod kubelets;
mod plugin_dir;
#[path = "../support/trust/report.rs"]
#[allow(dead_code, reason = "some of it is for crashes")]
mod report;
mod storm;
#[path = "../support/mod.rs"]
mod support;
mod two;
