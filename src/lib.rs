//! Every FlexVolume driver a Kubernetes node needs, in one static binary.
//!
//! FlexVolume is Kubernetes' exec-style volume plugin: kubelet runs `<plugin
//! dir>/<vendor>~<driver>/<driver> <verb> …` and reads one JSON object. The crates of this
//! workspace are both sides of that wire, a set of drivers, and the machinery that lets each of
//! them be a pure function.
//!
//! # The tour
//!
//! ```text
//! argv, JSON ─▶ protocol ─▶ driver (pure) ─▶ plan ─▶ policy ─▶ executor ─▶ linux ─▶ kernel, helpers
//!                  ▲                                                │
//! stdout  ◀── skeleton, supervising a worker  ◀── Reply ◀───────────┘
//! ```
//!
//! | crate | what is in it | depends on |
//! |---|---|---|
//! | [`protocol`] | the wire: verbs, calls, options and what their values say, replies, `Failure`, `Secret` | - |
//! | `model` | a [`driver`] turns options into a [`plan`], which the [`policy`] of its [`settings`] is asked about; [`profiles`] has other drivers' options, [`diagnostics`] what error texts mean | protocol |
//! | [`linux`](sys) | what is asked of the operating system; knows no verb, no plan, no hint | protocol |
//! | `node` | the [`skeleton`] owns a driver's process, the [`executor`] makes a plan true, [`hints`] says why it failed | model, linux |
//! | [`kubelet`] | does to any driver what kubelet does; finds the directory kubelet reads | linux, protocol |
//! | `terminal` | what the programs for people have in common | kubelet, model, linux |
//! | `admin` | `flexvol`'s commands: [`plugin_dir`], [`deploy`], [`doctor`], [`inventory`], [`manifest`] | node, kubelet, terminal |
//! | `kit` | `flexvol-kit`: [`check`], [`validate`], [`translate`] | kubelet, model, linux, terminal |
//!
//! Read [`drivers::tmpfs`] first. This crate is the two programs: [`multicall`] decides from
//! `argv[0]` whether a process is a driver or the admin's command line; the rest of it are the
//! names by which tests reach the others.
//!
//! # Invariants
//!
//! `protocol` and `model` make no system call: no crate that could is a dependency. Nothing outside
//! `linux` changes the node but through it. Nothing but the skeleton writes a reply, and nothing
//! but `terminal` and the two `cli` print for people. Nothing is global but the flag a signal sets.
//! A [`Secret`](secret::Secret) shows itself to nobody.

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

/// The example in the page is tested with those of the modules.
#[cfg(doctest)]
#[doc = include_str!("../docs/writing-a-driver.md")]
struct WritingADriver;

/// What `bin/flexvol.rs` calls.
pub fn main() -> std::process::ExitCode {
    multicall::main(std::env::args_os().collect())
}
