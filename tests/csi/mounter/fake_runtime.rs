//! A container runtime that serves CRI, in containers of the test, and fails as it is told.

use flexvol_cluster::wire::runtime as cri;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::collections::VecDeque;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;
use tonic::{Request, Response, Status};

/// Where it listens.
pub(super) const SOCKET: &str = "/run/crio/crio.sock";

/// How the next request for a program goes.
pub(super) enum Next {
    /// The container has ended since it was looked for.
    Exited,
    /// The runtime ends, once the program has written this file.
    Cut(PathBuf),
}

#[derive(Default)]
pub(super) struct State {
    containers: Vec<cri::Container>,
    /// Process 1 of the container of the same place.
    pids: Vec<u32>,
    next: VecDeque<Next>,
    /// What was to be run, and in which container.
    asked: Vec<(String, Vec<String>)>,
}

#[derive(Clone, Default)]
pub(super) struct Fake(Arc<Mutex<State>>);

impl Fake {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

#[tonic::async_trait]
impl cri::runtime_service_server::RuntimeService for Fake {
    async fn list_containers(
        &self,
        _: Request<cri::ListContainersRequest>,
    ) -> Result<Response<cri::ListContainersResponse>, Status> {
        // It knows of no filters: it has all that ever ran.
        let containers = self.state().containers.clone();
        Ok(Response::new(cri::ListContainersResponse { containers }))
    }

    async fn exec_sync(
        &self,
        request: Request<cri::ExecSyncRequest>,
    ) -> Result<Response<cri::ExecSyncResponse>, Status> {
        let cri::ExecSyncRequest { container_id, cmd, timeout } = request.into_inner();
        let (pid, next) = {
            let mut state = self.state();
            state.asked.push((container_id.clone(), cmd.clone()));
            let place = state.containers.iter().position(|found| found.id == container_id);
            let place = place.ok_or_else(|| Status::not_found("no such container"))?;
            (state.pids[place], state.next.pop_front())
        };
        if let Some(Next::Exited) = next {
            return Err(Status::unknown("container is in CONTAINER_EXITED state"));
        }
        let mut child = entered(pid, &cmd).map_err(|error| Status::unknown(error.to_string()))?;
        if let Some(Next::Cut(mark)) = next {
            while fs::metadata(&mark).map_or(0, |mark| mark.len()) == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            return Err(Status::unavailable("transport is closing"));
        }
        let allowed = Duration::from_secs(timeout.try_into().unwrap_or_default());
        tokio::task::spawn_blocking(move || ended(&mut child, allowed)).await.unwrap().map(Response::new)
    }
}

#[expect(clippy::disallowed_methods, reason = "as a runtime does")]
fn entered(pid: u32, cmd: &[String]) -> std::io::Result<Child> {
    let mut command = Command::new("nsenter");
    command.args(["--target", &pid.to_string(), "--mount", "--pid", "--"]).args(cmd).process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// As containerd has it: who is late is killed alone, and its streams are read to their end.
fn ended(child: &mut Child, allowed: Duration) -> Result<cri::ExecSyncResponse, Status> {
    use std::io::Read as _;
    let begun = Instant::now();
    let mut late = false;
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > allowed {
            let below = fs::read_to_string(format!("/proc/{0}/task/{0}/children", child.id()));
            for pid in below.unwrap_or_default().split(' ').filter_map(|pid| pid.parse().ok()) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            let _ = child.kill();
            late = true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
    child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    child.stderr.take().unwrap().read_to_end(&mut stderr).unwrap();
    if late {
        return Err(Status::deadline_exceeded("context deadline exceeded"));
    }
    let exit_code = child.wait().unwrap().code().unwrap_or(137);
    Ok(cri::ExecSyncResponse { stdout, stderr, exit_code })
}

/// A runtime that listens.
pub(super) struct Runtime {
    pub(super) fake: Fake,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Runtime {
    pub(super) fn start() -> Self {
        let mut runtime = Self { fake: Fake::default(), end: None, thread: None };
        runtime.listen();
        runtime
    }

    pub(super) fn listen(&mut self) {
        let socket = Path::new(SOCKET);
        fs::create_dir_all(socket.parent().unwrap()).unwrap();
        let _ = fs::remove_file(socket);
        let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (end, ended) = oneshot::channel();
        let service = cri::runtime_service_server::RuntimeServiceServer::new(self.fake.clone());
        self.thread = Some(std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = tokio::net::UnixListener::from_std(listener).unwrap();
                let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener);
                let server = tonic::transport::Server::builder().add_service(service);
                tokio::select! {
                    done = server.serve_with_incoming(incoming) => done.unwrap(),
                    _ = ended => {}
                }
            });
            runtime.shutdown_background();
        }));
        self.end = Some(end);
    }

    pub(super) fn stop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }

    /// The same runtime, which listens again after so long.
    pub(super) fn again_after(&self, pause: Duration) -> JoinHandle<Self> {
        let mut again = Self { fake: self.fake.clone(), end: None, thread: None };
        std::thread::spawn(move || {
            std::thread::sleep(pause);
            again.listen();
            again
        })
    }

    /// A container of this pod begins, and every other one has ended.
    pub(super) fn has(&self, uid: &str, id: &str, pid: u32) {
        let mut state = self.fake.state();
        for older in &mut state.containers {
            older.set_state(cri::ContainerState::ContainerExited);
        }
        let labels = [
            ("io.kubernetes.pod.uid", uid.to_owned()),
            ("io.kubernetes.pod.name", format!("tools-{uid}")),
            ("io.kubernetes.pod.namespace", "storage".to_owned()),
            ("io.kubernetes.container.name", "tools".to_owned()),
        ];
        let labels = labels.map(|(label, value)| (label.to_owned(), value)).into();
        let created_at = i64::try_from(state.containers.len()).unwrap();
        let state_of = cri::ContainerState::ContainerRunning.into();
        state.containers.push(cri::Container { id: id.to_owned(), state: state_of, created_at, labels });
        state.pids.push(pid);
    }

    pub(super) fn next(&self, next: Next) {
        self.fake.state().next.push_back(next);
    }

    pub(super) fn asked(&self) -> Vec<(String, Vec<String>)> {
        std::mem::take(&mut self.fake.state().asked)
    }
}
