//! Attaches and detaches volumes for a CSI driver, as its VolumeAttachments ask for it: what
//! upstream's external-attacher does.
//!
//! [`attachment`] decides, one step after the other; here the step is carried out, and
//! the object that comes of it is what the next one is decided by. Every write to a list of
//! finalizers carries the version that was read, so no other controller's finalizer comes back or
//! is lost.

use super::api::{self, secrets};
use super::attachment::{self, NODE_ID, Seen, Step, finalizer};
use super::driver::{Driver, Facts, failed, in_words, within};
use super::published::Published;
use super::queue::{Outcome, Queue};
use super::watches::{Change, objects, watch};
use crate::wire::csi::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest};
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;
use tracing::Instrument as _;

/// Calls of the driver at the same time.
const WORKERS: usize = 10;

/// How often a driver that knows what is published is asked.
const LISTING: Duration = Duration::from_mins(1);

/// What there is to look at.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Key {
    Attachment(String),
    Volume(String),
}

/// Why a key could not be dealt with.
enum Failure {
    /// A sentence, and the code of gRPC if the driver failed.
    Said(String, Option<i32>),
    /// The API server failed.
    Api(kube::Error),
}

impl Failure {
    /// For the status of the object.
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
    timeout: Duration,
    attachments: Store<VolumeAttachment>,
    volumes: Store<PersistentVolume>,
    nodes: Store<CSINode>,
    queue: Queue<Key>,
    /// VolumeAttachments of which the driver says otherwise.
    contradicted: Mutex<HashSet<String>>,
}

/// Attaches and detaches until it is dropped.
pub async fn run(client: Client, driver: Driver, timeout: Duration) {
    let (attachments, write_attachments) = objects();
    let (volumes, write_volumes) = objects();
    let (nodes, write_nodes) = objects();
    let (queue, contradicted) = (Queue::default(), Mutex::default());
    let attacher = Attacher { client, driver, timeout, attachments, volumes, nodes, queue, contradicted };
    let attacher = Arc::new(attacher);
    let mut tasks = JoinSet::new();
    let told = Arc::clone(&attacher);
    tasks.spawn(watch(Api::all(attacher.client.clone()), write_attachments, move |change| {
        told.attachment(change);
    }));
    let told = Arc::clone(&attacher);
    tasks.spawn(watch(Api::all(attacher.client.clone()), write_volumes, move |change| {
        told.volume(change);
    }));
    let told = Arc::clone(&attacher);
    tasks.spawn(watch(Api::all(attacher.client.clone()), write_nodes, move |change| {
        told.node(change);
    }));
    attacher.wait_until_known().await;
    for _ in 0..WORKERS {
        tasks.spawn(Arc::clone(&attacher).work());
    }
    tasks.spawn(Arc::clone(&attacher).compare());
    while tasks.join_next().await.is_some() {}
}

impl Attacher {
    /// Nothing is decided before everything was heard once.
    async fn wait_until_known(&self) {
        // They end with the watches, and so does this.
        let _ = self.attachments.wait_until_ready().await;
        let _ = self.volumes.wait_until_ready().await;
        let _ = self.nodes.wait_until_ready().await;
    }

    fn attachment(&self, change: &Change<VolumeAttachment>) {
        let Some(attachment) = change.latest().filter(|object| object.spec.attacher == self.driver.name)
        else {
            return;
        };
        if change.now.is_some() && !is_only_ours(change) {
            self.queue.add(Key::Attachment(attachment.name_any()));
        }
        if let (None, Some(volume)) = (&change.now, &attachment.spec.source.persistent_volume_name) {
            self.queue.add(Key::Volume(volume.clone()));
        }
    }

    /// It may be what an attachment waits for, or wait for us.
    fn volume(&self, change: &Change<PersistentVolume>) {
        let Some(volume) = &change.now else { return };
        let name = volume.name_any();
        if volume.metadata.deletion_timestamp.is_some() {
            self.queue.add(Key::Volume(name.clone()));
        }
        if change.before.is_none() {
            self.wake(|attachment| attachment.spec.source.persistent_volume_name.as_ref() == Some(&name));
        }
    }

