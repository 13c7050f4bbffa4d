//! Reads, decides and writes. Retries if another node was faster or the store did not answer.

use super::decide::{Decision, Reply, Write, decide};
use super::evidence::{Evidence, Fence};
use super::record::{Holder, Record};
use super::request::Request;
use super::sharing::Sharing;
use super::store::{Read, RecordStore, StoreError};
use flexvol_protocol::backoff;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Limit for the tries of a request. After a conflict it is decided again.
const TRIES: u32 = 12;

/// Pause before the second try; doubled before each further try.
const PAUSE: Duration = Duration::from_millis(5);

/// Longest pause between two tries.
const LONGEST_PAUSE: Duration = Duration::from_millis(320);

/// Source of evidence about nodes and pods. It can also tell the storage to fence a node.
pub trait Witness {
    /// Returns the current evidence about the holders of a record.
    fn look(&self, record: &Record) -> Evidence;

    /// Tells the storage to reject the writes of a holder's node.
    fn fence(&self, holder: &Holder) -> Fence;

    /// Waits before the next try.
    fn pause(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Decides a request and writes the decision, before `deadline`.
///
/// # Errors
///
/// Fails if nothing was written, or if that is unknown: then the caller must repeat the same
/// request to find out.
pub fn settle(
    store: &dyn RecordStore,
    handle: &str,
    request: &Request,
    witness: &dyn Witness,
    deadline: Instant,
) -> Result<Decision, StoreError> {
    let mut fences = BTreeMap::new();
    let mut last = StoreError::Conflict;
    for turn in 0..TRIES {
        if turn > 0 {
            witness.pause(pause_before(turn, deadline));
        }
        let read = match request {
            Request::Mount { sharing: Sharing::Exclusive, .. } if turn == 0 => store.unread(),
            _ => None,
        };
        match attempt(store, handle, request, (read, witness), (&mut fences, deadline)) {
            Err(error @ StoreError::Failed(_)) => return Err(error),
            Err(error) => last = error,
            Ok(decision) => return Ok(decision),
        }
        if Instant::now() >= deadline {
            break;
        }
    }
    Err(last)
}

/// Returns a pause that differs between two nodes that have lost to each other.
fn pause_before(turn: u32, deadline: Instant) -> Duration {
    let longest = backoff(PAUSE, LONGEST_PAUSE, turn);
    // The current time is random enough.
    let part = f64::from(longest.subsec_nanos() / 2 + now_nanos() % (longest.subsec_nanos() / 2 + 1));
    let left = deadline.saturating_duration_since(Instant::now());
    Duration::from_secs_f64(part / 1e9).min(left)
}

fn now_nanos() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(0, |now| now.subsec_nanos())
}

fn attempt(
    store: &dyn RecordStore,
    handle: &str,
    request: &Request,
    (read, witness): (Option<Read>, &dyn Witness),
    (fences, deadline): (&mut BTreeMap<String, Fence>, Instant),
) -> Result<Decision, StoreError> {
    let read = read.map_or_else(|| store.read(handle, deadline), Ok)?;
    let decision = consider(&read, handle, request, witness, fences);
    for task in &decision.tasks {
        store.note(task, deadline)?;
    }
    let next = match &decision.write {
        Write::Nothing => return Ok(decision),
        Write::Put(next) => Some(next),
        Write::Delete if read.record.is_none() => return Ok(decision),
        Write::Delete => None,
    };
    store.write(handle, &read, next, deadline).map(|()| decision)
}

/// Decides, and fences nodes if the decision requires it. The evidence is collected after the
/// record was read, so that it is not older.
fn consider(
    read: &Read,
    handle: &str,
    request: &Request,
    witness: &dyn Witness,
    fences: &mut BTreeMap<String, Fence>,
) -> Decision {
    let seen = read.record.as_ref().map(|record| witness.look(record)).unwrap_or_default();
    let mut evidence = seen.with(read.ending);
    loop {
        for (id, fence) in &*fences {
            evidence.sights.entry(id.clone()).or_default().fence = *fence;
        }
        let decision = decide(handle, read.record.as_ref(), request, &evidence);
        let Reply::FenceFirst(ids) = &decision.reply else { return decision };
        let holders = read.record.iter().flat_map(|record| &record.holders);
        for holder in holders.filter(|holder| ids.contains(&holder.id)) {
            let fence = match witness.fence(holder) {
                // Otherwise this fence would be requested for ever.
                Fence::NotTried => Fence::Unsupported,
                fence => fence,
            };
            fences.insert(holder.id.clone(), fence);
        }
    }
}
