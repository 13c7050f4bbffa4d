//! Rules of fencing: which pods may hold a storage. Without input or output.
//!
//! [`decide`] takes a record, a request and the evidence, and returns a decision. Each decision has
//! the number of its row; `rows/` has a test for each row.
//!
//! | # | storage is held | request | condition | result |
//! |---|---|---|---|---|
//! | 1, 2 | by no pod | mount | | granted: exclusive (1) or shared (2) |
//! | 3 | by the same mount | mount | | granted: it is a retry |
//! | 4 | by the same mount, with other access | mount | | attached: refused; else decided as new |
//! | 5 | by a pod of this node | mount | pod gone, nothing mounted | granted, epoch + 1 |
//! | 6 | by a pod of this node | mount | otherwise | granted if shared by the node, else refused |
//! | 7 | by a node that has rebooted | mount | pod gone or terminating | granted, epoch + 1 |
//! | 8 | by a node out of service | mount | fenced, or not supported | task; granted, epoch + 1 |
//! | 9 | by a node that is gone for long | mount | fenced | task; granted, epoch + 1 |
//! | 10 | by a node that is alive | mount | pod gone | task for that node; refused |
//! | 11 | by a node that is alive or rebooted | mount | pod exists | refused |
//! | 12 | by a node that is silent or unknown | mount | | refused: set the taint |
//! | 13 | by a pod of the same name | mount | | as 7 to 12; if the setting allows it, as 8 |
//! | 14, 18 | shared read-only (14), shared (18) | mount with the same sharing | | granted |
//! | 15, 16 | shared read-only | mount for writing | all holders removable (15), or not (16) | |
//! | 17 | by a writer | mount read-only | | as 5 to 12 |
//! | 19, 20 | | attached | still a holder (19), or no longer (20) | recorded (19), undo (20) |
//! | 21 | | unmount begins | | recorded |
//! | 22, 23 | | unmount ends | others on this node (22), or none and detached (23) | released |
//! | 24 | | unmount ends | something is left | kept, retried later |
//! | 25, 26 | | clean up | pod exists (25), or not (26) | |
//! | 27 | by another holder meanwhile | return | | undo before anything is served |
//! | 28 | by any pod | delete | | refused |
//! | 29 | | mount while draining | | refused |
//! | 30 | by no such holder | unmount | | done |
//! | 31 | by any pod | review | as 7 to 10, each alone | removed, epoch + 1; task |
//! | 31 | by any pod that stays | review | record deleted and marked | task to detach by force |

mod review;

use super::evidence::{Evidence, Fence, NodeState, PodState, Sight, Usage};
use super::record::{HOLDERS, Holder, Phase, Record};
use super::request::{Left, Request};
use super::sharing::Sharing;

/// Actions for a request, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Number of the row in the table.
    pub row: u8,
    /// Tasks for other nodes, or for later. They are written before the record.
    pub tasks: Vec<Task>,
    /// Change of the record, made only if no other process has changed it meanwhile.
    pub write: Write,
    /// Reply, given once the record is written.
    pub reply: Reply,
}

/// Change of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// No change.
    Nothing,
    /// The record is replaced or created.
    Put(Record),
    /// The record is removed.
    Delete,
}

/// Task for a node to clean up after one of its own holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Holder of the storage.
    pub holder: Holder,
    /// Reason for the task.
    pub reason: Cause,
}

impl Task {
    /// Returns a unique name. A holder may have two tasks: a cleanup and a forced one.
    pub fn name(&self) -> String {
        let force = if self.reason == Cause::Forced { "-forced" } else { "" };
        format!("{}-{}{force}", self.holder.id, self.holder.epoch)
    }
}

/// Reason for a cleanup task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The pod is gone, but its node is alive.
    PodGone,
    /// The node was off or is gone, and another node has the storage now.
    NodeLost,
    /// The device was busy.
    StillAttached,
    /// An administrator wants the storage unmounted now, even if it is in use.
    Forced,
}

const CAUSES: [(Cause, &str); 4] = [
    (Cause::PodGone, "PodGone"),
    (Cause::NodeLost, "NodeLost"),
    (Cause::StillAttached, "StillAttached"),
    (Cause::Forced, "Forced"),
];

