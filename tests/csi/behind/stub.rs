//! A CSI driver that stages and publishes for real, and fails as it is told: what no real one does
//! on demand. It is as strict as CSI allows: out of order is an error.

use crate::namespace::mounts_at;
use flexvol_cluster::wire::csi;
use flexvol_cluster::wire::csi::identity_server::{Identity, IdentityServer};
use flexvol_cluster::wire::csi::node_server::{Node, NodeServer};
use flexvol_cluster::wire::csi::node_service_capability::rpc::Type as Rpc;
use flexvol_cluster::wire::csi::node_service_capability::{self, Rpc as Wrapped};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

pub(crate) const NAME: &str = "stub.csi.example.com";

/// What goes wrong with a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// Nothing is done.
    Refused(Code),
    /// It is done, and this is said.
    Lost(Code),
    /// It is never answered, and not done.
    Silent,
    /// It is done, and never answered.
    Unheard,
    /// It is said to be done, and is not.
    Lie,
}

#[derive(Default)]
struct State {
    /// Volume and path.
    staged: BTreeMap<String, String>,
    published: BTreeSet<(String, String)>,
    calls: Vec<&'static str>,
    faults: BTreeMap<&'static str, Fault>,
    stage: Option<csi::NodeStageVolumeRequest>,
    publish: Option<csi::NodePublishVolumeRequest>,
    expand: Option<csi::NodeExpandVolumeRequest>,
    segments: BTreeMap<String, String>,
    /// How long it has worked.
    took: Duration,
}

/// What is served, and what is known of it.
#[derive(Clone)]
pub(crate) struct Stub {
    name: &'static str,
    stages: bool,
    state: Arc<Mutex<State>>,
}

/// It is served until this is dropped.
pub(crate) struct Served {
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    socket: PathBuf,
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.end.take());
        self.thread.take().unwrap().join().unwrap();
        fs::remove_file(&self.socket).unwrap();
    }
}

impl Stub {
    pub(crate) fn new(stages: bool) -> Self {
        Self { name: NAME, stages, state: Arc::default() }
    }

    /// Under the name of a real one.
    pub(crate) fn called(name: &'static str, stages: bool) -> Self {
        Self { name, ..Self::new(stages) }
    }

    /// Serves where drivers serve that registered themselves, in this thread's mount namespace.
    pub(crate) fn serve(&self, kubelet: &Path) -> Served {
        let socket = kubelet.join("plugins").join(self.name).join("csi.sock");
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let (stub, path) = (self.clone(), socket.clone());
        let (end, told) = oneshot::channel::<()>();
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = UnixListenerStream::new(UnixListener::bind(path).unwrap());
                ready.send(()).unwrap();
                let serving = Server::builder()
                    .add_service(IdentityServer::new(stub.clone()))
                    .add_service(NodeServer::new(stub))
                    .serve_with_incoming(listener);
                tokio::select! {
                    ended = serving => ended.unwrap(),
                    _ = told => {}
                }
            });
        });
        is_ready.recv().unwrap();
        Served { end: Some(end), thread: Some(thread), socket }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// What the next call of a name comes to, and every further one until another is told.
    pub(crate) fn fails(&self, call: &'static str, fault: Option<Fault>) {
        let mut state = self.state();
        match fault {
            Some(fault) => state.faults.insert(call, fault),
            None => state.faults.remove(call),
        };
    }

    /// What it was asked since this was asked last, without what only asks.
    pub(crate) fn calls(&self) -> Vec<&'static str> {
        std::mem::take(&mut self.state().calls)
    }

    pub(crate) fn is_in(&self, key: &str, value: &str) {
        self.state().segments.insert(key.to_owned(), value.to_owned());
    }

    /// What it was told last.
    pub(crate) fn stage_request(&self) -> csi::NodeStageVolumeRequest {
        self.state().stage.clone().unwrap()
    }

    pub(crate) fn publish_request(&self) -> csi::NodePublishVolumeRequest {
        self.state().publish.clone().unwrap()
    }

    pub(crate) fn expand_request(&self) -> csi::NodeExpandVolumeRequest {
        self.state().expand.clone().unwrap()
    }

    /// As after a restart of one that keeps nothing.
    pub(crate) fn forgets(&self) {
        let mut state = self.state();
        (state.staged, state.published) = (BTreeMap::new(), BTreeSet::new());
    }

    /// How long it has worked since this was asked last.
    pub(crate) fn took(&self) -> Duration {
        std::mem::take(&mut self.state().took)
    }

    /// How many volumes are staged, and at how many targets they are published.
    pub(crate) fn count(&self) -> (usize, usize) {
        let state = self.state();
        (state.staged.len(), state.published.len())
    }

    /// Notes a call, and does it or fails.
    async fn call(
        &self,
        name: &'static str,
        done: impl FnOnce(&mut State) -> Result<(), Status>,
    ) -> Result<(), Status> {
        let fault = {
            let mut state = self.state();
            state.calls.push(name);
            state.faults.get(name).copied()
        };
        match fault {
            Some(Fault::Refused(code)) => Err(Status::new(code, "as it was told")),
            Some(Fault::Silent) => std::future::pending().await,
            Some(Fault::Unheard) => {
                done(&mut self.state())?;
                std::future::pending().await
            }
            Some(Fault::Lie) => Ok(()),
            Some(Fault::Lost(code)) => {
                done(&mut self.state())?;
                Err(Status::new(code, "as it was told, and done"))
            }
            None => {
                let begun = Instant::now();
                let mut state = self.state();
                let done = done(&mut state);
                state.took += begun.elapsed();
                done
            }
        }
    }
}

