//! A CSI driver that makes, attaches and grows volumes in memory, and fails as it is told.

use super::older_driver;
use super::proxy::{Cut, Way};
use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::controller_server::Controller;
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
use tokio::sync::Notify;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

/// As often as a call is repeated before the test says otherwise.
pub(crate) const ALWAYS: usize = 40;

/// What goes wrong in one call for a volume.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Nothing is done.
    Refused(Code),
    /// Nothing is done, and the error repeats all that was asked.
    Repeated,
    /// It is done, and the answer comes too late.
    Lost(Duration),
    /// It is done after so long.
    Slow(Duration),
}

/// How a driver says which volumes are not well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Says {
    #[default]
    Nothing,
    /// In a list of all.
    OfAll,
    /// Asked for one.
    OfEach,
    /// In a list of those alone.
    OfTheIll,
}

/// What a driver says that it can do.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "as many as there are capabilities")]
pub(crate) struct Can {
    pub(crate) publish: bool,
    pub(crate) provision: bool,
    /// Volumes are in zones.
    pub(crate) topology: bool,
    pub(crate) expand: bool,
    pub(crate) expand_on_nodes: bool,
    pub(crate) capacity: bool,
    pub(crate) says: Says,
}

/// What storage a zone has.
const ROOM: i64 = 1 << 30;

/// Sizes are whole ones of these.
const UNIT: i64 = 16 << 20;

/// Of a volume whose growth needs no node.
pub(crate) const WHOLE: &str = "whole";

/// Where nodes and volumes are.
pub(crate) const ZONE: &str = "topology.example.com/zone";

#[derive(Debug, Default)]
struct State {
    /// Volume and node.
    published: BTreeSet<(String, String)>,
    /// Volumes that were made, and their sizes.
    made: BTreeMap<String, i64>,
    /// The storage of zones, where it is not [`ROOM`].
    room: BTreeMap<String, i64>,
    /// What is said of volumes: nothing of those that are well.
    conditions: BTreeMap<String, String>,
    /// A list of volumes has no end.
    endless: bool,
    /// Of volumes that have grown.
    sizes: BTreeMap<String, i64>,
    faults: HashMap<(&'static str, String), VecDeque<Fault>>,
    /// Calls for each volume.
    calls: BTreeMap<String, Vec<String>>,
    /// Nothing is answered.
    silent: bool,
    /// Of calls for volumes, and which is cut short.
    number: usize,
    cut: Option<(Cut, Way)>,
}

/// One driver.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    pub(crate) name: String,
    pub(crate) socket: PathBuf,
    can: Can,
    state: Arc<Mutex<State>>,
    /// The call that is cut short is there.
    reached: Arc<Notify>,
}

