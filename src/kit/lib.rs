//! Whether a FlexVolume driver is what kubelet needs, told by doing to it what kubelet does.
//!
//! [`check`] plays cases against a driver in a sandbox, [`validate`] finds what is wrong with
//! volumes from their YAML alone, [`translate`] makes volumes of CSI drivers of them, [`prober`]
//! follows a plugin directory as kubelet's prober does, [`objects`] reads the volumes of pods from
//! the [`yaml`] a cluster gets, [`chart`] writes one for Helm, [`cli`] has the commands. For
//! authors and reviewers of drivers: a node needs none of it.

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
