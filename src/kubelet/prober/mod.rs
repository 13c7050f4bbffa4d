//! Which drivers kubelet knows: one scan of the plugin directory, and the watch that follows every change.
//!
//! [`scan`] is what kubelet does when it starts: it runs `init` of every directory and loads what answers.
//!
//! Followed are pkg/volume/flexvolume/probe.go and pkg/volume/plugins.go of Kubernetes 1.36.

mod mend;
mod scan;

pub use scan::{Failed, Finding, Found, Ignored, Loaded, Scan, Stage, init, look, scan, terms};
