//! Provisioner: makes and deletes the volumes of a CSI driver as claims request, like upstream's
//! external-provisioner.
//!
//! [`claim`] and [`reclaim`] decide on a step; this module carries it out. A plan is kept from
//! before the call of the driver until its result is known. Retries ask exactly the same, even for
//! a claim that was deleted meanwhile: its volume is then created, is Released, and is deleted.
//! After a restart the claim itself is used: its uid gives the same name. If a claim is deleted
//! while no process leads, the next one does not know of its request, as with upstream's.

mod deleting;
mod making;
#[cfg(test)]
mod tests;

use super::capacities::Full;
use super::creation::Plan;
use super::driver::{Driver, TURN};
use super::events::Events;
use super::queue::{self, Outcome, Queue, Version};
use super::volumes::{PersistentVolume, VolumeAttachment};
use super::watches::{Change, Listener, Watches, version};
use super::wishes::Wishes;
use super::{attachment, claim, reclaim};
use crate::turns::Turns;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::{Client, ResourceExt as _};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracing::Instrument as _;

/// Limit for calls of the driver that begin at the same time, as many as upstream has.
const TURNS: usize = 100;

/// Key in the work queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Claim { namespace: String, name: String, uid: String },
    Volume(String),
}

/// The provisioner of one driver.
struct Provisioner {
    client: Client,
    driver: Driver,
    identity: String,
    wishes: Arc<Wishes>,
    turns: Turns,
    timeout: Duration,
    events: Events,
    watches: Watches,
    /// True if nodes are watched, because the driver has topology.
    placed: bool,
    /// The attacher's finalizer, if this process attaches volumes as well. Each write or removal of
    /// it together with the PersistentVolume saves a request.
    attacher: Option<String>,
    queue: Arc<Queue<Key>>,
    /// Calls that the driver may still be carrying out, by the uid of the claim.
    begun: Mutex<HashMap<String, Arc<Plan>>>,
    full: Arc<Full>,
}

/// Subscriptions to the object caches: they end when this is dropped.
type Told = (
    Listener<PersistentVolumeClaim>,
    Listener<PersistentVolume>,
    Listener<StorageClass>,
    Listener<VolumeAttachment>,
    Listener<CSINode>,
);

/// Makes and deletes volumes until it is dropped. `identity` is the name of this process.
pub async fn run(
    client: Client,
    watches: Watches,
    driver: Driver,
    identity: String,
    timeout: Duration,
    (full, wishes, beside_attacher): (Arc<Full>, Arc<Wishes>, bool),
) {
    let facts = driver.known().await;
    let provisioner = Provisioner::new(client, watches, driver, identity, timeout, facts.topology);
    let attacher = (beside_attacher && facts.publishes).then(|| attachment::finalizer(&facts.name));
    let provisioner = Arc::new(Provisioner { wishes, attacher, full, ..provisioner });
    let _told = provisioner.listen();
    provisioner.known().await;
    let queue = Arc::clone(&provisioner.queue);
    queue::work(queue, queue::MANY, move |key| Arc::clone(&provisioner).sync(key)).await;
}

impl Provisioner {
    fn new(
        client: Client,
        watches: Watches,
        driver: Driver,
        identity: String,
        timeout: Duration,
        placed: bool,
    ) -> Self {
        let events = Events::new(client.clone(), format!("{}_{identity}", driver.name));
        let (attacher, queue, begun, full) = (None, Arc::default(), Mutex::default(), Arc::default());
        Self {
            client,
            driver,
            identity,
            wishes: Arc::default(),
            turns: Turns::new(TURNS, TURN),
            timeout,
            events,
            watches,
            placed,
            attacher,
            queue,
            begun,
            full,
        }
    }