impl Cause {
    /// Parses the name in tasks.
    pub fn parse(name: &str) -> Option<Self> {
        CAUSES.into_iter().find(|(_, known)| *known == name).map(|(cause, _)| cause)
    }

    /// Returns the name in tasks.
    pub fn name(self) -> &'static str {
        CAUSES.into_iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }
}

/// Reply to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The storage may be attached and mounted under this epoch.
    Go {
        /// Epoch to repeat in [`Request::Attached`].
        epoch: u64,
    },
    /// The request is done.
    Done,
    /// The volume is unmounted; the rest is retried later.
    Later,
    /// The unmount may begin.
    Unmount {
        /// True if the record has this holder.
        known: bool,
        /// True if no other pod of the node uses the device.
        last: bool,
    },
    /// The storage must fence the nodes of these holders first; then decide again.
    FenceFirst(Vec<String>),
    /// Another holder has the storage: unmount and detach everything here at once.
    Undo,
    /// This node still holds the storage.
    Keep,
    /// The task is about a holder that is alive.
    Obsolete,
    /// The request is refused.
    Refused(Refusal),
}

/// Refusal of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Reason in one word.
    pub reason: Reason,
    /// Conflicting holder.
    pub holder: Option<Box<Holder>>,
}

/// Reason for a refusal, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Another pod of this node holds the storage.
    HeldHere,
    /// A pod of another node holds the storage.
    HeldElsewhere,
    /// The pod is gone, and its node was asked to clean up.
    CleaningUp,
    /// The holder's node does not report: it may still write.
    NodeSuspect,
    /// The state of the holder's node could not be queried.
    NodeUnknown,
    /// The holder's node is gone, but not for long enough.
    GoneShortly,
    /// The storage cannot fence the holder's node, or could not be told to.
    NotFenced,
    /// The same mount holds the storage with other access.
    AccessDiffers,
    /// The volume is still mounted.
    StillMounted,
    /// More than [`HOLDERS`] pods would hold the storage.
    TooMany,
    /// New mounts are no longer accepted.
    Draining,
    /// The storage has a holder, and its lock is not deleted.
    Held,
}

impl Decision {
    fn new(row: u8, write: Write, reply: Reply) -> Self {
        Self { row, tasks: Vec::new(), write, reply }
    }

    fn refuse(row: u8, reason: Reason, holder: Option<&Holder>) -> Self {
        Self::new(
            row,
            Write::Nothing,
            Reply::Refused(Refusal { reason, holder: holder.cloned().map(Box::new) }),
        )
    }
}

/// Decides a request. `None` is a storage without a record.
pub fn decide(handle: &str, record: Option<&Record>, request: &Request, evidence: &Evidence) -> Decision {
    let free = Record::free(handle);
    let record = record.unwrap_or(&free);
    match request {
        Request::Mount { .. } if evidence.draining => Decision::refuse(29, Reason::Draining, None),
        Request::Mount { me, sharing } => mount(record, me, *sharing, evidence),
        Request::Attached { id, epoch, device } => attached(record, id, *epoch, device),
        Request::BeginUnmount { id } => begin_unmount(record, id),
        Request::EndUnmount { id, left } => end_unmount(record, id, *left),
        Request::CleanUp { id, epoch, left } => clean_up(record, id, *epoch, *left, evidence),
        Request::Return { id, epoch, agent } => came_back(record, id, *epoch, agent),
        Request::Review => review::review(record, evidence),
        Request::Delete => delete(record),
    }
}

fn mount(record: &Record, me: &Holder, sharing: Sharing, evidence: &Evidence) -> Decision {
    match record.holder(&me.id) {
        Some(mine) if mine.read_only == me.read_only => again(record, mine, me),
        Some(mine) if mine.phase != Phase::Reserved => Decision::refuse(4, Reason::AccessDiffers, Some(mine)),
        // Nothing is attached yet: decide as for a new mount.
        Some(_) => {
            let others = without(record, &me.id);
            let decision = admit(&others, me, sharing, evidence);
            let went = matches!(decision.reply, Reply::Go { .. });
            Decision { row: if went { 4 } else { decision.row }, ..decision }
        }
        None => admit(record, me, sharing, evidence),
    }
}

