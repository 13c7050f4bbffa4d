//! The CSI driver of a name, found as kubelet finds it: by the sockets in kubelet's
//! `plugins_registry`, which say whose they are and where the driver serves; else where drivers
//! serve that registered themselves.
//!
//! Whoever answers there must say that it is that driver: only then does it get a Secret.

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

/// How long a driver may take to take a connection.
const CONNECT: Duration = Duration::from_secs(10);

/// How long it may take to say who it is: as kubelet has it.
const INFO: Duration = Duration::from_secs(1);

/// How long a call may take: as kubelet has it.
const CALL: Duration = Duration::from_mins(2);

/// What a registration says of a CSI driver.
const TYPE: &str = "CSIPlugin";

/// The CSI drivers of this node.
#[derive(Debug)]
pub(super) struct Plugins {
    kubelet_root: PathBuf,
    /// Where each was found last.
    known: Mutex<BTreeMap<String, PathBuf>>,
}

/// A CSI driver that answers.
#[derive(Debug)]
pub(super) struct Plugin {
    pub(super) name: String,
    channel: Channel,
    until: Instant,
}

/// What a driver can do on a node.
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

    /// The driver of this name, for calls that end before then.
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

    /// Where it may serve, the likeliest first.
    async fn candidates(&self, name: &str) -> Vec<PathBuf> {
        let mut sockets = sockets_in(&self.registry(), 2);
        // Most are called after their driver.
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

/// As kubelet looks for them: those whose names begin with a dot are not meant.
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

/// Which driver registers there, and where it serves.
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
    /// Whoever serves there, if it is the driver of this name.
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

    /// Calls its Node service, within the time that a call may take and that is left.
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

    /// What it can do; kubelet asks as often.
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
