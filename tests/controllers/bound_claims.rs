//! Claims that are bound to volumes of a driver, and what kubelet would write of them.

use super::api_server::patience;
use super::subject::{Seen, Subject, merge};
use k8s_openapi::api::core::v1::{Event, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Of a PersistentVolume: the size of its file system, until a node has grown that.
pub(crate) const SIZE_BEFORE: &str = "volume.alpha.kubernetes.io/pre-resize-capacity";

/// What all volumes have at first.
const SIZE: &str = "32Mi";

/// Of the namespace `default`.
pub(crate) struct Claims<'a> {
    subject: &'a Subject,
    claims: Api<PersistentVolumeClaim>,
}

/// A deadline that the driver's side notices first, and in which words it is told otherwise.
const TOO_LATE: [&str; 2] =
    ["Canceled desc = Timeout expired", "DeadlineExceeded desc = context deadline exceeded"];

/// Whether growth is written as begun.
pub(crate) fn begun(claim: &Value) -> bool {
    claim["status"]["allocatedResourceStatuses"]["storage"] == "ControllerResizeInProgress"
}

impl<'a> Claims<'a> {
    /// With a class whose claims may grow, and one whose may not.
    pub(crate) async fn of(subject: &'a Subject) -> Self {
        let claims = Self { subject, claims: Api::namespaced(subject.client.clone(), "default") };
        let classes: Api<StorageClass> = Api::all(subject.client.clone());
        for (name, allowed) in [("grows", true), ("fixed", false)] {
            let class = json!({"metadata": {"name": subject.named(name)}, "provisioner": subject.driver.name,
                "allowVolumeExpansion": allowed});
            let class = serde_json::from_value(class).unwrap();
            let _ = classes.create(&PostParams::default(), &class).await;
        }
        claims
    }

    /// Makes a claim and its volume, bound.
    pub(crate) async fn bound(&self, name: &str, change: Value) {
        self.bound_of_class(name, &self.subject.named("grows"), change).await;
    }

    pub(crate) async fn bound_of_class(&self, name: &str, class: &str, change: Value) {
        let resources = json!({"requests": {"storage": SIZE}});
        let modes = change["spec"]["accessModes"].as_array().cloned();
        let modes = modes.unwrap_or_else(|| vec![json!("ReadWriteOnce")]);
        let spec = json!({"storageClassName": class, "volumeName": name, "accessModes": modes,
            "resources": resources, "volumeMode": change["spec"]["volumeMode"]});
        let claim = json!({"metadata": {"name": name, "namespace": "default"}, "spec": spec});
        let claim = serde_json::from_value(claim).unwrap();
        let made = self.claims.create(&PostParams::default(), &claim).await.unwrap();
        let holder = json!({"kind": "PersistentVolumeClaim", "namespace": "default", "name": name,
            "uid": made.metadata.uid});
        let mut volume = json!({"spec": {"capacity": {"storage": SIZE}, "claimRef": holder,
            "storageClassName": class, "persistentVolumeReclaimPolicy": "Retain"}});
        merge(&mut volume, change);
        self.subject.volume(name, volume).await;
        self.write(name, json!({"phase": "Bound", "capacity": {"storage": SIZE}, "accessModes": modes}))
            .await;
    }

    async fn write(&self, name: &str, status: Value) {
        let patch = Patch::Merge(json!({ "status": status }));
        self.claims.patch_status(name, &PatchParams::default(), &patch).await.unwrap();
    }

    /// Asks for a size; whether the API server takes that.
    pub(crate) async fn ask(&self, name: &str, size: &str) -> bool {
        let patch = Patch::Merge(json!({"spec": {"resources": {"requests": {"storage": size}}}}));
        self.claims.patch(name, &PatchParams::default(), &patch).await.is_ok()
    }

    /// What kubelet writes when it has grown the file system.
    pub(crate) async fn kubelet_grows(&self, name: &str) {
        self.kubelet_grows_volume(name, name).await;
    }

    /// The same, of a volume that has a name of its own.
    pub(crate) async fn kubelet_grows_volume(&self, name: &str, volume: &str) {
        let volume = self.subject.see::<PersistentVolume>(volume).await;
        let size = volume["spec"]["capacity"]["storage"].clone();
        let status =
            json!({"capacity": {"storage": size}, "conditions": null, "allocatedResourceStatuses": null});
        self.write(name, status).await;
    }

    /// What kubelet writes when it never can.
    pub(crate) async fn kubelet_fails(&self, name: &str) {
        self.write(name, json!({"allocatedResourceStatuses": {"storage": "NodeResizeInfeasible"}})).await;
    }

