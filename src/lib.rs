//! Every FlexVolume driver a Kubernetes node needs, in one static binary.
//!
//! FlexVolume is Kubernetes' exec-style volume plugin: kubelet runs
//! `<plugin dir>/<vendor>~<driver>/<driver> <verb> …` and reads one JSON object. This crate is both sides of
//! that wire, a set of drivers, and the machinery that lets each of them be a pure function.
//!
//! # The tour
//!
//! ```text
//! argv, JSON ─▶ protocol ─▶ driver (pure) ─▶ plan ─▶ policy ─▶ executor ─▶ sys ─▶ kernel, helpers
//!                  ▲                                                │
//! stdout  ◀── skeleton, supervising a worker  ◀── Reply ◀───────────┘
//! ```
//!
//! 1. [`multicall`] decides from `argv[0]` whether this process is a driver or the admin's command line.
//! 2. [`skeleton`] owns a driver's process: it takes the reply pipe away from everybody, lets a worker do the
//!    work, and replies exactly once, whatever becomes of the worker.
//! 3. [`protocol`] turns argv into a typed [`Call`](protocol::Call) and a [`Reply`](protocol::Reply) into a
//!    line, and, for kubelet's side, back.
//! 4. A [`driver`] turns the call's options, declared once with [`options!`](crate::options!), into a
//!    [`plan`]. [`drivers`] has them all; read [`drivers::tmpfs`] first.
//!    [`profiles`] has the options of other drivers, translated before a driver sees them.
//! 5. [`policy`] is the admin's word on what a tenant may ask for, from the driver's side file
//!    ([`settings`]); it is checked on the finished plan.
//! 6. [`executor`] makes the plan true: locked, idempotent, verified, within a deadline, and undone if a step
//!    fails.
//! 7. [`sys`] is the only place that touches the operating system.
//!
//! And the other side of the wire:
//!
//! 8. [`plugin_dir`] finds the directory kubelet reads, and puts drivers there so that it never sees half of
//!    one; [`deploy`] keeps them there, and [`manifest`] prints what brings that to a cluster.
//! 9. [`kubelet`] does to any driver what kubelet does: calls it and judges the answer, takes a volume into a
//!    pod and out again, scans and watches a plugin directory.
//! 10. [`inventory`] finds every flex volume of the node and how it is.
//! 11. [`doctor`] says what is wrong with a node, and mends what it can.
//! 12. [`validate`] says what is wrong with volumes from their YAML alone.
//!
//! Beside them: [`failure`] and [`secret`], the two types every layer shares, of the crate [`protocol`]; [`teach`], what an error text
//! means and how it is mended; [`schema`], [`quantity`],
//! [`server`], [`mount_options`], [`file_system`], [`mkfs_options`], [`volume_dir`] and [`yaml`], pure knowledge about
//! words and paths; [`driver_log`], what the verbs leave for people; and [`cli`], thin adapters for people.
//!
//! # Invariants
//!
//! `protocol`, `driver`, `drivers`, `plan`, `policy` and the pure knowledge do no I/O. Nothing outside `sys`
//! makes a system call that changes the node but through it. Nothing but the skeleton writes a reply, and
//! nothing but `cli` prints for people. Nothing is global but the flag a signal sets. A
//! [`Secret`](secret::Secret) shows itself to nobody.

pub mod check;
pub mod cli;
pub mod deploy;
pub mod doctor;
pub mod inventory;
pub mod kubelet;
pub mod manifest;
pub mod multicall;
pub mod plugin_dir;
mod shell;
pub mod validate;
pub mod yaml;

pub use flexvol_linux as sys;
pub use flexvol_model::{
    driver, drivers, installed, options, packages, plan, policy, profiles, schema, server, settings, teach,
};
pub use flexvol_node::{driver_log, executor, hints, skeleton};
pub use flexvol_protocol as protocol;
pub use flexvol_protocol::{
    failure, file_system, mkfs_options, mount_options, ownership, quantity, secret, text, volume_dir,
};

/// The example in the page is tested with those of the modules.
#[cfg(doctest)]
#[doc = include_str!("../docs/writing-a-driver.md")]
struct WritingADriver;

/// What `bin/flexvol.rs` calls.
pub fn main() -> std::process::ExitCode {
    multicall::main(std::env::args_os().collect())
}
