//! The Kubernetes side of CSI without sidecars: `flexvold csi-controller`.
//!
//! ```text
//! API server ── watches ─▶ objects in memory ─▶ queue ─▶ decide (pure) ─▶ one step
//!      ▲                                          ▲                        │
//!      │                                          └── failed: later ───────┤
//!      └───────────────── a write, with the version that was read ◀────────┤
//!                                                        the driver's RPC ◀┘
//! ```
//!
//! For any CSI driver's socket, ours or another's. One process of several is active for a driver,
//! by a Lease that upstream's sidecar for the same work takes as well: so the two are never active
//! together, and one can take the place of the other at any time.

pub mod access;
pub mod attacher;
pub mod attachment;
pub mod driver;
pub mod lease;
pub mod published;
pub mod queue;
pub mod watches;

use anyhow::{Result, bail};
use driver::Driver;
use kube::{Api, Client};
use lease::Election;
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

/// What all drivers of one process have in common.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a client of the API server has none")]
pub struct Setup {
    /// The API server.
    pub client: Client,
    /// Where the leases are.
    pub namespace: String,
    /// Who holds them: a name that no other process has.
    pub identity: String,
    /// What a driver may take to attach or detach.
    pub timeout: Duration,
}

/// Works for all drivers, until SIGTERM or SIGINT, or until a lease is lost.
pub async fn run(setup: Setup, sockets: Vec<PathBuf>) -> Result<()> {
    let mut tasks = JoinSet::new();
    for socket in sockets {
        tasks.spawn(serve(setup.clone(), socket));
    }
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => Ok(()),
        _ = interrupt.recv() => Ok(()),
        ended = tasks.join_next() => match ended {
            Some(ended) => ended?,
            None => bail!("there is no driver to work for"),
        },
    }
}

/// One driver, for as long as its lease is ours.
async fn serve(setup: Setup, socket: PathBuf) -> Result<()> {
    let driver = Driver::ready(&socket).await;
    let leases = Api::namespaced(setup.client.clone(), &setup.namespace);
    let name = lease_of(&driver.name);
    let mut election = Election::new(leases, name, setup.identity);
    election.win().await;
    tracing::info!(driver = driver.name, "attaching and detaching");
    let attacher = tokio::spawn(attacher::run(setup.client, driver, setup.timeout));
    let lost = election.hold().await;
    attacher.abort();
    lost
}

/// The lease of a driver's attacher, as upstream names it.
fn lease_of(driver: &str) -> String {
    let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let name: String = format!("external-attacher-leader-{driver}").chars().map(plain).collect();
    name.to_ascii_lowercase()
}
