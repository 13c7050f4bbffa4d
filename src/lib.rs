//! Every FlexVolume driver a Kubernetes node needs, in one static binary.
//!
//! FlexVolume is Kubernetes' exec-style volume plugin: kubelet runs `<plugin
//! dir>/<vendor>~<driver>/<driver> <verb> …` and reads one JSON object. The crates of this
//! workspace implement both sides of this protocol, a set of drivers, and the machinery that allows
//! each driver to be a pure function.
//!
//! # The tour
//!
//! ```text
//! argv, JSON ─▶ protocol ─▶ driver (pure) ─▶ plan ─▶ policy ─▶ executor ─▶ linux ─▶ kernel, helpers
//!                  ▲                                                │
//! stdout  ◀── skeleton, supervising a worker  ◀── Reply ◀───────────┘
//! ```
//!
//! | crate | content | depends on |
//! |---|---|---|
//! | [`protocol`] | the wire format: verbs, calls, options and the meaning of their values, replies, `Failure`, `Secret` | - |
//! | `model` | a [`driver`] turns options into a [`plan`], and the [`policy`] of its [`settings`] allows or denies it; [`profiles`] holds the options of other drivers, [`diagnostics`] the meaning of error texts | protocol |
//! | [`linux`](sys) | access to the operating system; knows no verbs, plans or hints | protocol |
//! | `node` | the [`skeleton`] owns a driver's process, the [`executor`] carries out a plan, [`hints`] explains errors | model, linux |
//! | [`kubelet`] | calls any driver as kubelet does; finds the directory kubelet reads | linux, protocol |
//! | `terminal` | shared parts of the programs for people | kubelet, model, linux |
//! | `admin` | `flexvol`'s commands: [`plugin_dir`], [`deploy`], [`doctor`], [`inventory`], [`manifest`] | node, kubelet, terminal |
//! | `kit` | `flexvol-kit`: [`check`], [`validate`], [`translate`] | kubelet, model, linux, terminal |
//!
//! Read [`drivers::tmpfs`] first. This crate contains the two programs: [`multicall`] decides from
//! `argv[0]` whether a process is a driver or the admin's command line. Its other names are
//! re-exports: through them the tests reach the other crates.
//!
//! # Invariants
//!
//! `protocol` and `model` make no system calls: none of their dependencies can. Only `linux`
//! changes the node. Only the skeleton writes a reply, and only `terminal` and the two `cli` print
//! for people. The flag that a signal sets is the only global state. A [`Secret`](secret::Secret)
//! never shows its content.

pub mod multicall;

pub use flexvol_admin::{deploy, doctor, inventory, manifest, plugin_dir};
pub use flexvol_kit::{check, objects, prober, sandbox, tracer, translate, validate, yaml};
pub use flexvol_kubelet as kubelet;
pub use flexvol_linux as sys;
pub use flexvol_model::{
    diagnostics, driver, drivers, installed, options, packages, plan, policy, profiles, schema, server,
    settings, side_file,
};
pub use flexvol_node::{driver_log, executor, hints, skeleton};
pub use flexvol_protocol as protocol;
pub use flexvol_protocol::{
    failure, file_system, mkfs_options, mount_options, ownership, quantity, secret, text, volume_dir,
};

/// Tests the example of the page together with those of the modules.
#[cfg(doctest)]
#[doc = include_str!("../docs/writing-a-driver.md")]
struct WritingADriver;

/// Runs the program: `bin/flexvol.rs` calls it.
pub fn main() -> std::process::ExitCode {
    multicall::main(std::env::args_os().collect())
}
