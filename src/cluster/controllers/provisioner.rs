//! Makes and deletes volumes for a CSI driver, as claims ask for it: what upstream's
//! external-provisioner does.
//!
//! [`claim`] and [`reclaim`] decide; here the step is carried out. A plan is kept from before the
//! driver is asked until it is known what became of it: the same is asked again, also for a claim
//! that was deleted meanwhile, whose volume then comes into being, is Released, and is deleted.
//! After a restart the claim itself is asked: its uid makes the same name. What was asked for a
//! claim that is deleted while no process leads is unknown to the next, as it is to upstream's.

mod deleting;
mod making;
#[cfg(test)]
mod tests;

use super::creation::Plan;
use super::driver::Driver;
use super::events::Events;
use super::queue::Queue;
use super::watches::{Change, objects, watch};
use super::{claim, reclaim};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, ResourceExt as _};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tracing::Instrument as _;

/// Calls of the driver at the same time, as many as upstream has.
const WORKERS: usize = 100;

/// What there is to look at.
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
    timeout: Duration,
    events: Events,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    classes: Store<StorageClass>,
    attachments: Store<VolumeAttachment>,
    csi_nodes: Store<CSINode>,
    nodes: Store<Node>,
    /// Whether nodes are watched: topology matters to the driver.
    placed: bool,
    queue: Queue<Key>,
    /// What the driver was asked and may be doing, by the uid of the claim.
    begun: Mutex<HashMap<String, Arc<Plan>>>,
}

/// Where what is watched is written.
struct Writers {
    claims: Writer<PersistentVolumeClaim>,
    volumes: Writer<PersistentVolume>,
    classes: Writer<StorageClass>,
    attachments: Writer<VolumeAttachment>,
    csi_nodes: Writer<CSINode>,
    nodes: Writer<Node>,
}

/// Makes and deletes volumes until it is dropped. `identity` is this process.
pub async fn run(client: Client, driver: Driver, identity: String, timeout: Duration) {
    let placed = driver.known().await.topology;
    let (provisioner, writers) = Provisioner::new(client, driver, identity, timeout, placed);
    let provisioner = Arc::new(provisioner);
    let mut tasks = JoinSet::new();
    provisioner.watch(writers, &mut tasks);
    provisioner.wait_until_known().await;
    for _ in 0..WORKERS {
        tasks.spawn(Arc::clone(&provisioner).work());
    }
    while tasks.join_next().await.is_some() {}
}

impl Provisioner {
    fn new(
        client: Client,
        driver: Driver,
        identity: String,
        timeout: Duration,
        placed: bool,
    ) -> (Self, Writers) {
        let (claims, write_claims) = objects();
        let (volumes, write_volumes) = objects();
        let (classes, write_classes) = objects();
        let (attachments, write_attachments) = objects();
        let (csi_nodes, write_csi_nodes) = objects();
        let (nodes, write_nodes) = objects();
        let events = Events::new(client.clone(), format!("{}_{identity}", driver.name));
        let (queue, begun) = (Queue::default(), Mutex::default());
        let provisioner = Self {
            client,
            driver,
            identity,
            timeout,
            events,
            claims,
            volumes,
            classes,
            attachments,
            csi_nodes,
            nodes,
            placed,
            queue,
            begun,
        };
        let writers = Writers {
            claims: write_claims,
            volumes: write_volumes,
            classes: write_classes,
            attachments: write_attachments,
            csi_nodes: write_csi_nodes,
            nodes: write_nodes,
        };
        (provisioner, writers)
    }

    fn watch(self: &Arc<Self>, writers: Writers, tasks: &mut JoinSet<()>) {
        let client = || self.client.clone();
        let told = || Arc::clone(self);
        let this = told();
        tasks.spawn(watch(Api::all(client()), writers.claims, move |change| this.claim(change)));
        let this = told();
        tasks.spawn(watch(Api::all(client()), writers.volumes, move |change| this.volume(change)));
        let this = told();
        tasks.spawn(watch(Api::all(client()), writers.classes, move |change| this.class(change)));
        let this = told();
        tasks.spawn(watch(Api::all(client()), writers.attachments, move |change| this.attachment(change)));
        if self.placed {
            let this = told();
            tasks.spawn(watch(Api::all(client()), writers.csi_nodes, move |change| this.csi_node(change)));
            tasks.spawn(watch(Api::all(client()), writers.nodes, |_| ()));
        }
    }

    /// Nothing is decided before everything was heard once.
    async fn wait_until_known(&self) {
        // They end with the watches, and so does this.
        let _ = self.claims.wait_until_ready().await;
        let _ = self.volumes.wait_until_ready().await;
        let _ = self.classes.wait_until_ready().await;
        let _ = self.attachments.wait_until_ready().await;
        if self.placed {
            let _ = self.csi_nodes.wait_until_ready().await;
            let _ = self.nodes.wait_until_ready().await;
        }
    }

    fn claim(&self, change: &Change<PersistentVolumeClaim>) {
        if let Some(claim) = change.now.as_ref().filter(|claim| claim::is_asked(claim, &self.driver.name)) {
            self.queue.add(key(claim));
        }
    }

    fn volume(&self, change: &Change<PersistentVolume>) {
        if let Some(volume) = change.now.as_ref().filter(|volume| reclaim::is_ours(volume, &self.driver.name))
        {
            self.queue.add(Key::Volume(volume.name_any()));
        }
    }

    /// It may be what claims wait for.
    fn class(&self, change: &Change<StorageClass>) {
        if let (None, Some(class)) = (&change.before, &change.now) {
            let name = class.name_any();
            self.wake(|claim| claim::class_of(claim) == name);
        }
    }

    /// Nodes of a driver may be what claims wait for.
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
        for claim in self.claims.state_filter(waits) {
            self.queue.add(key(&claim));
        }
    }

    /// One that has gone may be what a volume waits for that is to be deleted.
    fn attachment(&self, change: &Change<VolumeAttachment>) {
        if let (Some(before), None) = (&change.before, &change.now) {
            let name = before.spec.source.persistent_volume_name.as_deref().unwrap_or_default();
            let volume = self.volumes.get(&ObjectRef::new(name));
            if volume.is_some_and(|volume| reclaim::is_ours(&volume, &self.driver.name)) {
                self.queue.add(Key::Volume(name.to_owned()));
            }
        }
    }

    async fn work(self: Arc<Self>) {
        loop {
            let key = self.queue.next().await;
            let driver = self.driver.name.as_str();
            let outcome = match &key {
                Key::Claim { namespace, name, uid } => {
                    let span = tracing::info_span!("claim", driver, namespace, name);
                    self.sync_claim(namespace, name, uid).instrument(span).await
                }
                Key::Volume(name) => {
                    let span = tracing::info_span!("volume", driver, name);
                    self.sync_volume(name).instrument(span).await
                }
            };
            self.queue.finish(key, outcome);
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
