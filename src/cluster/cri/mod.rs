//! Containers of mount pods, reached through this node's runtime: CRI v1. For pods without our own
//! process 1. The agent makes the requests, because access to the runtime's socket gives full
//! control of the node.
//!
//! ```text
//! driver ──▶ agent: session ─▶ Runtimes: which container ─▶ Container: ExecSync of a script
//!                      └── /run/flexvol/exec/<name>: what goes in and comes out ──┘
//! ```
//!
//! A script of `sh` runs each program. Only the script gets the streams of the runtime itself: a
//! program that leaves a daemon running would hold them for as long as the daemon lives, and 16 MiB
//! of output would give no answer at all. The program's streams are pipes and files in a directory
//! of root, in memory, which both sides see. Secrets are passed through it as well.
//!
//! A runtime that does not answer in time may have carried out the request, or may do so later. In
//! that case the started processes are found in the container by the word in their environment, and
//! ended.

mod container;
mod programs;
pub mod session;
mod streams;

use crate::agent::fault::{Code, Fault};
use crate::wire::runtime::runtime_service_client::RuntimeServiceClient;
use crate::wire::runtime::{
    ContainerFilter, ContainerState, ContainerStateValue, ExecSyncRequest, ListContainersRequest,
};
use container::Container;
use flexvol_model::mounter::Registration;
use hyper_util::rt::TokioIo;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UnixStream;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code as Grpc, Request, Status};
use tower::service_fn;

/// Sockets of runtimes: containerd, CRI-O, cri-dockerd, k3s and RKE2, k0s, `MicroK8s`.
const SOCKETS: [&str; 6] = [
    "/run/containerd/containerd.sock",
    "/run/crio/crio.sock",
    "/run/cri-dockerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
];

/// Deadline for a runtime to list its containers.
const LIST: Duration = Duration::from_secs(2);

/// Pause between two attempts to reach a runtime that does not listen: it may be restarting.
const TICK: Duration = Duration::from_millis(200);

/// Mode bits that let others than the owner write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Labels that kubelet writes on every container.
const POD_NAME: &str = "io.kubernetes.pod.name";
const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
const POD_UID: &str = "io.kubernetes.pod.uid";
const CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// Runtimes of this node.
#[derive(Debug)]
pub struct Runtimes {
    sockets: Vec<PathBuf>,
}

/// Answers of a runtime to the search for a container.
enum Said {
    Has(String),
    Lacks,
    SpeaksNoCri,
    Silent(String),
}

impl Runtimes {
    /// Returns the runtimes at this socket, or at all usual sockets.
    pub fn at(socket: Option<PathBuf>) -> Self {
        let usual = || SOCKETS.map(PathBuf::from).into();
        Self { sockets: socket.map_or_else(usual, |socket| vec![socket]) }
    }

    /// Finds the container of a registration; waits for a runtime that does not answer, until
    /// `until`.
    async fn container(&self, pod: &Registration, until: Instant) -> Result<Container, Fault> {
        loop {
            let (mut answered, mut silent) = (false, None);
            for socket in self.sockets.iter().filter(|socket| socket.exists()) {
                let client = client(socket);
                match has(client.clone(), pod).await {
                    Said::Has(id) => return Ok(Container::new(client, id, shown(pod))),
                    Said::Lacks => answered = true,
                    Said::SpeaksNoCri => {}
                    Said::Silent(why) => silent = Some(format!("{} {why}", socket.display())),
                }
            }
            if silent.is_none() && answered {
                return Err(Fault::new(Code::Gone, "it does not run: look at the pod"));
            }
            if Instant::now() >= until {
                let fix = "start the runtime, or name its socket with flexvold agent --runtime";
                let why = silent.unwrap_or_else(|| "no runtime of this node speaks CRI v1".to_owned());
                return Err(Fault::new(Code::NoRuntime, format!("{why}: {fix}")));
            }
            sleep(TICK).await;
        }
    }
}

/// Names the container in messages.
fn shown(pod: &Registration) -> String {
    let Registration { pod_namespace, pod_name, container_name, .. } = pod;
    format!("mount pod {pod_namespace}/{pod_name} (container {container_name})")
}

/// Returns a client that connects at its first use, and again after it has lost its runtime.
fn client(socket: &Path) -> RuntimeServiceClient<Channel> {
    let path: Arc<Path> = socket.into();
    let connector = service_fn(move |_: Uri| {
        let path = Arc::clone(&path);
        async move { connected(&path).await.map(TokioIo::new) }
    });
    RuntimeServiceClient::new(
        Endpoint::from_static("http://localhost").connect_with_connector_lazy(connector),
    )
}

/// Connects to a process of root, at a socket in a directory where only root may write.
async fn connected(socket: &Path) -> io::Result<UnixStream> {
    let directory = socket.canonicalize()?;
    let stat = directory.parent().unwrap_or(Path::new("/")).metadata()?;
    if stat.uid() != 0 || stat.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(io::Error::other("is where others than root may write"));
    }
    let stream = UnixStream::connect(socket).await?;
    match stream.peer_cred()?.uid() {
        0 => Ok(stream),
        _ => Err(io::Error::other("is not served by root")),
    }
}

async fn has(mut client: RuntimeServiceClient<Channel>, pod: &Registration) -> Said {
    let labels = [(POD_UID, &pod.pod_uid), (CONTAINER_NAME, &pod.container_name)];
    let filter = ContainerFilter {
        state: Some(ContainerStateValue { state: ContainerState::ContainerRunning.into() }),
        label_selector: labels.map(|(label, value)| (label.to_owned(), value.clone())).into(),
    };
    let asked = client.list_containers(ListContainersRequest { filter: Some(filter) });
    let containers = match timeout(LIST, asked).await {
        Ok(Ok(answer)) => answer.into_inner().containers,
        Ok(Err(status)) if status.code() == Grpc::Unimplemented => return Said::SpeaksNoCri,
        Ok(Err(status)) => return Said::Silent(why(&status)),
        Err(_) => return Said::Silent("does not answer".to_owned()),
    };
    // The runtime may ignore filters, and the names must be the pod's.
    let named = [(POD_NAME, &pod.pod_name), (POD_NAMESPACE, &pod.pod_namespace)];
    let is_it = |found: &crate::wire::runtime::Container| {
        found.state() == ContainerState::ContainerRunning
            && labels.iter().chain(&named).all(|(label, value)| found.labels.get(*label) == Some(value))
    };
    let newest = containers.into_iter().filter(is_it).max_by_key(|found| found.created_at);
    newest.map_or(Said::Lacks, |found| Said::Has(found.id))
}

/// Returns the text of a status, with its causes.
fn why(status: &Status) -> String {
    let mut text = format!("says {}", status.message());
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// Returns a request that the runtime ends after `allowed`.
fn exec_sync(id: &str, cmd: Vec<String>, allowed: Duration) -> Request<ExecSyncRequest> {
    let seconds = i64::try_from(allowed.as_secs()).unwrap_or(i64::MAX).saturating_add(1);
    Request::new(ExecSyncRequest { container_id: id.to_owned(), cmd, timeout: seconds })
}
