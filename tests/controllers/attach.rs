//! The same scenarios by ours and by upstream's external-attacher 4.13: what the objects say after
//! each step, and what the driver was asked, are equal. What is not is in docs/csi.md.

use super::api_server::ApiServer;
use super::driver::{ALWAYS, Can, Fault};
use super::subject::{Seen, Subject, Whose, Work, both, timeout};
use super::with_server;
use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use k8s_openapi::api::storage::v1::{CSINode, VolumeAttachment};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use std::time::Duration;
use tonic::Code;

/// Every code that a call may fail with.
pub(crate) const CODES: [Code; 16] = [
    Code::Cancelled,
    Code::Unknown,
    Code::InvalidArgument,
    Code::DeadlineExceeded,
    Code::NotFound,
    Code::AlreadyExists,
    Code::PermissionDenied,
    Code::ResourceExhausted,
    Code::FailedPrecondition,
    Code::Aborted,
    Code::OutOfRange,
    Code::Unimplemented,
    Code::Internal,
    Code::Unavailable,
    Code::DataLoss,
    Code::Unauthenticated,
];

fn is_attached(object: &Value) -> bool {
    object["status"]["attached"] == true
}

/// Not what upstream says first when it has not heard of the volume yet.
fn fails_with(words: &str) -> impl Fn(&Value) -> bool {
    move |object| object["status"]["attachError"]["message"].as_str().is_some_and(|text| text.contains(words))
}

fn has_not_detached(object: &Value) -> bool {
    object["status"]["detachError"].is_object()
}

fn note(seen: &mut Seen, step: &str, object: &Value) {
    seen.push(format!("{step}: {object}"));
}

/// The object of a volume that is no longer waiting to be attached. If upstream has not heard of
/// its own writing, it leaves the error of an earlier attempt there. Ours has none.
async fn begun(subject: &Subject, name: &str, holds: impl Fn(&Value) -> bool) -> Value {
    let mut object = subject.becomes::<VolumeAttachment>(name, holds).await;
    if let Some(status) = object["status"].as_object_mut().filter(|_| !subject.is_ours()) {
        status.remove("attachError");
    }
    object
}

/// Until it is attached; both objects are noted.
async fn attached(subject: &Subject, name: &str, seen: &mut Seen) {
    note(seen, name, &begun(subject, name, is_attached).await);
    let volume = subject.see::<PersistentVolume>(name).await;
    note(seen, name, &volume["metadata"]);
}

/// What the driver was asked. How often is no promise.
fn calls(subject: &Subject, name: &str) -> Vec<String> {
    let mut calls = subject.driver.calls(name);
    calls.dedup();
    calls
}

/// Deletes it, and the volume first; nothing is left.
async fn gone(subject: &Subject, name: &str, seen: &mut Seen) {
    subject.delete::<PersistentVolume>(name).await;
    subject.delete::<VolumeAttachment>(name).await;
    subject.becomes::<VolumeAttachment>(name, Value::is_null).await;
    subject.becomes::<PersistentVolume>(name, Value::is_null).await;
    seen.extend(calls(subject, name));
    assert_eq!(subject.driver.nodes(name), [""; 0], "{name}");
}

async fn plain(subject: &Subject) -> Seen {
    let mut seen = Seen::new();
    for (name, change) in [
        ("plain", json!({})),
        ("reader", json!({"spec": {"csi": {"readOnly": true, "volumeAttributes": null}}})),
        ("block", json!({"spec": {"volumeMode": "Block"}})),
        (
            "shared",
            json!({"spec": {"accessModes": ["ReadWriteMany", "ReadWriteOnce"], "mountOptions": ["noatime"]}}),
        ),
        ("system", json!({"spec": {"csi": {"fsType": "xfs"}}})),
    ] {
        let name = subject.named(name);
        subject.volume(&name, change).await;
        subject.attach(&name, json!({})).await;
        attached(subject, &name, &mut seen).await;
        gone(subject, &name, &mut seen).await;
    }
    seen
}

/// Each code in each direction, until all have been seen.
async fn codes(subject: &Subject) -> Seen {
    let mut seen = Seen::new();
    let names: Vec<_> = CODES.iter().map(|code| subject.named(&format!("{code:?}").to_lowercase())).collect();
    for (name, code) in names.iter().zip(CODES) {
        subject.driver.fails("publish", name, &[Fault::Refused(code); ALWAYS]);
        subject.driver.fails("unpublish", name, &[Fault::Refused(code); ALWAYS]);
        subject.volume(name, json!({})).await;
        subject.attach(name, json!({})).await;
    }
    for name in &names {
        note(&mut seen, name, &subject.becomes::<VolumeAttachment>(name, fails_with("as it was told")).await);
        subject.driver.fails("publish", name, &[]);
    }
    for name in &names {
        attached(subject, name, &mut seen).await;
        subject.delete::<VolumeAttachment>(name).await;
    }
    for name in &names {
        note(&mut seen, name, &begun(subject, name, has_not_detached).await);
        subject.driver.fails("unpublish", name, &[]);
    }
    for name in &names {
        subject.becomes::<VolumeAttachment>(name, Value::is_null).await;
        subject.delete::<PersistentVolume>(name).await;
        subject.becomes::<PersistentVolume>(name, Value::is_null).await;
        assert_eq!(subject.driver.nodes(name), [""; 0], "{name}");
    }
    seen
}

