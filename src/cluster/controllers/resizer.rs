//! Resizer: grows the volumes of a CSI driver as claims request, like upstream's external-resizer.
//!
//! [`expansion`] decides on a step and its patches; this module carries it out. The growth is
//! written down before the driver is asked. So after a lost answer, and in another process, the
//! same is asked again until the result is known.

use super::access;
use super::api::{self, secrets};
use super::capacity::{amount, bytes};
use super::driver::{Driver, Facts, TURN, failed, in_words};
use super::events::{Events, Kind};
use super::expansion::{self, Fate, Growth, Memory, SIZE_BEFORE, Seen, Step, fate};
use super::kinds::Pod;
use super::queue::{self, Outcome, Queue, Version};
use super::volumes::PersistentVolume;
use super::watches::{Change, Listener, Watches, version};
use crate::turns::Turns;
use crate::wire::csi::{CapacityRange, ControllerExpandVolumeRequest};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;
use tracing::Instrument as _;

/// Limit for calls of the driver that begin at the same time, as many as upstream has.
const TURNS: usize = 10;

/// Pause before an impossible growth is requested again.
const LATER: Duration = Duration::from_mins(5);

/// Limit for steps: forget, begin and expand, and the same for a growth that begins meanwhile.
const STEPS: usize = 6;

/// Namespace and name of a claim.
type Key = (String, String);

/// Reason why a volume has not grown.
enum Failure {
    /// The driver failed, or the connection to it.
    Driver(Status),
    /// Message: the driver was not asked.
    Said(String),
}

impl Failure {
    fn words(&self) -> String {
        match self {
            Self::Driver(status) => in_words(status),
            Self::Said(sentence) => sentence.clone(),
        }
    }

    fn fate(&self) -> Fate {
        match self {
            Self::Driver(status) => fate(status),
            // The result of an earlier call is unknown.
            Self::Said(_) => Fate::Unknown,
        }
    }
}

/// Facts about a claim's last growth.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    failed: bool,
    infeasible: Option<Instant>,
    in_use: bool,
}

/// The resizer of one driver.
struct Resizer {
    client: Client,
    driver: Driver,
    turns: Turns,
    timeout: Duration,
    events: Events,
    watches: Watches,
    queue: Arc<Queue<Key>>,
    /// Facts about the last growth, by the claim's uid.
    known: Mutex<HashMap<String, Known>>,
}

/// Grows volumes until it is dropped.
pub async fn run(client: Client, watches: Watches, driver: Driver, timeout: Duration) {
    let events = Events::new(client.clone(), format!("external-resizer {}", driver.name));
    let (turns, queue, known) = (Turns::new(TURNS, TURN), Arc::default(), Mutex::default());
    let resizer = Arc::new(Resizer { client, driver, turns, timeout, events, watches, queue, known });
    let _told = resizer.listen();
    // Nothing is decided before all objects are known.
    resizer.watches.claims.known().await;
    resizer.watches.volumes.known().await;
    let queue = Arc::clone(&resizer.queue);
    queue::work(queue, queue::MANY, move |key| Arc::clone(&resizer).sync(key)).await;
}

impl Resizer {
    /// Subscribes to the object caches, until the returned listeners are dropped.
    fn listen(self: &Arc<Self>) -> (Listener<PersistentVolumeClaim>, Listener<PersistentVolume>) {
        let this = Arc::clone(self);
        let claims: Listener<_> = Arc::new(move |change| this.claim(change));
        let this = Arc::clone(self);
        let volumes: Listener<_> = Arc::new(move |change| this.volume(change));
        self.watches.claims.begin(&self.client);
        self.watches.volumes.begin(&self.client);
        self.watches.volumes.listen(&volumes);
        self.watches.claims.listen(&claims);
        (claims, volumes)
    }

    fn claim(&self, change: &Change<PersistentVolumeClaim>) {
        let Some(claim) = &change.now else {
            let uid = change.before.as_ref().and_then(|claim| claim.uid()).unwrap_or_default();
            self.known().remove(&uid);
            return;
        };
        let news = change.before.as_ref().is_none_or(|before| expansion::is_news(before, claim));
        if news && self.volume_of(claim).is_some() {
            self.queue.add_seen_by(key(claim), version(&**claim));
        }
    }

    /// Handles a volume: a claim may wait for it.
    fn volume(&self, change: &Change<PersistentVolume>) {
        let holder = |volume: &Arc<PersistentVolume>| volume.spec.as_ref()?.claim_ref.clone();
        let Some(now) = change.now.as_ref().filter(|volume| self.is_ours(volume)).and_then(holder) else {
            return;
        };
        if change.before.as_ref().and_then(holder).is_none_or(|before| before.uid != now.uid) {
            self.queue.add((now.namespace.unwrap_or_default(), now.name.unwrap_or_default()));
        }
    }

    fn is_ours(&self, volume: &PersistentVolume) -> bool {
        let source = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
        source.is_some_and(|source| source.driver == self.driver.name)
    }

