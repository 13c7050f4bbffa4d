//! `flexvold try fencing`: two nodes want one image, on this machine.
//!
//! Each node has an agent and a driver of its own. They share a directory for locks and one for
//! images. The output shows what the drivers answered.

use crate::agent::csi::Setup as Volumes;
use crate::agent::force::{DRIVER, Processes};
use crate::agent::serve::serve;
use crate::agent::usage::Kernel;
use crate::agent::{Agent, Setup};
use crate::cri::Runtimes;
use crate::fence::record::Node;
use crate::fence::store::RecordStore as _;
use crate::fence::store::file::FileStore;
use anyhow::{Context as _, Result, bail, ensure};
use flexvol_kubelet::{Caller, Verdict};
use flexvol_linux::fs::files;
use flexvol_linux::proc::host;
use flexvol_model::paths;
use flexvol_protocol::{Call, Verb};
use flexvol_terminal::report::{Report, Row};
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const IMAGE: &str = "db.img";

/// Deadline for an agent to answer after its start.
const START: Duration = Duration::from_secs(5);

/// Plays the scene below a directory; afterwards only files of the scene itself are left there.
pub(super) async fn play(home: &Path, program: &Path, report: &mut Report<'_>) -> Result<()> {
    let mut a = Player::enter(home, program, "a").await?;
    let mut b = Player::enter(home, program, "b").await?;
    report.row(Row::of("node a", "mount it for pod db-0", a.mount("db-0").await))?;
    let hello = a.target("db-0").join("hello");
    report.row(Row::of("pod db-0", "write a file", files::write_new(&hello, "world")))?;
    report.row(Row::noted("node b", "mount it for pod db-1", refused(b.mount("db-1").await)))?;
    report.row(Row::of("node a", "end the agent, and start it again", a.restart().await))?;
    report.row(Row::noted("node b", "mount it again", refused(b.mount("db-1").await)))?;
    report.row(Row::of("node a", "unmount it", a.call(Verb::Unmount, "db-0").await))?;
    report.row(Row::of("node b", "mount it for pod db-1", b.mount("db-1").await))?;
    let read = std::fs::read_to_string(b.target("db-1").join("hello")).context("read the file");
    report.row(Row::of("pod db-1", "read the file", read.map(drop)))?;
    report.row(Row::of("node b", "unmount it", b.call(Verb::Unmount, "db-1").await))?;
    a.leave().await?;
    b.leave().await?;
    report.row(Row::of("locks", "look for what is still held", nothing_held(home)))
}

/// Returns the refusal; fails if the mount was not refused.
fn refused(done: Result<()>) -> Result<String> {
    match done {
        Ok(()) => bail!("two nodes have mounted it"),
        Err(error) => Ok(format!("refused: {error:#}")),
    }
}

fn nothing_held(home: &Path) -> Result<()> {
    let held = FileStore::open(&home.join("locks"))?.list()?;
    ensure!(held.is_empty(), "{} is still held", held[0].handle);
    Ok(())
}

/// Node with its agent and its driver.
struct Player {
    home: PathBuf,
    name: &'static str,
    agent: Option<(watch::Sender<bool>, JoinHandle<Result<()>>)>,
}

impl Player {
    async fn enter(home: &Path, program: &Path, name: &'static str) -> Result<Self> {
        let mut player = Self { home: home.to_owned(), name, agent: None };
        let driver = player.driver();
        let directory = driver.parent().context("no directory")?;
        std::fs::create_dir_all(directory).context("make the plugin directory")?;
        std::os::unix::fs::symlink(program, &driver).context("install the driver")?;
        let images = home.join("images");
        let settings = json!({
            "options": {"file": IMAGE, "size": "16Mi"},
            "policy": {"imageRoots": [images]},
            "agent": {"fence": "pod", "socket": player.socket()},
        });
        std::fs::create_dir_all(images).context("make the directory of images")?;
        files::write_new(&directory.join(".flexvol.json"), &settings.to_string())?;
        player.start().await?;
        Ok(player)
    }

    fn driver(&self) -> PathBuf {
        self.home.join(format!("plugins-{}/example~image/image", self.name))
    }

    fn socket(&self) -> PathBuf {
        paths::run(&format!("{}.sock", self.name))
    }

    fn target(&self, pod: &str) -> PathBuf {
        self.home.join(format!("{}/pods/{pod}/volumes/example~image/db", self.name))
    }

    async fn start(&mut self) -> Result<()> {
        let locks = self.home.join("locks");
        let setup = Setup {
            node: Node { name: self.name.to_owned(), uid: String::new(), boot: host::boot()? },
            store: Box::new(FileStore::open(&locks)?),
            store_name: locks.display().to_string(),
            journal: self.home.join(format!("agent-{}", self.name)),
            spool: paths::run(paths::HOLDS),
            look: Arc::new(Kernel),
            hands: Box::new(Processes {
                plugin_dir: Box::new(|| bail!("there is no plugin directory")),
                longest: DRIVER,
            }),
            runtimes: Runtimes::at(None),
            csi: Volumes {
                journal: self.home.join(format!("csi-{}", self.name)),
                kubelet_root: self.home.join(self.name),
            },
            programs: None,
        };
        let (tell, stop) = watch::channel(false);
        let _ = std::fs::remove_file(self.socket());
        let served = tokio::spawn(serve(Arc::new(Agent::open(setup)?.0), self.socket(), stop));
        let begun = Instant::now();
        while !self.socket().exists() {
            ensure!(begun.elapsed() < START && !served.is_finished(), "the agent does not start");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.agent = Some((tell, served));
        Ok(())
    }

    async fn leave(&mut self) -> Result<()> {
        let Some((tell, served)) = self.agent.take() else { return Ok(()) };
        tell.send_replace(true);
        served.await?
    }

    async fn restart(&mut self) -> Result<()> {
        self.leave().await?;
        self.start().await
    }

    async fn mount(&self, pod: &str) -> Result<()> {
        self.call(Verb::Mount, pod).await
    }

    /// Calls the driver as kubelet does, in a thread that may block.
    async fn call(&self, verb: Verb, pod: &str) -> Result<()> {
        let target = self.target(pod);
        std::fs::create_dir_all(&target).context("make the pod's directory")?;
        let names = ["name", "uid"].map(|key| (format!("kubernetes.io/pod.{key}"), json!(pod)));
        let mut options: serde_json::Map<_, _> = flexvol_protocol::ordered::filled(names);
        options.insert("kubernetes.io/pod.namespace".to_owned(), json!("default"));
        let mut arguments = vec![target.into_os_string()];
        arguments.extend((verb == Verb::Mount).then(|| OsString::from(json!(options).to_string())));
        let (call, driver) = (Call::parse(verb, &arguments)?, self.driver());
        match tokio::task::spawn_blocking(move || Caller::new(driver).call(&call)).await?.verdict {
            Verdict::Success(_) => Ok(()),
            verdict => bail!("{verdict}"),
        }
    }
}
