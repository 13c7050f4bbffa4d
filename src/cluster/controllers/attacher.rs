//! Attacher: attaches and detaches the volumes of a CSI driver as its VolumeAttachments request,
//! like upstream's external-attacher.
//!
//! [`attachment`] decides on one step at a time. This module carries it out, and the resulting
//! object decides the next step. Every write to a list of finalizers carries the version that was
//! read, so no finalizer of another controller is lost or comes back.

use super::access;
use super::api::{self, secrets};
use super::attachment::{self, NODE_ID, Seen, Step, finalizer};
use super::driver::{Driver, Facts, TURN, failed, in_words};
use super::published::Published;
use super::queue::{self, Outcome, Queue, Version};
use super::volumes::{PersistentVolume, VolumeAttachment};
use super::watches::{Change, Listener, Watches, version};
use super::wishes::Wishes;
use crate::turns::Turns;
use crate::wire::csi::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use k8s_openapi::api::storage::v1::CSINode;
use k8s_openapi::jiff::Timestamp;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracing::Instrument as _;

/// Limit for calls of the driver that begin at the same time, as many as upstream has.
const TURNS: usize = 10;

/// Pause between two comparisons with a driver that lists published volumes.
const LISTING: Duration = Duration::from_mins(1);

/// Key in the work queue.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Attachment(String),
    Volume(String),
}

/// Reason why the work on a key failed.
enum Failure {
    /// Message, and the gRPC code if the driver failed.
    Said(String, Option<i32>),
    /// The API server failed.
    Api(kube::Error),
}

impl Failure {
    /// Returns the message and the code for the status of the object.
    fn said(self) -> (String, Option<i32>) {
        match self {
            Self::Said(sentence, code) => (sentence, code),
            Self::Api(error) => (format!("the API server failed: {}", api::reason(&error)), None),
        }
    }
}

impl From<kube::Error> for Failure {
    fn from(error: kube::Error) -> Self {
        Self::Api(error)
    }
}

impl From<String> for Failure {
    fn from(sentence: String) -> Self {
        Self::Said(sentence, None)
    }
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        let status = failed(status);
        Self::Said(in_words(&status), Some(status.code() as i32))
    }
}

/// The attacher of one driver.
struct Attacher {
    client: Client,
    driver: Driver,
    wishes: Arc<Wishes>,
    turns: Turns,
    timeout: Duration,
    watches: Watches,
    queue: Arc<Queue<Key>>,
    /// Names of VolumeAttachments whose status the driver contradicts.
    contradicted: Mutex<HashSet<String>>,
}

/// Attaches and detaches volumes until it is dropped.
pub async fn run(client: Client, watches: &Watches, driver: Driver, wishes: Arc<Wishes>, timeout: Duration) {
    let (watches, queue, contradicted) = (watches.clone(), Arc::default(), Mutex::default());
    let turns = Turns::new(TURNS, TURN);
    let attacher =
        Arc::new(Attacher { client, driver, wishes, turns, timeout, watches, queue, contradicted });
    let _told = attacher.listen();
    attacher.known().await;
    let working = Arc::clone(&attacher);
    let work =
        queue::work(Arc::clone(&attacher.queue), queue::MANY, move |key| Arc::clone(&working).sync(key));
    tokio::join!(work, attacher.compare());
}

impl Attacher {
    /// Subscribes to the object caches, until the returned listeners are dropped.
    fn listen(
        self: &Arc<Self>,
    ) -> (Listener<VolumeAttachment>, Listener<PersistentVolume>, Listener<CSINode>) {
        let told = || Arc::clone(self);
        let this = told();
        let attachments: Listener<_> = Arc::new(move |change| this.attachment(change));
        let this = told();
        let volumes: Listener<_> = Arc::new(move |change| this.volume(change));
        let this = told();
        let nodes: Listener<_> = Arc::new(move |change| this.node(change));
        self.watches.attachments.begin(&self.client);
        self.watches.volumes.begin(&self.client);
        self.watches.csi_nodes.begin(&self.client);
        self.watches.attachments.listen(&attachments);
        self.watches.volumes.listen(&volumes);
        self.watches.csi_nodes.listen(&nodes);
        (attachments, volumes, nodes)
    }

    /// Waits until all objects are known: nothing is decided earlier.
    async fn known(&self) {
        self.watches.attachments.known().await;
        self.watches.volumes.known().await;
        self.watches.csi_nodes.known().await;
    }

