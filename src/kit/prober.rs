//! Watch of a plugin directory: the drivers in service after every change.
//!
//! A kubelet that starts looks at everything ([`scan`](flexvol_kubelet::scan::scan)). [`Watcher`]
//! does for later changes what the design of the dynamic prober says, which no release implements:
//!
//! | | design | kubelet 1.24 to 1.36 | kubelet 1.10 to 1.23 |
//! |---|---|---|---|
//! | probes | when signalled, at most once a second | at each look-up of a volume plugin | same |
//! | runs again | the drivers that changed | same | same |
//! | ignores | every path with a dot name in it | a dot name at the end of the path | same |
//! | `init` fails | the driver is out | its old version stays, `init` runs at each look-up | same |
//! | `init` of another fails | no effect | no effect | results of that probe are forgotten |
//! | changes lost | everything is probed | never noticed | same |
//!
//! ```text
//! kernel ─▶ linux::fs::watch_tree ─▶ watcher ─▶ model (pure) ─▶ events
//!                                       ▲  steps   │
//!                           list, init  └──────────┘
//! ```
//!
//! Changes outside of a driver's directory are not seen: an executable that is a symlink to the
//! outside may change there without any event, for kubelet as for us.

mod event;
mod model;
mod watcher;

pub use event::{Event, EventKind};
pub use watcher::{Habits, Stats, Watcher};
