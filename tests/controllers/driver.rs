//! A CSI driver that attaches and grows volumes in memory, and fails as it is told.

use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::controller_server::{Controller, ControllerServer};
use flexvol_cluster::wire::csi::controller_service_capability::rpc::Type as Rpc;
use flexvol_cluster::wire::csi::controller_service_capability::{self, Rpc as Wrapped};
use flexvol_cluster::wire::csi::identity_server::{Identity, IdentityServer};
use flexvol_cluster::wire::csi::node_server::{Node, NodeServer};
use flexvol_cluster::wire::csi::plugin_capability::{self, Service, service};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

/// What goes wrong in one call for a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Nothing is done.
    Refused(Code),
    /// It is done, and the answer comes too late.
    Lost(Duration),
    /// It is done after so long.
    Slow(Duration),
}

/// What a driver says that it can do.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Can {
    pub(crate) publish: bool,
    pub(crate) expand: bool,
    pub(crate) expand_on_nodes: bool,
}

/// Sizes are whole ones of these.
const UNIT: i64 = 16 << 20;

/// Of a volume whose growth needs no node.
pub(crate) const WHOLE: &str = "whole";

#[derive(Debug, Default)]
struct State {
    /// Volume and node.
    published: BTreeSet<(String, String)>,
    /// Of volumes that have grown.
    sizes: BTreeMap<String, i64>,
    faults: HashMap<(&'static str, String), VecDeque<Fault>>,
    /// Calls for each volume.
    calls: BTreeMap<String, Vec<String>>,
    /// Nothing is answered.
    silent: bool,
}

/// One driver.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    pub(crate) name: String,
    pub(crate) socket: PathBuf,
    can: Can,
    state: Arc<Mutex<State>>,
}

impl Driver {
    /// Serves it, for as long as the runtime is there.
    pub(crate) fn serve(name: &str, socket: PathBuf, can: Can) -> Self {
        let driver = Self { name: name.to_owned(), socket, can, state: Arc::default() };
        let listener = UnixListenerStream::new(UnixListener::bind(&driver.socket).unwrap());
        let server = Server::builder()
            .add_service(IdentityServer::new(driver.clone()))
            .add_service(ControllerServer::new(driver.clone()))
            .add_service(NodeServer::new(driver.clone()));
        tokio::spawn(server.serve_with_incoming(listener));
        driver
    }

    /// The next calls of a kind for a volume go wrong.
    pub(crate) fn fails(&self, call: &'static str, volume: &str, faults: &[Fault]) {
        self.state.lock().unwrap().faults.insert((call, volume.to_owned()), faults.iter().copied().collect());
    }

    /// Whether nothing is answered from now on.
    pub(crate) fn falls_silent(&self, silent: bool) {
        self.state.lock().unwrap().silent = silent;
    }

    /// Never comes as long as nothing is answered.
    async fn speaks(&self) {
        while self.state.lock().unwrap().silent {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The calls for a volume so far.
    pub(crate) fn calls(&self, volume: &str) -> Vec<String> {
        self.state.lock().unwrap().calls.get(volume).cloned().unwrap_or_default()
    }

    /// The nodes on which a volume is published.
    pub(crate) fn nodes(&self, volume: &str) -> Vec<String> {
        let state = self.state.lock().unwrap();
        state.published.iter().filter(|(of, _)| of == volume).map(|(_, node)| node.clone()).collect()
    }

    /// The size of a volume that has grown.
    pub(crate) fn size(&self, volume: &str) -> Option<i64> {
        self.state.lock().unwrap().sizes.get(volume).copied()
    }

    /// Notes the call, and does it or fails.
    async fn call(
        &self,
        kind: &'static str,
        volume: &str,
        text: String,
        done: impl FnOnce(&mut State) + Send,
    ) -> Result<(), Status> {
        let fault = {
            let mut state = self.state.lock().unwrap();
            state.calls.entry(volume.to_owned()).or_default().push(text);
            state.faults.get_mut(&(kind, volume.to_owned())).and_then(VecDeque::pop_front)
        };
        if let Some(Fault::Slow(time)) = fault {
            tokio::time::sleep(time).await;
        }
        if let Some(Fault::Refused(code)) = fault {
            return Err(Status::new(code, "as it was told"));
        }
        done(&mut self.state.lock().unwrap());
        if let Some(Fault::Lost(time)) = fault {
            tokio::time::sleep(time).await;
        }
        Ok(())
    }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        let name = self.name.clone();
        Ok(Response::new(csi::GetPluginInfoResponse { name, ..csi::GetPluginInfoResponse::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        self.speaks().await;
        let service = Service { r#type: service::Type::ControllerService.into() };
        let capability = csi::PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) };
        Ok(Response::new(csi::GetPluginCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Result<Response<csi::ProbeResponse>, Status> {
        self.speaks().await;
        Ok(Response::new(csi::ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<csi::ControllerGetCapabilitiesResponse>, Status> {
        let Can { publish, expand, .. } = self.can;
        let all = [
            (Rpc::PublishUnpublishVolume, publish),
            (Rpc::PublishReadonly, publish),
            (Rpc::ExpandVolume, expand),
        ];
        let of = |kind: Rpc| csi::ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Wrapped { r#type: kind.into() })),
        };
        let capabilities = all.into_iter().filter(|(_, can)| *can).map(|(kind, _)| of(kind)).collect();
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let sorted = |map: &HashMap<String, String>| map.clone().into_iter().collect::<BTreeMap<_, _>>();
        let (context, secrets) = (sorted(&request.volume_context), sorted(&request.secrets));
        let text = format!(
            "publish on {} {:?} read-only={} {context:?} {secrets:?}",
            request.node_id, request.volume_capability, request.readonly
        );
        let pair = (request.volume_id.clone(), request.node_id.clone());
        self.call("publish", &request.volume_id, text, |state| {
            state.published.insert(pair);
        })
        .await?;
        let publish_context = [("device".to_owned(), format!("/dev/{}", request.node_id))].into();
        Ok(Response::new(csi::ControllerPublishVolumeResponse { publish_context }))
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<csi::ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let secrets: BTreeMap<_, _> = request.secrets.iter().collect();
        let text = format!("unpublish on {} {secrets:?}", request.node_id);
        let pair = (request.volume_id.clone(), request.node_id.clone());
        self.call("unpublish", &request.volume_id, text, |state| {
            state.published.remove(&pair);
        })
        .await?;
        Ok(Response::new(csi::ControllerUnpublishVolumeResponse {}))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let secrets: BTreeMap<_, _> = request.secrets.iter().collect();
        let asked = request.capacity_range.unwrap_or_default();
        let text = format!("expand to {asked:?} {:?} {secrets:?}", request.volume_capability);
        let (volume, size) = (request.volume_id, (asked.required_bytes + UNIT - 1) / UNIT * UNIT);
        let mut is = size;
        self.call("expand", &volume, text, |state| {
            let known = state.sizes.entry(volume.clone()).or_default();
            *known = size.max(*known);
            is = *known;
        })
        .await?;
        let node_expansion_required = !volume.ends_with(WHOLE);
        Ok(Response::new(csi::ControllerExpandVolumeResponse { capacity_bytes: is, node_expansion_required }))
    }
}

#[tonic::async_trait]
impl Node for Driver {
    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        use csi::node_service_capability::{Rpc, Type, rpc};
        let rpc = Rpc { r#type: rpc::Type::ExpandVolume.into() };
        let can = csi::NodeServiceCapability { r#type: Some(Type::Rpc(rpc)) };
        let capabilities = Some(can).filter(|_| self.can.expand_on_nodes).into_iter().collect();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }
}