/// What is missing at first.
async fn missing(subject: &Subject) -> Seen {
    let mut seen = Seen::new();
    let (volume, node, secret) = (subject.named("volume"), subject.named("node"), subject.named("secret"));
    subject.attach(&volume, json!({})).await;
    subject.volume(&node, json!({})).await;
    subject.attach(&node, json!({"spec": {"nodeName": node}})).await;
    let named = json!({"name": secret, "namespace": "default"});
    subject.volume(&secret, json!({"spec": {"csi": {"controllerPublishSecretRef": named}}})).await;
    subject.attach(&secret, json!({})).await;
    for (name, words) in [(&volume, "persistentvolume"), (&node, "csinode"), (&secret, "secret")] {
        note(&mut seen, name, &subject.becomes::<VolumeAttachment>(name, fails_with(words)).await);
    }
    subject.volume(&volume, json!({})).await;
    subject.node(&node).await;
    let data = json!({"metadata": {"name": secret}, "stringData": {"key": "value of a secret"}});
    let secrets: Api<Secret> = Api::namespaced(subject.client.clone(), "default");
    secrets.create(&PostParams::default(), &serde_json::from_value(data).unwrap()).await.unwrap();
    for name in [&volume, &node, &secret] {
        attached(subject, name, &mut seen).await;
    }
    // A node that has gone is detached from.
    subject.delete::<CSINode>(&node).await;
    for name in [&volume, &node, &secret] {
        gone(subject, name, &mut seen).await;
    }
    assert!(!subject.said().contains("value of a secret"));
    seen
}

/// What can never be attached has no finalizer, so that it can be deleted at once.
async fn refused(subject: &Subject) -> Seen {
    let mut seen = Seen::new();
    let (dying, modes, secret, unknown) =
        (subject.named("dying"), subject.named("modes"), subject.named("unknown"), subject.named("nowhere"));
    subject.volume(&dying, json!({"metadata": {"finalizers": ["example.com/keeps"]}})).await;
    subject.delete::<PersistentVolume>(&dying).await;
    subject.volume(&modes, json!({"spec": {"accessModes": ["ReadOnlyMany", "ReadWriteOnce"]}})).await;
    let named = json!({"name": "nothing", "namespace": "default"});
    subject.volume(&secret, json!({"spec": {"csi": {"controllerPublishSecretRef": named}}})).await;
    subject.volume(&unknown, json!({})).await;
    subject.make::<CSINode>(json!({"metadata": {"name": unknown}, "spec": {"drivers": []}})).await;
    let wanted = [(&dying, json!({})), (&modes, json!({})), (&secret, json!({}))];
    for (name, change) in wanted.into_iter().chain([(&unknown, json!({"spec": {"nodeName": unknown}}))]) {
        subject.attach(name, change).await;
    }
    let why = ["marked for deletion", "ReadOnlyMany", "secret", "does not contain"];
    for (name, words) in [&dying, &modes, &secret, &unknown].into_iter().zip(why) {
        let mut object = subject.becomes::<VolumeAttachment>(name, fails_with(words)).await;
        if *name == modes {
            // Our own words: docs/csi.md.
            object["status"]["attachError"]["message"] = json!("of the access modes");
        }
        note(&mut seen, name, &object);
        subject.delete::<VolumeAttachment>(name).await;
        subject.becomes::<VolumeAttachment>(name, Value::is_null).await;
    }
    subject.change::<PersistentVolume>(&dying, json!({"metadata": {"finalizers": null}})).await;
    for name in [&dying, &modes, &secret, &unknown] {
        if *name != dying {
            subject.delete::<PersistentVolume>(name).await;
        }
        subject.becomes::<PersistentVolume>(name, Value::is_null).await;
        assert_eq!(subject.driver.calls(name), [""; 0], "{name}");
    }
    subject.delete::<CSINode>(&unknown).await;
    seen
}

/// Deleted while it is attached; and attached, but the answer is lost.
async fn lost(subject: &Subject) -> Seen {
    let mut seen = Seen::new();
    let (deleted, late) = (subject.named("deleted"), subject.named("late"));
    wanted_with(subject, &deleted, Fault::Slow(timeout() / 2)).await;
    let guarded = |object: &Value| object["metadata"]["finalizers"].is_array();
    note(&mut seen, &deleted, &begun(subject, &deleted, guarded).await);
    gone(subject, &deleted, &mut seen).await;
    wanted_with(subject, &late, Fault::Lost(timeout() * 2)).await;
    let mut object = subject.becomes::<VolumeAttachment>(&late, fails_with("DeadlineExceeded")).await;
    // In the words of either's gRPC.
    object["status"]["attachError"]["message"].take();
    note(&mut seen, &late, &object);
    attached(subject, &late, &mut seen).await;
    gone(subject, &late, &mut seen).await;
    seen
}