    fn attachment(&self, change: &Change<VolumeAttachment>) {
        let Some(attachment) = change.latest().filter(|object| object.spec.attacher == self.driver.name)
        else {
            return;
        };
        if change.now.is_some() {
            self.queue.add_seen_by(Key::Attachment(attachment.name_any()), version(&**attachment));
        }
        if let (None, Some(volume)) = (&change.now, &attachment.spec.source.persistent_volume_name) {
            self.queue.add(Key::Volume(volume.clone()));
        }
    }

    /// Handles a volume: attachments may wait for a new one, and a deleted one for our finalizer.
    fn volume(&self, change: &Change<PersistentVolume>) {
        let Some(volume) = &change.now else { return };
        let name = volume.name_any();
        if volume.metadata.deletion_timestamp.is_some() {
            self.queue.add(Key::Volume(name.clone()));
        }
        if change.before.is_none() {
            self.wake(&name);
        }
    }

    /// Handles a node: attachments may wait until the driver has registered on it.
    fn node(&self, change: &Change<CSINode>) {
        let Some(node) = &change.now else { return };
        let has = |node: &CSINode| node.spec.drivers.iter().any(|driver| driver.name == self.driver.name);
        if has(node) && !change.before.as_deref().is_some_and(has) {
            self.wake(&node.name_any());
        }
    }

    /// Queues the waiting attachments that name this volume or node.
    fn wake(&self, name: &str) {
        for attachment in self.watches.attachments.naming(name) {
            let waits = !is_attached(&attachment) || attachment.metadata.deletion_timestamp.is_some();
            if waits && attachment.spec.attacher == self.driver.name {
                self.queue.add(Key::Attachment(attachment.name_any()));
            }
        }
    }

    async fn sync(self: Arc<Self>, key: Key) -> (Outcome, Version) {
        match &key {
            Key::Attachment(name) => {
                let span = tracing::info_span!("attachment", driver = self.driver.name, name);
                self.sync_attachment(name).instrument(span).await
            }
            Key::Volume(name) => {
                let span = tracing::info_span!("volume", driver = self.driver.name, name);
                (self.sync_volume(name).instrument(span).await, 0)
            }
        }
    }

    /// Returns the outcome and the version seen: our own writes must not queue the key again.
    async fn sync_attachment(&self, name: &str) -> (Outcome, Version) {
        let Some(mut attachment) = self.watches.attachments.get(name) else { return (Outcome::Done, 0) };
        let contradicted = self.contradicted().remove(name);
        let outcome = match self.carry_on(&mut attachment, contradicted).await {
            Ok(()) => Outcome::Done,
            Err(Failure::Api(error)) if api::is(&error, 404) && self.is_gone(&attachment).await => {
                return (Outcome::Done, version(&*attachment));
            }
            Err(failure) => {
                let (message, code) = failure.said();
                tracing::warn!(reason = message, "failed");
                self.save_error(&mut attachment, &message, code).await;
                Outcome::Failed
            }
        };
        self.watches.attachments.written(&attachment);
        (outcome, version(&*attachment))
    }

    fn contradicted(&self) -> MutexGuard<'_, HashSet<String>> {
        self.contradicted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out step after step until nothing is left to do. Each step is decided by the object
    /// as last read or written, so that changes by others are seen here.
    async fn carry_on(
        &self,
        attachment: &mut Arc<VolumeAttachment>,
        mut contradicted: bool,
    ) -> Result<(), Failure> {
        let facts = self.driver.facts().await?;
        let mut volume = self.volume_of(attachment).await?;
        let node = self.watches.csi_nodes.get(&attachment.spec.node_name);
        let mut known = None;
        for _ in 0..api::CONFLICTS {
            let (driver, node) = (&facts, node.as_deref());
            let seen = Seen { attachment, volume: volume.as_deref(), node, driver, contradicted };
            match attachment::decide(&seen)? {
                Step::Nothing => return Ok(()),
                Step::MarkAttached => {
                    contradicted = false;
                    self.mark_attached(attachment, BTreeMap::new()).await?;
                }
                Step::GuardVolume(name) => {
                    let current =
                        volume.as_deref().ok_or_else(|| format!("persistentvolume {name:?} not found"))?;
                    volume = Some(self.guard_volume(current, &facts).await?);
                }
                Step::GuardAttachment(node, secret) => {
                    // Without the Secret detaching would fail too, and the finalizer would stay.
                    known = Some(secrets(&self.client, secret.as_ref()).await?);
                    *attachment = self.guard(attachment, &node, &facts).await?;
                }
                Step::Publish(mut request, secret) => {
                    let default = self.wishes.default_fstype.as_ref();
                    if let Some((capability, fs_type)) = request.volume_capability.as_mut().zip(default) {
                        access::by_default(capability, fs_type);
                    }
                    request.secrets = match known.take() {
                        Some(known) => known,
                        None => secrets(&self.client, secret.as_ref()).await?,
                    };
                    let metadata = self.publish(*request).await?;
                    contradicted = false;
                    self.mark_attached(attachment, metadata).await?;
                }
                Step::Unpublish(mut request, secret) => {
                    request.secrets = secrets(&self.client, secret.as_ref()).await?;
                    self.unpublish(*request).await?;
                    return Ok(self.release(attachment, &facts).await?);
                }
                Step::Release => return Ok(self.release(attachment, &facts).await?),
            }
        }
        Err("others change the object all the time: it is tried again".to_owned().into())
    }

