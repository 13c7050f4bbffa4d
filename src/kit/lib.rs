//! Test kit for FlexVolume drivers: does to a driver what kubelet does, and reports its errors.
//!
//! [`check`] plays cases against a driver in a sandbox, [`validate`] finds errors of volumes in
//! their YAML alone, [`translate`] turns them into volumes of CSI drivers, [`prober`] follows a
//! plugin directory as kubelet's prober does, [`objects`] reads the volumes of pods from the
//! [`yaml`] that a cluster gets, [`chart`] writes a chart for Helm, [`cli`] has the commands. The
//! kit is for authors and reviewers of drivers: a node needs none of it.

pub mod chart;
pub mod check;
pub mod cli;
pub mod fault_injection;
pub mod objects;
pub mod prober;
pub mod sandbox;
pub mod tracer;
pub mod translate;
pub mod validate;
pub mod yaml;

#[cfg(test)]
#[path = "../../tests/support/wording.rs"]
mod wording;
