//! Any FlexVolume driver as a CSI driver: `flexvold csi`.
//!
//! ```text
//! kubelet, sidecars ─▶ node, controller, identity      gRPC
//!                          │ rpc, turns: a deadline, a thread, a line in the log
//!                          ▼
//!                      request, capability, handle     checked, nothing touched yet
//!                          ▼
//!                      publish, stage, growth, attach  lock ─▶ look ─▶ journal ─▶ call ─▶ look ─▶ commit
//!                          │                   └─▶ target, layout, journal, locks
//!                          ▼ options
//!                      program ─▶ the driver, or by_kubelet where it leaves a thing to kubelet
//!                          ▼ codes
//!                      gRPC status
//! ```
//!
//! Pure, and tested without a process: [`name`], [`handle`], [`capability`], [`request`],
//! [`options`], [`habits`], [`codes`].

pub mod attach;
mod begun;
pub mod by_kubelet;
pub mod capability;
pub mod codes;
pub mod controller;
pub mod exhaustion;
pub mod growth;
pub mod habits;
pub mod identity;
pub mod journal;
pub mod layout;
pub mod locks;
pub mod metrics;
pub mod node;
pub mod options;
pub mod places;
pub mod program;
pub mod publish;
pub mod registration;
pub mod request;
pub mod rpc;
pub mod running;
pub mod scrape;
pub mod serve;
pub mod served;
pub mod setup;
pub mod sockets;
pub mod stage;
pub mod target;
pub mod turns;

pub use flexvol_model::csi::{handle, name};
