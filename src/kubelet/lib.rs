//! Kubelet's side of the protocol, without a cluster: what kubelet does to a driver, done to any
//! driver in any language.
//!
//! [`Caller`] executes a driver once and judges the answer exactly as kubelet does; [`PodVolume`]
//! is the sequence of calls and checks that brings a volume into a pod and out again,
//! [`NodeDriver`] the same with all that comes before and after it for a driver that attaches.
//! [`locate`] finds the directory that kubelet reads drivers from. Everything is recorded, nothing
//! is printed.
//!
//! Followed is pkg/volume/flexvolume of Kubernetes 1.13 to 1.36, which do not differ here.

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

/// What kubelet does itself for a driver that lacks the verb.
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
pub use node::{Backoff, NodeDriver, clean_up, is_down};
pub use verdict::{Fault, Verdict};

#[cfg(test)]
#[path = "../../tests/support/pace.rs"]
mod pace;
#[cfg(test)]
#[path = "../../tests/support/wording.rs"]
mod wording;
