//! Reports to the scheduler how much storage a driver has, and where, like upstream's
//! external-provisioner with `--enable-capacity`.
//!
//! One `CSIStorageCapacity` exists for each pair of a `StorageClass` whose claims wait for their
//! first pod and a segment of the driver's topology. The driver is asked when a pair is new, when a
//! volume was made or deleted there, and periodically. The API server is not asked for this; it
//! gets only changes. Objects that belong to no pair are deleted if they have our labels, which are
//! upstream's.

use super::api;
use super::capacity::{amount, bytes};
use super::driver::{Driver, failed, in_words, within};
use super::kinds::{Node, Pod, ReplicaSet, StorageCapacity};
use super::queue::{self, Outcome, Queue, Version};
use super::topology::{self, Nodes, Segment};
use super::volumes::PersistentVolume;
use super::watches::{Change, Listener, Watches};
use crate::wire::csi::{GetCapacityRequest, GetCapacityResponse, Topology};
use flexvol_protocol::ordered::filled;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

/// Limit for simultaneous calls of the driver: a call that hangs does not block the others.
const WORKERS: usize = 4;

/// Pause after a change of nodes: many change at a time, and are evaluated together.
const SETTLED: Duration = Duration::from_millis(200);

/// Pause before the API server is asked again for the owner of the objects.
const AGAIN: Duration = Duration::from_secs(5);

const DRIVER: &str = "csi.storage.k8s.io/drivername";
const MANAGER: &str = "csi.storage.k8s.io/managed-by";

/// Value of upstream's label, so that each can continue the other's work.
const MANAGED_BY: &str = "external-provisioner";

/// Settings for reporting capacity.
#[derive(Clone, Debug)]
pub struct Telling {
    /// Namespace of the objects.
    pub namespace: String,
    /// Name of our pod, whose owner also owns the objects.
    pub pod: Option<String>,
    /// Period of asking the driver.
    pub period: Duration,
}

/// `StorageClass`, and a segment of the topology.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Pair {
    class: String,
    segment: Segment,
}

/// Pairs that turned out to be full: they have less storage than reported.
#[derive(Debug, Default)]
pub struct Full {
    pairs: Mutex<BTreeSet<Pair>>,
    found: Notify,
}

impl Full {
    /// Records that a class has no room in the segment where a claim's first pod is to run.
    pub fn add(&self, class: &str, segment: Segment) {
        lock(&self.pairs).insert(Pair { class: class.to_owned(), segment });
        self.found.notify_one();
    }
}

/// Key in the work queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    /// Ask for the capacity of a pair, and write it.
    Ask(Pair),
    /// Delete the objects of a pair that are of no use.
    Clear(Pair),
}

/// Capacities of one driver.
struct Capacities {
    client: Client,
    driver: Driver,
    timeout: Duration,
    telling: Telling,
    owner: Option<OwnerReference>,
    watches: Watches,
    queue: Arc<Queue<Key>>,
    /// Segments of the driver's nodes; empty before all objects are known.
    segments: Mutex<BTreeSet<Segment>>,
    /// Names of our objects, with their pairs.
    objects: Mutex<BTreeSet<(Pair, String)>>,
    /// Signal that nodes have changed.
    moved: Notify,
}

/// Subscriptions to the object caches: they end when this is dropped.
type Told = (
    Listener<StorageCapacity>,
    Listener<StorageClass>,
    Listener<PersistentVolume>,
    Listener<CSINode>,
    Listener<Node>,
);

/// Reports capacity until it is dropped.
pub async fn run(
    client: Client,
    watches: Watches,
    driver: Driver,
    telling: Telling,
    timeout: Duration,
    full: Arc<Full>,
) {
    while !driver.known().await.tells_capacity {
        tracing::warn!(driver = driver.name, "the driver has no GET_CAPACITY: its capacity is not told");
        sleep(telling.period).await;
    }
    let owner = owner(&client, &telling).await;
    let capacities = Arc::new(Capacities::new(client, watches, driver, telling, timeout, owner));
    let _told = capacities.listen();
    capacities.known().await;
    // Every decision needs the segments: an object is of no use in a segment without nodes.
    capacities.replace();
    let (queue, again) = (Arc::clone(&capacities.queue), Arc::clone(&capacities));
    let working = queue::work(queue, WORKERS, move |key| Arc::clone(&capacities).sync(key));
    tokio::join!(working, again.ask_again(&full));
}

