//! `flexvold controller`: removes the locks of nodes that can no longer write, so that waiting pods
//! on other nodes get the storage.
//!
//! ```text
//! API server ── watches ─▶ locks, nodes, pods ─▶ is a review due? ─▶ read, ask, decide ─▶ write
//!                           in memory             (no request)        (the API server again)
//! ```
//!
//! Agents may not do this: a policy of the API server lets each agent change only the holders of
//! its own node. A Lease selects one of several controllers. Two active ones would do no harm: each
//! write is compared with the record that was read, and the facts that break a lock stay true
//! ([`seen`]). A waiting pod gets the reason for its wait from the agent of its own node.

pub mod asking;
pub mod kinds;
mod live;
pub mod review;
pub mod seen;

#[cfg(test)]
mod tests;

use crate::controllers::lease::Election;
use crate::controllers::queue::{Outcome, Queue, UNSEEN, Version, work};
use crate::controllers::requests::Clients;
use crate::controllers::watches::version;
use crate::fence::record::Holder;
use anyhow::Result;
use kube::Api;
use live::{Keys, Live};
use review::Reviewer;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

/// Name of the Lease that selects the active controller.
pub const LEASE: &str = "flexvol-controller";

/// Limit for parallel reviews.
const AT_ONCE: usize = 8;

/// Deadline for one review.
const REVIEW: Duration = Duration::from_secs(30);

/// Deadline for one check of all tasks, which are read page by page.
const TASKS: Duration = Duration::from_mins(2);

/// Pause between two checks of all locks and tasks, independent of reported changes.
const DAY: Duration = Duration::from_hours(24);

/// Pause after a failed check of the tasks.
const AGAIN: Duration = Duration::from_mins(5);

/// Settings of a controller.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a client of the API server has none")]
pub struct Setup {
    /// Clients of the API server.
    pub clients: Clients,
    /// Namespace of the locks and of the lease.
    pub namespace: String,
    /// Name of this process as a holder of the lease; no other process has it.
    pub identity: String,
    /// Reviewer of the locks.
    pub reviewer: Arc<Reviewer>,
}

/// Works until SIGTERM or SIGINT, or until the lease is lost.
pub async fn run(setup: Setup) -> Result<()> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let leases = Api::namespaced(setup.clients.leases.clone(), &setup.namespace);
    let mut election = Election::new(leases, LEASE.to_owned(), setup.identity.clone());
    let ended = async {
        tokio::select! {
            _ = terminate.recv() => (),
            _ = interrupt.recv() => (),
        }
    };
    tokio::pin!(ended);
    tokio::select! {
        () = election.win() => (),
        () = &mut ended => return Ok(()),
    }
    let mut working = JoinSet::new();
    working.spawn(lead(setup));
    let lost = tokio::select! {
        lost = election.hold() => lost,
        () = ended => Ok(()),
    };
    // A review that has begun runs to its end, and does no harm next to another controller.
    working.shutdown().await;
    if lost.is_ok() {
        election.release().await;
    }
    lost
}

/// Works until the future is dropped.
async fn lead(setup: Setup) {
    let live = Live::begin(&setup.clients.objects, &setup.namespace).await;
    let queue: Arc<Keys> = Arc::new(Queue::default());
    let _listening = live.listen(&queue);
    let reviewer = &setup.reviewer;
    let working =
        work(Arc::clone(&queue), AT_ONCE, |key| look_at(Arc::clone(&live), Arc::clone(reviewer), key));
    tokio::join!(working, look_at_all(&live, &queue), close_tasks(&live, reviewer));
}

async fn look_at(live: Arc<Live>, reviewer: Arc<Reviewer>, key: String) -> (Outcome, Version) {
    let Some((namespace, name)) = key.split_once('/') else { return (Outcome::Done, UNSEEN) };
    let Some(lock) = live.locks.get_in(namespace, name) else { return (Outcome::Done, 0) };
    let version = version(&*lock);
    let Some(record) = lock.spec.clone() else { return (Outcome::Done, version) };
    if !reviewer.is_due(&record, lock.ending(), &*live) {
        return (Outcome::Done, version);
    }
    let handle = record.handle.clone();
    let reviewing =
        tokio::task::spawn_blocking(move || reviewer.review(&record.handle, Instant::now() + REVIEW));
    let outcome = match reviewing.await {
        Ok(Ok(done)) => {
            done.removed.iter().for_each(|holder| tell(&handle, holder));
            if done.waits { Outcome::Refused } else { Outcome::Done }
        }
        Ok(Err(error)) => {
            tracing::warn!(handle, reason = %error, "not reviewed");
            Outcome::Failed
        }
        Err(_) => Outcome::Failed,
    };
    (outcome, version)
}

fn tell(handle: &str, holder: &Holder) {
    let (node, pod) = (&holder.node.name, format!("{}/{}", holder.pod.namespace, holder.pod.name));
    tracing::warn!(handle, node, pod, "taken from a node that cannot write any more");
}

async fn look_at_all(live: &Live, queue: &Keys) {
    loop {
        tokio::time::sleep(DAY).await;
        live.locks.all().iter().for_each(|lock| queue.add(live::key(&**lock)));
    }
}

/// Closes tasks at the start, when a node has disappeared, and once a day.
async fn close_tasks(live: &Arc<Live>, reviewer: &Arc<Reviewer>) {
    loop {
        let (closing, known) = (Arc::clone(reviewer), Arc::clone(live));
        let close = move || closing.close_tasks(&|node| known.holds(node), Instant::now() + TASKS);
        let closed = tokio::task::spawn_blocking(close).await;
        if let Ok(Err(error)) = &closed {
            tracing::warn!(reason = %error, "tasks of nodes that are gone stay");
        }
        let again = match closed {
            Ok(Ok(false)) => DAY,
            // Wait until these nodes have been gone for long enough.
            Ok(Ok(true)) => reviewer.rules.gone_grace,
            _ => AGAIN,
        };
        tokio::select! {
            () = tokio::time::sleep(again) => (),
            () = live.gone.notified() => (),
        }
    }
}
