//! One review of the holders of a storage: read, ask about their nodes and pods, decide, write.

use super::seen::{Missing, SeenNode, SeenPod, is_named, sight, state_of_pod};
use crate::fence::decide::{Decision, Write, decide};
use crate::fence::evidence::{Ending, Evidence, Fence, NodeState, PodState, Rules, Sight};
use crate::fence::record::{Holder, Pod, Record};
use crate::fence::request::Request;
use crate::fence::settle::{Witness, settle};
use crate::fence::store::kubernetes::is_name;
use crate::fence::store::{RecordStore, StoreError};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::time::Instant;

/// Source of the state of nodes and pods.
pub trait Cluster {
    /// Returns the Node object of this name; `None` if it does not exist.
    fn node(&self, name: &str, deadline: Instant) -> Result<Option<SeenNode>, StoreError>;

    /// Returns the Pod object of this namespace and name; `None` if it does not exist.
    fn pod(&self, pod: &Pod, deadline: Instant) -> Result<Option<SeenPod>, StoreError>;
}

/// Parts of a controller besides its watches.
#[expect(missing_debug_implementations, reason = "a store has none")]
pub struct Reviewer {
    /// Store of the records.
    pub store: Box<dyn RecordStore>,
    /// Source that is asked before every change.
    pub cluster: Box<dyn Cluster + Send + Sync>,
    /// Rules of the administrator.
    pub rules: Rules,
    /// Missing Node objects, and since when they are missing.
    pub missing: Missing,
}

/// Result of a review.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reviewed {
    /// Holders that were removed.
    pub removed: Vec<Holder>,
    /// True if the review has to be repeated when a node has been gone for longer.
    pub waits: bool,
}

impl Reviewer {
    /// Removes the holders whose nodes cannot write any more, and creates tasks for nodes.
    pub fn review(&self, handle: &str, deadline: Instant) -> Result<Reviewed, StoreError> {
        let looking = Looking::new(&*self.cluster, &self.rules, &self.missing, deadline);
        let decision = settle(&*self.store, handle, &Request::Review, &looking, deadline)?;
        let (record, evidence) = looking.last.into_inner().unwrap_or_default();
        let mut removed = Vec::new();
        if let Write::Put(next) = &decision.write {
            removed.extend(record.into_iter().flat_map(|record| record.holders));
            removed.retain(|holder| next.holder(&holder.id).is_none());
        }
        Ok(Reviewed { removed, waits: self.waits_for(&evidence) })
    }

    /// Reports whether a review would change something, now or later, judged without a request.
    pub fn is_due(&self, record: &Record, ending: Ending, known: &dyn Cluster) -> bool {
        let looking = Looking::new(known, &self.rules, &self.missing, Instant::now());
        let mut evidence = looking.look(record).with(ending);
        evidence.sights.values_mut().for_each(|sight| sight.fence = Fence::Unsupported);
        let Decision { write, tasks, .. } = decide(&record.handle, Some(record), &Request::Review, &evidence);
        write != Write::Nothing || !tasks.is_empty() || self.waits_for(&evidence)
    }

    fn waits_for(&self, evidence: &Evidence) -> bool {
        let shortly = |state| matches!(state, NodeState::Gone(time) if time < self.rules.gone_grace);
        self.rules.unfenced_break && evidence.sights.values().any(|sight| shortly(sight.node))
    }

    /// Removes the tasks of nodes that will never do them; returns true if more tasks may have to
    /// be removed later. Forgets a missing node that neither holds anything nor has a task.
    pub fn close_tasks(&self, holds: &dyn Fn(&str) -> bool, deadline: Instant) -> Result<bool, StoreError> {
        let looking = Looking::new(&*self.cluster, &self.rules, &self.missing, deadline);
        let tasks = self.store.all_tasks(deadline)?;
        let with_tasks: HashSet<_> =
            tasks.iter().map(|task| (&*task.holder.node.name, &*task.holder.node.uid)).collect();
        self.missing.keep(|name, uid| holds(name) || with_tasks.contains(&(name, uid)));
        let mut later = false;
        for task in &tasks {
            match looking.sight(&task.holder).node {
                NodeState::Gone(time) if time >= self.rules.gone_grace => self.store.finish(task)?,
                NodeState::Gone(_) => later = true,
                _ => {}
            }
        }
        Ok(later)
    }
}

/// Evidence for one review; asks about each node and each pod once.
struct Looking<'a> {
    cluster: &'a dyn Cluster,
    rules: &'a Rules,
    missing: &'a Missing,
    deadline: Instant,
    nodes: RefCell<HashMap<String, Result<Option<SeenNode>, StoreError>>>,
    /// Record that was inspected last, and its evidence.
    last: RefCell<Option<(Option<Record>, Evidence)>>,
}

impl<'a> Looking<'a> {
    fn new(cluster: &'a dyn Cluster, rules: &'a Rules, missing: &'a Missing, deadline: Instant) -> Self {
        Self { cluster, rules, missing, deadline, nodes: RefCell::default(), last: RefCell::default() }
    }

    fn sight(&self, holder: &Holder) -> Sight {
        let name = &holder.node.name;
        if !is_name(name) {
            return Sight::default();
        }
        let mut nodes = self.nodes.borrow_mut();
        let asked = nodes.entry(name.clone()).or_insert_with(|| self.cluster.node(name, self.deadline));
        let Ok(node) = asked else { return Sight::default() };
        let seen = sight(holder, node.as_ref(), PodState::Unknown, self.missing);
        // On other nodes, the state of the pod does not matter.
        let matters = matches!(seen.node, NodeState::Alive | NodeState::Rebooted);
        if matters { Sight { pod: self.pod(&holder.pod), ..seen } } else { seen }
    }

    fn pod(&self, pod: &Pod) -> PodState {
        if !is_named(pod) {
            return PodState::Unknown;
        }
        let asked = self.cluster.pod(pod, self.deadline);
        asked.map_or(PodState::Unknown, |seen| state_of_pod(pod, seen.as_ref()))
    }
}

impl Witness for Looking<'_> {
    fn look(&self, record: &Record) -> Evidence {
        // The record was read just now: earlier answers may be older than it.
        self.nodes.borrow_mut().clear();
        let sights = record.holders.iter().map(|holder| (holder.id.clone(), self.sight(holder)));
        let evidence = Evidence {
            sights: flexvol_protocol::ordered::filled(sights),
            rules: *self.rules,
            ..Evidence::default()
        };
        *self.last.borrow_mut() = Some((Some(record.clone()), evidence.clone()));
        evidence
    }

    fn fence(&self, _: &Holder) -> Fence {
        Fence::Unsupported
    }
}