    /// Returns the volume of a claim, if it belongs to the driver.
    fn volume_of(&self, claim: &PersistentVolumeClaim) -> Option<Arc<PersistentVolume>> {
        let volume = self.watches.volumes.get(expansion::volume_name(claim)?)?;
        self.is_ours(&volume).then_some(volume)
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn memory(&self, claim: &PersistentVolumeClaim) -> Memory {
        let known = claim.uid().and_then(|uid| self.known().get(&uid).copied()).unwrap_or_default();
        Memory {
            failed: known.failed,
            infeasible: known.infeasible.is_some_and(|since| since.elapsed() < LATER),
            in_use: known.in_use,
        }
    }

    fn remember(&self, claim: &PersistentVolumeClaim, change: impl FnOnce(&mut Known)) {
        change(self.known().entry(claim.uid().unwrap_or_default()).or_default());
    }

    /// Returns the outcome and the version seen: our own writes must not queue the key again.
    async fn sync(self: Arc<Self>, (namespace, name): Key) -> (Outcome, Version) {
        let Some(mut claim) = self.watches.claims.get_in(&namespace, &name) else {
            return (Outcome::Done, 0);
        };
        let span = tracing::info_span!("claim", driver = self.driver.name, namespace, name);
        let outcome = match self.carry_on(&mut claim).instrument(span).await {
            Ok(outcome) => outcome,
            Err(error) => api::outcome::<()>(Err(error)),
        };
        (outcome, version(&*claim))
    }

    /// Carries out step after step until nothing is left to do. Returns `claim` as last decided on.
    async fn carry_on(&self, claim: &mut Arc<PersistentVolumeClaim>) -> kube::Result<Outcome> {
        let volume = self.volume_of(claim).filter(|volume| expansion::concerns(claim, volume));
        let Some(mut volume) = volume else { return Ok(Outcome::Done) };
        let (facts, growth) = match self.growth().await {
            Ok(known) => known,
            Err(status) => return Ok(self.refuse(claim, &in_words(&failed(status)), Outcome::Failed)),
        };
        for _ in 0..STEPS {
            let memory = self.memory(claim);
            match expansion::decide(&Seen { claim, volume: &volume, growth, memory }) {
                Step::Nothing => return Ok(Outcome::Done),
                Step::Later => return Ok(Outcome::Refused),
                Step::Refuse => {
                    let why = format!("driver {} grows no volumes: it has no EXPAND_VOLUME", facts.name);
                    return Ok(self.refuse(claim, &why, Outcome::Refused));
                }
                Step::Forget => {
                    let annotations = json!({ "annotations": { SIZE_BEFORE: null } });
                    volume = api::replace(&self.client, &*volume, annotations).await?;
                    self.watches.volumes.written(&volume);
                }
                Step::Begin(begin) => {
                    if begin.fresh {
                        // The failure was for another size.
                        self.remember(claim, |known| known.infeasible = None);
                    }
                    *claim = self.write(claim, &begin.patch(claim, &now())).await?;
                }
                Step::Expand(size) => return self.expand(claim, &volume, (size, &facts, growth)).await,
            }
        }
        Ok(Outcome::Failed)
    }

    async fn growth(&self) -> Result<(Facts, Growth), Status> {
        let facts = self.driver.facts().await?;
        let growth = if facts.expands {
            Growth::Controller
        } else if self.driver.node_expands().await? {
            Growth::Node
        } else {
            Growth::None
        };
        Ok((facts, growth))
    }

    fn refuse(&self, claim: &PersistentVolumeClaim, why: &str, outcome: Outcome) -> Outcome {
        tracing::warn!(reason = why, "not grown");
        self.events.tell(&claim.object_ref(&()), Kind::Warning, "VolumeResizeFailed", why);
        outcome
    }

    async fn write(
        &self,
        claim: &PersistentVolumeClaim,
        patch: &Value,
    ) -> kube::Result<Arc<PersistentVolumeClaim>> {
        let api: Api<PersistentVolumeClaim> =
            Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        let patch = Patch::Strategic(patch);
        let claim =
            api.patch_status(&claim.name_any(), &PatchParams::default(), &patch).await.map(Arc::new)?;
        self.watches.claims.written(&claim);
        Ok(claim)
    }

    async fn expand(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        (size, facts, growth): (Quantity, &Facts, Growth),
    ) -> kube::Result<Outcome> {
        if self.memory(claim).in_use && self.is_used(claim).await? {
            let why = format!(
                "Unable to expand {}/{} because CSI driver {} only supports offline expansion and volume is currently in-use",
                claim.namespace().unwrap_or_default(),
                claim.name_any(),
                facts.name
            );
            return Ok(self.refuse(claim, &why, Outcome::Failed));
        }
        self.remember(claim, |known| known.in_use = false);
        let about = claim.object_ref(&());
        let begun = format!("External resizer is resizing volume {}", volume.name_any());
        self.events.tell(&about, Kind::Normal, "Resizing", &begun);
        let asked = match growth {
            Growth::Controller => self.ask(volume, &size, facts).await,
            _ => Ok((size.clone(), true)),
        };
        match asked {
            Ok((size, by_node)) => self.grown(claim, volume, &size, by_node).await,
            Err(failure) => self.not_grown(claim, volume, &failure).await,
        }
    }

    /// Reports whether a pod uses a claim.
    async fn is_used(&self, claim: &PersistentVolumeClaim) -> kube::Result<bool> {
        let api: Api<Pod> = Api::namespaced(self.client.clone(), &claim.namespace().unwrap_or_default());
        let (pods, name) = (api.list(&ListParams::default()).await?, claim.name_any());
        Ok(pods.iter().any(|pod| pod.uses(&name)))
    }

    /// Asks the driver for growth. Returns the new size, and true if a node has to continue.
    async fn ask(
        &self,
        volume: &PersistentVolume,
        size: &Quantity,
        facts: &Facts,
    ) -> Result<(Quantity, bool), Failure> {
        let spec = volume.spec.as_ref();
        let (spec, source) = spec
            .and_then(|spec| Some((spec, spec.csi.as_ref()?)))
            .ok_or_else(|| Failure::Said("its volume is none of CSI's".to_owned()))?;
        let capability = access::of_volume(spec, facts.single_node_multi_writer).map_err(Failure::Said)?;
        let secrets = secrets(&self.client, source.controller_expand_secret_ref.as_ref()).await;
        let required_bytes = bytes(size).ok_or_else(|| Failure::Said(format!("{:?} is no size", size.0)))?;
        let request = ControllerExpandVolumeRequest {
            volume_id: source.volume_handle.clone(),
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
            secrets: secrets.map_err(Failure::Said)?,
            volume_capability: Some(capability),
        };
        let answer = self.driver.call(request, &self.turns, self.timeout).await.map_err(Failure::Driver)?;
        if answer.capacity_bytes < required_bytes {
            let (is, asked) = (answer.capacity_bytes, required_bytes);
            let why = format!("the driver says that the volume has {is} bytes where {asked} were asked for");
            return Err(Failure::Driver(Status::internal(why)));
        }
        Ok((amount(answer.capacity_bytes), answer.node_expansion_required))
    }

    /// Writes the PersistentVolume first, because the claim tells what is left to do.
    async fn grown(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        size: &Quantity,
        by_node: bool,
    ) -> kube::Result<Outcome> {
        self.known().remove(&claim.uid().unwrap_or_default());
        if let Some(patch) = expansion::grown(volume, claim, size, by_node) {
            let api: Api<PersistentVolume> = Api::all(self.client.clone());
            let volume = api.patch(&volume.name_any(), &PatchParams::default(), &Patch::Merge(patch)).await?;
            self.watches.volumes.written(&Arc::new(volume));
        }
        let (patch, reason, message) = if by_node {
            let message = "Require file system resize of volume on node";
            (expansion::pending(claim, &now()), "FileSystemResizeRequired", message)
        } else {
            (expansion::finished(claim, size), "VolumeResizeSuccessful", "Resize volume succeeded")
        };
        // More may be requested than was begun: the change of the capacity queues the claim again.
        self.write(claim, &patch).await?;
        tracing::info!(volume = volume.name_any(), size = size.0, by_node, "grown");
        self.events.tell(&claim.object_ref(&()), Kind::Normal, reason, message);
        Ok(Outcome::Done)
    }

    async fn not_grown(
        &self,
        claim: &PersistentVolumeClaim,
        volume: &PersistentVolume,
        failure: &Failure,
    ) -> kube::Result<Outcome> {
        let (words, fate) = (failure.words(), failure.fate());
        let in_use =
            matches!(failure, Failure::Driver(status) if status.code() == tonic::Code::FailedPrecondition);
        self.remember(claim, |known| {
            known.failed = fate != Fate::Unknown;
            known.infeasible = (fate == Fate::Infeasible).then(Instant::now);
            known.in_use |= in_use;
        });
        let why = format!(
            "resize volume {:?} by resizer {:?} failed: {words}",
            volume.name_any(),
            self.driver.name
        );
        let outcome = if fate == Fate::Infeasible { Outcome::Refused } else { Outcome::Failed };
        let outcome = self.refuse(claim, &why, outcome);
        if fate != Fate::Unknown {
            let patch = expansion::failed(claim, &words, fate == Fate::Infeasible, &now());
            if let Some(patch) = patch {
                // The patch applies to any version: changes by others are still to be seen.
                self.write(claim, &patch).await?;
            }
        }
        Ok(outcome)
    }
}

fn now() -> String {
    Timestamp::now().to_string()
}

fn key(claim: &PersistentVolumeClaim) -> Key {
    (claim.namespace().unwrap_or_default(), claim.name_any())
}
