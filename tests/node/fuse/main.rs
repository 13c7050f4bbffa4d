//! The drivers whose mounts are served by a program, against real servers on loopback: each test in
//! mount, process and network namespaces of its own.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "the tests start servers and look at what is there")]

#[path = "../../support/mod.rs"]
mod support;
#[path = "../../support/trust/mod.rs"]
mod trust;
#[path = "../../support/watch.rs"]
mod watch;

mod caches;
mod canary;
mod cephfs;
mod check;
mod dropped;
mod git;
mod glusterfs;
mod least;
mod node;
mod peers;
mod redirects;
mod sshd;
mod sshfs;
mod stores;
mod stuck;
mod subjects;
mod systemd;
mod trust_scenarios;
