//! A CSI driver that attaches in memory, and fails as it is told.

use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::controller_server::{Controller, ControllerServer};
use flexvol_cluster::wire::csi::controller_service_capability::rpc::Type as Rpc;
use flexvol_cluster::wire::csi::controller_service_capability::{self, Rpc as Wrapped};
use flexvol_cluster::wire::csi::identity_server::{Identity, IdentityServer};
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

#[derive(Debug, Default)]
struct State {
    /// Volume and node.
    published: BTreeSet<(String, String)>,
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
    publishes: bool,
    state: Arc<Mutex<State>>,
}

impl Driver {
    /// Serves it, for as long as the runtime is there.
    pub(crate) fn serve(name: &str, socket: PathBuf, publishes: bool) -> Self {
        let driver = Self { name: name.to_owned(), socket, publishes, state: Arc::default() };
        let listener = UnixListenerStream::new(UnixListener::bind(&driver.socket).unwrap());
        let server = Server::builder()
            .add_service(IdentityServer::new(driver.clone()))
            .add_service(ControllerServer::new(driver.clone()));
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

    /// Notes the call, and does it or fails.
    async fn call(
        &self,
        kind: &'static str,
        volume: &str,
        text: String,
        done: impl FnOnce(&mut BTreeSet<(String, String)>) -> bool + Send,
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
        done(&mut self.state.lock().unwrap().published);
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
        let kinds = [Rpc::PublishUnpublishVolume, Rpc::PublishReadonly];
        let of = |kind: Rpc| csi::ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Wrapped { r#type: kind.into() })),
        };
        let capabilities = kinds.into_iter().filter(|_| self.publishes).map(of).collect();
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
        self.call("publish", &request.volume_id, text, |all| all.insert(pair)).await?;
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
        self.call("unpublish", &request.volume_id, text, |all| all.remove(&pair)).await?;
        Ok(Response::new(csi::ControllerUnpublishVolumeResponse {}))
    }
}
