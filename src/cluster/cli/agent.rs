//! `flexvold agent`: holds storage for the pods of this node, or reports what it holds.

use super::log::Log;
use super::stores::{Open, Store};
use crate::agent::calls::Programs;
use crate::agent::csi;
use crate::agent::force::{DRIVER, Processes};
use crate::agent::serve::{lock, run};
use crate::agent::usage::Kernel;
use crate::agent::{Agent as Service, Setup};
use crate::cri::Runtimes;
use crate::csi::scrape;
use crate::csi::sockets::path_of;
use crate::fence::record::Node;
use anyhow::{Context as _, Result, ensure};
use clap::Args;
use flexvol_kubelet::platform::DEFAULT_KUBELET_ROOT;
use flexvol_linux::net::daemon_socket;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::host;
use flexvol_model::agent::PROTOCOL;
use flexvol_model::paths;
use flexvol_terminal::driver_dir;
use flexvol_terminal::screen::Screen;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// Environment variable with the name of the node, set by manifests.
const NODE: &str = "NODE_NAME";

/// File that tells two machines of one name apart, if it exists.
const MACHINE: &str = "/etc/machine-id";

/// Deadline for the agent to report what it holds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Hold storage for the pods of this node, so that no other node mounts it at the same time
#[derive(Args)]
pub(super) struct Agent {
    #[command(flatten)]
    store: Store,
    /// Socket to listen on
    #[arg(long, value_name = "PATH", default_value = paths::AGENT_SOCKET)]
    socket: PathBuf,
    /// Directory for records of what this node holds
    #[arg(long, value_name = "DIR", default_value = paths::AGENT)]
    state: PathBuf,
    /// Socket of the container runtime, for programs in mount pods [default: those of containerd,
    /// CRI-O, cri-dockerd, k3s, RKE2, k0s and microk8s]
    #[arg(long, value_name = "PATH")]
    runtime: Option<PathBuf>,
    /// Name of this node in Kubernetes [default: that of the host]
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Run the drivers of this plugin directory whose side files say "run": "agent", with the
    /// programs of this machine or container
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<PathBuf>,
    /// Seconds that a call of such a driver may run while kubelet retries
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    longest_call: u32,
    /// kubelet's own directory, where CSI drivers register
    #[arg(long, value_name = "DIR", default_value = DEFAULT_KUBELET_ROOT)]
    kubelet_root: PathBuf,
    /// Plugin directory for volumes that are unmounted by force [default: --plugin-dir, else
    /// kubelet's]
    #[arg(long, value_name = "DIR")]
    drivers: Option<PathBuf>,
    /// Address to serve Prometheus metrics at
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    log: Log,
    /// Only ask the running agent what it holds
    #[arg(long)]
    status: bool,
}

impl Agent {
    pub(super) fn run(self, screen: &mut Screen) -> Result<ExitCode> {
        let done = if self.status { self.ask(screen) } else { self.serve() };
        done.map(|()| ExitCode::SUCCESS)
    }

    fn serve(&self) -> Result<()> {
        self.log.begin();
        let socket = path_of(&absolute(&self.socket)?.to_string_lossy())?;
        let state = absolute(&self.state)?;
        let _lock = lock(&state)?;
        let store = self.store.open(true)?;
        let runtimes = Runtimes::at(self.runtime.clone());
        runtimes.begin();
        let setup = Setup {
            node: self.node(&store, &state)?,
            store_name: store.name(),
            store: store.records(),
            journal: state.join("holds"),
            spool: paths::run(paths::HOLDS),
            look: Arc::new(Kernel),
            hands: Box::new(self.hands()?),
            runtimes,
            csi: csi::Setup { journal: state.join("csi"), kubelet_root: absolute(&self.kubelet_root)? },
            programs: self.programs()?,
        };
        let (service, broken) = Service::open(setup)?;
        for entry in broken {
            tracing::warn!(reason = entry, "a note of the journal was damaged");
        }
        let runtime = super::csi::runtime()?;
        let service = Arc::new(service);
        let served = runtime.block_on(async {
            if let Some(address) = self.metrics {
                let (listener, agent) = (scrape::listen(address).await?, Arc::clone(&service));
                tokio::spawn(scrape::serve(listener, move || agent.metrics()));
            }
            run(service, socket).await
        });
        // Threads that are blocked by a dead store are not waited for.
        runtime.shutdown_background();
        served
    }

    fn hands(&self) -> Result<Processes> {
        let named = self.drivers.as_deref().or(self.plugin_dir.as_deref()).map(absolute).transpose()?;
        let longest = Duration::from_secs(self.longest_call.into()).min(DRIVER);
        Ok(Processes { plugin_dir: Box::new(move || driver_dir::find(named.as_deref())), longest })
    }

    fn programs(&self) -> Result<Option<Programs>> {
        let longest = Duration::from_secs(self.longest_call.into());
        let directory = self.plugin_dir.as_deref().map(absolute).transpose()?;
        Ok(directory.map(|plugin_dir| Programs { plugin_dir, longest }))
    }

    fn node(&self, store: &Open, state: &Path) -> Result<Node> {
        let named = self.node.clone().or_else(|| std::env::var(NODE).ok()).filter(|name| !name.is_empty());
        let name = named.map_or_else(|| host::name().map(|name| name.to_lowercase()), Ok)?;
        let uid = store.uid_of(&name, Path::new(MACHINE), &state.join("node"))?;
        Ok(Node { name, uid, boot: host::boot()? })
    }

    fn ask(&self, screen: &mut Screen) -> Result<()> {
        let request = json!({"v": PROTOCOL, "method": "status"}).to_string();
        let what = || format!("ask the agent at {}: is flexvold agent running?", self.socket.display());
        let answer = daemon_socket::ask(&self.socket, &request, &Deadline::after(PATIENCE));
        let answer: Value = serde_json::from_slice(&answer.with_context(what)?).with_context(what)?;
        ensure!(answer["ok"].is_object(), "the agent answers {}", answer["err"]["msg"]);
        if screen.wants_json() { screen.json(&answer["ok"]) } else { print(screen, &answer["ok"]) }
    }
}

fn print(screen: &mut Screen, status: &Value) -> Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let holds = status["holds"].as_array().map_or(&[][..], Vec::as_slice);
    let ready = if status["ready"] == true { "ready" } else { "the store does not answer" };
    let (node, store) = (text(&status["node"]), text(&status["store"]));
    screen.line(&format!("node {node}, locks in {store}: {ready}, {} held", holds.len()))?;
    for hold in holds {
        let [handle, phase, pod, target] = ["handle", "phase", "pod", "target"].map(|key| text(&hold[key]));
        screen.line(&format!("{handle}  {phase}  by pod {pod} at {target}"))?;
    }
    Ok(())
}

fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| format!("find {}", path.display()))
}