/// Decides a retry of the same mount, after a failure, a restart of the agent or a reboot. The
/// record is written even if nothing changes: another process may have decided that this node is
/// gone, but not written that yet. Its write then fails, and it decides again.
fn again(record: &Record, mine: &Holder, me: &Holder) -> Decision {
    let same_kernel = mine.node.boot == me.node.boot && mine.phase == Phase::Attached;
    let (phase, device) =
        if same_kernel { (Phase::Attached, mine.device.clone()) } else { (Phase::Reserved, String::new()) };
    let refreshed = Holder { phase, device, epoch: mine.epoch, since: mine.since.clone(), ..me.clone() };
    let write = Write::Put(with(record, refreshed));
    Decision::new(3, write, Reply::Go { epoch: mine.epoch })
}

/// Decides a mount that does not hold the storage yet.
fn admit(record: &Record, me: &Holder, sharing: Sharing, evidence: &Evidence) -> Decision {
    let (compatible, conflicts): (Vec<_>, Vec<_>) =
        record.holders.iter().partition(|holder| may_share(record.sharing, holder, sharing, me));
    if compatible.len() >= HOLDERS {
        return Decision::refuse(row_of_joining(record, sharing), Reason::TooMany, None);
    }
    if conflicts.is_empty() {
        let sharing = if record.holders.is_empty() { sharing } else { record.sharing };
        let next = with(&Record { sharing, ..record.clone() }, enter(me, record.epoch));
        let go = Reply::Go { epoch: record.epoch };
        return Decision::new(row_of_joining(record, sharing), Write::Put(next), go);
    }
    let verdicts: Vec<_> = conflicts.iter().map(|holder| judge(holder, me, evidence)).collect();
    let decision = conclude(record, (me, sharing), compatible, &verdicts);
    let among_readers = record.sharing == Sharing::SharedReadOnly;
    match decision.reply {
        Reply::Refused(_) if among_readers => Decision { row: 16, ..decision },
        _ if among_readers => Decision { row: 15, ..decision },
        _ => decision,
    }
}

/// Reports whether a pod may share the storage with a holder.
fn may_share(held: Sharing, holder: &Holder, wanted: Sharing, me: &Holder) -> bool {
    let same_node = holder.node.is_same(&me.node);
    let same_pod = same_node && holder.pod.uid == me.pod.uid;
    match (held, wanted) {
        _ if same_pod => held == wanted && held != Sharing::SharedReadOnly || me.read_only,
        (Sharing::ExclusivePerNode, Sharing::ExclusivePerNode) => same_node,
        (Sharing::SharedReadOnly, _) => me.read_only,
        (Sharing::SharedReadWrite, Sharing::SharedReadWrite | Sharing::SharedReadOnly) => true,
        _ => false,
    }
}

fn row_of_joining(record: &Record, sharing: Sharing) -> u8 {
    match (record.holders.is_empty(), sharing) {
        (true, Sharing::Exclusive | Sharing::ExclusivePerNode) => 1,
        (true, _) => 2,
        (false, Sharing::SharedReadOnly) => 14,
        (false, Sharing::SharedReadWrite) => 18,
        (false, _) => 6,
    }
}

fn enter(me: &Holder, epoch: u64) -> Holder {
    Holder { epoch, phase: Phase::Reserved, device: String::new(), ..me.clone() }
}

/// Verdict about one conflicting holder.
#[derive(Clone, Debug)]
struct Verdict<'a> {
    row: u8,
    holder: &'a Holder,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    /// The holder is removed; its node may have to clean up.
    Remove(Option<Cause>),
    /// The holder's node must be fenced first.
    Fence,
    /// The holder stays; its node may be asked to clean up.
    Stay(Reason, Option<Cause>),
}

fn judge<'a>(holder: &'a Holder, me: &Holder, evidence: &Evidence) -> Verdict<'a> {
    let sight = evidence.of(holder);
    let (row, outcome) = if holder.node.is_same(&me.node) {
        judge_here(sight)
    } else {
        let same_name = (&holder.pod.namespace, &holder.pod.name) == (&me.pod.namespace, &me.pod.name);
        match judge_there(sight, evidence) {
            (row, Outcome::Stay(..)) if same_name && may_take_by_name(row, sight, evidence) => {
                (13, fenced(sight, true))
            }
            judged => judged,
        }
    };
    Verdict { row, holder, outcome }
}

