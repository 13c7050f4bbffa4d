//! API server, for commands that send requests to it.

use crate::controllers::client::{ACCOUNT, Place};
use anyhow::{Context as _, Result};
use clap::Args;
use std::path::PathBuf;

/// Address of the API server, and the account to use.
#[derive(Args)]
pub(super) struct ApiServer {
    /// API server [default: that of the pod's own cluster]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// Directory of the service account: `token`, `ca.crt` and `namespace`
    #[arg(long, value_name = "DIR", default_value = ACCOUNT)]
    account: PathBuf,
}

impl ApiServer {
    pub(super) fn place(&self) -> Result<Place> {
        let server = self.server.clone().map_or_else(server_of_the_pod, Ok)?;
        let (authority, token) = (self.account.join("ca.crt"), self.account.join("token"));
        Ok(Place { server, authority, token })
    }

    /// Returns the account's own namespace.
    pub(super) fn namespace(&self) -> String {
        let own = std::fs::read_to_string(self.account.join("namespace"));
        own.map_or_else(|_| "default".to_owned(), |text| text.trim().to_owned())
    }
}

/// Returns the API server from the environment that kubelet gives to every container.
fn server_of_the_pod() -> Result<String> {
    let variable = |name: &str| {
        std::env::var(name)
            .with_context(|| format!("{name} is not set: in no pod, name the API server with --server"))
    };
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    // An IPv6 address is written in brackets.
    let host = if host.contains(':') { format!("[{host}]") } else { host };
    Ok(format!("https://{host}:{port}"))
}
