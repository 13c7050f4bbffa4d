//! CSI driver behind its socket, as controllers use it.

use crate::csi::sockets;
use crate::turns::Turns;
use crate::wire::before;
use crate::wire::csi::controller_client::ControllerClient;
use crate::wire::csi::controller_service_capability::Type as ControllerType;
use crate::wire::csi::controller_service_capability::rpc::Type as Rpc;
use crate::wire::csi::identity_client::IdentityClient;
use crate::wire::csi::node_client::NodeClient;
use crate::wire::csi::node_service_capability::Type as NodeType;
use crate::wire::csi::node_service_capability::rpc as node_rpc;
use crate::wire::csi::plugin_capability::Type as PluginType;
use crate::wire::csi::plugin_capability::service::Type as Service;
use crate::wire::csi::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, GetPluginCapabilitiesRequest, GetPluginInfoRequest, NodeGetCapabilitiesRequest,
    ProbeRequest,
};
use anyhow::{Context as _, Result, ensure};
use flexvol_protocol::secret::{Redactor, Secret};
use futures_util::future::BoxFuture;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

/// Pause before a driver that is not ready is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Deadline of a call that only asks.
const SHORT: Duration = Duration::from_secs(5);

/// Pause between two probes.
const ASK: Duration = Duration::from_secs(5);
/// Limit for a socket that refuses connections: the driver may be restarting.
const AWAY: Duration = Duration::from_secs(15);

/// Lifetime of a cached answer about capabilities: longer than the next probe takes.
const FRESH: Duration = Duration::from_secs(10);

/// Client of a driver's Controller service.
pub type Controller = ControllerClient<Channel>;

/// Longest turn of a call of the Controller service: most take less, and one that hangs delays
/// others no longer.
pub const TURN: Duration = Duration::from_secs(5);

/// Call by which a driver reports volumes that are not healthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conditions {
    /// List of all volumes: `LIST_VOLUMES` and `VOLUME_CONDITION`.
    OfAll,
    /// Question about one volume: `GET_VOLUME` and `VOLUME_CONDITION`.
    OfEach,
    /// List of the unhealthy volumes alone: `LIST_VOLUME_HEALTH`, from CSI 1.13 on.
    OfTheIll,
}

/// `VOLUME_CONDITION` of the Controller service, which CSI had up to 1.12.
const VOLUME_CONDITION: i32 = 11;

/// Name and capabilities of a driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "as many as CSI has capabilities that matter here")]
pub struct Facts {
    /// Its name.
    pub name: String,
    /// True if it attaches: `PUBLISH_UNPUBLISH_VOLUME`.
    pub publishes: bool,
    /// `PUBLISH_READONLY`.
    pub publishes_read_only: bool,
    /// `LIST_VOLUMES` and `LIST_VOLUMES_PUBLISHED_NODES`.
    pub lists_nodes: bool,
    /// `SINGLE_NODE_MULTI_WRITER`.
    pub single_node_multi_writer: bool,
    /// True if it provisions: `CREATE_DELETE_VOLUME`.
    pub provisions: bool,
    /// True if its controller expands volumes: `EXPAND_VOLUME`.
    pub expands: bool,
    /// True if it reports free capacity: `GET_CAPACITY`.
    pub tells_capacity: bool,
    /// Call by which it reports volumes that are not healthy, if it does.
    pub conditions: Option<Conditions>,
    /// True if it has topology: `VOLUME_ACCESSIBILITY_CONSTRAINTS`.
    pub topology: bool,
}

/// A driver that answers.
#[derive(Clone, Debug)]
pub struct Driver {
    channel: Channel,
    /// Its name, which never changes.
    pub name: String,
    /// Its last answer about itself, and when it was given.
    said: Arc<Mutex<Option<(Facts, Instant)>>>,
}

