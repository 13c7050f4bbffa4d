//! `flexvold csi-controller`: what Kubernetes asks of a CSI driver, without sidecars.

use super::csi::{log, runtime};
use crate::controllers::{Setup, run};
use crate::csi::sockets;
use anyhow::{Context as _, Result};
use clap::Args;
use flexvol_linux::proc::host;
use flexvol_terminal::screen::Screen;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Attach and detach volumes of CSI drivers, in place of external-attacher
#[derive(Args)]
pub(super) struct CsiController {
    /// Socket of a CSI driver; may be repeated
    #[arg(long, required = true, value_name = "unix:///PATH")]
    endpoint: Vec<String>,
    /// How to reach the API server [default: $KUBECONFIG, else as a pod of the cluster]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Namespace of the leases by which one process of several is active [default: the pod's own]
    #[arg(long, value_name = "NAME")]
    lease_namespace: Option<String>,
    /// What a driver may take to attach or detach a volume
    #[arg(long, value_name = "SECONDS", default_value = "110")]
    timeout: u64,
    /// How much to log
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    log_level: tracing::Level,
}

impl CsiController {
    pub(super) fn run(self, _screen: &mut Screen) -> Result<ExitCode> {
        let sockets = self.endpoint.iter().map(|endpoint| sockets::path_of(endpoint)).collect::<Result<_>>()?;
        log(self.log_level);
        let runtime = runtime()?;
        runtime.block_on(async { run(self.setup().await?, sockets).await })?;
        runtime.shutdown_background();
        Ok(ExitCode::SUCCESS)
    }

    async fn setup(&self) -> Result<Setup> {
        let config = self.config().await.context("find the API server")?;
        let namespace = self.lease_namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).context("prepare to speak to the API server")?;
        let timeout = Duration::from_secs(self.timeout);
        Ok(Setup { client, namespace, identity: identity()?, timeout })
    }

    async fn config(&self) -> Result<Config> {
        let Some(path) = &self.kubeconfig else { return Ok(Config::infer().await?) };
        let kubeconfig = Kubeconfig::read_from(path)?;
        Ok(Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?)
    }
}

/// A process of this host that no other is.
fn identity() -> Result<String> {
    Ok(format!("{}_{}", host::name()?, uuid()?))
}

fn uuid() -> Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid").context("ask for a random name")?;
    Ok(text.trim().to_owned())
}
