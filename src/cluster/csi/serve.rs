//! Serves drivers until the process is told to end.

use super::begun;
use super::controller::ControllerService;
use super::identity::IdentityService;
use super::node::{NodeService, NodesService};
use super::registration::{self, RegistrationService};
use super::served::Served;
use super::sockets::{Stop, keep};
use crate::wire::csi::controller_server::ControllerServer;
use crate::wire::csi::identity_server::IdentityServer;
use crate::wire::csi::node_server::NodeServer;
use crate::wire::registration::registration_server::RegistrationServer;
use anyhow::Result;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tonic::transport::Server;
use tonic::transport::server::Router;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};

/// Pause before a driver that is not ready is asked again, for clients that watch its health.
const HEALTH: Duration = Duration::from_secs(10);

/// One driver and its socket.
#[derive(Clone, Debug)]
pub struct Place {
    /// The driver.
    pub served: Arc<Served>,
    /// Path of the socket for CSI.
    pub socket: PathBuf,
    /// kubelet's directory, if the driver has to register there.
    pub register: Option<PathBuf>,
}

/// Serves all drivers, until SIGTERM or SIGINT, or until one cannot be served.
pub async fn run(places: Vec<Place>) -> Result<()> {
    let (tell, stop) = watch::channel(false);
    let mut tasks = JoinSet::new();
    for place in places {
        let stop = stop.clone();
        tasks.spawn(serve(place, stop));
    }
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let failed = tokio::select! {
        _ = terminate.recv() => None,
        _ = interrupt.recv() => None,
        ended = tasks.join_next() => ended,
    };
    tracing::info!("ending");
    tell.send_replace(true);
    let mut results: Vec<_> = failed.into_iter().collect();
    while let Some(ended) = tasks.join_next().await {
        results.push(ended);
    }
    results.into_iter().try_for_each(|ended| ended?)
}

/// Serves one driver. At the end, kubelet learns that the driver is gone before its socket is.
pub async fn serve(place: Place, stop: Stop) -> Result<()> {
    let Place { served, socket, register } = place;
    let (reporter, health) = health_reporter();
    let _undone = begun::undo(&served);
    let watched = tokio::spawn(watch_health(Arc::clone(&served), reporter));
    let router = {
        let served = Arc::clone(&served);
        move || services(&served).add_service(health.clone())
    };
    tracing::info!(driver = served.name, socket = %socket.display(), "serving");
    let (end, ended) = watch::channel(false);
    let csi = tokio::spawn(keep(socket.clone(), router, Arc::new(Notify::new()), ended));
    let registered = match register {
        Some(root) => {
            let again = Arc::new(Notify::new());
            let path = registration::socket(&root, &served.name);
            let (served, told) = (Arc::clone(&served), Arc::clone(&again));
            let router = move || {
                let service =
                    RegistrationService::new(Arc::clone(&served), socket.clone(), Arc::clone(&told));
                Server::builder().add_service(RegistrationServer::new(service))
            };
            keep(path, router, again, stop).await
        }
        None => told(stop, &csi).await,
    };
    end.send_replace(true);
    let served = csi.await?;
    watched.abort();
    registered.and(served)
}

/// Waits until told to end, or until there is nothing left to serve.
async fn told(mut stop: Stop, csi: &tokio::task::JoinHandle<Result<()>>) -> Result<()> {
    while !*stop.borrow() && !csi.is_finished() {
        let _ = tokio::time::timeout(Duration::from_secs(1), stop.changed()).await;
    }
    Ok(())
}

fn services(served: &Arc<Served>) -> Router {
    let router = Server::builder()
        .add_service(IdentityServer::new(IdentityService(Arc::clone(served))))
        .add_service(ControllerServer::new(ControllerService(Arc::clone(served))));
    if served.role.is_node() {
        return router.add_service(NodeServer::new(NodeService(Arc::clone(served))));
    }
    router.add_service(NodeServer::new(NodesService(Arc::clone(served))))
}

/// Keeps the health service's answer up to date.
async fn watch_health(served: Arc<Served>, reporter: HealthReporter) {
    loop {
        let asked = Arc::clone(&served);
        let ready = tokio::task::spawn_blocking(move || asked.capabilities().is_ok()).await;
        let status =
            if matches!(ready, Ok(true)) { ServingStatus::Serving } else { ServingStatus::NotServing };
        reporter.set_service_status("", status).await;
        tokio::time::sleep(HEALTH).await;
    }
}
