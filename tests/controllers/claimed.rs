//! Claims that want volumes of a driver, and what Kubernetes' own controllers would write of them.

use super::driver::Fault;
use super::subject::{Subject, merge};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

/// Annotation by which the PersistentVolume controller names a claim's provisioner.
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// The node that the scheduler has selected for a claim.
pub(crate) const SELECTED: &str = "volume.kubernetes.io/selected-node";

impl Subject {
    /// API for claims of its namespace.
    pub(crate) fn claims(&self) -> Api<PersistentVolumeClaim> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Makes a class of the driver's.
    pub(crate) async fn class(&self, name: &str, change: Value) {
        let mut class = json!({"metadata": {"name": name}, "provisioner": self.driver.name});
        merge(&mut class, change);
        self.make::<StorageClass>(class).await;
    }

    /// Makes a claim; returns the name that its volume will have.
    pub(crate) async fn claim(&self, name: &str, class: &str, change: Value) -> String {
        let mut asked = json!({"metadata": {"annotations": { PROVISIONER: self.driver.name }}});
        merge(&mut asked, change);
        self.make_claim(name, class, asked).await
    }

    /// Makes a claim whose calls go wrong.
    pub(crate) async fn claim_that_fails(
        &self,
        name: &str,
        class: &str,
        change: Value,
        faults: &[(&'static str, &[Fault])],
    ) -> String {
        let volume = self.make_claim(name, class, change).await;
        for (call, faults) in faults {
            self.driver.fails(call, &volume, faults);
        }
        self.is_to_provision(name).await;
        volume
    }

    /// Annotates a claim as the PersistentVolume controller does: provisioners ignore it before.
    pub(crate) async fn is_to_provision(&self, name: &str) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": { PROVISIONER: self.driver.name }}}));
        self.claims().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Makes a claim that nobody provisions yet.
    pub(crate) async fn make_claim(&self, name: &str, class: &str, change: Value) -> String {
        let spec = json!({"storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "32Mi"}}});
        let mut claim = json!({"metadata": {"name": name, "namespace": self.namespace}, "spec": spec});
        merge(&mut claim, change);
        let claim = serde_json::from_value(claim).unwrap();
        let made = self.claims().create(&PostParams::default(), &claim).await.unwrap();
        format!("pvc-{}", made.uid().unwrap())
    }

    /// Binds a claim to its volume, as the PersistentVolume controller would, and asks for more.
    pub(crate) async fn bind(&self, name: &str, volume: &str) {
        let (claims, params) = (self.claims(), PatchParams::default());
        let status = json!({"phase": "Bound", "capacity": {"storage": "32Mi"}});
        claims.patch(name, &params, &Patch::Merge(json!({"spec": {"volumeName": volume}}))).await.unwrap();
        claims.patch_status(name, &params, &Patch::Merge(json!({ "status": status }))).await.unwrap();
        let more = json!({"spec": {"resources": {"requests": {"storage": "64Mi"}}}});
        claims.patch(name, &params, &Patch::Merge(more)).await.unwrap();
    }

    /// Deletes a claim.
    pub(crate) async fn unclaim(&self, name: &str) {
        let _ = self.claims().delete(name, &DeleteParams::default()).await.unwrap();
    }

    /// Writes the phase of a volume, as the PersistentVolume controller would.
    pub(crate) async fn phase(&self, volume: &str, phase: &str) {
        let api: Api<PersistentVolume> = Api::all(self.client.clone());
        let patch = Patch::Merge(json!({"status": {"phase": phase}}));
        api.patch_status(volume, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Selects a node for a claim, as the scheduler would.
    pub(crate) async fn select(&self, name: &str, node: Option<&str>) {
        let patch = Patch::Merge(json!({"metadata": {"annotations": { SELECTED: node }}}));
        self.claims().patch(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// The node that is selected for a claim.
    pub(crate) async fn selected(&self, name: &str) -> Option<String> {
        self.claims().get(name).await.unwrap().annotations().get(SELECTED).cloned()
    }

    /// The reasons of what was said of an object, each with the largest count.
    pub(crate) async fn events(&self, name: &str) -> Vec<(String, i32)> {
        let events: Api<Event> = Api::all(self.client.clone());
        let about = ListParams::default().fields(&format!("involvedObject.name={name}"));
        let events = events.list(&about).await.unwrap();
        let ours = |event: &Event| {
            event.involved_object.namespace.as_ref().is_none_or(|namespace| *namespace == self.namespace)
        };
        let of = |event: Event| (event.reason.unwrap_or_default(), event.count.unwrap_or_default());
        events.into_iter().filter(ours).map(of).collect()
    }
}