fn judge_here(sight: Sight) -> (u8, Outcome) {
    match (sight.pod, sight.usage) {
        (PodState::Gone, Usage::Unused) => (5, Outcome::Remove(None)),
        _ => (6, Outcome::Stay(Reason::HeldHere, None)),
    }
}

fn judge_there(sight: Sight, evidence: &Evidence) -> (u8, Outcome) {
    let stay = |reason| Outcome::Stay(reason, None);
    match (sight.node, sight.pod) {
        (NodeState::Alive, PodState::Gone) => (10, Outcome::Stay(Reason::CleaningUp, Some(Cause::PodGone))),
        (NodeState::Rebooted, PodState::Gone | PodState::Terminating) => (7, Outcome::Remove(None)),
        (NodeState::Alive | NodeState::Rebooted, _) => (11, stay(Reason::HeldElsewhere)),
        (NodeState::OutOfService, _) => (8, fenced(sight, true)),
        (NodeState::Gone(time), _) if time < evidence.rules.gone_grace => (9, stay(Reason::GoneShortly)),
        (NodeState::Gone(_), _) => (9, fenced(sight, evidence.rules.unfenced_break)),
        (NodeState::Suspect, _) => (12, stay(Reason::NodeSuspect)),
        (NodeState::Unknown, _) => (12, stay(Reason::NodeUnknown)),
    }
}

/// Judges a holder whose node cannot be asked to clean up: the storage must fence the node, or an
/// administrator must have asserted that this is not necessary.
fn fenced(sight: Sight, asserted: bool) -> Outcome {
    match sight.fence {
        Fence::NotTried => Outcome::Fence,
        Fence::Fenced => Outcome::Remove(Some(Cause::NodeLost)),
        Fence::Unsupported if asserted => Outcome::Remove(Some(Cause::NodeLost)),
        Fence::Unsupported | Fence::Failed => Outcome::Stay(Reason::NotFenced, None),
    }
}

/// Reports whether Rook's rule applies; off by default: see [`Rules`](super::evidence::Rules).
fn may_take_by_name(row: u8, sight: Sight, evidence: &Evidence) -> bool {
    evidence.rules.same_name_break && row != 8 && sight.node != NodeState::Alive
}

