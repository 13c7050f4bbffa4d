//! Work on a PersistentVolume: its finalizer, and the deletion of its volume.

use super::super::creation::FINALIZER;
use super::super::driver::in_words;
use super::super::events::Kind;
use super::super::queue::{Outcome, Version};
use super::super::volumes::PersistentVolume;
use super::super::watches::version;
use super::super::{api, reclaim};
use super::Provisioner;
use crate::wire::csi::DeleteVolumeRequest;
use k8s_openapi::api::core::v1::{Secret, SecretReference};
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;

impl Provisioner {
    /// Returns the outcome and the version seen: our own writes must not queue the key again.
    pub(super) async fn sync_volume(&self, name: &str) -> (Outcome, Version) {
        let Some(mut volume) = self.watches.volumes.get(name) else { return (Outcome::Done, 0) };
        let outcome = self.reclaim(&mut volume).await;
        self.watches.volumes.written(&volume);
        (outcome, version(&*volume))
    }

    async fn reclaim(&self, volume: &mut Arc<PersistentVolume>) -> Outcome {
        for _ in 0..api::CONFLICTS {
            let attachments = self.watches.attachments.naming(&volume.name_any());
            let attachments = attachments.iter().map(|attachment| &**attachment);
            let changed = match reclaim::decide(volume, attachments, &self.driver.name) {
                reclaim::Step::Nothing => return Outcome::Done,
                reclaim::Step::Guard => self.guard(volume).await,
                reclaim::Step::Unguard => api::unguard(&self.client, &**volume, &[FINALIZER]).await,
                reclaim::Step::Wait(node) => {
                    let message =
                        format!("volume is still attached to node {node}: it is deleted when it is detached");
                    self.events.tell(&volume.object_ref(&()), Kind::Normal, "VolumeDelete", &message);
                    return Outcome::Done;
                }
                reclaim::Step::Delete(handle) => return self.delete(volume, handle).await,
            };
            match changed {
                Ok(now) => *volume = now,
                failed => return api::outcome(failed),
            }
        }
        Outcome::Failed
    }

    async fn guard(&self, volume: &PersistentVolume) -> kube::Result<Arc<PersistentVolume>> {
        let finalizers = api::finalizers_with(volume, FINALIZER);
        api::replace(&self.client, volume, json!({ "finalizers": finalizers })).await
    }

    /// Deletes the volume first, then its object, then the finalizers that kept the object.
    async fn delete(&self, volume: &mut Arc<PersistentVolume>, volume_id: String) -> Outcome {
        if let Err(message) = self.delete_volume(volume, volume_id).await {
            tracing::warn!(reason = message, "not deleted");
            self.events.tell(&volume.object_ref(&()), Kind::Warning, "VolumeFailedDelete", &message);
            return Outcome::Failed;
        }
        tracing::info!("deleted");
        api::outcome(self.delete_object(volume).await)
    }

    async fn delete_volume(&self, volume: &PersistentVolume, volume_id: String) -> Result<(), String> {
        let class =
            volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default();
        let class = self.watches.classes.get(class);
        let named = reclaim::secret(volume, class.as_deref())?;
        let secrets = self.secrets_if_there(named).await?;
        self.ask_to_delete(DeleteVolumeRequest { volume_id, secrets }).await
    }

    /// Asks the driver to delete a volume. Fails with a message.
    pub(super) async fn ask_to_delete(&self, request: DeleteVolumeRequest) -> Result<(), String> {
        let deleted = self.driver.call(request, &self.turns, self.timeout).await;
        deleted.map(drop).map_err(|status| in_words(&status))
    }

    /// Reads the Secret; empty if it is gone, because the driver may not need it for the deletion.
    async fn secrets_if_there(
        &self,
        named: Option<SecretReference>,
    ) -> Result<HashMap<String, String>, String> {
        match api::secrets(&self.client, named.as_ref()).await {
            Err(_) if !self.is_there(named.as_ref()).await => {
                tracing::warn!("the Secret has gone: deleting without it");
                Ok(HashMap::new())
            }
            read => read,
        }
    }

    /// Returns false only if the API server says that there is no such Secret.
    async fn is_there(&self, named: Option<&SecretReference>) -> bool {
        let Some((namespace, name)) =
            named.and_then(|named| named.namespace.as_deref().zip(named.name.as_deref()))
        else {
            return false;
        };
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        !matches!(api.get_metadata_opt(name).await, Ok(None))
    }

    async fn delete_object(&self, volume: &mut Arc<PersistentVolume>) -> kube::Result<()> {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let (uid, resource_version) = (volume.uid(), None);
        let same = DeleteParams {
            preconditions: Some(Preconditions { uid, resource_version }),
            ..DeleteParams::default()
        };
        let Some(left) = api.delete(&volume.name_any(), &same).await?.left() else { return Ok(()) };
        if left.uid() != volume.uid() {
            return Ok(());
        }
        *volume = Arc::new(left);
        for _ in 0..api::CONFLICTS {
            if !volume.finalizers().iter().any(|finalizer| finalizer == FINALIZER) {
                break;
            }
            // Nothing is attached any more, so the attacher's finalizer may go too.
            let ours = std::iter::once(FINALIZER).chain(self.attacher.as_deref());
            let left = api::unguard(&self.client, &**volume, &ours.collect::<Vec<_>>()).await?;
            if left.uid() != volume.uid() {
                break;
            }
            *volume = left;
        }
        Ok(())
    }
}