impl Driver {
    /// Serves it, for as long as the runtime is there.
    pub(crate) fn serve(name: &str, socket: PathBuf, can: Can) -> Self {
        let driver =
            Self { name: name.to_owned(), socket, can, state: Arc::default(), reached: Arc::default() };
        let listener = UnixListenerStream::new(UnixListener::bind(&driver.socket).unwrap());
        let server = Server::builder()
            .add_service(IdentityServer::new(driver.clone()))
            .add_service(older_driver::Both::new(&driver))
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

    /// A zone has so much storage from now on.
    pub(crate) fn has_room(&self, zone: &str, room: i64) {
        self.state.lock().unwrap().room.insert(zone.to_owned(), room);
    }

    /// A volume is there, and is not well if something is said of it.
    pub(crate) fn says_of(&self, volume: &str, condition: &str) {
        self.state.lock().unwrap().conditions.insert(volume.to_owned(), condition.to_owned());
    }

    /// A volume is in no list any more.
    pub(crate) fn forgets(&self, volume: &str) {
        self.state.lock().unwrap().conditions.remove(volume);
    }

    /// Whether lists of volumes have no end from now on.
    pub(crate) fn never_ends(&self, endless: bool) {
        self.state.lock().unwrap().endless = endless;
    }

    /// Two volumes and what is said of them, and where it goes on.
    pub(crate) async fn conditions(&self, token: &str) -> Result<(Vec<(String, String)>, String), Status> {
        let start = token.parse().unwrap_or(0);
        let mut page = (Vec::new(), String::new());
        self.call("health", "", "conditions".to_owned(), |state| {
            let all = state.conditions.iter().map(|(volume, is)| (volume.clone(), is.clone()));
            let all: Vec<_> = all.filter(|(_, is)| self.can.says == Says::OfAll || !is.is_empty()).collect();
            let next = (start + 2 < all.len() || state.endless).then(|| (start + 2).to_string());
            page = (all.into_iter().skip(start).take(2).collect(), next.unwrap_or_default());
        })
        .await?;
        Ok(page)
    }

    /// What is said of one volume, if it is there.
    pub(crate) async fn condition(&self, volume: &str) -> Result<Option<String>, Status> {
        let mut said = None;
        let text = "condition".to_owned();
        self.call("health", volume, text, |state| said = state.conditions.get(volume).cloned()).await?;
        Ok(said)
    }

    /// The volumes that were made and not deleted.
    pub(crate) fn volumes(&self) -> Vec<String> {
        self.state.lock().unwrap().made.keys().cloned().collect()
    }

    /// From now on calls are counted, and this one is cut short.
    pub(crate) fn cut(&self, cut: Option<(Cut, Way)>) {
        let mut state = self.state.lock().unwrap();
        (state.number, state.cut) = (0, cut);
    }

    /// Until the call is there at which the controller is to end.
    pub(crate) async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Never returns if the controller is to end here.
    async fn may_end(&self, at: Cut) -> Result<(), Status> {
        let Some((_, way)) = self.state.lock().unwrap().cut.take_if(|(cut, _)| *cut == at) else {
            return Ok(());
        };
        self.reached.notify_one();
        match way {
            Way::Killed => std::future::pending().await,
            Way::Lost => Err(Status::unavailable("lost")),
        }
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
        asked: String,
        done: impl FnOnce(&mut State) + Send,
    ) -> Result<(), Status> {
        let (number, fault) = {
            let mut state = self.state.lock().unwrap();
            state.number += 1;
            state.calls.entry(volume.to_owned()).or_default().push(asked.clone());
            let fault = state.faults.get_mut(&(kind, volume.to_owned())).and_then(VecDeque::pop_front);
            (state.number, fault)
        };
        self.may_end(Cut::Before(number)).await?;
        if let Some(Fault::Slow(time)) = fault {
            tokio::time::sleep(time).await;
        }
        match fault {
            Some(Fault::Refused(code)) => return Err(Status::new(code, "as it was told")),
            Some(Fault::Repeated) => return Err(Status::internal(asked)),
            _ => done(&mut self.state.lock().unwrap()),
        }
        self.may_end(Cut::After(number)).await?;
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
        let placed = Some(service::Type::VolumeAccessibilityConstraints).filter(|_| self.can.topology);
        let of = |service: service::Type| {
            let service = Service { r#type: service.into() };
            csi::PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) }
        };
        let capabilities = [service::Type::ControllerService].into_iter().chain(placed).map(of).collect();
        Ok(Response::new(csi::GetPluginCapabilitiesResponse { capabilities }))
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
        let Can { publish, provision, expand, capacity, says, .. } = self.can;
        let all = [
            (Rpc::ListVolumes, says == Says::OfAll),
            (Rpc::GetVolume, says == Says::OfEach),
            (Rpc::ListVolumeHealth, says == Says::OfTheIll),
            (Rpc::PublishUnpublishVolume, publish),
            (Rpc::PublishReadonly, publish),
            (Rpc::CreateDeleteVolume, provision),
            (Rpc::ExpandVolume, expand),
            (Rpc::GetCapacity, capacity),
        ];
        let of = |kind: Rpc| csi::ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Wrapped { r#type: kind.into() })),
        };
        let mut capabilities: Vec<_> =
            all.into_iter().filter(|(_, can)| *can).map(|(kind, _)| of(kind)).collect();
        if matches!(says, Says::OfAll | Says::OfEach) {
            let condition =
                controller_service_capability::Type::Rpc(Wrapped { r#type: older_driver::VOLUME_CONDITION });
            capabilities.push(csi::ControllerServiceCapability { r#type: Some(condition) });
        }
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn controller_publish_volume(
        &self,
        request: Request<csi::ControllerPublishVolumeRequest>,
    ) -> Result<Response<csi::ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
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

    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Result<Response<csi::CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let (parameters, secrets) = (sorted(&request.parameters), sorted(&request.secrets));
        let asked = request.capacity_range.unwrap_or_default();
        let topology = request.accessibility_requirements;
        let text = format!(
            "create {asked:?} {:?} {parameters:?} {secrets:?} {:?}",
            request.volume_capabilities,
            topology.as_ref().map(zones)
        );
        let volume_id = request.name.clone();
        self.call("create", &request.name, text, |state| {
            state.made.insert(volume_id, asked.required_bytes);
        })
        .await?;
        let place = topology.and_then(|asked| asked.preferred.first().or(asked.requisite.first()).cloned());
        let volume = csi::Volume {
            volume_id: request.name,
            capacity_bytes: asked.required_bytes,
            accessible_topology: place.into_iter().collect(),
            volume_context: [("made".to_owned(), "here".to_owned())].into(),
            ..csi::Volume::default()
        };
        Ok(Response::new(csi::CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(
        &self,
        request: Request<csi::DeleteVolumeRequest>,
    ) -> Result<Response<csi::DeleteVolumeResponse>, Status> {
        let request = request.into_inner();
        let text = format!("delete {:?}", sorted(&request.secrets));
        self.call("delete", &request.volume_id, text, |state| {
            state.made.remove(&request.volume_id);
        })
        .await?;
        Ok(Response::new(csi::DeleteVolumeResponse {}))
    }

    async fn get_capacity(
        &self,
        request: Request<csi::GetCapacityRequest>,
    ) -> Result<Response<csi::GetCapacityResponse>, Status> {
        let request = request.into_inner();
        let segments = sorted(&request.accessible_topology.unwrap_or_default().segments);
        let zone = segments.get(ZONE).cloned().unwrap_or_default();
        let (capabilities, parameters) = (request.volume_capabilities, sorted(&request.parameters));
        let text = format!("capacity for {capabilities:?} {parameters:?} in {segments:?}");
        let mut available_capacity = 0;
        self.call("capacity", &zone, text, |state| {
            let used: i64 = state.made.values().sum();
            let room = *state.room.get(&zone).unwrap_or(&ROOM);
            // One that says less than nothing is wrong whatever was made.
            available_capacity = if room < 0 { room } else { (room - used).max(0) };
        })
        .await?;
        let maximum_volume_size = request.parameters.get("largest").map(|size| size.parse().unwrap());
        Ok(Response::new(csi::GetCapacityResponse {
            available_capacity,
            maximum_volume_size,
            minimum_volume_size: None,
        }))
    }

    async fn controller_list_volume_health(
        &self,
        request: Request<csi::ControllerListVolumeHealthRequest>,
    ) -> Result<Response<csi::ControllerListVolumeHealthResponse>, Status> {
        let (ill, next_token) = self.conditions(&request.into_inner().starting_token).await?;
        let entry = |(volume_id, message)| {
            let reason = "DiskFails".to_owned();
            let status = csi::VolumeHealthErrorType::Degraded.into();
            // From a newer specification than ours.
            let newer = csi::volume_health::VolumeHealthEntry { status: 99, ..Default::default() };
            let health_statuses =
                vec![newer, csi::volume_health::VolumeHealthEntry { status, reason, message }];
            csi::VolumeHealth { volume_id, health_statuses }
        };
        let entries = ill.into_iter().map(entry).collect();
        Ok(Response::new(csi::ControllerListVolumeHealthResponse { entries, next_token }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<csi::ControllerExpandVolumeRequest>,
    ) -> Result<Response<csi::ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let secrets = sorted(&request.secrets);
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

fn sorted(map: &HashMap<String, String>) -> BTreeMap<String, String> {
    map.clone().into_iter().collect()
}

/// Of what is required, and of what is preferred, in order.
fn zones(asked: &csi::TopologyRequirement) -> (Vec<String>, Vec<String>) {
    let zones = |all: &[csi::Topology]| {
        let all = all.iter().map(|one| format!("{:?}", sorted(&one.segments)));
        all.collect::<Vec<_>>()
    };
    let mut required = zones(&asked.requisite);
    required.sort();
    (required, zones(&asked.preferred))
}
