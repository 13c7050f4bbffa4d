//! Kubelet's side of the protocol, without a cluster: makes the calls that kubelet makes, to a
//! driver in any language.
//!
//! [`Caller`] executes a driver once and judges the answer exactly as kubelet does. [`PodVolume`]
//! is the sequence of calls and checks that mounts a volume into a pod and unmounts it.
//! [`NodeDriver`] adds the steps before and after that for a driver that attaches. [`locate`] finds
//! the directory that kubelet reads drivers from. The crate records every step and prints nothing.
//!
//! Source: pkg/volume/flexvolume of Kubernetes 1.13 to 1.36; all these versions behave the same
//! here.

mod asked;
mod attachment;
mod caller;
mod capture;
mod device;
mod diagnosis;
mod exec;
mod fs_group;
mod journal;
mod lifecycle;
pub mod locate;
mod node;
pub mod platform;
pub mod release;
pub mod scalar;
pub mod scan;
mod verdict;

/// Steps that kubelet takes itself for a driver that lacks the verb.
pub mod by_kubelet {
    pub use super::device::{bind, grow, is_free, mount_device, other_mounts};
    pub use super::fs_group::change_group;
    pub use super::lifecycle::unmount;
}

pub use asked::Asked;
pub use caller::{Caller, Exchange, masked};
pub use capture::Captured;
pub use diagnosis::{Diagnosis, Finding, Leak, LeakPlace};
pub use exec::{End, Observer, Reader, Run, Stop, Terms};
pub use flexvol_linux::proc::limits::Limits;
pub use journal::{Action, Journal, Record};
pub use lifecycle::PodVolume;
pub use node::{NodeDriver, clean_up, is_down, pauses};
pub use verdict::{Fault, Verdict};

#[cfg(test)]
#[path = "../../tests/support/pace.rs"]
mod pace;
#[cfg(test)]
#[path = "../../tests/support/wording.rs"]
mod wording;
