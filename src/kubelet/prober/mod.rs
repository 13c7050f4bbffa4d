//! Which drivers kubelet knows: one scan of the plugin directory, and the watch that follows every
//! change.
//!
//! [`scan`] is what kubelet does when it starts: it runs `init` of every directory and loads what
//! answers. [`Watcher`] is what it does from then on, or should: [`Behaviour`] says whose prober it
//! is, that of the design or that of a release, and how these differ.
//!
//! ```text
//! kernel ─▶ sys::watch_tree ─▶ watcher ─▶ model (pure) ─▶ events
//!                                 ▲  steps   │
//!                     list, init  └──────────┘
//! ```
//!
//! What a driver's directory cannot show is not seen: an executable that is a symlink to the
//! outside may change there without any news, for kubelet as for us.
//!
//! Followed are pkg/volume/flexvolume/probe.go and pkg/volume/plugins.go of Kubernetes 1.8 to 1.36.

mod behaviour;
mod event;
mod fix;
mod model;
mod pace;
mod scan;
mod watcher;

pub use behaviour::Behaviour;
pub use event::{Event, EventKind, Known};
pub use scan::{Failed, Finding, Found, Ignored, Loaded, Scan, Stage, ignored, init, look, scan, terms};
pub use watcher::{Habits, Stats, Watcher};
