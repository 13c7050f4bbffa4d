//! `flexvold agent`: holds storage for the pods of this node, so that no other node writes to it.
//!
//! ```text
//! driver ──socket──▶ serve ─▶ wire ─▶ Agent: hold, release ─▶ fence::settle ─▶ record store
//!                                       │  journal: what this node holds, written first
//!                                       └─ usage: what the mount table and the kernel say
//! ```
//!
//! A hold is noted in the journal before the store is asked, and a release before the record is
//! changed. So an agent that was killed anywhere knows, when it starts again, what it may hold, and
//! finds out. An agent never mounts or attaches: the driver does, between `hold` and `release`, and
//! where its calls are carried out here, in a process of its own for each. So is what is unmounted
//! by force.

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

/// How long a late request is remembered for; no driver waits longer for an answer.
const LATEST: Duration = Duration::from_mins(3);

/// What an agent is started with.
pub struct Setup {
    /// The machine.
    pub node: Node,
    /// Where records are.
    pub store: Box<dyn RecordStore>,
    /// Where people find the store.
    pub store_name: String,
    /// The directory of the journal.
    pub journal: PathBuf,
    /// Where drivers leave what they could not tell.
    pub spool: PathBuf,
    /// Who looks what is mounted and attached here.
    pub look: Arc<dyn Look>,
    /// Who unmounts by force.
    pub hands: Box<dyn Hands>,
    /// Who has the containers of mount pods.
    pub runtimes: Runtimes,
    /// Where the volumes of CSI drivers are kept.
    pub csi: csi::Setup,
    /// What it carries out calls with, if it does.
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
    /// What this agent calls itself in records: new after each time it has lost the store.
    instance: String,
    /// Whether the records were looked through since for holds that the journal does not have.
    adopted: bool,
    /// Whether the store has said since that this node may hold something.
    admitted: bool,
    /// Holds that the store has not confirmed since, by their ids.
    pending: BTreeSet<String>,
    /// By holder, when the last release was asked for.
    released: BTreeMap<String, u64>,
    /// Whether tasks may have come since they were asked for.
    came: bool,
    /// What this node has to clean up, as far as it is known.
    tasks: Vec<Task>,
}

impl State {
    fn is_settled(&self) -> bool {
        self.adopted && self.pending.is_empty()
    }
}

/// When something was asked, and until when the answer is waited for, in nanoseconds of this boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// When.
    pub at: u64,
    /// Until when: later the driver has given up, and nothing may be done any more.
    pub until: u64,
}

impl Asked {
    /// Now, with so much time for the answer.
    pub fn now(time: Duration) -> Self {
        let at = clock::since_boot();
        Self { at, until: at.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)) }
    }

    /// Until when, for who waits here. Never longer than a late release is remembered.
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

    /// The machine.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// What Prometheus reads.
    pub fn metrics(&self) -> String {
        let holds: Vec<_> = self.journal.all().into_iter().map(|entry| entry.phase).collect();
        let is_ready = self.state().is_settled();
        self.metrics.to_text(&holds, is_ready, self.notes().count(), self.calls.count())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