    /// Returns the volume of an attachment. A new one that is not cached yet is read from the API
    /// server.
    async fn volume_of(&self, attachment: &VolumeAttachment) -> kube::Result<Option<Arc<PersistentVolume>>> {
        let Some(name) = attachment.spec.source.persistent_volume_name.as_deref() else { return Ok(None) };
        if let Some(volume) = self.watches.volumes.get(name) {
            return Ok(Some(volume));
        }
        Ok(Api::all(self.client.clone()).get_opt(name).await?.map(Arc::new))
    }

    async fn guard_volume(
        &self,
        volume: &PersistentVolume,
        facts: &Facts,
    ) -> kube::Result<Arc<PersistentVolume>> {
        let finalizers = api::finalizers_with(volume, &finalizer(&facts.name));
        let volume = api::replace(&self.client, volume, json!({ "finalizers": finalizers })).await?;
        self.watches.volumes.written(&volume);
        Ok(volume)
    }

    async fn guard(
        &self,
        attachment: &VolumeAttachment,
        node: &str,
        facts: &Facts,
    ) -> kube::Result<Arc<VolumeAttachment>> {
        let finalizers = api::finalizers_with(attachment, &finalizer(&facts.name));
        api::replace(
            &self.client,
            attachment,
            json!({ "finalizers": finalizers, "annotations": { NODE_ID: node } }),
        )
        .await
    }

    async fn publish(
        &self,
        request: ControllerPublishVolumeRequest,
    ) -> Result<BTreeMap<String, String>, Failure> {
        let (volume, node) = (request.volume_id.clone(), request.node_id.clone());
        let answer = self.driver.call(request, &self.turns, self.timeout).await?;
        tracing::info!(volume, node, "attached");
        Ok(flexvol_protocol::ordered::filled(answer.publish_context))
    }

    async fn unpublish(&self, request: ControllerUnpublishVolumeRequest) -> Result<(), Failure> {
        let (volume, node) = (request.volume_id.clone(), request.node_id.clone());
        self.driver.call(request, &self.turns, self.timeout).await?;
        tracing::info!(volume, node, "detached");
        Ok(())
    }

    async fn mark_attached(
        &self,
        attachment: &mut Arc<VolumeAttachment>,
        metadata: BTreeMap<String, String>,
    ) -> kube::Result<()> {
        let before = attachment.status.as_ref().and_then(|status| status.attachment_metadata.as_ref());
        // A merge patch removes a key from a map only by its name.
        let gone = before.into_iter().flatten().map(|(key, _)| (key.clone(), Value::Null));
        let mut entries: serde_json::Map<String, Value> = flexvol_protocol::ordered::filled(gone);
        entries.extend(metadata.into_iter().map(|(key, value)| (key, Value::String(value))));
        let entries = if entries.is_empty() { Value::Null } else { Value::Object(entries) };
        let status = json!({ "attached": true, "attachmentMetadata": entries, "attachError": null });
        self.write_status(attachment, &status).await
    }

