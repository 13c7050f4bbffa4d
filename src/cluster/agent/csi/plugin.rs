//! Connections to CSI drivers, which are found by name as kubelet finds them: by the sockets in
//! kubelet's `plugins_registry`, which tell the driver and its endpoint; else at the path of
//! drivers that registered themselves.
//!
//! The server at a socket must identify itself as that driver before it gets a Secret.

use super::refused::{LIMIT, Refused};
use crate::agent::fault::{Code, Fault};
use crate::controllers::driver::within;
use crate::csi::sockets;
use crate::wire::csi::identity_client::IdentityClient;
use crate::wire::csi::node_client::NodeClient;
use crate::wire::csi::node_service_capability::Type;
use crate::wire::csi::node_service_capability::rpc::Type as Rpc;
use crate::wire::csi::{GetPluginInfoRequest, NodeGetCapabilitiesRequest};
use crate::wire::registration::InfoRequest;
use crate::wire::registration::registration_client::RegistrationClient;
use flexvol_protocol::text::one_line;
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::time::timeout;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// Limit for a driver to accept a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// Limit for a registration socket to name its driver; kubelet has the same.
const INFO: Duration = Duration::from_secs(1);

/// Limit for a call; kubelet has the same.
const CALL: Duration = Duration::from_mins(2);

/// Type of a CSI driver in a registration.
const TYPE: &str = "CSIPlugin";

/// The CSI drivers of this node.
#[derive(Debug)]
pub(super) struct Plugins {
    kubelet_root: PathBuf,
    /// Last known socket of each driver.
    known: Mutex<BTreeMap<String, PathBuf>>,
}

/// Connected CSI driver.
#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) name: String,
    channel: Channel,
    until: Instant,
}

/// Capabilities of a driver on a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "as many as CSI has capabilities that matter here")]
pub(super) struct Able {
    /// `STAGE_UNSTAGE_VOLUME`
    pub(super) stages: bool,
    /// `VOLUME_MOUNT_GROUP`
    pub(super) groups: bool,
    /// `SINGLE_NODE_MULTI_WRITER`
    pub(super) tells_writers_apart: bool,
    /// `EXPAND_VOLUME`
    pub(super) expands: bool,
}

impl Plugins {
    pub(super) fn of(kubelet_root: PathBuf) -> Self {
        Self { kubelet_root, known: Mutex::default() }
    }

    pub(super) fn kubelet_root(&self) -> &Path {
        &self.kubelet_root
    }

    /// Connects to the driver of this name, for calls that end before `until`.
    pub(super) async fn connect(&self, name: &str, until: Instant) -> Result<Plugin, Fault> {
        let known = self.known().get(name).cloned();
        if let Some(socket) = known
            && let Ok(plugin) = Plugin::at(&socket, name, until).await
        {
            return Ok(plugin);
        }
        let mut why = String::new();
        for socket in self.candidates(name).await {
            match Plugin::at(&socket, name, until).await {
                Ok(plugin) => {
                    self.known().insert(name.to_owned(), socket);
                    return Ok(plugin);
                }
                Err(said) => why = format!(": {} {said}", socket.display()),
            }
        }
        let text = format!(
            "the CSI driver {name} is not on this node{why}: look at its pod, and at the sockets in {}",
            self.registry().display()
        );
        Err(Fault::new(Code::Gone, text))
    }

    /// Returns the sockets where the driver may serve, the most likely first.
    async fn candidates(&self, name: &str) -> Vec<PathBuf> {
        let mut sockets = sockets_in(&self.registry(), 2);
        // Most sockets are named after their driver.
        flexvol_protocol::ordered::sort(&mut sockets, |path| !path.to_string_lossy().contains(name));
        let mut found = Vec::new();
        for socket in sockets {
            if let Some((registered, endpoint)) = registration(&socket).await
                && registered == name
            {
                found.push(endpoint);
                break;
            }
        }
        found.push(self.kubelet_root.join("plugins").join(name).join("csi.sock"));
        found.dedup();
        found
    }

