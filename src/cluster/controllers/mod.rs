//! The Kubernetes side of CSI without sidecars: `flexvold csi-controller`.
//!
//! ```text
//! API server ── watches ─▶ objects in memory ─▶ queue ─▶ decide (pure) ─▶ one step
//!      ▲           once in     ▲                   ▲                       │
//!      │           a process   └─── as written ────│───────────────────────┤
//!      │                                           └── failed: later ──────┤
//!      └───────────────── a write, with the version that was read ◀────────┤
//!                                                        the driver's RPC ◀┘
//! ```
//!
//! It works with the socket of any CSI driver, ours or another vendor's. Of several processes, one
//! is active for a driver: it holds a Lease, the same that upstream's sidecar for this work takes.
//! So the two are never active together, and either can replace the other at any time. When a
//! driver no longer answers, its process releases the lease: another process may be able to reach
//! the driver.

pub mod access;
pub mod api;
pub mod attacher;
pub mod attachment;
pub mod blocking;
pub mod cache;
pub mod capacities;
pub mod capacity;
pub mod claim;
pub mod client;
pub mod conditions;
pub mod creation;
pub mod driver;
pub mod events;
pub mod expansion;
pub mod kinds;
pub mod lease;
pub mod provisioner;
pub mod published;
pub mod queue;
pub mod reclaim;
pub mod requests;
pub mod resizer;
pub mod secret_refs;
pub mod topology;
pub mod volumes;
pub mod watches;
mod watching;
pub mod wishes;

use crate::csi::sockets::Stop;
use anyhow::{Result, bail};
use capacities::Telling;
use clap::ValueEnum;
use driver::Driver;
use futures_util::future::OptionFuture;
use kube::Api;
use lease::Election;
use requests::Clients;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use watches::Watches;
use wishes::Wishes;

/// Settings shared by all drivers of one process.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a client of the API server has none")]
pub struct Setup {
    /// Clients of the API server.
    pub clients: Clients,
    /// Object caches, shared by all drivers. A kind is watched once the first driver needs it.
    pub watches: Watches,
    /// Namespace of the leases.
    pub namespace: String,
    /// Holder of the leases: a name that no other process has.
    pub identity: String,
    /// Deadline of one call to a driver.
    pub timeout: Duration,
    /// With provisioning: settings for reporting capacity to the scheduler.
    pub capacity: Option<Telling>,
    /// Period of asking a driver which volumes are not healthy.
    pub health: Duration,
    /// True if this process also attaches volumes.
    pub attaches: bool,
    /// Flags of upstream's provisioner, for new volumes.
    pub wishes: Arc<Wishes>,
}

/// Work for a driver. Each kind has a lease of its own, because upstream has a sidecar for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Attach and detach volumes, in place of external-attacher.
    Attach,
    /// Create volumes for claims and delete released ones, in place of external-provisioner.
    Provision,
    /// Grow volumes as claims request it, in place of external-resizer.
    Resize,
    /// Report unhealthy volumes as Events of their claims, in place of external-health-monitor.
    Health,
}

impl Work {
    /// Returns the name of the lease, as upstream's sidecar has it.
    fn lease(self, driver: &str) -> String {
        let name = match self {
            Self::Attach => format!("external-attacher-leader-{driver}"),
            Self::Provision => driver.to_owned(),
            Self::Resize => format!("external-resizer-{driver}"),
            Self::Health => format!("external-health-monitor-leader-{driver}"),
        };
        let plain = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
        name.chars().map(plain).collect::<String>().to_ascii_lowercase()
    }

    /// Does the work until the future is dropped.
    async fn run(self, setup: Setup, driver: Driver) {
        let Setup { clients, watches, identity, timeout, capacity, health, attaches, wishes, .. } = setup;
        let client = clients.objects;
        match self {
            Self::Attach => attacher::run(client, &watches, driver, wishes, timeout).await,
            Self::Provision => {
                let full = Arc::default();
                let telling = capacity.map(|telling| {
                    let (client, watches, driver) = (client.clone(), watches.clone(), driver.clone());
                    capacities::run(client, watches, driver, telling, timeout, Arc::clone(&full))
                });
                let beside = (Arc::clone(&full), wishes, attaches);
                let provisioning = provisioner::run(client, watches, driver, identity, timeout, beside);
                tokio::join!(provisioning, OptionFuture::from(telling));
            }
            Self::Resize => resizer::run(client, watches, driver, timeout).await,
            Self::Health => conditions::run(client, watches, driver, timeout, health).await,
        }
    }
}

/// Works for all drivers, until SIGTERM or SIGINT, or until a lease is lost.
pub async fn run(setup: Setup, sockets: Vec<PathBuf>, works: &[Work]) -> Result<()> {
    let (stop, stopped) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for socket in sockets {
        for &work in works {
            let (setup, socket, stopped) = (setup.clone(), socket.clone(), stopped.clone());
            tasks.spawn(async move { serve(work, setup, &socket, stopped).await });
        }
    }
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => (),
        _ = interrupt.recv() => (),
        ended = tasks.join_next() => match ended {
            Some(ended) => return ended?,
            None => bail!("there is no driver to work for"),
        },
    }
    let _ = stop.send(true);
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// Works for one driver until told to stop.
async fn serve(work: Work, setup: Setup, socket: &Path, mut stop: Stop) -> Result<()> {
    loop {
        let mut stopped = std::pin::pin!(stop.wait_for(|stop| *stop));
        let driver = tokio::select! {
            driver = Driver::ready(socket) => driver,
            _ = &mut stopped => return Ok(()),
        };
        let leases = Api::namespaced(setup.clients.leases.clone(), &setup.namespace);
        let mut election = Election::new(leases, work.lease(&driver.name), setup.identity.clone());
        tokio::select! {
            () = election.win() => (),
            () = driver.falls_silent(setup.timeout) => continue,
            _ = &mut stopped => return Ok(()),
        }
        tracing::info!(driver = driver.name, ?work, "at work");
        let mut running = JoinSet::new();
        running.spawn(work.run(setup.clone(), driver.clone()));
        let ended = tokio::select! {
            lost = election.hold() => Some(lost),
            _ = &mut stopped => Some(Ok(())),
            () = driver.falls_silent(setup.timeout) => None,
        };
        // This work has ended before another process may begin.
        running.shutdown().await;
        match ended {
            Some(Err(lost)) => return Err(lost),
            ended => {
                election.release().await;
                if ended.is_some() {
                    return Ok(());
                }
                tracing::warn!(driver = driver.name, ?work, "the driver does not answer: lease given back");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_are_those_of_upstream() {
        assert_eq!(Work::Attach.lease("disk.example.com"), "external-attacher-leader-disk-example-com");
        assert_eq!(Work::Provision.lease("disk.example.com"), "disk-example-com");
        assert_eq!(Work::Resize.lease("disk.example.com"), "external-resizer-disk-example-com");
        let health = "external-health-monitor-leader-disk-example-com";
        assert_eq!(Work::Health.lease("disk.example.com"), health);
    }
}