/// Decides from all verdicts. One holder that stays causes a refusal, and no node is fenced then.
fn conclude(
    record: &Record,
    (me, sharing): (&Holder, Sharing),
    compatible: Vec<&Holder>,
    verdicts: &[Verdict<'_>],
) -> Decision {
    let tasks = verdicts.iter().filter_map(|verdict| match verdict.outcome {
        Outcome::Remove(cause) | Outcome::Stay(_, cause) => {
            cause.map(|reason| Task { holder: verdict.holder.clone(), reason })
        }
        Outcome::Fence => None,
    });
    let stays = verdicts.iter().find_map(|verdict| match verdict.outcome {
        Outcome::Stay(reason, _) => Some((verdict, reason)),
        _ => None,
    });
    if let Some((first, reason)) = stays {
        let tasks = tasks.filter(|task| task.reason == Cause::PodGone).collect();
        return Decision { tasks, ..Decision::refuse(first.row, reason, Some(first.holder)) };
    }
    let row = verdicts.first().map_or(0, |verdict| verdict.row);
    let unfenced = verdicts.iter().filter(|verdict| matches!(verdict.outcome, Outcome::Fence));
    let unfenced: Vec<_> = unfenced.map(|verdict| verdict.holder.id.clone()).collect();
    if !unfenced.is_empty() {
        return Decision::new(row, Write::Nothing, Reply::FenceFirst(unfenced));
    }
    let epoch = record.epoch + 1;
    let mut holders: Vec<_> = compatible.into_iter().cloned().collect();
    holders.push(enter(me, epoch));
    let next = Record { handle: record.handle.clone(), sharing, epoch, holders };
    Decision { tasks: tasks.collect(), ..Decision::new(row, Write::Put(next), Reply::Go { epoch }) }
}

fn attached(record: &Record, id: &str, epoch: u64, device: &str) -> Decision {
    let Some(mine) = record.holder(id).filter(|mine| mine.epoch == epoch) else {
        return Decision::new(20, Write::Nothing, Reply::Undo);
    };
    let next = Holder { phase: Phase::Attached, device: device.to_owned(), ..mine.clone() };
    let write = if next == *mine { Write::Nothing } else { Write::Put(with(record, next)) };
    Decision::new(19, write, Reply::Done)
}

fn begin_unmount(record: &Record, id: &str) -> Decision {
    let Some(mine) = record.holder(id) else {
        return Decision::new(30, Write::Nothing, Reply::Unmount { known: false, last: false });
    };
    let reply = Reply::Unmount { known: true, last: is_last(record, mine) };
    Decision::new(21, releasing(record, mine), reply)
}

fn end_unmount(record: &Record, id: &str, left: Left) -> Decision {
    let Some(mine) = record.holder(id) else {
        return Decision::new(30, Write::Nothing, Reply::Done);
    };
    match (left, is_last(record, mine)) {
        (Left::Mounted, _) => {
            let decision = Decision::refuse(24, Reason::StillMounted, Some(mine));
            Decision { write: releasing(record, mine), ..decision }
        }
        (Left::Attached, true) => {
            let task = Task { holder: mine.clone(), reason: Cause::StillAttached };
            Decision { tasks: vec![task], ..Decision::new(24, releasing(record, mine), Reply::Later) }
        }
        (Left::Attached | Left::Nothing, false) => Decision::new(22, remove(record, id), Reply::Done),
        (Left::Nothing, true) => Decision::new(23, remove(record, id), Reply::Done),
    }
}

/// Decides a task, which says that a holder of this node is no longer needed.
fn clean_up(record: &Record, id: &str, epoch: u64, left: Left, evidence: &Evidence) -> Decision {
    let mine = record.holder(id);
    let pod = mine.map_or(PodState::Gone, |mine| evidence.of(mine).pod);
    match (mine, pod, left) {
        (Some(mine), ..) if mine.epoch != epoch => Decision::new(25, Write::Nothing, Reply::Obsolete),
        (_, PodState::Present, _) => Decision::new(25, Write::Nothing, Reply::Obsolete),
        (_, PodState::Unknown | PodState::Terminating, _) => Decision::new(26, Write::Nothing, Reply::Later),
        (_, PodState::Gone, Left::Attached | Left::Mounted) => Decision::new(26, Write::Nothing, Reply::Undo),
        (_, PodState::Gone, Left::Nothing) => Decision::new(26, remove(record, id), Reply::Done),
    }
}

/// Decides a return. Volumes of another epoch may not be served: another holder may have written
/// since. The record is written even if it is kept, for the same reason as in [`again`].
fn came_back(record: &Record, id: &str, epoch: u64, agent: &str) -> Decision {
    let Some(mine) = record.holder(id).filter(|mine| mine.epoch == epoch) else {
        return Decision::new(27, Write::Nothing, Reply::Undo);
    };
    let next = Holder { agent: agent.to_owned(), ..mine.clone() };
    let write = Write::Put(with(record, next));
    Decision::new(27, write, Reply::Keep)
}

fn delete(record: &Record) -> Decision {
    match record.holders.first() {
        Some(holder) => Decision::refuse(28, Reason::Held, Some(holder)),
        None => Decision::new(28, Write::Delete, Reply::Done),
    }
}

/// Reports whether no other holder is on the same node.
fn is_last(record: &Record, mine: &Holder) -> bool {
    record.holders.iter().all(|holder| holder.id == mine.id || !holder.node.is_same(&mine.node))
}

fn releasing(record: &Record, mine: &Holder) -> Write {
    if mine.phase == Phase::Releasing {
        return Write::Nothing;
    }
    Write::Put(with(record, Holder { phase: Phase::Releasing, ..mine.clone() }))
}

fn remove(record: &Record, id: &str) -> Write {
    let next = without(record, id);
    match record.holder(id) {
        None => Write::Nothing,
        Some(_) if next.is_nothing() => Write::Delete,
        Some(_) => Write::Put(next),
    }
}

fn without(record: &Record, id: &str) -> Record {
    let mut next = record.clone();
    next.holders.retain(|holder| holder.id != id);
    next
}

/// Returns the record with this holder, in place of the one with the same id.
fn with(record: &Record, holder: Holder) -> Record {
    let mut next = record.clone();
    match next.holders.iter_mut().find(|known| known.id == holder.id) {
        Some(known) => *known = holder,
        None => next.holders.push(holder),
    }
    next
}
