//! `flexvold csi-controller`: what Kubernetes asks of a CSI driver, without sidecars.

use super::csi::{log, runtime};
use crate::controllers::client::{ACCOUNT, Place, connect};
use crate::controllers::watches::Watches;
use crate::controllers::{Setup, Work, run};
use crate::csi::sockets;
use anyhow::{Context as _, Result};
use clap::Args;
use flexvol_linux::proc::host;
use flexvol_terminal::screen::Screen;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Attach and make volumes of CSI drivers, in place of Kubernetes' own sidecars
#[derive(Args)]
pub(super) struct CsiController {
    /// Socket of a CSI driver; may be repeated
    #[arg(long, required = true, value_name = "unix:///PATH")]
    endpoint: Vec<String>,
    /// What to do
    #[arg(long, value_enum, value_delimiter = ',', default_value = "attach")]
    work: Vec<Work>,
    /// The API server [default: of the pod's own cluster]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Directory with `token`, `ca.crt` and `namespace`: who asks the API server
    #[arg(long, value_name = "DIR", default_value = ACCOUNT)]
    account: PathBuf,
    /// Namespace of the leases by which one process of several is active [default: the pod's own]
    #[arg(long, value_name = "NAME")]
    lease_namespace: Option<String>,
    /// What a driver may take for one call
    #[arg(long, value_name = "SECONDS", default_value = "110")]
    timeout: u64,
    /// How much to log
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: tracing::Level,
}

impl CsiController {
    pub(super) fn run(self, _screen: &mut Screen) -> Result<ExitCode> {
        let sockets =
            self.endpoint.iter().map(|endpoint| sockets::path_of(endpoint)).collect::<Result<_>>()?;
        log(self.log_level);
        let runtime = runtime()?;
        runtime.block_on(async { run(self.setup()?, sockets, &self.work).await })?;
        runtime.shutdown_background();
        Ok(ExitCode::SUCCESS)
    }

    fn setup(&self) -> Result<Setup> {
        let own = std::fs::read_to_string(self.account.join("namespace"));
        let own = own.map_or_else(|_| "default".to_owned(), |text| text.trim().to_owned());
        let namespace = self.lease_namespace.clone().unwrap_or(own);
        let server = self.server.clone().map_or_else(server_of_the_pod, Ok)?;
        let (authority, token) = (self.account.join("ca.crt"), self.account.join("token"));
        let clients =
            connect(&Place { server, authority, token }, &namespace).context("reach the API server")?;
        let timeout = Duration::from_secs(self.timeout);
        Ok(Setup { clients, watches: Watches::default(), namespace, identity: identity()?, timeout })
    }
}

/// As kubelet says it to every container.
fn server_of_the_pod() -> Result<String> {
    let variable = |name: &str| {
        std::env::var(name)
            .with_context(|| format!("{name} is not set: in no pod, name the API server with --server"))
    };
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    // IPv6 has its own way to be written.
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Ok(format!("https://{host}:{port}"))
}

/// A process of this host that no other is.
fn identity() -> Result<String> {
    Ok(format!("{}_{}", host::name()?, uuid()?))
}

fn uuid() -> Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid").context("ask for a random name")?;
    Ok(text.trim().to_owned())
}