    fn registry(&self) -> PathBuf {
        self.kubelet_root.join("plugins_registry")
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, PathBuf>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Finds sockets as kubelet does: names with a leading dot are skipped.
fn sockets_in(directory: &Path, depth: u32) -> Vec<PathBuf> {
    let mut sockets = Vec::new();
    for entry in directory.read_dir().into_iter().flatten().flatten() {
        let Ok(kind) = entry.file_type() else { continue };
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if kind.is_socket() && !is_hidden {
            sockets.push(entry.path());
        } else if kind.is_dir() && !is_hidden && depth > 0 {
            sockets.extend(sockets_in(&entry.path(), depth - 1));
        }
    }
    sockets
}

/// Returns the driver that registers at a socket, and the path where it serves.
async fn registration(socket: &Path) -> Option<(String, PathBuf)> {
    let asked = async {
        let channel = sockets::connect(socket).await.ok()?;
        let info = RegistrationClient::new(channel).get_info(within(InfoRequest {}, INFO)).await.ok()?;
        Some(info.into_inner())
    };
    let info = timeout(INFO, asked).await.ok()?.filter(|info| info.r#type == TYPE)?;
    let endpoint =
        if info.endpoint.is_empty() { socket.to_owned() } else { sockets::path_of(&info.endpoint).ok()? };
    Some((info.name, endpoint))
}

impl Plugin {
    /// Connects to a socket, if the driver of this name serves there.
    async fn at(socket: &Path, name: &str, until: Instant) -> Result<Self, String> {
        let asked = async {
            let channel =
                sockets::connect(socket).await.map_err(|error| format!("does not serve: {error:#}"))?;
            let mut identity = IdentityClient::new(channel.clone());
            let info = identity.get_plugin_info(within(GetPluginInfoRequest {}, CONNECT)).await;
            let info = info.map_err(|status| format!("says {}", one_line(status.message(), LIMIT)))?;
            let found = info.into_inner().name;
            if found == name {
                Ok(channel)
            } else {
                Err(format!("is served by {:?}", one_line(&found, LIMIT)))
            }
        };
        let channel = timeout(CONNECT.min(left(until)), asked).await;
        let channel = channel.map_err(|_| "does not answer".to_owned())??;
        Ok(Self { name: name.to_owned(), channel, until })
    }

    /// Calls the Node service, within the limit for a call and the time that is left.
    pub(super) async fn call<T, A, F: Future<Output = Result<Response<A>, Status>>>(
        &self,
        rpc: &'static str,
        message: T,
        call: impl FnOnce(NodeClient<Channel>, Request<T>) -> F,
    ) -> Result<A, Refused> {
        let allowed = CALL.min(left(self.until));
        let answer = timeout(allowed, call(NodeClient::new(self.channel.clone()), within(message, allowed)));
        let status = match answer.await {
            Ok(Ok(answer)) => return Ok(answer.into_inner()),
            Ok(Err(status)) => status,
            Err(_) => Status::deadline_exceeded("it has not answered in time"),
        };
        Err(Refused::new(&self.name, rpc, status))
    }

    /// Asks the driver for its capabilities; kubelet asks as often.
    pub(super) async fn able(&self) -> Result<Able, Refused> {
        let asked = NodeGetCapabilitiesRequest {};
        let call = async |mut node: NodeClient<Channel>, asked| node.node_get_capabilities(asked).await;
        let answer = self.call("NodeGetCapabilities", asked, call).await?;
        let types = answer.capabilities.into_iter().filter_map(|capability| capability.r#type);
        let mut able = Able::default();
        for Type::Rpc(rpc) in types {
            match rpc.r#type() {
                Rpc::StageUnstageVolume => able.stages = true,
                Rpc::VolumeMountGroup => able.groups = true,
                Rpc::SingleNodeMultiWriter => able.tells_writers_apart = true,
                Rpc::ExpandVolume => able.expands = true,
                _ => {}
            }
        }
        Ok(able)
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}
