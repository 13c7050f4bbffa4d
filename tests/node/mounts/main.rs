//! Real mounts of the built binary, called as kubelet calls it; each test on a node of its own, see
//! `support`.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "tests start programs and write files as they need")]
#![allow(unreachable_pub, reason = "`support` is a library for tests")]

mod basic;
mod bind;
mod crowd;
mod dead;
mod docs;
mod files;
mod foreign;
mod formatting;
mod image;
mod layers;
mod limits;
mod locate_crowd;
mod named;
mod posed;
mod qcow2;
mod reach;
mod refused;
mod shared;
mod support;
mod swaps;
mod trust_scenarios;
mod unmount;

#[path = "../../support/stale.rs"]
mod stale;
#[path = "../../support/trust/mod.rs"]
mod trust;
