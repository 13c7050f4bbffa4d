//! `flexvold`: services that a FlexVolume driver needs beyond kubelet's own plugin.
//!
//! [`csi`] serves any driver as a CSI driver, and [`manifest`] deploys that in a cluster. The crate
//! is kubelet's side of FlexVolume for a whole node: it never knows what a driver does, and
//! executes it as kubelet would, one process per call. This process never mounts or unmounts,
//! because it has threads. Another process of the same program, which speaks FlexVolume as well,
//! takes the steps that kubelet would take itself ([`csi::by_kubelet`]).

pub mod agent;
pub mod breaker;
pub mod cli;
pub mod controllers;
pub mod cri;
pub mod csi;
mod executed;
pub mod fence;
pub mod kubectl;
pub mod manifest;
pub mod migrate;
pub mod mounter;
mod shares;
pub mod turns;
pub mod wire;

#[cfg(test)]
extern crate self as flexvol_cluster;

#[cfg(test)]
#[path = "../../tests/support/pace.rs"]
mod pace;

use std::ffi::OsString;
use std::process::ExitCode;

/// Entry point for `bin/flexvold.rs`.
pub fn main(arguments: &[OsString]) -> ExitCode {
    match arguments.split_first() {
        Some((name, rest)) if name == csi::by_kubelet::NAME => csi::by_kubelet::main(rest),
        Some((name, rest)) if name == agent::by_force::NAME => agent::by_force::main(rest),
        _ => cli::main(arguments),
    }
}