/// A volume that is wanted, and goes wrong in each direction: twice, because upstream tries once
/// more at once.
async fn wanted_with(subject: &Subject, name: &str, fault: Fault) {
    subject.driver.fails("publish", name, &[fault; 2]);
    subject.driver.fails("unpublish", name, &[fault; 2]);
    subject.volume(name, json!({})).await;
    subject.attach(name, json!({})).await;
}

/// A volume that is in no PersistentVolume, and one that has another's finalizer.
async fn odd(subject: &Subject) -> Seen {
    let mut seen = Seen::new();
    let (inline, held, foreign) = (subject.named("inline"), subject.named("held"), subject.named("foreign"));
    let csi = json!({"driver": subject.driver.name, "volumeHandle": inline});
    let spec = json!({"accessModes": ["ReadWriteOnce"], "csi": csi});
    let source = json!({"persistentVolumeName": null, "inlineVolumeSpec": spec});
    subject.attach(&inline, json!({"spec": {"source": source}})).await;
    note(&mut seen, &inline, &begun(subject, &inline, is_attached).await);
    subject.delete::<VolumeAttachment>(&inline).await;
    subject.becomes::<VolumeAttachment>(&inline, Value::is_null).await;
    seen.extend(calls(subject, &inline));
    let keeps = json!({"metadata": {"finalizers": ["example.com/keeps"]}});
    subject.volume(&held, keeps.clone()).await;
    subject.attach(&held, keeps).await;
    attached(subject, &held, &mut seen).await;
    subject.delete::<PersistentVolume>(&held).await;
    subject.delete::<VolumeAttachment>(&held).await;
    // In two requests, in either order.
    let detached = |object: &Value| {
        object["status"]["attached"] == false
            && object["metadata"]["finalizers"] == json!(["example.com/keeps"])
    };
    note(&mut seen, &held, &begun(subject, &held, detached).await);
    subject.change::<VolumeAttachment>(&held, json!({"metadata": {"finalizers": null}})).await;
    subject.becomes::<VolumeAttachment>(&held, Value::is_null).await;
    let released = |object: &Value| object["metadata"]["finalizers"] == json!(["example.com/keeps"]);
    note(&mut seen, &held, &subject.becomes::<PersistentVolume>(&held, released).await);
    subject.change::<PersistentVolume>(&held, json!({"metadata": {"finalizers": null}})).await;
    subject.becomes::<PersistentVolume>(&held, Value::is_null).await;
    // Another attacher's: left alone.
    subject.attach(&foreign, json!({"spec": {"attacher": "another.example.com"}})).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    note(&mut seen, &foreign, &subject.see::<VolumeAttachment>(&foreign).await);
    subject.delete::<VolumeAttachment>(&foreign).await;
    seen
}

/// A driver that attaches nothing.
async fn without(subject: &Subject) -> Seen {
    let mut seen = Seen::new();
    there_and_back(subject, "without", &mut seen).await;
    seen
}

/// A volume that is attached and detached.
async fn there_and_back(subject: &Subject, name: &str, seen: &mut Seen) {
    let name = subject.named(name);
    subject.volume(&name, json!({})).await;
    subject.attach(&name, json!({})).await;
    attached(subject, &name, seen).await;
    gone(subject, &name, seen).await;
}

async fn subjects(server: &ApiServer, name: &str, publish: bool) -> [Subject; 2] {
    let (work, can) = (Work::Attach, Can { publish, ..Can::default() });
    let mut both = [
        Subject::new(server, Whose::Ours, work, &format!("ours-{name}.example.com"), can).await,
        Subject::new(server, Whose::Upstream, work, &format!("upstream-{name}.example.com"), can).await,
    ];
    for subject in &mut both {
        subject.node(&subject.driver.name).await;
        subject.begin();
    }
    both
}

#[test]
fn as_upstream_does_it() {
    with_server("attach::as_upstream_does_it", async |server| {
        server.has_namespaces().await;
        let attaching = subjects(&server, "a", true).await;
        both!(attaching, plain);
        both!(attaching, missing);
        both!(attaching, refused);
        both!(attaching, lost);
        both!(attaching, odd);
        both!(attaching, codes);
        let others = subjects(&server, "b", false).await;
        both!(others, without);
    });
}

/// How many requests the API server gets for one volume that is attached and detached.
#[test]
fn costs_no_more_than_upstream() {
    with_server("attach::costs_no_more_than_upstream", async |server| {
        let both = subjects(&server, "c", true).await;
        let mut requests = Vec::new();
        for subject in &both {
            let mut seen = Seen::new();
            // What is done once, is done.
            there_and_back(subject, "first", &mut seen).await;
            subject.proxy.requests();
            there_and_back(subject, "second", &mut seen).await;
            subject.proxy.is_quiet(500).await;
            let sent = subject.proxy.requests();
            println!("{} requests of {}: {sent:#?}", sent.len(), subject.driver.name);
            requests.push(sent.len());
        }
        assert!(requests[0] <= requests[1], "{requests:?}");
    });
}
