//! Registration with kubelet: a second socket in its `plugins_registry`, which kubelet watches.
//!
//! kubelet's plugin manager sends the percent-encoded path of the socket as `:authority`, which h2
//! refuses, because it is not an authority. With an `@` in the name, everything before it is the
//! user information of an authority, where percent signs are allowed: so the file has such a name.
//! This works from Kubernetes 1.29 on. Before, kubelet sends a path that no name can turn into an
//! authority, and the node-driver-registrar sidecar is needed.

use super::served::Served;
use crate::wire::registration::registration_server::Registration;
use crate::wire::registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use flexvol_protocol::text::one_line;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tonic::{Request, Response, Status};

/// Versions of CSI that kubelet may speak, in the form that it expects.
const VERSIONS: &str = "1.0.0";

/// Pause between a refusal and the next attempt: kubelet itself waits half a second and more each
/// time.
const AGAIN: Duration = Duration::from_secs(10);

/// Limit for kubelet's reason, in bytes.
const REASON_LIMIT: usize = 1024;

/// Service that answers kubelet's registration requests.
#[derive(Debug)]
pub struct RegistrationService {
    served: Arc<Served>,
    endpoint: PathBuf,
    again: Arc<Notify>,
}

impl RegistrationService {
    /// Creates the service for a driver that is served at `endpoint`; `again` recreates the socket.
    pub fn new(served: Arc<Served>, endpoint: PathBuf, again: Arc<Notify>) -> Self {
        Self { served, endpoint, again }
    }
}

/// Returns the path of the registration socket, below kubelet's own directory.
pub fn socket(kubelet_root: &Path, name: &str) -> PathBuf {
    kubelet_root.join("plugins_registry").join(format!("{name}@reg.sock"))
}

/// Returns the reason of kubelet's refusal, as it is logged.
pub fn reason(status: &RegistrationStatus) -> String {
    one_line(&status.error, REASON_LIMIT)
}

#[tonic::async_trait]
impl Registration for RegistrationService {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        tracing::info!(driver = self.served.name, "kubelet asks for the driver");
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: self.served.name.clone(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: vec![VERSIONS.to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        if status.plugin_registered {
            tracing::info!(driver = self.served.name, "registered with kubelet");
        } else {
            let reason = reason(&status);
            tracing::error!(driver = self.served.name, reason, "kubelet refused the registration");
            let again = Arc::clone(&self.again);
            tokio::spawn(async move {
                tokio::time::sleep(AGAIN).await;
                again.notify_one();
            });
        }
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
