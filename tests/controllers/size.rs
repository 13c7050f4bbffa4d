//! What controllers cost in a large cluster, beside upstream's sidecars: volumes, claims and
//! attachments of one driver that are all in order, and a program that starts. It has to read all
//! of them, then provisions a volume and attaches another one; so long is its start.
//!
//! `tests/bench controllers 5000 20000` prints a table.

use super::api_server::ApiServer;
use super::driver::Can;
use super::figures::{all, memory, processor};
use super::subject::{Subject, Whose, Work};
use super::with_server;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::cell::Cell;
use std::fmt::Debug;
use std::time::{Duration, Instant};

/// Starts of each program, one after the other in turns.
const ROUNDS: usize = 3;

/// Nodes that the attachments are spread over.
const NODES: usize = 200;

/// A volume, its claim and its attachment, as they are when nothing is to be done.
async fn in_order(subject: &Subject, number: usize) {
    let (driver, name) = (&subject.driver.name, format!("volume-{number}"));
    let claim = json!({"metadata": {"name": name, "namespace": "default",
            "finalizers": ["kubernetes.io/pvc-protection"],
            "annotations": {"pv.kubernetes.io/bind-completed": "yes", "pv.kubernetes.io/bound-by-controller": "yes",
                "volume.kubernetes.io/storage-provisioner": driver}},
        "spec": {"storageClassName": subject.named("class"), "volumeName": name, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}});
    let claims = Api::namespaced(subject.client.clone(), "default");
    let claim: PersistentVolumeClaim = made(&claims, claim).await;
    let bound = json!({"status": {"phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}});
    status(&claims, &name, bound).await;
    let volume = json!({"metadata": {"name": name,
            "finalizers": ["external-provisioner.volume.kubernetes.io/finalizer", "kubernetes.io/pv-protection",
                finalizer(driver)],
            "annotations": {"pv.kubernetes.io/provisioned-by": driver,
                "volume.kubernetes.io/provisioner-deletion-secret-name": "",
                "volume.kubernetes.io/provisioner-deletion-secret-namespace": ""}},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": subject.named("class"),
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "default", "name": name,
                "uid": claim.metadata.uid},
            "csi": {"driver": driver, "volumeHandle": name, "fsType": "ext4",
                "volumeAttributes": {"storage.kubernetes.io/csiProvisionerIdentity": format!("1700000000000-1-{driver}"),
                    "pool": "fast"}}}});
    let _: PersistentVolume = made(&Api::all(subject.client.clone()), volume).await;
    let attachments: Api<VolumeAttachment> = Api::all(subject.client.clone());
    let attachment = json!({"metadata": {"name": name, "finalizers": [finalizer(driver)],
            "annotations": {"csi.alpha.kubernetes.io/node-id": "id"}},
        "spec": {"attacher": driver, "nodeName": format!("node-{}", number % NODES),
            "source": {"persistentVolumeName": name}}});
    let _: VolumeAttachment = made(&attachments, attachment).await;
    status(
        &attachments,
        &name,
        json!({"status": {"attached": true, "attachmentMetadata": {"device": "sdx"}}}),
    )
    .await;
}

fn finalizer(driver: &str) -> String {
    format!("external-attacher/{}", driver.replace('.', "-"))
}

async fn made<K>(api: &Api<K>, object: Value) -> K
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap()
}

async fn status<K>(api: &Api<K>, name: &str, status: Value)
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
{
    api.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// Watches the leases: the longest time after which one was renewed.
async fn latest_renewal(subject: &Subject, latest: &Cell<f64>) {
    let leases: Api<Lease> = Api::namespaced(subject.client.clone(), "default");
    loop {
        for lease in leases.list(&ListParams::default()).await.unwrap() {
            let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
            let Some(renewed) = renewed else { continue };
            let since = Timestamp::now().duration_since(renewed.0).as_secs_f64();
            latest.set(latest.get().max(since));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Starts a program, and lets it provision a volume and attach another one.
async fn start(subject: &mut Subject, size: usize, round: usize) {
    let begun = Instant::now();
    subject.begin();
    let (subject, latest) = (&*subject, Cell::new(0.0));
    let work = async {
        let name = subject.named(&format!("new-{}-{round}", subject.program()));
        let volume = subject.claim(&name, &subject.named("class"), json!({})).await;
        subject.volume(&name, json!({})).await;
        subject.attach(&name, json!({"spec": {"nodeName": "node-0"}})).await;
        subject.becomes::<PersistentVolume>(&volume, |object| !object.is_null()).await;
        let attached = |object: &Value| object["status"]["attached"] == true;
        subject.becomes::<VolumeAttachment>(&name, attached).await;
        let after = begun.elapsed();
        // Long enough for the lease to be renewed twice.
        tokio::time::sleep(Duration::from_secs(12)).await;
        after
    };
    let after = tokio::select! {
        after = work => after,
        () = latest_renewal(subject, &latest) => unreachable!(),
    };
    println!(
        "| {size} | {} | {:.1} s | {:.1} s | {} MiB | {:.1} s |",
        subject.program(),
        after.as_secs_f64(),
        f64::from(u32::try_from(processor(subject)).unwrap()) / 100.0,
        memory(subject) / 1024,
        latest.get()
    );
}

async fn measure(server: &ApiServer, size: usize) {
    server.has_namespaces().await;
    let can = Can { publish: true, provision: true, expand: true, ..Can::default() };
    let mut subject = Subject::new(server, Whose::Ours, Work::All, "size.example.com", can).await;
    subject.class(&subject.named("class"), json!({"allowVolumeExpansion": true})).await;
    for number in 0..NODES {
        subject.node(&format!("node-{number}")).await;
    }
    let begun = Instant::now();
    all(size, async |number| in_order(&subject, number).await).await;
    println!("{size} volumes, claims and attachments, made in {:?}", begun.elapsed());
    for round in 0..ROUNDS {
        for whose in [Whose::Ours, Whose::Upstream] {
            subject.is_now(whose);
            start(&mut subject, size, round).await;
            subject.kill().await;
        }
    }
}

#[test]
#[ignore = "figures"]
fn starts_with_many_volumes() {
    println!("| volumes | program | at work after | processor | memory | lease renewed after |");
    println!("|---|---|---|---|---|---|");
    let sizes = std::env::var("FLEXVOL_SIZES").unwrap_or_else(|_| "5000".to_owned());
    for size in sizes.split_whitespace() {
        with_server("size::starts_with_many_volumes", async |server| {
            measure(&server, size.parse().unwrap()).await;
        });
    }
}