#[tonic::async_trait]
impl Identity for Stub {
    async fn get_plugin_info(
        &self,
        _: Request<csi::GetPluginInfoRequest>,
    ) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        let name = self.name.to_owned();
        let vendor_version = "1".to_owned();
        Ok(Response::new(csi::GetPluginInfoResponse { name, vendor_version, ..Default::default() }))
    }
}

fn mount(words: &[&str]) -> Result<(), Status> {
    let done = Command::new("mount").args(words).status().unwrap().success();
    if done { Ok(()) } else { Err(Status::internal("mount")) }
}

fn umount(path: &str) {
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.into());
    while !mounts_at(&place).is_empty() {
        assert!(Command::new("umount").arg(path).status().unwrap().success(), "{path}");
    }
}

impl Stub {
    fn stage(state: &mut State, asked: &csi::NodeStageVolumeRequest) -> Result<(), Status> {
        let path = &asked.staging_target_path;
        match state.staged.get(&asked.volume_id) {
            Some(at) if at != path => return Err(Status::already_exists("staged elsewhere")),
            Some(_) => return Ok(()),
            None => mount(&["-t", "tmpfs", "stub", path])?,
        }
        state.staged.insert(asked.volume_id.clone(), path.clone());
        Ok(())
    }

    fn publish(&self, state: &mut State, asked: &csi::NodePublishVolumeRequest) -> Result<(), Status> {
        let key = (asked.volume_id.clone(), asked.target_path.clone());
        if state.published.contains(&key) {
            return Ok(());
        }
        let staged = state.staged.get(&asked.volume_id);
        fs::create_dir_all(&asked.target_path).unwrap();
        match (self.stages, staged) {
            (true, Some(at)) if *at == asked.staging_target_path => mount(&["--bind", at, &key.1])?,
            (true, _) => return Err(Status::failed_precondition("not staged")),
            (false, _) => mount(&["-t", "tmpfs", "stub", &key.1])?,
        }
        if asked.readonly {
            mount(&["-o", "remount,bind,ro", &key.1])?;
        }
        state.published.insert(key);
        Ok(())
    }
}

#[tonic::async_trait]
impl Node for Stub {
    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let mut types = vec![Rpc::VolumeMountGroup, Rpc::SingleNodeMultiWriter];
        if self.stages {
            types.extend([Rpc::StageUnstageVolume, Rpc::ExpandVolume]);
        }
        let of = |rpc: Rpc| csi::NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Wrapped { r#type: rpc.into() })),
        };
        let capabilities = types.into_iter().map(of).collect();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(
        &self,
        _: Request<csi::NodeGetInfoRequest>,
    ) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        let segments = self.state().segments.clone().into_iter().collect();
        Ok(Response::new(csi::NodeGetInfoResponse {
            node_id: "node-1".to_owned(),
            accessible_topology: Some(csi::Topology { segments }),
            ..Default::default()
        }))
    }

    async fn node_stage_volume(
        &self,
        asked: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let asked = asked.into_inner();
        self.state().stage = Some(asked.clone());
        self.call("stage", |state| Self::stage(state, &asked)).await?;
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        asked: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let asked = asked.into_inner();
        let done = |state: &mut State| {
            if state.published.iter().any(|(volume, _)| *volume == asked.volume_id) {
                return Err(Status::internal("still published"));
            }
            umount(&asked.staging_target_path);
            state.staged.remove(&asked.volume_id);
            Ok(())
        };
        self.call("unstage", done).await?;
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        asked: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let asked = asked.into_inner();
        self.state().publish = Some(asked.clone());
        self.call("publish", |state| self.publish(state, &asked)).await?;
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_expand_volume(
        &self,
        asked: Request<csi::NodeExpandVolumeRequest>,
    ) -> Result<Response<csi::NodeExpandVolumeResponse>, Status> {
        self.state().expand = Some(asked.into_inner());
        self.call("expand", |_| Ok(())).await?;
        Ok(Response::new(csi::NodeExpandVolumeResponse::default()))
    }

    async fn node_unpublish_volume(
        &self,
        asked: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let asked = asked.into_inner();
        let done = |state: &mut State| {
            umount(&asked.target_path);
            let _ = fs::remove_dir(&asked.target_path);
            state.published.remove(&(asked.volume_id.clone(), asked.target_path.clone()));
            Ok(())
        };
        self.call("unpublish", done).await?;
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }
}
