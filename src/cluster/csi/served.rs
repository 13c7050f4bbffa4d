//! One driver that is served: what is known of it, and what its volumes need.

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

/// For `init`, and for undoing what failed.
const MOMENT: Duration = Duration::from_secs(20);

/// Which services a process offers.
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
    /// Whether volumes are provisioned and attached here.
    pub fn is_controller(self) -> bool {
        self != Self::Node
    }

    /// Whether volumes are mounted here.
    pub fn is_node(self) -> bool {
        self != Self::Controller
    }
}

/// A driver with everything that serving it takes.
#[derive(Debug)]
pub struct Served {
    /// Its name in CSI.
    pub name: String,
    /// Its name in FlexVolume.
    pub driver: DriverName,
    /// The node's name in Kubernetes.
    pub node: String,
    /// What is offered.
    pub role: Role,
    /// Options that a volume has unless it says otherwise.
    pub ground: Ground,
    /// The driver.
    pub program: Program,
    /// What kubelet would do itself.
    pub by_kubelet: Program,
    /// Where a driver that attaches works: a tree as kubelet has it.
    pub tree: PathBuf,
    /// What is on this node.
    pub journal: Journal,
    /// Who is at work.
    pub locks: Arc<Locks>,
    /// Who may begin.
    pub turns: Turns,
    /// How many may be under way.
    pub places: Places,
    /// For Prometheus.
    pub metrics: Arc<Metrics>,
    /// What `init` has said last.
    pub known: Mutex<Known>,
    /// The lock of the state directory: no other process uses it while this is open.
    pub alone: File,
}

/// What `init` has said, and of which executable.
#[derive(Clone, Debug, Default)]
pub struct Known {
    stamp: Option<(u64, u64, i64, i64)>,
    capabilities: Option<Result<Capabilities, Failure>>,
}

impl Served {
    /// What the driver can do. Asks it again if its executable has been replaced, or if it has
    /// failed.
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

    /// Changes what is known of a volume.
    pub fn note(&self, id: &str, change: impl FnOnce(&mut Entry)) -> Result<(), Status> {
        self.journal.change(id, change).map_err(|error| codes::of_error(&error))
    }

    /// Unmounts with the driver, or as kubelet does if the driver leaves that to kubelet; `call` is
    /// `unmount` or `unmountdevice`. It is an error if something is still mounted then.
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

    /// For rolling back, whatever is left of the caller's time.
    pub fn moment(budget: Budget) -> Budget {
        budget.extended(MOMENT)
    }
}
