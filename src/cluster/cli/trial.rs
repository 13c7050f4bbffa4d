//! `flexvold try`: a pod's life over CSI, or two nodes that want one image, on this machine and
//! without a cluster.
//!
//! Everything happens in a mount namespace and a directory of its own. The requests go over the
//! socket like kubelet's, and the output shows what was observed.

mod fencing;

use crate::csi::metrics::Metrics;
use crate::csi::serve::{Place, serve};
use crate::csi::served::Role;
use crate::csi::setup::Setup;
use crate::csi::sockets;
use crate::wire::csi::identity_client::IdentityClient;
use crate::wire::csi::node_client::NodeClient;
use crate::wire::csi::volume_capability::access_mode::Mode;
use crate::wire::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use crate::wire::csi::{
    GetPluginInfoRequest, NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest,
    ProbeRequest, VolumeCapability,
};
use anyhow::{Context as _, Result, ensure};
use clap::{Args, ValueEnum};
use flexvol_linux::proc::helper::DIRECTORIES;
use flexvol_linux::proc::namespace;
use flexvol_protocol::DriverName;
use flexvol_terminal::report::{Report, Row};
use flexvol_terminal::screen::Screen;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::sync::watch;
use tonic::transport::Channel;

const DRIVER: &str = "flexvol/tmpfs";
const VOLUME: &str = "fx1#try";

/// Try a pod's life over CSI, or two nodes that need one image, without a cluster
#[derive(Args)]
#[command(after_help = "\
Needs root, for mounts. They are made in a mount namespace of their own: nothing outside it sees them.")]
pub(super) struct Try {
    /// csi: serve tmpfs as a CSI driver; fencing: two nodes and their agents need one image
    #[arg(value_enum, default_value = "csi")]
    what: What,
    /// flexvol program with the driver, instead of the one beside this
    #[arg(long, value_name = "FILE")]
    flexvol: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum What {
    Csi,
    Fencing,
}

impl Try {
    pub(super) fn run(self, screen: &mut Screen) -> Result<ExitCode> {
        let program = self.flexvol.map_or_else(beside, Ok)?;
        namespace::enter()?;
        namespace::cover_run()?;
        match self.what {
            What::Csi => play_csi(&program, screen),
            What::Fencing => play_fencing(&program, screen),
        }
    }
}

fn play_fencing(program: &Path, screen: &mut Screen) -> Result<ExitCode> {
    let home = tempfile::Builder::new().prefix("flexvold-try").tempdir().context("make a directory")?;
    let program = std::fs::canonicalize(program).with_context(|| format!("find {}", program.display()))?;
    let intro = format!("flexvold {}: two nodes want one image", env!("CARGO_PKG_VERSION"));
    let mut report = Report::begin(screen, &intro, "WHO", 9)?;
    super::csi::runtime()?.block_on(fencing::play(home.path(), &program, &mut report))?;
    report.row(Row::of("leaks", "remove what was made", home.close().context("remove the directory")))?;
    end(report)
}

fn play_csi(program: &Path, screen: &mut Screen) -> Result<ExitCode> {
    let stage = Stage::set(program)?;
    let intro = format!("flexvold {}: serving {DRIVER} as a CSI driver", env!("CARGO_PKG_VERSION"));
    let mut report = Report::begin(screen, &intro, "SERVICE", 9)?;
    super::csi::runtime()?.block_on(stage.play(&mut report))?;
    let left = stage.strike();
    report.row(Row::of("leaks", "look for what is left behind", left))?;
    end(report)
}

fn end(report: Report<'_>) -> Result<ExitCode> {
    let failures = report.totals().failures;
    report.end(failures == 0, &format!("{failures} failures"), json!({}))?;
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Finds the program with the driver, but never through `$PATH`.
fn beside() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find this program")?;
    let places = own.parent().into_iter().chain(DIRECTORIES.split(':').map(Path::new));
    let found = places.map(|directory| directory.join("flexvol")).find(|path| path.exists());
    found.context("flexvol is neither beside this program nor where programs are: name it with --flexvol")
}

/// Node with one driver.
struct Stage {
    home: TempDir,
}

impl Stage {
    fn set(program: &Path) -> Result<Self> {
        let home = tempfile::Builder::new().prefix("flexvold-try").tempdir().context("make a directory")?;
        let driver: DriverName = DRIVER.parse()?;
        let directory = home.path().join("plugins").join(driver.directory());
        std::fs::create_dir_all(&directory).context("make the plugin directory")?;
        let program =
            std::fs::canonicalize(program).with_context(|| format!("find {}", program.display()))?;
        std::os::unix::fs::symlink(program, directory.join(driver.executable()))
            .context("install the driver")?;
        let volume = home.path().join("pods/1/volumes/kubernetes.io~csi/try");
        std::fs::create_dir_all(volume).context("make the pod's directory")?;
        Ok(Self { home })
    }

