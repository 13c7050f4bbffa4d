//! What a FlexVolume driver needs beyond kubelet's own plugin: `flexvold`.
//!
//! [`csi`] serves any driver as a CSI driver, [`manifest`] is what does so in a cluster. The crate
//! is kubelet's side of FlexVolume for a whole node: it never knows what a driver does, and
//! executes it as kubelet would, one process a call. Nothing here mounts or unmounts: this process
//! has threads, and what kubelet would do by itself is done by another one, of the same program,
//! that speaks FlexVolume as well ([`csi::by_kubelet`]).

pub mod cli;
pub mod controllers;
pub mod csi;
pub mod fence;
pub mod manifest;
pub mod wire;

use std::ffi::OsString;
use std::process::ExitCode;

/// What `bin/flexvold.rs` calls.
pub fn main(mut arguments: Vec<OsString>) -> ExitCode {
    if csi::by_kubelet::is_meant(arguments.first()) {
        return csi::by_kubelet::main(&arguments.split_off(1));
    }
    cli::main(&arguments)
}