    /// A driver that has registered may be what an attachment waits for.
    fn node(&self, change: &Change<CSINode>) {
        let Some(node) = &change.now else { return };
        let has = |node: &CSINode| node.spec.drivers.iter().any(|driver| driver.name == self.driver.name);
        if has(node) && !change.before.as_deref().is_some_and(has) {
            let name = node.name_any();
            self.wake(|attachment| attachment.spec.node_name == name);
        }
    }

    /// Those that wait for something.
    fn wake(&self, concerned: impl Fn(&VolumeAttachment) -> bool) {
        let waits = |attachment: &VolumeAttachment| {
            attachment.spec.attacher == self.driver.name
                && (!is_attached(attachment) || attachment.metadata.deletion_timestamp.is_some())
        };
        for attachment in
            self.attachments.state_filter(|attachment| waits(attachment) && concerned(attachment))
        {
            self.queue.add(Key::Attachment(attachment.name_any()));
        }
    }

    async fn work(self: Arc<Self>) {
        loop {
            let key = self.queue.next().await;
            let outcome = match &key {
                Key::Attachment(name) => {
                    let span = tracing::info_span!("attachment", driver = self.driver.name, name);
                    self.sync_attachment(name).instrument(span).await
                }
                Key::Volume(name) => {
                    let span = tracing::info_span!("volume", driver = self.driver.name, name);
                    self.sync_volume(name).instrument(span).await
                }
            };
            self.queue.finish(key, outcome);
        }
    }

    async fn sync_attachment(&self, name: &str) -> Outcome {
        let Some(mut attachment) = self.attachments.get(&ObjectRef::new(name)) else { return Outcome::Done };
        let contradicted = self.contradicted.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        match self.carry_on(&mut attachment, contradicted).await {
            Ok(()) => Outcome::Done,
            Err(Failure::Api(error)) if api::is(&error, 404) => Outcome::Done,
            Err(failure) => {
                let (message, code) = failure.said();
                tracing::warn!(reason = message, "failed");
                self.save_error(&attachment, &message, code).await;
                Outcome::Failed
            }
        }
    }

