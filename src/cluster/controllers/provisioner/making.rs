//! Work on a claim: the request to the driver, and the handling of its answer.

use super::super::api;
use super::super::claim::{self, Fate, Refusal, fate};
use super::super::creation::{Plan, SELECTED_NODE};
use super::super::driver::{Facts, in_words};
use super::super::events::Kind;
use super::super::queue::Outcome;
use super::super::topology::Nodes;
use super::super::volumes::PersistentVolume;
use super::Provisioner;
use crate::wire::csi::{DeleteVolumeRequest, Volume};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Resource as _, ResourceExt as _};
use serde_json::json;
use std::collections::HashMap;
use std::sync::Arc;
use tonic::Code;

impl Provisioner {
    pub(super) async fn sync_claim(&self, namespace: &str, name: &str, uid: &str) -> Outcome {
        if let Some(volume) = self.watches.volumes.get(&self.wishes.volume_name(uid)) {
            self.begun().remove(uid);
            return self.has_volume(&volume, namespace, (name, uid));
        }
        let begun = self.begun().get(uid).cloned();
        if let Some(plan) = begun {
            return self.provision(uid, plan).await;
        }
        let claim = self.watches.claims.get_in(namespace, name);
        let Some(claim) = claim.filter(|claim| claim.uid().as_deref() == Some(uid)) else {
            return Outcome::Done;
        };
        match self.decide(&claim).await {
            Ok(claim::Step::Nothing) => Outcome::Done,
            Ok(claim::Step::Populated) => {
                let message = "the volume is left to the controller that fills it from the claim's source";
                self.events.tell(&claim.object_ref(&()), Kind::Normal, "Provisioning", message);
                Outcome::Done
            }
            Ok(claim::Step::Provision(plan)) => self.provision(uid, Arc::new(*plan)).await,
            Err(refusal) => self.refuse(&claim, refusal).await,
        }
    }

