//! `flexvold manifest`.

use crate::csi::habits::Habits;
use crate::manifest::controller::Worker;
use crate::manifest::{Request, make, objects};
use anyhow::{Context as _, Result, ensure};
use clap::{Args, Subcommand, ValueEnum};
use flexvol_kubelet::platform::{DEFAULT_KUBELET_ROOT, DEFAULT_PLUGIN_DIR};
use flexvol_kubelet::{Caller, Exchange};
use flexvol_model::drivers;
use flexvol_model::settings::Settings;
use flexvol_protocol::{Call, Capabilities, DriverName};
use flexvol_terminal::screen::Screen;
use serde_json::json;
use std::path::Path;
use std::process::ExitCode;

/// Print what serves drivers in a cluster, for kubectl apply -f -
#[derive(Args)]
pub(super) struct Manifest {
    #[command(subcommand)]
    kind: Kind,
}

#[derive(Subcommand)]
enum Kind {
    Csi(Box<Csi>),
}

/// Print CSIDriver objects, a DaemonSet, and what attaching and provisioning need
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
    /// Image that has /flexvold, and what the drivers need
    #[arg(long)]
    image: String,
    /// Who attaches, for drivers that do, and who provisions: flexvold itself, or Kubernetes' own
    /// sidecars
    #[arg(long, value_enum, default_value = "built-in")]
    sidecars: Sidecars,
    /// Image of Kubernetes' external-attacher, for --sidecars upstream
    #[arg(long, value_name = "IMAGE")]
    attacher_image: Option<String>,
    /// Image of Kubernetes' external-provisioner, for --sidecars upstream
    #[arg(long, value_name = "IMAGE")]
    provisioner_image: Option<String>,
    /// Image of Kubernetes' external-resizer: claims can grow
    #[arg(long, value_name = "IMAGE")]
    resizer_image: Option<String>,
    /// Allow no volume inside a pod, whose options a tenant would choose: claims alone
    #[arg(long)]
    no_inline: bool,
    /// Namespace of the pods
    #[arg(long, default_value = "flexvol-csi")]
    namespace: String,
    /// Where drivers are installed on the nodes
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
        let Kind::Csi(csi) = self.kind;
        csi.run(screen)
    }
}

impl Csi {
    fn run(self, screen: &mut Screen) -> Result<ExitCode> {
        let capabilities = |driver: &DriverName| capabilities(driver, Path::new(&self.plugin_dir));
        let attacher = self.worker(self.attacher_image.as_ref(), "attaches", "--attacher-image")?;
        let provisioner =
            self.worker(self.provisioner_image.as_ref(), "provisions", "--provisioner-image")?;
        let drivers = self.drivers.iter().map(|driver| Ok((driver.clone(), capabilities(driver)?)));
        let request = Request {
            drivers: drivers.collect::<Result<_>>()?,
            plugin_dir: self.plugin_dir.clone(),
            kubelet_root: self.kubelet_root,
            image: self.image,
            namespace: self.namespace,
            attacher,
            provisioner,
            resizer: self.resizer_image.map(Worker::Upstream),
            inline: !self.no_inline,
        };
        let text = make(&request)?;
        if screen.wants_json() {
            screen.json(&json!({"apiVersion": "v1", "kind": "List", "items": objects(&request)}))?;
        } else {
            screen.text(&text)?;
        }
        Ok(ExitCode::SUCCESS)
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

/// The driver's own word, else what is known of ours.
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