/// Returns the top-level owner of our pod: its Deployment, if it has one. Retries until it is
/// known.
async fn owner(client: &Client, telling: &Telling) -> Option<OwnerReference> {
    let pod = telling.pod.as_deref()?;
    loop {
        match owner_of(client, &telling.namespace, pod).await {
            Ok(owner) => return Some(owner),
            Err(error) => {
                tracing::warn!(pod, reason = api::reason(&error), "cannot read what owns the pod");
            }
        }
        sleep(AGAIN).await;
    }
}

async fn owner_of(client: &Client, namespace: &str, pod: &str) -> kube::Result<OwnerReference> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let pod = pods.get_metadata(pod).await?;
    let Some(owner) = controller(&pod.metadata) else {
        return Ok(OwnerReference { controller: Some(true), ..reference::<Pod>(&pod.metadata) });
    };
    if owner.kind != ReplicaSet::kind(&()) {
        return Ok(owner);
    }
    let sets: Api<ReplicaSet> = Api::namespaced(client.clone(), namespace);
    let set = sets.get_metadata(&owner.name).await?;
    Ok(controller(&set.metadata).unwrap_or(owner))
}

fn reference<K: Resource<DynamicType = ()>>(metadata: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
        ..OwnerReference::default()
    }
}

fn controller(metadata: &ObjectMeta) -> Option<OwnerReference> {
    let mut owners = metadata.owner_references.iter().flatten();
    let owner = owners.find(|owner| owner.controller == Some(true))?;
    Some(OwnerReference { block_owner_deletion: None, ..owner.clone() })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Capacities {
    fn new(
        client: Client,
        watches: Watches,
        driver: Driver,
        telling: Telling,
        timeout: Duration,
        owner: Option<OwnerReference>,
    ) -> Self {
        let (queue, segments, objects) = (Arc::default(), Mutex::default(), Mutex::default());
        let moved = Notify::new();
        Self { client, driver, timeout, telling, owner, watches, queue, segments, objects, moved }
    }

    fn listen(self: &Arc<Self>) -> Told {
        let told = || Arc::clone(self);
        let this = told();
        let objects: Listener<_> = Arc::new(move |change| this.object(change));
        let this = told();
        let classes: Listener<_> = Arc::new(move |change| this.class(change));
        let this = told();
        let volumes: Listener<_> = Arc::new(move |change| this.volume(change));
        let this = told();
        let csi_nodes: Listener<_> = Arc::new(move |change| this.csi_node(change));
        let this = told();
        let nodes: Listener<_> = Arc::new(move |change| this.node(change));
        self.begin();
        self.watches.capacities.listen(&objects);
        self.watches.classes.listen(&classes);
        self.watches.volumes.listen(&volumes);
        self.watches.csi_nodes.listen(&csi_nodes);
        self.watches.nodes.listen(&nodes);
        (objects, classes, volumes, csi_nodes, nodes)
    }

    fn begin(&self) {
        self.watches.capacities.begin_in(&self.client, &self.telling.namespace);
        self.watches.classes.begin(&self.client);
        self.watches.volumes.begin(&self.client);
        self.watches.csi_nodes.begin(&self.client);
        self.watches.nodes.begin(&self.client);
    }

    async fn known(&self) {
        self.watches.capacities.known().await;
        self.watches.classes.known().await;
        self.watches.volumes.known().await;
        self.watches.csi_nodes.known().await;
        self.watches.nodes.known().await;
    }

    /// Handles one of our objects: a deleted one may be needed, and a new one may be of no use.
    fn object(&self, change: &Change<StorageCapacity>) {
        let ours = |object: &Option<Arc<StorageCapacity>>| {
            let object = object.as_ref().filter(|object| self.is_ours(object))?;
            Some((pair(object), object.name_any()))
        };
        let (before, now) = (ours(&change.before), ours(&change.now));
        if before == now {
            return;
        }
        if let Some(gone) = before {
            lock(&self.objects).remove(&gone);
            self.queue.add(Key::Ask(gone.0));
        }
        if let Some(come) = now {
            self.queue.add(Key::Clear(come.0.clone()));
            lock(&self.objects).insert(come);
        }
    }

    fn class(&self, change: &Change<StorageClass>) {
        let Some(class) = change.latest() else { return };
        let name = class.name_any();
        self.ask(|_| true, |class| class.name_any() == name);
        self.clear(|pair| pair.class == name);
    }

    fn csi_node(&self, change: &Change<CSINode>) {
        let keys = |node: &Arc<CSINode>| topology::registered(node, &self.driver.name);
        if change.before.as_ref().and_then(keys) != change.now.as_ref().and_then(keys) {
            self.moved.notify_one();
        }
    }

    fn node(&self, change: &Change<Node>) {
        let labels = |node: &Option<Arc<Node>>| node.as_ref().map(|node| node.labels().clone());
        if labels(&change.before) != labels(&change.now) {
            self.moved.notify_one();
        }
    }

    /// Handles a volume: its creation or deletion has changed the capacity.
    fn volume(&self, change: &Change<PersistentVolume>) {
        let ((None, made) | (made, None)) = (&change.before, &change.now) else { return };
        let Some(spec) = made.as_ref().and_then(|volume| volume.spec.as_ref()) else { return };
        if spec.csi.as_ref().is_none_or(|source| source.driver != self.driver.name) {
            return;
        }
        let places = topology::places(spec.node_affinity.as_ref());
        if !places.is_empty() {
            self.ask(|segment| places.contains(segment), |_| true);
        } else if change.now.is_some() {
            self.ask(|_| true, |class| Some(class.name_any()) == spec.storage_class_name);
        }
    }

    /// Asks for all pairs periodically, for new segments, and for pairs that were found to be full.
    async fn ask_again(&self, full: &Full) {
        let mut due = Instant::now() + self.telling.period;
        loop {
            tokio::select! {
                () = sleep_until(due) => {
                    self.ask(|_| true, |_| true);
                    due = Instant::now() + self.telling.period;
                }
                () = self.moved.notified() => {
                    sleep(SETTLED).await;
                    self.replace();
                }
                () = full.found.notified() => self.ask_where(std::mem::take(&mut *lock(&full.pairs))),
            }
        }
    }

    /// Asks first for the pairs that were found to be full, then for all others that the scheduler
    /// may choose: it is about to choose another node.
    fn ask_where(&self, full: BTreeSet<Pair>) {
        let classes: BTreeSet<_> = filled(full.iter().map(|pair| pair.class.clone()));
        for pair in full {
            self.queue.add(Key::Ask(pair));
        }
        self.ask(|_| true, |class| classes.contains(&class.name_any()));
    }

    /// Computes the segments of the driver's nodes again, and queues the pairs that have changed.
    fn replace(&self) {
        let nodes = Nodes { nodes: self.watches.nodes.all(), csi_nodes: self.watches.csi_nodes.all() };
        let now = topology::segments(&self.driver.name, &nodes);
        let before = std::mem::replace(&mut *lock(&self.segments), now.clone());
        if now != before {
            self.ask(|segment| !before.contains(segment), |_| true);
            self.clear(|pair| !now.contains(&pair.segment));
        }
    }

    /// Queues questions to the driver for its capacity in some segments, for some classes.
    fn ask(&self, in_places: impl Fn(&Segment) -> bool, for_classes: impl Fn(&StorageClass) -> bool) {
        let classes = self.watches.classes.filtered(|class| self.waits(class) && for_classes(class));
        for segment in lock(&self.segments).iter().filter(|segment| in_places(segment)) {
            for class in &classes {
                self.queue.add(Key::Ask(Pair { class: class.name_any(), segment: segment.clone() }));
            }
        }
    }

    /// Queues checks whether objects are of use.
    fn clear(&self, concerned: impl Fn(&Pair) -> bool) {
        for (pair, _) in lock(&self.objects).iter().filter(|(pair, _)| concerned(pair)) {
            self.queue.add(Key::Clear(pair.clone()));
        }
    }

    fn is_ours(&self, object: &StorageCapacity) -> bool {
        let has = |key: &str, value: &str| object.labels().get(key).is_some_and(|label| label == value);
        object.metadata.namespace.as_ref() == Some(&self.telling.namespace)
            && has(DRIVER, &self.driver.name)
            && has(MANAGER, MANAGED_BY)
    }

    /// Reports whether claims of a class wait for their first pod: others need no capacity.
    fn waits(&self, class: &StorageClass) -> bool {
        class.provisioner == self.driver.name && class.volume_binding_mode.as_deref() != Some("Immediate")
    }

    /// Returns the class of a pair, as long as the pair is of use.
    fn class_of(&self, pair: &Pair) -> Option<Arc<StorageClass>> {
        let is_there = lock(&self.segments).contains(&pair.segment);
        self.watches.classes.get(&pair.class).filter(|class| is_there && self.waits(class))
    }

    /// Returns the objects of a pair, sorted by name: the first one is used.
    fn objects_of(&self, of: &Pair) -> Vec<Arc<StorageCapacity>> {
        let objects = lock(&self.objects);
        let from = objects.range((of.clone(), String::new())..);
        let names = from.take_while(|(pair, _)| pair == of).map(|(_, name)| name);
        names.filter_map(|name| self.watches.capacities.get_in(&self.telling.namespace, name)).collect()
    }

    async fn sync(self: Arc<Self>, key: Key) -> (Outcome, Version) {
        let outcome = match &key {
            Key::Ask(pair) => self.tell(pair).await,
            Key::Clear(pair) => self.delete(pair).await,
        };
        (outcome, 0)
    }

    async fn tell(&self, pair: &Pair) -> Outcome {
        let Some(class) = self.class_of(pair) else { return Outcome::Done };
        let request = GetCapacityRequest {
            parameters: class.parameters.clone().unwrap_or_default().into_iter().collect(),
            accessible_topology: Some(Topology { segments: pair.segment.clone().into_iter().collect() }),
            volume_capabilities: Vec::new(),
        };
        match self.driver.controller().get_capacity(within(request, self.timeout)).await {
            Ok(answer) => api::outcome(self.write(pair, &answer.into_inner()).await),
            Err(status) => {
                let reason = in_words(&failed(status));
                tracing::warn!(class = pair.class, segment = ?pair.segment, reason, "capacity is not known");
                Outcome::Failed
            }
        }
    }

    /// Writes the capacity of a pair if it has changed.
    async fn write(&self, pair: &Pair, is: &GetCapacityResponse) -> kube::Result<()> {
        let (capacity, largest) =
            (is.available_capacity.max(0), is.maximum_volume_size.map(|size| size.max(0)));
        let sizes = json!({ "capacity": amount(capacity), "maximumVolumeSize": largest.map(amount) });
        let written = match self.objects_of(pair).into_iter().next() {
            None => self.create(pair, sizes).await?,
            Some(object) => {
                let said = |size: Option<&_>| size.and_then(bytes);
                let is_said = said(object.capacity.as_ref()) == Some(capacity)
                    && said(object.maximum_volume_size.as_ref()) == largest;
                if is_said && self.missing_owner(&object).is_none() {
                    return Ok(());
                }
                self.change(&object, sizes).await?
            }
        };
        tracing::debug!(class = pair.class, segment = ?pair.segment, capacity, "capacity is told");
        self.watches.capacities.written(&Arc::new(written));
        Ok(())
    }

    fn missing_owner(&self, object: &StorageCapacity) -> Option<&OwnerReference> {
        let owner = self.owner.as_ref()?;
        let mut owners = object.metadata.owner_references.iter().flatten();
        owners.all(|each| each.uid != owner.uid || each.controller != Some(true)).then_some(owner)
    }

    async fn create(&self, pair: &Pair, mut object: Value) -> kube::Result<StorageCapacity> {
        let owners: Vec<_> = self.owner.iter().collect();
        object["metadata"] = json!({ "generateName": "csisc-", "ownerReferences": owners,
            "labels": { DRIVER: self.driver.name, MANAGER: MANAGED_BY } });
        object["storageClassName"] = json!(pair.class);
        object["nodeTopology"] = json!({ "matchLabels": pair.segment });
        let body = serde_json::to_vec(&object).map_err(kube::Error::SerdeError)?;
        let path = StorageCapacity::url_path(&(), Some(&self.telling.namespace));
        let request = kube::core::Request::new(path).create(&PostParams::default(), body);
        self.client.request(request.map_err(kube::Error::BuildRequest)?).await
    }

    async fn change(&self, object: &StorageCapacity, mut patch: Value) -> kube::Result<StorageCapacity> {
        patch["metadata"] = json!({ "resourceVersion": object.resource_version() });
        if let Some(owner) = self.missing_owner(object) {
            // An object has one controller, and is deleted when all its owners have gone.
            let others = object.metadata.owner_references.iter().flatten();
            let others = others.filter(|each| each.controller != Some(true) && each.uid != owner.uid);
            patch["metadata"]["ownerReferences"] = json!(others.chain([owner]).collect::<Vec<_>>());
        }
        self.api().patch(&object.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await
    }

    fn api(&self) -> Api<StorageCapacity> {
        Api::namespaced(self.client.clone(), &self.telling.namespace)
    }

    /// Deletes the objects of a pair that are of no use.
    async fn delete(&self, pair: &Pair) -> Outcome {
        let kept = usize::from(self.class_of(pair).is_some());
        for needless in self.objects_of(pair).iter().skip(kept) {
            let preconditions = Some(Preconditions { uid: needless.uid(), resource_version: None });
            let same = DeleteParams { preconditions, ..DeleteParams::default() };
            if api::outcome(self.api().delete(&needless.name_any(), &same).await) == Outcome::Failed {
                return Outcome::Failed;
            }
        }
        Outcome::Done
    }
}

fn pair(object: &StorageCapacity) -> Pair {
    Pair { class: object.storage_class_name.clone(), segment: object.segment().clone() }
}
