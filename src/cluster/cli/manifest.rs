//! `flexvold manifest`.

use crate::csi::habits::Habits;
use crate::manifest::controller::Worker;
use crate::manifest::{Request, agent, make, mounter, objects};
use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use flexvol_kubelet::platform::{DEFAULT_KUBELET_ROOT, DEFAULT_PLUGIN_DIR};
use flexvol_kubelet::{Caller, Exchange};
use flexvol_model::drivers;
use flexvol_model::settings::Settings;
use flexvol_protocol::{Call, Capabilities, DriverName};
use flexvol_terminal::exit::warn;
use flexvol_terminal::image::without_registry;
use flexvol_terminal::screen::Screen;
use serde_json::{Value, json};
use std::path::Path;
use std::process::ExitCode;

/// Print manifests of CSI drivers, agents or mount pods, for kubectl apply -f -
#[derive(Args)]
pub(super) struct Manifest {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand)]
enum Kind {
    Agent(Agent),
    Csi(Box<Csi>),
    Mounter(Mounter),
}

/// Print manifests of agents on all nodes, with locks in Kubernetes' API
#[derive(Args)]
#[command(after_help = "\
Drivers use it whose side file says \"agent\": {\"fence\": \"pod\"}, or {\"run\": \"agent\"}: docs/agent.md.

Example:
  flexvold manifest agent --image registry.example/flexvold:1 | kubectl apply -f -")]
struct Agent {
    /// Image with /flexvold
    #[arg(long)]
    image: String,
    /// Namespace of the pods and the locks
    #[arg(long, default_value = "flexvol")]
    namespace: String,
    /// kubelet's own directory on the nodes
    #[arg(long, value_name = "DIR", default_value = DEFAULT_KUBELET_ROOT)]
    kubelet_root: String,
    /// Run the drivers of this plugin directory whose side files say "run": "agent", with the
    /// programs of the image; the container is then privileged
    #[arg(long, value_name = "DIR")]
    plugin_dir: Option<String>,
}

/// Print manifests of mount pods on every node, with the programs that drivers need
#[derive(Args)]
#[command(after_help = "\
Use one for each set of drivers whose pods shall be replaced together: docs/mounter.md.

Example:
  flexvold manifest mounter --plugin flexvol/sshfs --image registry.example/tools:1 | kubectl apply -f -")]