    /// Step after step, until there is nothing to do.
    async fn carry_on(
        &self,
        attachment: &mut Arc<VolumeAttachment>,
        contradicted: bool,
    ) -> Result<(), Failure> {
        let facts = self.driver.facts().await?;
        let mut volume = self.volume_of(attachment).await?;
        let node = self.nodes.get(&ObjectRef::new(&attachment.spec.node_name));
        let mut known = None;
        for _ in 0..api::CONFLICTS {
            let (driver, node) = (&facts, node.as_deref());
            let seen = Seen { attachment, volume: volume.as_deref(), node, driver, contradicted };
            match attachment::decide(&seen)? {
                Step::Nothing => return Ok(()),
                Step::MarkAttached => return Ok(self.mark_attached(attachment, BTreeMap::new()).await?),
                Step::GuardVolume(name) => {
                    let current =
                        volume.as_deref().ok_or_else(|| format!("persistentvolume {name:?} not found"))?;
                    volume = Some(self.guard_volume(current, &facts).await?);
                }
                Step::GuardAttachment(node, secret) => {
                    // Without it nothing could be detached either, and the finalizer would stay.
                    known = Some(secrets(&self.client, secret.as_ref()).await?);
                    *attachment = self.guard(attachment, &node, &facts).await?;
                }
                Step::Publish(mut request, secret) => {
                    request.secrets = match known {
                        Some(known) => known,
                        None => secrets(&self.client, secret.as_ref()).await?,
                    };
                    let metadata = self.publish(*request).await?;
                    return Ok(self.mark_attached(attachment, metadata).await?);
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

    /// The volume that it names. One that was made a moment before may not have been heard of.
    async fn volume_of(&self, attachment: &VolumeAttachment) -> kube::Result<Option<Arc<PersistentVolume>>> {
        let Some(name) = attachment.spec.source.persistent_volume_name.as_deref() else { return Ok(None) };
        if let Some(volume) = self.volumes.get(&ObjectRef::new(name)) {
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
        api::replace(&self.client, volume, json!({ "finalizers": finalizers })).await
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
        let answer =
            self.driver.controller().controller_publish_volume(within(request, self.timeout)).await?;
        tracing::info!(volume, node, "attached");
        Ok(answer.into_inner().publish_context.into_iter().collect())
    }

    async fn unpublish(&self, request: ControllerUnpublishVolumeRequest) -> Result<(), Failure> {
        let (volume, node) = (request.volume_id.clone(), request.node_id.clone());
        self.driver.controller().controller_unpublish_volume(within(request, self.timeout)).await?;
        tracing::info!(volume, node, "detached");
        Ok(())
    }

    async fn mark_attached(
        &self,
        attachment: &VolumeAttachment,
        metadata: BTreeMap<String, String>,
    ) -> kube::Result<()> {
        let before = attachment.status.as_ref().and_then(|status| status.attachment_metadata.as_ref());
        // What is gone from a map has to be taken out of it by name.
        let gone = before.into_iter().flatten().map(|(key, _)| (key.clone(), Value::Null));
        let mut entries: serde_json::Map<String, Value> = gone.collect();
        entries.extend(metadata.into_iter().map(|(key, value)| (key, Value::String(value))));
        let entries = if entries.is_empty() { Value::Null } else { Value::Object(entries) };
        let status = json!({ "attached": true, "attachmentMetadata": entries, "attachError": null });
        self.patch_status(attachment, status).await
    }

    async fn patch_status(&self, attachment: &VolumeAttachment, status: Value) -> kube::Result<()> {
        let api: Api<VolumeAttachment> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({ "metadata": { "uid": attachment.uid() }, "status": status }));
        api.patch_status(&attachment.name_any(), &PatchParams::default(), &patch).await.map(drop)
    }

    /// Detached: the finalizer goes first, because with it `attached: false` would mean that it has
    /// to be detached once more.
    async fn release(&self, attachment: &Arc<VolumeAttachment>, facts: &Facts) -> kube::Result<()> {
        let ours = finalizer(&facts.name);
        let mut attachment = Arc::clone(attachment);
        for _ in 0..api::CONFLICTS {
            if !attachment.finalizers().contains(&ours) {
                break;
            }
            let others = api::finalizers_without(&*attachment, &ours);
            attachment = api::replace(&self.client, &*attachment, json!({ "finalizers": others })).await?;
        }
        if attachment.finalizers().is_empty() {
            // It is gone.
            return Ok(());
        }
        let status = json!({ "attached": false, "attachmentMetadata": null, "detachError": null });
        self.patch_status(&attachment, status).await
    }

    async fn save_error(&self, attachment: &VolumeAttachment, message: &str, code: Option<i32>) {
        let deleted = attachment.metadata.deletion_timestamp.is_some();
        let key = if deleted { "detachError" } else { "attachError" };
        let time = Timestamp::now().to_string();
        let mut error = json!({ "message": message, "time": time });
        if let Some(code) = code.filter(|_| !deleted) {
            error["errorCode"] = json!(code);
        }
        if let Err(error) = self.patch_status(attachment, json!({ key: error })).await {
            tracing::warn!(reason = %error, "cannot write the error into the status");
        }
    }

    /// A PersistentVolume that is being deleted goes when nothing needs it any more.
    async fn sync_volume(&self, name: &str) -> Outcome {
        let Some(volume) = self.volumes.get(&ObjectRef::new(name)) else { return Outcome::Done };
        let attachments = self.attachments.state();
        if !attachment::is_released(&volume, attachments.iter().map(|object| &**object), &self.driver.name) {
            return Outcome::Done;
        }
        let others = api::finalizers_without(&*volume, &finalizer(&self.driver.name));
        api::outcome(api::replace(&self.client, &*volume, json!({ "finalizers": others })).await)
    }

    /// Compares, every minute, what is attached with what the driver says is published.
    async fn compare(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LISTING).await;
            match self.contradictions().await {
                Ok(names) => names.into_iter().for_each(|name| {
                    tracing::warn!(attachment = name, "the driver says otherwise: doing it once more");
                    let mut contradicted = self.contradicted.lock().unwrap_or_else(PoisonError::into_inner);
                    contradicted.insert(name.clone());
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
        let attachments = self.attachments.state_filter(|attachment| attachment.spec.attacher == facts.name);
        let wrong = attachments.into_iter().filter(|attachment| {
            let name = attachment.spec.source.persistent_volume_name.as_deref();
            let volume = name.and_then(|name| self.volumes.get(&ObjectRef::new(name)));
            let node = self.nodes.get(&ObjectRef::new(&attachment.spec.node_name));
            published.contradicts(attachment, volume.as_deref(), node.as_deref())
        });
        Ok(wrong.map(|attachment| attachment.name_any()).collect())
    }
}

/// Whether a change is what an attacher itself writes: its finalizer, the node's id, an error, and
/// that it is attached. That is no reason to look at the object at once: what failed would be
/// tried again without a pause, and what succeeded once more, from an object older than our write.
fn is_only_ours(change: &Change<VolumeAttachment>) -> bool {
    match (&change.before, &change.now) {
        (Some(before), Some(now)) => {
            before.resource_version() != now.resource_version()
                && (!is_attached(before) || is_attached(now))
                && without_ours(before) == without_ours(now)
        }
        _ => false,
    }
}

fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.as_ref().is_some_and(|status| status.attached)
}

fn without_ours(attachment: &VolumeAttachment) -> VolumeAttachment {
    let mut attachment = attachment.clone();
    attachment.status = None;
    attachment.metadata.resource_version = None;
    let ours = finalizer(&attachment.spec.attacher);
    attachment.finalizers_mut().retain(|finalizer| *finalizer != ours);
    attachment.annotations_mut().remove(NODE_ID);
    attachment
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::storage::v1::{VolumeAttachmentStatus, VolumeError};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    fn attachment(version: &str, change: impl FnOnce(&mut VolumeAttachment)) -> Arc<VolumeAttachment> {
        let mut object = VolumeAttachment::default();
        "d.example.com".clone_into(&mut object.spec.attacher);
        object.metadata.resource_version = Some(version.to_owned());
        change(&mut object);
        Arc::new(object)
    }

    fn attached(object: &mut VolumeAttachment) {
        object.status = Some(VolumeAttachmentStatus { attached: true, ..VolumeAttachmentStatus::default() });
    }

    fn failed(message: &str) -> impl FnOnce(&mut VolumeAttachment) {
        let attach_error = Some(VolumeError { message: Some(message.to_owned()), ..VolumeError::default() });
        let status = VolumeAttachmentStatus { attach_error, ..VolumeAttachmentStatus::default() };
        move |object| object.status = Some(status)
    }

    #[test]
    fn our_own_writing_is_no_reason_to_look() {
        let ours = |before: &Arc<VolumeAttachment>, now: &Arc<VolumeAttachment>| {
            is_only_ours(&Change { before: Some(Arc::clone(before)), now: Some(Arc::clone(now)) })
        };
        let plain = attachment("1", |_| ());
        let guarded = attachment("2", |object| {
            object.finalizers_mut().push(finalizer("d.example.com"));
            object.annotations_mut().insert(NODE_ID.to_owned(), "id".to_owned());
        });
        assert!(ours(&plain, &guarded));
        assert!(ours(&plain, &attachment("2", failed("no"))));
        assert!(ours(&attachment("1", failed("a")), &attachment("2", failed("b"))));
        assert!(ours(&plain, &attachment("2", attached)));
        assert!(!ours(&attachment("1", attached), &attachment("2", |_| ())), "another takes it back");
        assert!(!ours(&plain, &attachment("1", |_| ())), "the watch began once more");
        assert!(!is_only_ours(&Change { before: None, now: Some(Arc::clone(&plain)) }));
        let others = attachment("2", |object| object.finalizers_mut().push("other".to_owned()));
        assert!(!ours(&plain, &others));
        let deleted = attachment("2", |object| {
            object.metadata.deletion_timestamp = Some(Time(Timestamp::now()));
        });
        assert!(!ours(&plain, &deleted));
    }
}
