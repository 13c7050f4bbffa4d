//! Manually created volumes under flexvold and under external-provisioner: in each phase,
//! with each reclaim policy, deleted or not, with the finalizer or without it; and volumes whose
//! name collides with that of a claim's volume.

use super::pace::deadline;
use super::provision::subjects;
use super::subject::{Seen, Subject, both};
use super::with_server;
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::{Value, json};
use std::collections::HashMap;

/// Finalizer of the provisioner: stays until the storage is deleted.
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";

/// Finalizer of the test: keeps objects until they are checked.
const OTHER: &str = "example.com/other";

/// A PersistentVolume, by what decides about it.
#[derive(Clone, Copy, Debug)]
struct ByHand {
    phase: &'static str,
    policy: &'static str,
    guarded: bool,
    deleted: bool,
    /// Provisioner in its annotation.
    by: Option<&'static str>,
}

/// The driver's own name, in [`ByHand::by`].
const DRIVER: &str = "driver";

impl ByHand {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for phase in ["Pending", "Available", "Bound", "Released", "Failed"] {
            for policy in ["Delete", "Retain", "Recycle"] {
                for (guarded, deleted) in [(false, false), (false, true), (true, false), (true, true)] {
                    for by in [None, Some(DRIVER), Some("other.example.com")] {
                        all.push(Self { phase, policy, guarded, deleted, by });
                    }
                }
            }
        }
        all
    }

    fn name(self, subject: &Subject) -> String {
        let Self { phase, policy, guarded, deleted, by } = self;
        let by = by.unwrap_or("nobody");
        subject.named(&format!("{phase}.{policy}.{guarded}.{deleted}.{by}").to_lowercase())
    }

    async fn make(self, subject: &Subject) {
        let name = self.name(subject);
        let by = self.by.map(|by| if by == DRIVER { &subject.driver.name } else { by });
        let annotations: HashMap<_, _> =
            by.map(|by| ("pv.kubernetes.io/provisioned-by", by)).into_iter().collect();
        let finalizers: &[_] = if self.guarded { &[OTHER, FINALIZER] } else { &[OTHER] };
        let change = json!({
            "metadata": {"finalizers": finalizers, "annotations": annotations},
            "spec": {"persistentVolumeReclaimPolicy": self.policy,
                "claimRef": {"namespace": "default", "name": "gone", "uid": "gone"}}});
        subject.volume(&name, change).await;
        // First, or it would not be a volume that was deleted before anybody guarded it.
        if self.deleted {
            subject.delete::<PersistentVolume>(&name).await;
        }
        subject.phase(&name, self.phase).await;
    }

    /// Finalizers, deletion timestamp, and calls of the driver, as text.
    async fn state(self, subject: &Subject) -> String {
        let name = self.name(subject);
        let metadata = subject.see::<PersistentVolume>(&name).await["metadata"].take();
        let mut calls = subject.driver.calls(&name);
        calls.dedup();
        format!("{self:?}: {} {} {calls:?}", metadata["finalizers"], metadata["deletionTimestamp"])
    }
}

/// All at once; they are looked at when one that came later has gone.
async fn every_kind(subject: &Subject) -> Seen {
    let kinds = ByHand::all();
    for kind in &kinds {
        kind.make(subject).await;
    }
    let last = subject.named("last");
    let change = json!({"spec": {"persistentVolumeReclaimPolicy": "Delete"}});
    subject.volume(&last, change).await;
    subject.phase(&last, "Released").await;
    subject.becomes::<PersistentVolume>(&last, Value::is_null).await;
    let mut seen = Seen::new();
    loop {
        let mut states = Seen::new();
        for kind in &kinds {
            states.push(kind.state(subject).await);
        }
        if states == seen {
            break;
        }
        seen = states;
        tokio::time::sleep(deadline(1)).await;
    }
    let deleted = seen.iter().filter(|state| state.contains("\"delete")).count();
    assert!(deleted > 0 && deleted < kinds.len() / 4, "{deleted}");
    seen
}

/// A claim whose volume's name is taken: nothing is made, nothing is changed.
async fn same_name(subject: &Subject) -> Seen {
    let class = subject.named("class");
    subject.class(&class, json!({})).await;
    let mut seen = Seen::new();
    for (claim, driver) in [("of-driver", subject.driver.name.as_str()), ("of-other", "other.example.com")] {
        let volume = subject.make_claim(claim, &class, json!({})).await;
        subject.volume(&volume, json!({"spec": {"csi": {"driver": driver}}})).await;
        let before = subject.see::<PersistentVolume>(&volume).await;
        subject.is_to_provision(claim).await;
        // One that comes later has its volume.
        let later = subject.claim(&format!("after-{claim}"), &class, json!({})).await;
        subject.becomes::<PersistentVolume>(&later, |object| !object.is_null()).await;
        let same = before == subject.see::<PersistentVolume>(&volume).await;
        let (said, calls) = (subject.events(claim).await, subject.driver.calls(&volume));
        seen.push(format!("{claim}: {same} {said:?} {calls:?}"));
    }
    seen
}

#[test]
fn as_upstream_takes_them() {
    with_server("by_hand::as_upstream_takes_them", async |server| {
        server.has_namespaces().await;
        let subjects = subjects(&server, "h", false).await;
        both!(subjects, every_kind);
        both!(subjects, same_name);
    });
}