    fn listen(self: &Arc<Self>) -> Told {
        let told = || Arc::clone(self);
        let this = told();
        let claims: Listener<_> = Arc::new(move |change| this.claim(change));
        let this = told();
        let volumes: Listener<_> = Arc::new(move |change| this.volume(change));
        let this = told();
        let classes: Listener<_> = Arc::new(move |change| this.class(change));
        let this = told();
        let attachments: Listener<_> = Arc::new(move |change| this.attachment(change));
        let this = told();
        let csi_nodes: Listener<_> = Arc::new(move |change| this.csi_node(change));
        self.begin();
        self.watches.claims.listen(&claims);
        self.watches.volumes.listen(&volumes);
        self.watches.classes.listen(&classes);
        self.watches.attachments.listen(&attachments);
        self.watches.csi_nodes.listen(&csi_nodes);
        (claims, volumes, classes, attachments, csi_nodes)
    }

    fn begin(&self) {
        self.watches.claims.begin(&self.client);
        self.watches.volumes.begin(&self.client);
        self.watches.classes.begin(&self.client);
        self.watches.attachments.begin(&self.client);
        if self.placed {
            self.watches.csi_nodes.begin(&self.client);
            self.watches.nodes.begin(&self.client);
        }
    }

    /// Waits until all objects are known: nothing is decided earlier.
    async fn known(&self) {
        self.watches.claims.known().await;
        self.watches.volumes.known().await;
        self.watches.classes.known().await;
        self.watches.attachments.known().await;
        if self.placed {
            self.watches.csi_nodes.known().await;
            self.watches.nodes.known().await;
        }
    }

    fn claim(&self, change: &Change<PersistentVolumeClaim>) {
        if let Some(claim) = change.now.as_ref().filter(|claim| claim::is_asked(claim, &self.driver.name)) {
            self.queue.add_seen_by(key(claim), version(&**claim));
        }
    }

    fn volume(&self, change: &Change<PersistentVolume>) {
        if let Some(volume) = change.now.as_ref().filter(|volume| reclaim::is_ours(volume, &self.driver.name))
        {
            self.queue.add_seen_by(Key::Volume(volume.name_any()), version(&**volume));
        }
    }

    /// Handles a class: claims may wait for it.
    fn class(&self, change: &Change<StorageClass>) {
        if let (None, Some(class)) = (&change.before, &change.now) {
            let name = class.name_any();
            self.wake(|claim| claim::class_of(claim) == name);
        }
    }

    /// Handles a node: claims may wait until the driver has registered on it.
    fn csi_node(&self, change: &Change<CSINode>) {
        let Some(node) = &change.now else { return };
        let registered =
            |node: &CSINode| node.spec.drivers.iter().find(|driver| driver.name == self.driver.name).cloned();
        if registered(node) != change.before.as_deref().and_then(registered) {
            self.wake(|_| true);
        }
    }

    fn wake(&self, concerned: impl Fn(&PersistentVolumeClaim) -> bool) {
        let waits =
            |claim: &PersistentVolumeClaim| claim::is_asked(claim, &self.driver.name) && concerned(claim);
        for claim in self.watches.claims.filtered(waits) {
            self.queue.add(key(&claim));
        }
    }

    /// Handles an attachment: a volume may wait for its end before it is deleted.
    fn attachment(&self, change: &Change<VolumeAttachment>) {
        if let (Some(before), None) = (&change.before, &change.now) {
            let name = before.spec.source.persistent_volume_name.as_deref().unwrap_or_default();
            let volume = self.watches.volumes.get(name);
            if volume.is_some_and(|volume| reclaim::is_ours(&volume, &self.driver.name)) {
                self.queue.add(Key::Volume(name.to_owned()));
            }
        }
    }

    async fn sync(self: Arc<Self>, key: Key) -> (Outcome, Version) {
        let driver = self.driver.name.as_str();
        match &key {
            Key::Claim { namespace, name, uid } => {
                let span = tracing::info_span!("claim", driver, namespace, name);
                (self.sync_claim(namespace, name, uid).instrument(span).await, 0)
            }
            Key::Volume(name) => {
                let span = tracing::info_span!("volume", driver, name);
                self.sync_volume(name).instrument(span).await
            }
        }
    }

    fn begun(&self) -> MutexGuard<'_, HashMap<String, Arc<Plan>>> {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(claim: &PersistentVolumeClaim) -> Key {
    Key::Claim {
        namespace: claim.namespace().unwrap_or_default(),
        name: claim.name_any(),
        uid: claim.uid().unwrap_or_default(),
    }
}
