//! `flexvold controller`: takes storage from nodes that cannot write any more, so that the pods
//! which wait for it on others can have it.
//!
//! ```text
//! API server ── watches ─▶ locks, nodes, pods ─▶ is a review due? ─▶ read, ask, decide ─▶ write
//!                           in memory             (no request)        (the API server again)
//! ```
//!
//! No agent may do it: a policy of the API server lets each change what its own node holds alone.
//! One of several controllers works, by a Lease; two at once would do no harm, because each write
//! is compared with what was read, and what breaks a hold stays true ([`seen`]). Who waits hears
//! from the agent of its own node why it does.

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

/// By which one of several works.
pub const LEASE: &str = "flexvol-controller";

/// Reviews at the same time.
const AT_ONCE: usize = 8;

/// How long one may take.
const REVIEW: Duration = Duration::from_secs(30);

/// All tasks are asked for, page by page.
const TASKS: Duration = Duration::from_mins(2);

/// All is looked at so often, whatever was told.
const DAY: Duration = Duration::from_hours(24);

/// After what failed.
const AGAIN: Duration = Duration::from_mins(5);

/// What a controller is started with.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "a client of the API server has none")]
pub struct Setup {
    /// The API server.
    pub clients: Clients,
    /// Where the locks are, and the lease.
    pub namespace: String,
    /// Who holds the lease: a name that no other process has.
    pub identity: String,
    /// Who decides.
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
    // A review that has begun ends by itself, and does no harm beside another controller.
    working.shutdown().await;
    if lost.is_ok() {
        election.release().await;
    }
    lost
}

/// Until it is dropped.
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

/// At the start, when a node has gone, and once a day.
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
            // Until they have been gone for long enough.
            Ok(Ok(true)) => reviewer.rules.gone_grace,
            _ => AGAIN,
        };
        tokio::select! {
            () = tokio::time::sleep(again) => (),
            () = live.gone.notified() => (),
        }
    }
}