    fn target(&self) -> PathBuf {
        self.home.path().join("pods/1/volumes/kubernetes.io~csi/try/mount")
    }

    async fn play(&self, report: &mut Report<'_>) -> Result<()> {
        let setup = Setup {
            plugin_dir: self.home.path().join("plugins"),
            node: "try".to_owned(),
            role: Role::All,
            state: self.home.path().join("state"),
            attributes: None,
            habits: None,
        };
        let served = Arc::new(setup.serve(DRIVER.parse()?, None, &Arc::new(Metrics::default()))?);
        let socket = self.home.path().join("csi.sock");
        let (tell, stop) = watch::channel(false);
        let task = tokio::spawn(serve(Place { served, socket: socket.clone(), register: None }, stop));
        let channel = sockets::connect(&socket);
        let channel = match channel.await {
            Ok(channel) => channel,
            // The socket exists only after the task above has run.
            Err(_) => retry(&socket).await?,
        };
        self.live(channel, report).await?;
        tell.send_replace(true);
        task.await?
    }

    async fn live(&self, channel: Channel, report: &mut Report<'_>) -> Result<()> {
        let mut identity = IdentityClient::new(channel.clone());
        let info = identity.get_plugin_info(GetPluginInfoRequest {}).await.map(|info| info.into_inner().name);
        report.row(Row::noted("Identity", "GetPluginInfo", info.map_err(Into::into)))?;
        let probe = identity.probe(ProbeRequest {}).await;
        report.row(Row::of("Identity", "Probe", probe.map(drop).map_err(Into::into)))?;
        let mut node = NodeClient::new(channel);
        for step in ["NodePublishVolume", "NodePublishVolume, again"] {
            let done = node.node_publish_volume(self.publish()).await;
            report.row(Row::of("Node", step, done.map(drop).map_err(Into::into)))?;
        }
        report.row(Row::of("pod", "write a file and read it back", self.write()))?;
        let stats = node.node_get_volume_stats(self.stats()).await.map(|stats| {
            let total = stats.into_inner().usage.first().map_or(0, |usage| usage.total);
            format!("{total} bytes")
        });
        report.row(Row::noted("Node", "NodeGetVolumeStats", stats.map_err(Into::into)))?;
        for step in ["NodeUnpublishVolume", "NodeUnpublishVolume, again"] {
            let done = node.node_unpublish_volume(self.unpublish()).await;
            report.row(Row::of("Node", step, done.map(drop).map_err(Into::into)))?;
        }
        Ok(())
    }

    fn publish(&self) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: VOLUME.to_owned(),
            target_path: self.target().to_string_lossy().into_owned(),
            volume_capability: Some(VolumeCapability {
                access_type: Some(AccessType::Mount(MountVolume::default())),
                access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
            }),
            volume_context: [("size".to_owned(), "16Mi".to_owned())].into(),
            ..NodePublishVolumeRequest::default()
        }
    }

    fn stats(&self) -> NodeGetVolumeStatsRequest {
        NodeGetVolumeStatsRequest {
            volume_id: VOLUME.to_owned(),
            volume_path: self.target().to_string_lossy().into_owned(),
            ..NodeGetVolumeStatsRequest::default()
        }
    }

    fn unpublish(&self) -> NodeUnpublishVolumeRequest {
        NodeUnpublishVolumeRequest {
            volume_id: VOLUME.to_owned(),
            target_path: self.target().to_string_lossy().into_owned(),
        }
    }

    fn write(&self) -> Result<()> {
        let file = self.target().join("hello");
        flexvol_linux::fs::files::write_new(&file, "world")?;
        ensure!(std::fs::read_to_string(&file)? == "world", "{} has another text", file.display());
        Ok(())
    }

    /// Fails if anything is left.
    fn strike(self) -> Result<()> {
        ensure!(!self.target().exists(), "{} is still there", self.target().display());
        self.home.close().context("remove the directory")
    }
}

async fn retry(socket: &Path) -> Result<Channel> {
    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    sockets::connect(socket).await
}