    /// Handles a volume that has the name of the claim's volume: shortened names may be equal.
    fn has_volume(&self, volume: &PersistentVolume, namespace: &str, (name, uid): (&str, &str)) -> Outcome {
        let holder = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref()?.uid.as_deref());
        let claim = self.watches.claims.get_in(namespace, name);
        let claim = claim.filter(|claim| claim.uid().as_deref() == Some(uid));
        match claim.filter(|_| holder.is_some_and(|holder| holder != uid)) {
            None => Outcome::Done,
            Some(claim) => {
                let why = format!("volume {} is another claim's: choose longer names", volume.name_any());
                tracing::warn!(reason = why, "not provisioned");
                self.events.tell(&claim.object_ref(&()), Kind::Warning, "ProvisioningFailed", &why);
                Outcome::Refused
            }
        }
    }

    async fn decide(&self, claim: &PersistentVolumeClaim) -> Result<claim::Step, Refusal> {
        let facts = self.driver.facts().await.map_err(|status| Refusal::Said(in_words(&status)))?;
        if facts.topology && !self.placed {
            return Err(Refusal::Said("the driver has begun to have topology: restart flexvold".to_owned()));
        }
        let class = self.watches.classes.get(claim::class_of(claim));
        let nodes = self.nodes(&facts);
        claim::decide(&claim::Seen {
            claim,
            class: class.as_deref(),
            provisioned: false,
            driver: &facts,
            nodes: &nodes,
            identity: &self.identity,
            wishes: &self.wishes,
        })
    }

    fn nodes(&self, facts: &Facts) -> Nodes {
        if facts.topology {
            Nodes { nodes: self.watches.nodes.all(), csi_nodes: self.watches.csi_nodes.all() }
        } else {
            Nodes::default()
        }
    }

    async fn refuse(&self, claim: &PersistentVolumeClaim, refusal: Refusal) -> Outcome {
        let (Refusal::Wait(said) | Refusal::Said(said) | Refusal::Elsewhere(said)) = &refusal;
        tracing::warn!(reason = said, "not provisioned");
        if !matches!(refusal, Refusal::Wait(_)) {
            self.events.tell(&claim.object_ref(&()), Kind::Warning, "ProvisioningFailed", said);
        }
        match refusal {
            Refusal::Wait(_) => Outcome::Done,
            Refusal::Said(_) => Outcome::Failed,
            Refusal::Elsewhere(_) => {
                let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
                self.unselect(&namespace, &name, claim.annotations().get(SELECTED_NODE).cloned()).await
            }
        }
    }

    /// Asks the driver for a volume, and writes the object for it.
    async fn provision(&self, uid: &str, plan: Arc<Plan>) -> Outcome {
        let secrets = match api::secrets(&self.client, plan.secret.as_ref()).await {
            Ok(secrets) => secrets,
            Err(missing) => return self.failed(&plan, &missing),
        };
        self.begun().insert(uid.to_owned(), Arc::clone(&plan));
        let mut request = plan.request.clone();
        request.secrets.clone_from(&secrets);
        let message = format!("asking driver {} for volume {}", self.driver.name, request.name);
        self.events.tell(&plan.claim, Kind::Normal, "Provisioning", &message);
        let answer = self.driver.call(request, &self.turns, self.timeout).await;
        match answer.map(|answer| answer.volume.unwrap_or_default()) {
            Ok(made) if made.volume_id.is_empty() => {
                self.failed(&plan, "the driver made a volume without an id")
            }
            Ok(made) => self.made(uid, &plan, made, secrets).await,
            Err(status) => self.not_made(uid, &plan, &status).await,
        }
    }

    fn failed(&self, plan: &Plan, message: &str) -> Outcome {
        tracing::warn!(reason = message, "not provisioned");
        self.events.tell(&plan.claim, Kind::Warning, "ProvisioningFailed", message);
        Outcome::Failed
    }

    /// Writes the PersistentVolume of a volume that was made, or deletes the volume.
    async fn made(&self, uid: &str, plan: &Plan, made: Volume, secrets: HashMap<String, String>) -> Outcome {
        let volume = match plan.volume(&made) {
            Ok(mut volume) => {
                if let Some(attacher) = self.attacher.clone() {
                    volume.metadata.finalizers.get_or_insert_default().push(attacher);
                }
                volume
            }
            Err(small) => {
                let request = DeleteVolumeRequest { volume_id: made.volume_id, secrets };
                let deleted = match self.ask_to_delete(request).await {
                    Ok(()) => "and has deleted it".to_owned(),
                    Err(why) => format!("and did not delete it: {why}"),
                };
                // Until the deletion is confirmed, the next attempt finds the same volume again.
                return self.failed(plan, &format!("{small}, {deleted}"));
            }
        };
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let created = api.create(&PostParams::default(), &volume).await;
        match created.map(|volume| self.watches.volumes.written(&Arc::new(volume))) {
            Err(error) if !api::is(&error, 409) => {
                let message = format!(
                    "volume {} is made but cannot be written: {}",
                    made.volume_id,
                    api::reason(&error)
                );
                self.failed(plan, &message)
            }
            // After a conflict: the object was written before, and that answer was lost.
            Ok(()) | Err(_) => {
                self.begun().remove(uid);
                tracing::info!(volume = volume.name_any(), "provisioned");
                let message = format!("provisioned volume {}", volume.name_any());
                self.events.tell(&plan.claim, Kind::Normal, "ProvisioningSucceeded", &message);
                Outcome::Done
            }
        }
    }

    async fn not_made(&self, uid: &str, plan: &Plan, status: &tonic::Status) -> Outcome {
        let fate = fate(status, plan.node.is_some());
        if fate != Fate::Unknown {
            self.begun().remove(uid);
        }
        if status.code() == Code::ResourceExhausted {
            let (class, segment) = plan.place();
            self.full.add(class, segment);
        }
        let failed = self.failed(plan, &in_words(status));
        match fate {
            Fate::Unknown | Fate::Failed => failed,
            Fate::Infeasible => Outcome::Refused,
            Fate::Elsewhere => {
                let (namespace, name) = (plan.claim.namespace.as_deref(), plan.claim.name.as_deref());
                self.unselect(namespace.unwrap_or_default(), name.unwrap_or_default(), plan.node.clone())
                    .await
            }
        }
    }

    /// Makes the scheduler select another node, if the claim still has this one.
    async fn unselect(&self, namespace: &str, name: &str, node: Option<String>) -> Outcome {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(self.client.clone(), namespace);
        let remove = async {
            for _ in 0..api::CONFLICTS {
                let Some(claim) = api.get_opt(name).await? else { return Ok(()) };
                if claim.annotations().get(SELECTED_NODE) != node.as_ref() {
                    return Ok(());
                }
                let version = claim.resource_version();
                let metadata = json!({ "resourceVersion": version, "annotations": { SELECTED_NODE: null } });
                let patch = Patch::Merge(json!({ "metadata": metadata }));
                match api.patch(name, &PatchParams::default(), &patch).await {
                    Err(error) if api::is(&error, 409) => (),
                    patched => return patched.map(drop),
                }
            }
            Ok(())
        };
        api::outcome(remove.await)
    }
}