struct Mounter {
    /// Driver whose volumes are served by programs of the image
    #[arg(long = "plugin", value_name = "VENDOR/DRIVER", required = true)]
    plugins: Vec<DriverName>,
    /// Image with /flexvold and those programs
    #[arg(long)]
    image: String,
    /// Name of the DaemonSet
    #[arg(long, default_value = "flexvol-mounter")]
    name: String,
    /// Namespace of the pods
    #[arg(long, default_value = "flexvol-mounter")]
    namespace: String,
    /// kubelet's own directory on the nodes
    #[arg(long, value_name = "DIR", default_value = DEFAULT_KUBELET_ROOT)]
    kubelet_root: String,
    /// Update strategy: on-delete, because the volumes that a pod serves end with it; rolling if
    /// its programs only mount what the kernel serves
    #[arg(long, value_enum, default_value = "on-delete")]
    update: Update,
    /// Seconds that a terminating pod waits for volumes in use
    #[arg(long, value_name = "SECONDS", default_value_t = 50)]
    grace: u32,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Update {
    OnDelete,
    Rolling,
}

/// Print CSIDriver objects, a DaemonSet, and what attach, provision and resize need
#[derive(Args)]
#[command(after_help = "\
What a driver can do is asked of it, where it is installed here; else it is known of flexvol's own.

Examples:
  flexvold manifest csi --image registry.example/flexvold:1 flexvol/tmpfs | kubectl apply -f -
  flexvold manifest csi --image IMAGE --sidecars upstream --attacher-image ATTACHER example.com/disk")]
struct Csi {
    /// Drivers to serve
    #[arg(required = true, value_name = "VENDOR/DRIVER")]
    drivers: Vec<DriverName>,
    /// Image with /flexvold and what the drivers need
    #[arg(long)]
    image: String,
    /// Program that attaches (if the driver does), provisions and resizes: flexvold itself, or
    /// Kubernetes' sidecars
    #[arg(long, value_enum, default_value = "built-in")]
    sidecars: Sidecars,
    /// Image of Kubernetes' external-attacher, for --sidecars upstream
    #[arg(long, value_name = "IMAGE")]
    attacher_image: Option<String>,
    /// Image of Kubernetes' external-provisioner, for --sidecars upstream
    #[arg(long, value_name = "IMAGE")]
    provisioner_image: Option<String>,
    /// Image of Kubernetes' external-resizer, for --sidecars upstream
    #[arg(long, value_name = "IMAGE")]
    resizer_image: Option<String>,
    /// Allow only claims: the options of a volume inside a pod are chosen by its tenant
    #[arg(long)]
    no_inline: bool,
    /// Namespace of the pods
    #[arg(long, default_value = "flexvol-csi")]
    namespace: String,
    /// Plugin directory on the nodes
    #[arg(long, value_name = "DIR", default_value = DEFAULT_PLUGIN_DIR)]
    plugin_dir: String,
    /// kubelet's own directory on the nodes
    #[arg(long, value_name = "DIR", default_value = DEFAULT_KUBELET_ROOT)]
    kubelet_root: String,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Sidecars {
    BuiltIn,
    Upstream,
}

impl Manifest {
    pub(super) fn run(self, screen: &mut Screen) -> Result<ExitCode> {
        match self.kind {
            Kind::Agent(agent) => agent.run(screen),
            Kind::Csi(csi) => csi.run(screen),
            Kind::Mounter(mounter) => mounter.run(screen),
        }
    }
}

impl Agent {
    fn run(self, screen: &mut Screen) -> Result<ExitCode> {
        let Self { image, namespace, kubelet_root, plugin_dir } = self;
        let request = agent::Request { image, namespace, kubelet_root, plugin_dir };
        print(screen, &request.image, &agent::make(&request)?, &agent::objects(&request))
    }
}

impl Mounter {
    fn run(self, screen: &mut Screen) -> Result<ExitCode> {
        let Self { plugins: drivers, image, name, namespace, kubelet_root, update, grace } = self;
        let rolling = update == Update::Rolling;
        let request = mounter::Request { drivers, image, name, namespace, kubelet_root, rolling, grace };
        print(screen, &request.image, &mounter::make(&request)?, &mounter::objects(&request))
    }
}

fn print(screen: &mut Screen, image: &str, text: &str, objects: &[Value]) -> Result<ExitCode> {
    if let Some(warning) = without_registry(image) {
        warn(warning);
    }
    if screen.wants_json() {
        screen.json(&json!({"apiVersion": "v1", "kind": "List", "items": objects}))?;
    } else {
        screen.text(text)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Csi {
    fn run(self, screen: &mut Screen) -> Result<ExitCode> {
        let capabilities = |driver: &DriverName| capabilities(driver, Path::new(&self.plugin_dir));
        let attacher = self.worker(self.attacher_image.as_ref(), "attaches", "--attacher-image")?;
        let provisioner =
            self.worker(self.provisioner_image.as_ref(), "provisions", "--provisioner-image")?;
        let resizer = self.worker(self.resizer_image.as_ref(), "grows volumes", "--resizer-image")?;
        let drivers = self.drivers.iter().map(|driver| Ok((driver.clone(), capabilities(driver)?)));
        let request = Request {
            drivers: drivers.collect::<Result<_>>()?,
            plugin_dir: self.plugin_dir.clone(),
            kubelet_root: self.kubelet_root,
            image: self.image,
            namespace: self.namespace,
            attacher,
            provisioner,
            resizer,
            inline: !self.no_inline,
        };
        print(screen, &request.image, &make(&request)?, &objects(&request))
    }

    fn worker(&self, image: Option<&String>, does: &str, flag: &str) -> Result<Option<Worker>> {
        let built_in = self.sidecars == Sidecars::BuiltIn;
        ensure!(
            !built_in || image.is_none(),
            "flexvold {does} by itself: leave out {flag}, or add --sidecars upstream"
        );
        Ok(if built_in { Some(Worker::BuiltIn) } else { image.cloned().map(Worker::Upstream) })
    }
}

/// Returns the capabilities that the driver reports, or the known ones of flexvol's own driver.
fn capabilities(driver: &DriverName, plugin_dir: &Path) -> Result<Capabilities> {
    let executable = plugin_dir.join(driver.directory()).join(driver.executable());
    if executable.exists() {
        let exchange: Exchange = Caller::new(executable).call(&Call::Init);
        let said = exchange.capabilities().with_context(|| format!("ask {driver} what it can do"))?;
        return Ok(Habits::of(driver, None, None)?.of_init(said));
    }
    let ours = drivers::find(driver.driver());
    let ours = ours.with_context(|| {
        format!("{driver} is not installed in {}: name the directory with --plugin-dir", plugin_dir.display())
    })?;
    Ok(ours.capabilities(&Settings::default()))
}
