//! `flexvold csi-controller` beside upstream's sidecars: a real API server, a CSI driver that fails
//! as it is told, and no kubelet. Needs what tests/cluster/programs builds.
#![cfg(test)]
#![allow(clippy::disallowed_methods, reason = "programs are started plainly")]

mod agent;
mod agent_rights;
mod api_server;
mod attach;
mod bound_claims;
mod breaker;
mod burst;
mod by_hand;
mod capacity;
mod capacity_attacked;
mod claimed;
mod cut;
mod driver;
mod figures;
mod flags;
mod health;
mod interrupted;
mod killed;
mod leading;
mod migrate;
mod older_driver;
#[path = "../support/pace.rs"]
mod pace;
mod plugin;
#[path = "../support/ports.rs"]
mod ports;
mod provision;
mod proxy;
mod repeated;
mod resize;
mod rights;
mod scheduled;
mod size;
mod stateful;
mod store;
#[path = "../../src/cluster/fence/contract.rs"]
mod store_contract;
mod subject;
#[path = "../support/trust/lines.rs"]
mod trust_lines;
mod upgrade;
#[path = "../support/wording.rs"]
mod wording;

use api_server::ApiServer;
use std::path::PathBuf;

/// Says why a test could not run; CI counts these lines.
fn skip(name: &str, reason: &str) {
    println!("SKIP {name}: {reason}");
}

/// Plays with an API server of its own, or says SKIP.
fn with_server(test: &str, play: impl AsyncFnOnce(ApiServer)) {
    let Some(programs) = programs(test) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { play(ApiServer::start(programs).await).await });
}

/// Where the programs are, or SKIP is said, under one name for all tests.
fn programs(test: &str) -> Option<PathBuf> {
    let programs = std::env::var_os("FLEXVOL_CLUSTER_PROGRAMS").map(PathBuf::from);
    if programs.is_none() {
        let reason = "needs kube-apiserver, which tests/cluster/programs builds: \
                      FLEXVOL_CLUSTER_PROGRAMS names its directory";
        skip("controllers", &format!("{test} {reason}"));
    }
    programs
}
