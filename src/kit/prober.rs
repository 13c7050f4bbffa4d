//! Watch of a plugin directory: the drivers that kubelet knows after every change.
//!
//! A kubelet that starts looks at everything ([`scan`](flexvol_kubelet::scan::scan)). [`Watcher`]
//! does what kubelet does afterwards, or should do: [`Behaviour`] selects the prober, that of the
//! design or that of a release, and lists the differences.
//!
//! ```text
//! kernel ─▶ linux::fs::watch_tree ─▶ watcher ─▶ model (pure) ─▶ events
//!                                       ▲  steps   │
//!                           list, init  └──────────┘
//! ```
//!
//! Changes outside of a driver's directory are not seen: an executable that is a symlink to the
//! outside may change there without any event, for kubelet as for us.
//!
//! The model follows pkg/volume/flexvolume/probe.go and pkg/volume/plugins.go of Kubernetes 1.10 to
//! 1.36.

mod behaviour;
mod event;
mod model;
mod pace;
mod watcher;

pub use behaviour::Behaviour;
pub use event::{Event, EventKind, Known};
pub use watcher::{Habits, Stats, Watcher};
