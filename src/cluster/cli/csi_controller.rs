//! `flexvold csi-controller`: makes Kubernetes' requests to CSI drivers, without sidecars.

use super::api_server::ApiServer;
use super::csi::runtime;
use super::log::Log;
use crate::controllers::capacities::Telling;
use crate::controllers::client::connect;
use crate::controllers::watches::Watches;
use crate::controllers::wishes::Wishes;
use crate::controllers::{Setup, Work, run};
use crate::csi::sockets;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use flexvol_linux::proc::host;
use flexvol_terminal::screen::Screen;
use std::process::ExitCode;
use std::time::Duration;

/// Attach, provision and resize volumes of CSI drivers, in place of Kubernetes' sidecars
#[derive(Args)]
pub(super) struct CsiController {
    /// Socket of a CSI driver; may be repeated
    #[arg(long, required = true, value_name = "unix:///PATH")]
    endpoint: Vec<String>,
    /// Work to do
    #[arg(long, value_enum, value_delimiter = ',', default_value = "attach,provision,resize")]
    work: Vec<Work>,
    #[command(flatten)]
    api: ApiServer,
    /// Namespace of the leases for leader election [default: the pod's own]
    #[arg(long, value_name = "NAME")]
    lease_namespace: Option<String>,
    /// Seconds that a driver may take for one call
    #[arg(long, value_name = "SECONDS", default_value = "110")]
    timeout: u64,
    /// With `--work provision`: report to the scheduler how much storage the driver says it has,
    /// and where
    #[arg(long)]
    capacity: bool,
    /// Seconds between two queries of the capacity
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    capacity_interval: u64,
    /// With `--work health`: seconds between two queries for unhealthy volumes
    #[arg(long, value_name = "SECONDS", default_value = "300")]
    health_interval: u64,
    #[command(flatten)]
    wishes: Wishes,
    #[command(flatten)]
    log: Log,
}

impl CsiController {
    pub(super) fn run(self, _screen: &mut Screen) -> Result<ExitCode> {
        let sockets =
            self.endpoint.iter().map(|endpoint| sockets::path_of(endpoint)).collect::<Result<_>>()?;
        ensure!(
            !self.capacity || self.work.contains(&Work::Provision),
            "capacity is told with provisioning: add --work provision, or leave out --capacity"
        );
        self.log.begin();
        let runtime = runtime()?;
        runtime.block_on(async { run(self.setup()?, sockets, &self.work).await })?;
        runtime.shutdown_background();
        Ok(ExitCode::SUCCESS)
    }

    fn setup(&self) -> Result<Setup> {
        let own = self.api.namespace();
        let namespace = self.lease_namespace.clone().unwrap_or_else(|| own.clone());
        let clients = connect(&self.api.place()?, &namespace).context("reach the API server")?;
        let timeout = Duration::from_secs(self.timeout);
        let capacity = self.capacity.then(|| self.telling(own));
        let health = Duration::from_secs(self.health_interval.max(1));
        let (watches, identity) = (Watches::default(), identity()?);
        let wishes = self.wishes.clone().into();
        let attaches = self.work.contains(&Work::Attach);
        Ok(Setup { clients, watches, namespace, identity, timeout, capacity, health, attaches, wishes })
    }

    /// The objects go into our pod's namespace, so that the owner of the pod can own them. The
    /// pod's name comes from the downward API, as in upstream's program.
    fn telling(&self, namespace: String) -> Telling {
        Telling {
            namespace,
            pod: std::env::var("POD_NAME").ok().filter(|name| !name.is_empty()),
            period: Duration::from_secs(self.capacity_interval.max(1)),
        }
    }
}

/// Returns a name that no other process has.
pub(super) fn identity() -> Result<String> {
    Ok(format!("{}_{}", host::name()?, uuid()?))
}

fn uuid() -> Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid").context("ask for a random name")?;
    Ok(text.trim().to_owned())
}
