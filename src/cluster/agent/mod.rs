//! `flexvold agent`: holds storage for the pods of this node, so that no other node writes to it.
//!
//! ```text
//! driver ──socket──▶ serve ─▶ wire ─▶ Agent: hold, release ─▶ fence::settle ─▶ record store
//!                                       │  journal: holds of this node, written first
//!                                       └─ usage: state of the mount table and the kernel
//! ```
//!
//! The agent writes a hold to the journal before it asks the store, and a release before it changes
//! the record. So an agent that was killed at any point knows at its next start what it may hold,
//! and checks it against the store. The agent itself never mounts or attaches: the driver does,
//! between `hold` and `release`. Driver calls that the agent carries out run in one process each,
//! and so do forced unmounts.

pub mod by_force;
pub mod calls;
pub mod csi;
mod driver;
pub mod fault;
pub mod force;
pub mod holding;
pub mod journal;
pub mod metrics;
pub mod recovery;
pub mod serve;
mod tasks;
pub mod turns;
pub mod usage;
pub mod wire;

#[cfg(test)]
mod tests;

use crate::cri::Runtimes;
use crate::fence::decide::Task;
use crate::fence::record::Node;
use crate::fence::store::RecordStore;
use calls::{Calls, Programs};
use csi::Volumes;
use fault::Fault;
use flexvol_linux::proc::clock;
use force::{Force, Hands};
use journal::Journal;
use metrics::Metrics;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use turns::Turns;
use usage::Look;

/// Time for which a release is remembered, to refuse late holds. No driver waits longer than this.
const LATEST: Duration = Duration::from_mins(3);

/// Parts and settings of a new agent.
pub struct Setup {
    /// This machine.
    pub node: Node,
    /// Store of the records.
    pub store: Box<dyn RecordStore>,
    /// Location of the store, for people.
    pub store_name: String,
    /// The directory of the journal.
    pub journal: PathBuf,
    /// Directory in which drivers leave notes, for example of a release that they could not report.
    pub spool: PathBuf,
    /// Checks of what is mounted and attached on this node.
    pub look: Arc<dyn Look>,
    /// Executor of forced unmounts.
    pub hands: Box<dyn Hands>,
    /// Container runtimes of the mount pods.
    pub runtimes: Runtimes,
    /// Directories for the volumes of CSI drivers.
    pub csi: csi::Setup,
    /// Executables of the driver calls that the agent carries out; `None` if it carries out none.
    pub programs: Option<Programs>,
}

/// The agent of one node.
pub struct Agent {
    node: Node,
    store: Box<dyn RecordStore>,
    store_name: String,
    journal: Journal,
    spool: PathBuf,
    look: Arc<dyn Look>,
    force: Arc<Force>,
    runtimes: Runtimes,
    turns: Turns,
    recovering: Mutex<()>,
    state: Mutex<State>,
    metrics: Metrics,
    calls: Arc<Calls>,
    csi: Volumes,
}

#[derive(Default)]
struct State {
    /// Name of this agent in records. It changes each time the agent has lost the store.
    instance: String,
    /// True if the records were searched for missing holds since the store was last lost.
    adopted: bool,
    /// True if the store has confirmed, since its loss or the last task, that this node may hold
    /// storage.
    admitted: bool,
    /// Ids of the holds that the store has not confirmed since it was last lost.
    pending: BTreeSet<String>,
    /// Time of the last release request, by holder.
    released: BTreeMap<String, u64>,
    /// True if tasks may have arrived since the last query.
    came: bool,
    /// Known cleanup tasks of this node.
    tasks: Vec<Task>,
}

impl State {
    fn is_settled(&self) -> bool {
        self.adopted && self.pending.is_empty()
    }
}

/// Time of a request and deadline for its answer, in nanoseconds of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Time of the request.
    pub at: u64,
    /// Deadline for the answer. Later the driver has given up, and nothing may be done any more.
    pub until: u64,
}

impl Asked {
    /// Returns a request made now, with this much time for the answer.
    pub fn now(time: Duration) -> Self {
        let at = clock::since_boot();
        Self { at, until: at.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)) }
    }

    /// Returns the deadline for a wait here. It is never later than a release is remembered.
    fn deadline(self) -> Result<Instant, Fault> {
        let now = clock::since_boot();
        let until = self.until.min(self.at.saturating_add(LATEST.as_nanos().try_into().unwrap_or(u64::MAX)));
        if self.at > now || until <= now {
            return Err(Fault::late());
        }
        Ok(Instant::now() + Duration::from_nanos(until - now))
    }
}

impl Agent {
    /// Reads the journal. Nothing is served before [`recover`](Self::recover).
    pub fn open(setup: Setup) -> anyhow::Result<(Self, Vec<String>)> {
        let (journal, mut broken) = Journal::open(setup.journal)?;
        let (csi, damaged) = Volumes::open(setup.csi, setup.node.boot.clone())?;
        broken.extend(damaged);
        let Setup { node, store, store_name, spool, look, hands, runtimes, programs, .. } = setup;
        let agent = Self {
            node,
            store,
            store_name,
            journal,
            spool,
            force: Arc::new(Force::new(hands, Arc::clone(&look))),
            look,
            runtimes,
            turns: Turns::default(),
            recovering: Mutex::default(),
            state: Mutex::default(),
            metrics: Metrics::default(),
            calls: Arc::new(Calls::new(programs)),
            csi,
        };
        agent.unsettle();
        Ok((agent, broken))
    }

    /// Returns this machine.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Returns the metrics as Prometheus reads them.
    pub fn metrics(&self) -> String {
        let holds: Vec<_> = self.journal.all().into_iter().map(|entry| entry.phase).collect();
        let is_ready = self.state().is_settled();
        self.metrics.to_text(&holds, is_ready, self.notes().count(), self.calls.count())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