    /// A claim, without what differs from one to the next.
    pub(crate) async fn see(&self, name: &str) -> Value {
        let claim = self.claims.get(name).await.unwrap();
        let claim = serde_json::to_value(claim).unwrap();
        let mut status = claim["status"].clone();
        if let Some(conditions) = status["conditions"].as_array_mut() {
            conditions.sort_by_key(|condition| condition["type"].to_string());
            for condition in conditions {
                condition.as_object_mut().unwrap().retain(|key, _| !key.ends_with("Time"));
            }
        }
        json!({"status": status, "annotations": claim["metadata"]["annotations"]})
    }

    /// The claim as soon as it is as it should be.
    pub(crate) async fn becomes(&self, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let claim = self.see(name).await;
            if holds(&claim) {
                return claim;
            }
            assert!(start.elapsed() < patience(), "{name} is {claim}: {}", self.subject.said());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Notes the claim as soon as it is as it should be, and its volume.
    pub(crate) async fn note(&self, name: &str, holds: impl Fn(&Value) -> bool, seen: &mut Seen) {
        self.note_claim(name, holds, seen).await;
        self.note_volume(name, seen).await;
    }

    /// Notes the claim alone.
    pub(crate) async fn note_claim(&self, name: &str, holds: impl Fn(&Value) -> bool, seen: &mut Seen) {
        let claim = self.becomes(name, holds).await;
        seen.push(self.without_driver(&format!("{name}: {claim}")));
    }

    async fn note_volume(&self, name: &str, seen: &mut Seen) {
        let volume = self.subject.see::<PersistentVolume>(name).await;
        seen.push(format!("{name}: {} {}", volume["metadata"]["annotations"], volume["spec"]["capacity"]));
    }

    /// Until the PersistentVolume says nothing of its size before.
    pub(crate) async fn forgotten(&self, name: &str, seen: &mut Seen) {
        let forgotten = |volume: &Value| volume["metadata"]["annotations"][SIZE_BEFORE].is_null();
        self.subject.becomes::<PersistentVolume>(name, forgotten).await;
        self.note_volume(name, seen).await;
    }

    /// What the resizer has said of a claim, in order, without repetition.
    async fn events(&self, name: &str) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.subject.client.clone(), "default");
        let events = events.list(&ListParams::default()).await.unwrap();
        let source = format!("external-resizer {}", self.subject.driver.name);
        let about = |event: &Event| {
            event.involved_object.name.as_deref() == Some(name)
                && event.source.as_ref().and_then(|source| source.component.as_ref()) == Some(&source)
        };
        let text = |event: &Event| {
            let part = |part: &Option<String>| part.clone().unwrap_or_default();
            let message = part(&event.message).replace(TOO_LATE[0], TOO_LATE[1]);
            format!("{} {}: {message}", part(&event.type_), part(&event.reason))
        };
        let mut all: Vec<_> = events.iter().filter(|event| about(event)).map(text).collect();
        all.sort();
        all.dedup();
        all
    }

    /// Until an Event has these words.
    pub(crate) async fn said(&self, name: &str, words: &str) {
        let start = Instant::now();
        loop {
            let all = self.events(name).await;
            if all.iter().any(|event| event.contains(words)) {
                return;
            }
            assert!(start.elapsed() < patience(), "{name}: {all:#?}: {}", self.subject.said());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn without_driver(&self, text: &str) -> String {
        text.replace(&self.subject.named(""), "").replace(&self.subject.driver.name, "DRIVER")
    }

    /// Notes the Events and what the driver was asked, and deletes both objects.
    pub(crate) async fn end(&self, name: &str, seen: &mut Seen) {
        // Events are written when all else is.
        self.subject.proxy.is_quiet(300).await;
        seen.extend(self.events(name).await.iter().map(|event| self.without_driver(event)));
        let mut calls = self.subject.driver.calls(name);
        calls.dedup();
        seen.extend(calls);
        self.end_quietly(name).await;
    }

    pub(crate) async fn end_quietly(&self, name: &str) {
        self.claims.delete(name, &DeleteParams::default()).await.unwrap();
        self.subject.delete::<PersistentVolume>(name).await;
    }

    /// A pod that uses the claim; nothing runs it.
    pub(crate) async fn pod(&self, name: &str) {
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": name}}]);
        let containers = json!([{"name": "c", "image": "none"}]);
        let pod = json!({"metadata": {"name": name}, "spec": {"volumes": volumes, "containers": containers}});
        let pods: Api<Pod> = Api::namespaced(self.subject.client.clone(), "default");
        pods.create(&PostParams::default(), &serde_json::from_value(pod).unwrap()).await.unwrap();
    }

    /// The pod has gone, at once.
    pub(crate) async fn no_pod(&self, name: &str) {
        let pods: Api<Pod> = Api::namespaced(self.subject.client.clone(), "default");
        let now = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let _ = pods.delete(name, &now).await.unwrap();
    }
}
