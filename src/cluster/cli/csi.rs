//! `flexvold csi`: serves drivers, or asks whether they are served.

use super::log::Log;
use crate::csi::metrics::Metrics;
use crate::csi::serve::{Place, run};
use crate::csi::served::Role;
use crate::csi::setup::Setup;
use crate::csi::{name, scrape, sockets};
use crate::wire::csi::ProbeRequest;
use crate::wire::csi::identity_client::IdentityClient;
use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use flexvol_kubelet::platform::DEFAULT_KUBELET_ROOT;
use flexvol_linux::proc::host;
use flexvol_model::paths;
use flexvol_protocol::DriverName;
use flexvol_terminal::driver_dir;
use flexvol_terminal::screen::Screen;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};

/// Environment variable with the name of the node, set by manifests.
const NODE: &str = "NODE_NAME";

/// Deadline for a probe.
const PROBE: Duration = Duration::from_secs(10);

/// Limit for threads that wait for drivers, above the number of [`Places`](crate::csi::places).
const THREADS: usize = 8192;

/// Time for which an idle thread stays.
const KEEP_ALIVE: Duration = Duration::from_secs(3);

/// Serve FlexVolume drivers as CSI drivers
#[derive(Args)]
pub(super) struct Csi {
    /// Driver to serve, as vendor/driver; may be repeated
    #[arg(long, required = true, value_name = "VENDOR/DRIVER")]
    driver: Vec<DriverName>,
    /// Directory of installed drivers, instead of kubelet's plugin directory
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
    /// Socket to listen on [default: <kubelet-root>/plugins/<CSI name>/csi.sock]
    #[arg(long, value_name = "unix:///PATH")]
    endpoint: Option<String>,
    /// Name of this node in Kubernetes [default: that of the host]
    #[arg(long, value_name = "NAME")]
    node_id: Option<String>,
    /// Services to offer
    #[arg(long, value_enum, default_value = "all")]
    role: RoleName,
    /// Register with kubelet, without a sidecar (Kubernetes 1.29 and later)
    #[arg(long)]
    register: bool,
    /// Name in CSI [default: <driver>.<vendor>.flex.flexvol.dev]
    #[arg(long, value_name = "CSI-NAME")]
    name: Option<String>,
    /// File with a JSON object of strings: default options of every volume
    #[arg(long, value_name = "FILE")]
    attributes_from: Option<PathBuf>,
    /// JSON file of how drivers differ from what CSI expects
    #[arg(long, value_name = "FILE")]
    habits: Option<PathBuf>,
    /// Directory for records of what is attached, staged and published
    #[arg(long, value_name = "DIR", default_value = paths::CSI)]
    state: PathBuf,
    /// kubelet's own directory
    #[arg(long, value_name = "DIR", default_value = DEFAULT_KUBELET_ROOT)]
    kubelet_root: PathBuf,
    /// Address to serve Prometheus metrics at
    #[arg(long, value_name = "IP:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    log: Log,
    /// Only ask whether the drivers are served and ready, as a liveness probe
    #[arg(long)]
    check: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum RoleName {
    Node,
    Controller,
    All,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::Node => Self::Node,
            RoleName::Controller => Self::Controller,
            RoleName::All => Self::All,
        }
    }
}

impl Csi {
    pub(super) fn run(self, screen: &mut Screen) -> Result<ExitCode> {
        self.check_arguments()?;
        let runtime = runtime()?;
        if self.check {
            self.probe(&runtime, screen)?;
        } else {
            self.serve(&runtime)?;
        }
        // Threads that are blocked by a driver on dead storage are not waited for.
        runtime.shutdown_background();
        Ok(ExitCode::SUCCESS)
    }

    fn check_arguments(&self) -> Result<()> {
        let several = self.driver.len() > 1;
        ensure!(
            !(several && self.name.is_some()),
            "--name is of one driver: leave it out, or start one process each"
        );
        ensure!(
            !(several && self.endpoint.is_some()),
            "--endpoint is of one driver: leave it out, or start one process each"
        );
        ensure!(
            !(self.register && self.role as u8 == RoleName::Controller as u8),
            "--register is for nodes: leave it out, or choose --role node"
        );
        Ok(())
    }

    fn serve(&self, runtime: &Runtime) -> Result<()> {
        self.log.begin();
        let metrics = Arc::new(Metrics::default());
        let setup = self.setup()?;
        let places = self.driver.iter().map(|driver| self.place(driver, &setup, &metrics));
        let places: Vec<_> = places.collect::<Result<_>>()?;
        runtime.block_on(async {
            if let Some(address) = self.metrics {
                let listener = scrape::listen(address).await?;
                let drivers: Vec<_> = places.iter().map(|place| Arc::clone(&place.served)).collect();
                let write = move || {
                    for driver in &drivers {
                        metrics.observe(&driver.name, driver.locks.stuck(), driver.journal.len());
                    }
                    metrics.to_text()
                };
                tokio::spawn(scrape::serve(listener, write));
            }
            run(places).await
        })
    }

    fn setup(&self) -> Result<Setup> {
        let named = self.node_id.clone().or_else(|| std::env::var(NODE).ok()).filter(|name| !name.is_empty());
        Ok(Setup {
            plugin_dir: driver_dir::find(self.plugin_dir.as_deref())?,
            node: named.map_or_else(|| host::name().map(|name| name.to_lowercase()), Ok)?,
            role: self.role.into(),
            state: absolute(&self.state)?,
            attributes: self.attributes_from.clone(),
            habits: self.habits.clone(),
        })
    }

    fn place(&self, driver: &DriverName, setup: &Setup, metrics: &Arc<Metrics>) -> Result<Place> {
        let served = setup.serve(driver.clone(), self.name.as_deref(), metrics)?;
        let register = self.register.then(|| absolute(&self.kubelet_root)).transpose()?;
        Ok(Place { served: Arc::new(served), socket: self.socket(driver)?, register })
    }

    fn socket(&self, driver: &DriverName) -> Result<PathBuf> {
        if let Some(endpoint) = &self.endpoint {
            return sockets::path_of(endpoint);
        }
        let name = self.name.clone().unwrap_or_else(|| name::of_driver(driver));
        let path = absolute(&self.kubelet_root)?.join("plugins").join(name).join("csi.sock");
        sockets::path_of(&path.to_string_lossy())
    }

    fn probe(&self, runtime: &Runtime, screen: &mut Screen) -> Result<()> {
        for driver in &self.driver {
            let socket = self.socket(driver)?;
            runtime
                .block_on(async { tokio::time::timeout(PROBE, ask(&socket)).await })
                .with_context(|| {
                    format!("{} does not answer within {} s", socket.display(), PROBE.as_secs())
                })?
                .with_context(|| format!("probe {driver}"))?;
            screen.line(&format!("{driver} is ready"))?;
        }
        Ok(())
    }
}

async fn ask(socket: &Path) -> Result<()> {
    let channel = sockets::connect(socket).await?;
    match IdentityClient::new(channel).probe(ProbeRequest {}).await {
        Ok(answer) if answer.get_ref().ready != Some(false) => Ok(()),
        Ok(_) => bail!("not ready yet"),
        Err(status) => bail!("{}", status.message()),
    }
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("find {}", path.display()))
}

pub(super) fn runtime() -> Result<Runtime> {
    let mut builder = Builder::new_current_thread();
    builder.enable_io().enable_time().max_blocking_threads(THREADS).thread_keep_alive(KEEP_ALIVE);
    builder.build().context("start")
}
