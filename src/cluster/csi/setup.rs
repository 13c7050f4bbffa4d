//! Setup: makes drivers ready to be served, from an admin's settings.

use super::by_kubelet;
use super::habits::{self, Habits};
use super::journal::Journal;
use super::locks::Locks;
use super::metrics::Metrics;
use super::name;
use super::options::Ground;
use super::places::Places;
use super::program::Program;
use super::served::{Known, Role, Served};
use super::turns::Turns;
use crate::executed;
use anyhow::{Context as _, Result, ensure};
use flexvol_kubelet::Caller;
use flexvol_linux::fs::files;
use flexvol_model::paths;
use flexvol_model::settings::SIDE_FILE;
use flexvol_protocol::DriverName;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Limit for an admin's files, in bytes.
const LIMIT: usize = 1 << 20;

/// Wait for a lock: a child of a killed process holds it until it executes the driver.
const HANDOVER: Duration = Duration::from_secs(2);

/// Pause between two attempts to take the lock.
const TICK: Duration = Duration::from_millis(20);

/// Settings shared by all drivers of one process.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Directory where kubelet would find the drivers.
    pub plugin_dir: PathBuf,
    /// The node's name in Kubernetes.
    pub node: String,
    /// Services that are offered.
    pub role: Role,
    /// Directory of the journals.
    pub state: PathBuf,
    /// File with the default options of every volume, as a JSON object of strings.
    pub attributes: Option<PathBuf>,
    /// The admin's file of habits.
    pub habits: Option<PathBuf>,
}

impl Setup {
    /// Makes a driver ready to be served, under a name in CSI.
    pub fn serve(&self, driver: DriverName, named: Option<&str>, metrics: &Arc<Metrics>) -> Result<Served> {
        let csi = named.map_or_else(|| name::of_driver(&driver), str::to_owned);
        name::check(&csi)?;
        let executable = self.plugin_dir.join(driver.directory()).join(driver.executable());
        ensure!(
            executable.exists(),
            "there is no {}: install {driver}, or name another plugin directory",
            executable.display()
        );
        let state = self.state.join(&csi);
        let alone = hold(&state)?;
        let ground = self.ground(&driver, &executable)?;
        let (journal, broken) =
            Journal::open(state.join(paths::CSI_VOLUMES), &driver, ground.habits.mountless)?;
        for message in broken {
            tracing::warn!(driver = csi, reason = message, "a file of the journal is damaged");
        }
        let calls = metrics.calls(&csi);
        Ok(Served {
            program: Program::new(Caller::new(executable), ground.habits.clone(), Arc::clone(&calls)),
            by_kubelet: Program::new(executed::caller(by_kubelet::NAME), Habits::default(), calls),
            turns: Turns::default(),
            places: Places::default(),
            locks: Locks::open(state.join("running"))?,
            tree: state.join("kubelet"),
            name: csi,
            driver,
            node: self.node.clone(),
            role: self.role,
            ground,
            journal,
            metrics: Arc::clone(metrics),
            known: Mutex::new(Known::default()),
            alone,
        })
    }

    fn ground(&self, driver: &DriverName, executable: &Path) -> Result<Ground> {
        let side_file = files::read_small(&executable.with_file_name(SIDE_FILE), LIMIT)?;
        let installed = habits::installed(driver, side_file.as_deref())?;
        let own = self.habits.as_deref().map(read).transpose()?;
        let habits = Habits::of(driver, own.as_deref(), installed.as_ref())?;
        let defaults = match self.attributes.as_deref().map(read).transpose()? {
            Some(text) => serde_json::from_str::<BTreeMap<String, String>>(&text)
                .context("the file of attributes must be one JSON object of strings")?,
            None => BTreeMap::new(),
        };
        Ok(Ground { defaults, habits })
    }
}

fn read(path: &Path) -> Result<String> {
    files::read_small(path, LIMIT)?.with_context(|| format!("there is no {}", path.display()))
}

/// Locks the state: two processes that serve the same driver would not see each other's locks.
fn hold(state: &Path) -> Result<File> {
    files::make_private(state)?;
    let directory = File::open(state).with_context(|| format!("open {}", state.display()))?;
    let start = Instant::now();
    while let Err(errno) = flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        ensure!(errno == Errno::AGAIN, "lock {}: {errno}", state.display());
        let text = || format!("{} is in use by another flexvold: end that first", state.display());
        ensure!(start.elapsed() < HANDOVER, text());
        std::thread::sleep(TICK);
    }
    Ok(directory)
}