    /// Writes a status that is true regardless of changes by others: after a conflict it is written
    /// to the object as they left it.
    async fn write_status(&self, attachment: &mut Arc<VolumeAttachment>, status: &Value) -> kube::Result<()> {
        for _ in 0..api::CONFLICTS {
            if let Some(written) = api::replace_status(&self.client, &**attachment, status).await? {
                *attachment = written;
                return Ok(());
            }
            let api: Api<VolumeAttachment> = Api::all(self.client.clone());
            let current = api.get(&attachment.name_any()).await?;
            if current.uid() != attachment.uid() {
                return Err(api::gone());
            }
            *attachment = Arc::new(current);
        }
        Ok(())
    }

    /// Records that the volume is detached. The finalizer goes first: with it, `attached: false`
    /// would mean that the volume has to be detached once more.
    async fn release(&self, attachment: &mut Arc<VolumeAttachment>, facts: &Facts) -> kube::Result<()> {
        let ours = finalizer(&facts.name);
        for _ in 0..api::CONFLICTS {
            if !attachment.finalizers().contains(&ours) {
                break;
            }
            *attachment = api::unguard(&self.client, &**attachment, &[&ours]).await?;
        }
        if attachment.finalizers().is_empty() {
            // The API server has deleted the object.
            return Ok(());
        }
        let status = json!({ "attached": false, "attachmentMetadata": null, "detachError": null });
        self.write_status(attachment, &status).await
    }

    /// Writes an error into the status, unless others have changed the object meanwhile.
    async fn save_error(&self, attachment: &mut Arc<VolumeAttachment>, message: &str, code: Option<i32>) {
        let deleted = attachment.metadata.deletion_timestamp.is_some();
        let key = if deleted { "detachError" } else { "attachError" };
        let time = Timestamp::now().to_string();
        let mut error = json!({ "message": message, "time": time });
        if let Some(code) = code.filter(|_| !deleted) {
            error["errorCode"] = json!(code);
        }
        match api::replace_status(&self.client, &**attachment, &json!({ key: error })).await {
            Ok(Some(written)) => *attachment = written,
            // The change by others queues the key again at once.
            Ok(None) => (),
            Err(error) => tracing::warn!(reason = %error, "cannot write the error into the status"),
        }
    }

    /// Reports whether the missing object is the attachment itself.
    async fn is_gone(&self, attachment: &VolumeAttachment) -> bool {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        let found = api.get_metadata_opt(&attachment.name_any()).await;
        found.is_ok_and(|found| found.is_none_or(|found| found.uid() != attachment.uid()))
    }

    /// Removes our finalizer from a deleted PersistentVolume when nothing needs it any more.
    async fn sync_volume(&self, name: &str) -> Outcome {
        let Some(volume) = self.watches.volumes.get(name) else { return Outcome::Done };
        let attachments = self.watches.attachments.naming(name);
        if !attachment::is_released(&volume, attachments.iter().map(|object| &**object), &self.driver.name) {
            return Outcome::Done;
        }
        let replaced = api::unguard(&self.client, &*volume, &[&finalizer(&self.driver.name)]).await;
        if let Ok(volume) = &replaced {
            // If the volume has changed since it was read, this write queues its key again.
            self.watches.volumes.written(volume);
        }
        api::outcome(replaced)
    }

    /// Compares attachments with the driver's list of published volumes, every minute.
    async fn compare(&self) {
        loop {
            tokio::time::sleep(LISTING).await;
            match self.contradictions().await {
                Ok(names) => names.into_iter().for_each(|name| {
                    tracing::warn!(attachment = name, "the driver says otherwise: doing it once more");
                    self.contradicted().insert(name.clone());
                    self.queue.add(Key::Attachment(name));
                }),
                Err(status) => tracing::warn!(reason = in_words(&status), "cannot list what is published"),
            }
        }
    }

    async fn contradictions(&self) -> Result<Vec<String>, tonic::Status> {
        let facts = self.driver.facts().await?;
        if !(facts.publishes && facts.lists_nodes) {
            return Ok(Vec::new());
        }
        let published = Published::ask(&self.driver, self.timeout).await?;
        let attachments =
            self.watches.attachments.filtered(|attachment| attachment.spec.attacher == facts.name);
        let wrong = attachments.into_iter().filter(|attachment| {
            let name = attachment.spec.source.persistent_volume_name.as_deref();
            let volume = name.and_then(|name| self.watches.volumes.get(name));
            let node = self.watches.csi_nodes.get(&attachment.spec.node_name);
            published.contradicts(attachment, volume.as_deref(), node.as_deref())
        });
        Ok(wrong.map(|attachment| attachment.name_any()).collect())
    }
}

fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.as_ref().is_some_and(|status| status.attached)
}