impl Driver {
    /// Waits until the driver behind a socket is ready.
    pub async fn ready(socket: &Path) -> Driver {
        loop {
            match Self::connect(socket.to_owned()).await {
                Ok(driver) => return driver,
                Err(error) => {
                    let reason = format!("{error:#}");
                    tracing::warn!(socket = %socket.display(), reason, "the driver is not ready: asking again");
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    async fn connect(socket: PathBuf) -> Result<Driver> {
        let channel = sockets::connect(&socket).await?;
        let mut identity = IdentityClient::new(channel.clone());
        let probed = identity.probe(short(ProbeRequest {})).await.context("ask whether it is ready")?;
        ensure!(probed.get_ref().ready != Some(false), "it says that it is not");
        let info =
            identity.get_plugin_info(short(GetPluginInfoRequest {})).await.context("ask for its name")?;
        let name = info.into_inner().name;
        ensure!(!name.is_empty(), "it has no name");
        Ok(Driver { channel, name, said: Arc::default() })
    }

    /// Returns a client of its Controller service.
    pub fn controller(&self) -> Controller {
        ControllerClient::new(self.channel.clone())
    }

    /// Calls the Controller service, in turn. The driver's error is shown to tenants: the request's
    /// Secrets are masked in it.
    ///
    /// # Errors
    ///
    /// The call has failed, or has not ended within `deadline`.
    pub async fn call<M: Asked>(
        &self,
        message: M,
        turns: &Turns,
        deadline: Duration,
    ) -> Result<M::Answer, Status> {
        let secrets = message.secrets().values();
        let secrets: Vec<_> = secrets.map(|secret| Secret::new(secret.clone().into_bytes())).collect();
        let call = M::ask(self.controller(), within(message, deadline));
        let mut answer = Err(Status::cancelled("the call was not made"));
        {
            // One type for all calls.
            let call: Pin<&mut (dyn Future<Output = ()> + Send)> = pin!(async { answer = call.await });
            turns.take().await.run(call).await;
        }
        answer.map(Response::into_inner).map_err(|status| masked(failed(status), &secrets))
    }

    /// Returns a client of its Controller service in the form before CSI 1.13.
    pub fn older_controller(&self) -> before::controller_client::ControllerClient<Channel> {
        before::controller_client::ControllerClient::new(self.channel.clone())
    }

    /// Returns name and capabilities, at most ten seconds old: a driver may be replaced at any
    /// time, but is not asked for each object.
    ///
    /// # Errors
    ///
    /// Fails if the driver does not answer.
    pub async fn facts(&self) -> Result<Facts, Status> {
        let fresh = |said: &&(Facts, Instant)| said.1.elapsed() < FRESH;
        if let Some((facts, _)) = self.said().as_ref().filter(fresh) {
            return Ok(facts.clone());
        }
        self.ask().await
    }

    fn said(&self) -> MutexGuard<'_, Option<(Facts, Instant)>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the driver for its capabilities, and caches the answer.
    async fn ask(&self) -> Result<Facts, Status> {
        let facts = self.answered().await;
        *self.said() = facts.as_ref().ok().map(|facts| (facts.clone(), Instant::now()));
        facts
    }

    async fn answered(&self) -> Result<Facts, Status> {
        let mut facts = Facts { name: self.name.clone(), ..Facts::default() };
        let services = self.services().await?;
        if !services.contains(&Service::ControllerService) {
            return Ok(facts);
        }
        let asked = short(ControllerGetCapabilitiesRequest {});
        let answer = self.controller().controller_get_capabilities(asked).await?.into_inner();
        let types = answer.capabilities.into_iter().filter_map(|capability| capability.r#type);
        let types: Vec<i32> = types.map(|ControllerType::Rpc(rpc)| rpc.r#type).collect();
        let has = |wanted: Rpc| types.contains(&wanted.into());
        facts.publishes = has(Rpc::PublishUnpublishVolume);
        facts.publishes_read_only = has(Rpc::PublishReadonly);
        facts.lists_nodes = has(Rpc::ListVolumes) && has(Rpc::ListVolumesPublishedNodes);
        facts.single_node_multi_writer = has(Rpc::SingleNodeMultiWriter);
        facts.provisions = has(Rpc::CreateDeleteVolume);
        facts.tells_capacity = has(Rpc::GetCapacity);
        facts.expands = has(Rpc::ExpandVolume);
        facts.conditions = match types.contains(&VOLUME_CONDITION) {
            _ if has(Rpc::ListVolumeHealth) => Some(Conditions::OfTheIll),
            true if has(Rpc::ListVolumes) => Some(Conditions::OfAll),
            true if has(Rpc::GetVolume) => Some(Conditions::OfEach),
            _ => None,
        };
        facts.topology = services.contains(&Service::VolumeAccessibilityConstraints);
        Ok(facts)
    }

    /// Returns true if its node expands volumes: `EXPAND_VOLUME` of the Node service. Not cached.
    ///
    /// # Errors
    ///
    /// Fails if the driver does not answer.
    pub async fn node_expands(&self) -> Result<bool, Status> {
        let mut node = NodeClient::new(self.channel.clone());
        let asked = short(NodeGetCapabilitiesRequest {});
        let answer = node.node_get_capabilities(asked).await?.into_inner();
        let types = answer.capabilities.into_iter().filter_map(|capability| capability.r#type);
        let mut types = types.map(|NodeType::Rpc(rpc)| rpc.r#type());
        Ok(types.any(|rpc| rpc == node_rpc::Type::ExpandVolume))
    }

    /// Waits until the driver answers, and returns its capabilities.
    pub async fn known(&self) -> Facts {
        loop {
            match self.facts().await {
                Ok(facts) => return facts,
                Err(status) => {
                    tracing::warn!(reason = in_words(&status), "the driver does not answer: asking again");
                }
            }
            tokio::time::sleep(AGAIN).await;
        }
    }

    /// Waits until the driver has stopped answering: its socket refuses connections for a while, or
    /// a probe hangs for longer than a call may take. An error is an answer.
    pub async fn falls_silent(&self, a_call: Duration) {
        let mut answered = Instant::now();
        loop {
            tokio::time::sleep(ASK).await;
            let Err(status) = self.ask().await else {
                answered = Instant::now();
                continue;
            };
            let patience = match failed(status) {
                status if status.code() == Code::DeadlineExceeded => a_call.max(AWAY),
                status if std::error::Error::source(&status).is_some() => AWAY,
                _ => {
                    answered = Instant::now();
                    continue;
                }
            };
            if answered.elapsed() >= patience {
                return;
            }
        }
    }

    async fn services(&self) -> Result<Vec<Service>, Status> {
        let mut identity = IdentityClient::new(self.channel.clone());
        let asked = short(GetPluginCapabilitiesRequest {});
        let answer = identity.get_plugin_capabilities(asked).await?.into_inner();
        let types = answer.capabilities.into_iter().filter_map(|capability| capability.r#type);
        let services = types.filter_map(|has| match has {
            PluginType::Service(service) => Some(service.r#type()),
            PluginType::VolumeExpansion(_) => None,
        });
        Ok(services.collect())
    }
}

/// Request of the Controller service that may hold Secrets.
pub trait Asked: Sized {
    /// Answer of the driver.
    type Answer: Send;

    /// Returns all its Secrets.
    fn secrets(&self) -> &HashMap<String, String>;

    /// Sends it.
    fn ask(
        driver: Controller,
        request: Request<Self>,
    ) -> BoxFuture<'static, Result<Response<Self::Answer>, Status>>;
}

macro_rules! asked {
    ($($request:ty => $answer:ty: $method:ident;)*) => {
        $(impl Asked for $request {
            type Answer = $answer;

            fn secrets(&self) -> &HashMap<String, String> {
                &self.secrets
            }

            fn ask(
                mut driver: Controller,
                request: Request<Self>,
            ) -> BoxFuture<'static, Result<Response<Self::Answer>, Status>> {
                Box::pin(async move { driver.$method(request).await })
            }
        })*
    };
}

asked! {
    ControllerExpandVolumeRequest => ControllerExpandVolumeResponse: controller_expand_volume;
    ControllerPublishVolumeRequest => ControllerPublishVolumeResponse: controller_publish_volume;
    ControllerUnpublishVolumeRequest => ControllerUnpublishVolumeResponse: controller_unpublish_volume;
    CreateVolumeRequest => CreateVolumeResponse: create_volume;
    DeleteVolumeRequest => DeleteVolumeResponse: delete_volume;
}

fn masked(status: Status, secrets: &[Secret]) -> Status {
    let said = Redactor::new(secrets).clean(status.message());
    if said == status.message() { status } else { Status::new(status.code(), said) }
}

fn short<T>(message: T) -> Request<T> {
    within(message, SHORT)
}

/// Returns a request with a deadline, which is sent to the driver too.
pub fn within<T>(message: T, deadline: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(deadline);
    request
}

/// Returns the status of a failed call. tonic reports our own deadline as a cancellation: this is
/// corrected here.
pub fn failed(status: Status) -> Status {
    match (status.code(), status.message()) {
        (Code::Cancelled, "Timeout expired") => Status::deadline_exceeded("context deadline exceeded"),
        _ => status,
    }
}

/// Formats a driver's error as Kubernetes' own clients do.
pub fn in_words(status: &Status) -> String {
    let code = match status.code() {
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    };
    format!("rpc error: code = {code} desc = {}", status.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four times as many calls hang as have a turn.
    #[tokio::test(start_paused = true)]
    async fn calls_that_hang_keep_no_other_waiting_for_long() {
        let (turns, begun) = (Turns::new(10, TURN), Instant::now());
        let hanging = (0..40).map(|_| {
            let turns = turns.clone();
            tokio::spawn(async move { turns.take().await.run(std::future::pending::<()>()).await })
        });
        let hanging: Vec<_> = hanging.collect();
        tokio::task::yield_now().await;
        let other = async { turns.take().await.run(async {}).await };
        tokio::time::timeout(TURN * 5, other).await.expect("it waits for those that hang");
        assert_eq!(begun.elapsed(), TURN * 4);
        hanging.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[test]
    fn no_error_repeats_a_secret() {
        let secrets = [Secret::new(b"hunter2".to_vec())];
        let status = masked(Status::internal("login with hunter2 (aHVudGVyMg==) failed"), &secrets);
        assert_eq!((status.code(), status.message()), (Code::Internal, "login with *** (***) failed"));
    }

    #[test]
    fn errors_read_as_those_of_upstream() {
        let status = Status::deadline_exceeded("too late");
        assert_eq!(in_words(&status), "rpc error: code = DeadlineExceeded desc = too late");
        assert_eq!(in_words(&Status::cancelled("")), "rpc error: code = Canceled desc = ");
    }
}
