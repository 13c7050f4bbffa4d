//! The watch that follows a plugin directory: which drivers kubelet knows after every change.
//!
//! A kubelet that starts looks at everything ([`scan`](flexvol_kubelet::scan::scan)). [`Watcher`]
//! is what it does from then on, or should: [`Behaviour`] says whose prober it is, that of the
//! design or that of a release, and how these differ.
//!
//! ```text
//! kernel ─▶ linux::fs::watch_tree ─▶ watcher ─▶ model (pure) ─▶ events
//!                                       ▲  steps   │
//!                           list, init  └──────────┘
//! ```
//!
//! What a driver's directory cannot show is not seen: an executable that is a symlink to the
//! outside may change there without any news, for kubelet as for us.
//!
//! Followed are pkg/volume/flexvolume/probe.go and pkg/volume/plugins.go of Kubernetes 1.10 to
//! 1.36.

mod behaviour;
mod event;
mod model;
mod pace;
mod watcher;

pub use behaviour::Behaviour;
pub use event::{Event, EventKind, Known};
pub use watcher::{Habits, Stats, Watcher};
