//! Served driver: the known facts about it, and the resources for its volumes.

use super::codes;
use super::journal::Journal;
use super::locks::{Guard, Locks};
use super::metrics::Metrics;
use super::options::Ground;
use super::places::Places;
use super::program::{Answer, Budget, Program};
use super::target::{self, Standing};
use super::turns::Turns;
use anyhow::Result;
use flexvol_model::csi_journal::Entry;
use flexvol_protocol::failure::Failure;
use flexvol_protocol::{Call, Capabilities, DriverName, TargetPath};
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tonic::Status;

/// Time for `init`, and for undoing a failed call.
const MOMENT: Duration = Duration::from_secs(20);

/// Services that a process offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// For kubelet, on each node.
    Node,
    /// For the sidecars that attach and provision.
    Controller,
    /// Both.
    All,
}

impl Role {
    /// Reports whether this process provisions and attaches volumes.
    pub fn is_controller(self) -> bool {
        self != Self::Node
    }

    /// Reports whether this process mounts volumes.
    pub fn is_node(self) -> bool {
        self != Self::Controller
    }
}

/// Driver with everything that is needed to serve it.
#[derive(Debug)]
pub struct Served {
    /// Its name in CSI.
    pub name: String,
    /// Its name in FlexVolume.
    pub driver: DriverName,
    /// The node's name in Kubernetes.
    pub node: String,
    /// Services that are offered.
    pub role: Role,
    /// Default options of volumes, and the driver's habits.
    pub ground: Ground,
    /// The driver.
    pub program: Program,
    /// Work that kubelet would do itself.
    pub by_kubelet: Program,
    /// Tree with kubelet's layout, where a driver that attaches works.
    pub tree: PathBuf,
    /// Volumes on this node.
    pub journal: Journal,
    /// Locks of the running calls.
    pub locks: Arc<Locks>,
    /// Limit for calls that begin.
    pub turns: Turns,
    /// Limit for calls that have not ended.
    pub places: Places,
    /// Metrics for Prometheus.
    pub metrics: Arc<Metrics>,
    /// Last answer of `init`.
    pub known: Mutex<Known>,
    /// The lock of the state directory: no other process uses it while this is open.
    pub alone: File,
}

/// Answer of `init`, and the stamp of the executable that gave it.
#[derive(Clone, Debug, Default)]
pub struct Known {
    stamp: Option<(u64, u64, i64, i64)>,
    capabilities: Option<Result<Capabilities, Failure>>,
}

impl Served {
    /// Returns the driver's capabilities. Asks it again if its executable has been replaced, or if
    /// `init` has failed.
    pub fn capabilities(&self) -> Result<Capabilities, Status> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = std::fs::metadata(self.program.path())
            .ok()
            .map(|file| (file.dev(), file.ino(), file.mtime(), file.mtime_nsec()));
        if known.stamp != stamp || !matches!(known.capabilities, Some(Ok(_))) {
            known.capabilities = Some(self.init());
            known.stamp = stamp;
        }
        match &known.capabilities {
            Some(Ok(capabilities)) => Ok(*capabilities),
            Some(Err(failure)) => Err(Status::failed_precondition(failure.message())),
            None => Err(Status::unavailable("the driver has not been asked yet")),
        }
    }

    fn init(&self) -> Result<Capabilities, Failure> {
        let exchange = self.program.execute(&Call::Init, None, Budget::new(Some(MOMENT)));
        let found = exchange.capabilities().map(|said| self.ground.habits.of_init(said));
        match &found {
            Ok(capabilities) => tracing::info!(driver = %self.driver, ?capabilities, "the driver is ready"),
            Err(failure) => tracing::warn!(driver = %self.driver, reason = %failure, "init failed"),
        }
        found
    }

    /// Locks a volume and a directory of it.
    pub fn lock(&self, id: &str, path: &TargetPath) -> Result<Guard, Status> {
        self.locks.take(&[&format!("volume {id}"), &format!("path {path}")])
    }

    /// Changes the journal's entry of a volume.
    pub fn note(&self, id: &str, change: impl FnOnce(&mut Entry)) -> Result<(), Status> {
        self.journal.change(id, change).map_err(|error| codes::of_error(&error))
    }

    /// Unmounts with the driver, or as kubelet does if the driver leaves that to kubelet; `call` is
    /// `unmount` or `unmountdevice`. Fails if something is still mounted then.
    pub fn unmount(&self, call: &Call, guard: &Guard, budget: Budget) -> Result<(), Status> {
        let answer = self.program.call(call, guard, budget)?;
        let Some(target) = call.target() else { return Ok(()) };
        match (answer, target::look(target)?) {
            (_, Standing::Missing | Standing::Directory) => Ok(()),
            (Answer::NotSupported, _) => self.unmount_as_kubelet(target, guard, budget),
            (Answer::Done(_), _) => {
                let text = format!("{} succeeded, but {target} is still mounted", call.verb());
                Err(Status::internal(text))
            }
        }
    }

    /// Unmounts without the driver.
    pub fn unmount_as_kubelet(
        &self,
        target: &TargetPath,
        guard: &Guard,
        budget: Budget,
    ) -> Result<(), Status> {
        self.by_kubelet.call(&Call::Unmount { target: target.clone() }, guard, budget)?;
        match target::look(target)? {
            Standing::Missing | Standing::Directory => Ok(()),
            _ => {
                Err(Status::internal(format!("{target} is still mounted: something is mounted there twice")))
            }
        }
    }

    /// Returns the budget for a rollback, whatever is left of the caller's time.
    pub fn moment(budget: Budget) -> Budget {
        budget.extended(MOMENT)
    }
}
