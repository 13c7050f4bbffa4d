//! `flexvol pod`: brings the volumes of pods up or down, without a cluster.

mod life;
mod rehearsal;

use super::objects::{self, title};
use crate::objects::Secrets;
use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use flexvol_kubelet::Terms;
use flexvol_kubelet::locate;
use flexvol_linux::fs::files;
use flexvol_linux::proc::signal;
use flexvol_model::paths;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::quantity::Quantity;
use flexvol_terminal::driver_dir;
use flexvol_terminal::report::Report;
use flexvol_terminal::screen::Screen;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Entries in the root directory of a running kubelet.
const OF_KUBELET: [&str; 3] = ["plugins_registry", "device-plugins", "cpu_manager_state"];

/// Bring the volumes of a pod up or down, from its YAML, without a cluster
#[derive(Args)]
pub(super) struct Pod {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Up(Up),
    Down(Down),
}

/// Mount every FlexVolume of the pods, as kubelet would before it starts their containers
#[derive(Args)]
#[command(after_help = "\
Reads what kubectl applies: Pod (or what has a pod template), PersistentVolumeClaim,
PersistentVolume, Secret, List; other kinds are left out. Without a pod, one is made up for each
PersistentVolume. Drivers are called exactly as kubelet and the controller-manager call them,
attach and retries included; done a second time, it finds the volumes mounted.

Examples:
  sudo flexvol pod up -f pod.yaml
  sudo flexvol pod up -f pv.yaml -f secret.yaml --driver-dir /etc/kubernetes/volumeplugins
  flexvol pod up -f pod.yaml --dry-run                    what the drivers would be called with
  kubectl get pod,pvc,pv,secret -o yaml | sudo flexvol pod up -f -
  sudo flexvol pod up -f pv.yaml --expand 2Gi             and then as if the PV had grown

Exit status: 0 every volume is up, 1 one is not, 2 wrong usage.")]
struct Up {
    #[command(flatten)]
    common: Common,
    /// Once it is mounted, tell the driver that the PV has grown to this size (expandfs)
    #[arg(long, value_name = "SIZE", value_parser = Quantity::parse)]
    expand: Option<Quantity>,
}

/// Unmount every FlexVolume of the pods, as kubelet would after their containers ended
#[derive(Args)]
#[command(after_help = "\
Takes down what `pod up` with the same files and --root brought up, also after it failed halfway.
A device is unmounted and detached after its last pod. What is down already needs nothing, not
even the driver. Secrets are not needed.

Examples:
  sudo flexvol pod down -f pod.yaml
  sudo flexvol pod down -f pod.yaml --retries 5

Exit status: 0 every volume is down, 1 one is not, 2 wrong usage.")]
struct Down {
    #[command(flatten)]
    common: Common,
}

#[derive(Args)]
struct Common {
    /// YAML or JSON; may be repeated, - for standard input
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The plugin directory; the one kubelet reads if left out (flexvol locate)
    #[arg(long, visible_alias = "plugin-dir", value_name = "DIR")]
    driver_dir: Option<PathBuf>,
    /// Substitute for kubelet's --root-dir: mounts appear in <DIR>/pods/<uid>/volumes
    #[arg(long, value_name = "DIR", default_value = paths::POD_ROOT)]
    root: PathBuf,
    /// Name of the Node object; the host's name if left out
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    /// Retries of a failed operation, after 0.5 s, 1 s, 2 s …; kubelet never gives up
    #[arg(long, value_name = "N", default_value_t = 0)]
    retries: usize,
    /// Seconds that one call may take
    #[arg(long, value_name = "SECONDS", default_value_t = 123)]
    timeout: u64,
    /// Print the calls, secrets masked, and do nothing
    #[arg(long)]
    dry_run: bool,
}

impl Pod {
    pub(super) fn run(&self, screen: &mut Screen) -> Result<ExitCode> {
        let (common, secrets) = match &self.action {
            Action::Up(up) => (&up.common, Secrets::Wanted),
            Action::Down(down) => (&down.common, Secrets::Unneeded),
        };
        let root = common.root()?;
        let volumes = objects::read(&common.files)?.pod_volumes(&root, secrets)?;
        let node = common.node_name()?;
        if common.dry_run {
            return rehearsal::print(screen, &volumes, &node, matches!(self.action, Action::Up(_)));
        }
        signal::install()?;
        let driver_dir = driver_dir::find(common.driver_dir.as_deref())?;
        let width = volumes.iter().map(|volume| title(volume).chars().count() + 2).max().unwrap_or(0).max(8);
        let intro = format!(
            "flexvol {}: what kubelet does to volumes, below {}\n\
             with the drivers in {}",
            env!("CARGO_PKG_VERSION"),
            root.display(),
            driver_dir.display()
        );
        let report = Report::begin(screen, &intro, "VOLUME", width)?;
        let terms = Terms { patience: Duration::from_secs(common.timeout), ..Terms::default() };
        let life = life::Life::new(report, &driver_dir, node, terms, common.retries);
        match &self.action {
            Action::Up(up) => life.up(&volumes, up.expand),
            Action::Down(_) => life.down(&volumes),
        }
    }
}

impl Common {
    /// Returns the root directory; the admin may use symlinks in it. Fails if it belongs to a
    /// kubelet, which would treat our pods as orphans.
    fn root(&self) -> Result<PathBuf> {
        let root = std::path::absolute(&self.root).context("find the directory of --root")?;
        if locate::kubelets()?.iter().any(|kubelet| kubelet.root_dir == root) {
            let text =
                format!("{} belongs to the kubelet that runs here: name another with --root", root.display());
            return Err(Failure::new(Code::Denied, text).into());
        }
        if let Some(sign) = OF_KUBELET.iter().find(|name| root.join(name).exists()) {
            let text = format!(
                "{} is a kubelet's own directory, it has {sign}: name another with --root",
                root.display()
            );
            return Err(Failure::new(Code::Denied, text).into());
        }
        Ok(root)
    }

    fn node_name(&self) -> Result<String> {
        if let Some(name) = &self.node {
            return Ok(name.clone());
        }
        let name = files::read_small(Path::new("/proc/sys/kernel/hostname"), 256)?;
        let name = name.context("learn the host's name: give --node")?;
        Ok(name.trim().to_lowercase())
    }
}
