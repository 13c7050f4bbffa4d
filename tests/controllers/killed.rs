//! Volumes attached, detached and grown, and cut short at every request to the API server and at
//! every call of the driver, before it arrives and before its answer does: the process is killed
//! there, or the connection breaks. It converges, and nothing is left.

use super::bound_claims::{Claims, SIZE_BEFORE};
use super::cut::{Short, points};
use super::driver::{Can, WHOLE};
use super::subject::{Subject, Whose, Work};
use super::with_server;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::{Value, json};

/// Attaches and detaches; whether what is cut short came at all.
async fn play(subject: &mut Subject, name: &str, short: Short) -> bool {
    subject.volume(name, json!({})).await;
    subject.begin();
    short.begin(subject);
    subject.attach(name, json!({})).await;
    let is_attached = async |subject: &Subject| {
        let attached = |object: &Value| object["status"]["attached"] == true;
        subject.becomes::<VolumeAttachment>(name, attached).await;
    };
    let mut came = short.wait(subject, is_attached).await;
    assert_eq!(subject.driver.nodes(name), ["id"], "{short:?}");
    subject.delete::<PersistentVolume>(name).await;
    subject.delete::<VolumeAttachment>(name).await;
    let is_detached = async |subject: &Subject| {
        subject.becomes::<VolumeAttachment>(name, Value::is_null).await;
        subject.becomes::<PersistentVolume>(name, Value::is_null).await;
    };
    came |= short.wait(subject, is_detached).await;
    assert_eq!(subject.driver.nodes(name), [""; 0], "{short:?}");
    short.end(subject, came).await
}

#[test]
fn attaching_at_every_point() {
    with_server("killed::attaching_at_every_point", async |server| {
        let can = Can { publish: true, ..Can::default() };
        let mut subject = Subject::new(&server, Whose::Ours, Work::Attach, "killed.example.com", can).await;
        subject.node(&subject.driver.name).await;
        let points = points(&mut subject, "attach", async |subject, number, short| {
            play(subject, &format!("volume-{number}"), short).await
        })
        .await;
        // Two finalizers on, status, two finalizers off; two calls.
        assert!(points[0] >= 10 && points[2] >= 10, "{points:?}");
        assert_eq!([points[1], points[3]], [4, 4]);
    });
}

/// Has a volume grow, by a node or without one; whether what is cut short came at all.
async fn grow(subject: &mut Subject, name: &str, by_node: bool, short: Short) -> bool {
    Claims::of(subject).await.bound(name, json!({})).await;
    subject.begin();
    short.begin(subject);
    assert!(Claims::of(subject).await.ask(name, "64Mi").await);
    let is_grown = async |subject: &Subject| {
        let is_grown = |claim: &Value| {
            let status = &claim["status"];
            let pending = status["allocatedResourceStatuses"]["storage"] == "NodeResizePending";
            if by_node { pending } else { status["capacity"]["storage"] == "64Mi" }
        };
        Claims::of(subject).await.becomes(name, is_grown).await;
    };
    let mut came = short.wait(subject, is_grown).await;
    assert_eq!(subject.driver.size(name), Some(64 << 20), "{short:?}");
    if by_node {
        Claims::of(subject).await.kubelet_grows(name).await;
        let is_forgotten = async |subject: &Subject| {
            let forgotten = |volume: &Value| volume["metadata"]["annotations"][SIZE_BEFORE].is_null();
            subject.becomes::<PersistentVolume>(name, forgotten).await;
        };
        came |= short.wait(subject, is_forgotten).await;
    }
    let volume = subject.see::<PersistentVolume>(name).await;
    assert_eq!(volume["spec"]["capacity"]["storage"], "64Mi", "{short:?}");
    let conditions = Claims::of(subject).await.see(name).await["status"]["conditions"].clone();
    assert_eq!(conditions, Value::Null, "{short:?}");
    came = short.end(subject, came).await;
    Claims::of(subject).await.end_quietly(name).await;
    came
}

/// Grows many; at how many points.
async fn growing(server: &super::ApiServer, flow: &str, by_node: bool) -> [usize; 4] {
    server.has_namespaces().await;
    let (name, can) = (format!("{flow}.example.com"), Can { expand: true, ..Can::default() });
    let mut subject = Subject::new(server, Whose::Ours, Work::Resize, &name, can).await;
    points(&mut subject, &format!("resize/{flow}"), async |subject, number, short| {
        grow(subject, &format!("volume-{number}-{flow}"), by_node, short).await
    })
    .await
}

#[test]
fn growing_by_node_at_every_point() {
    with_server("killed::growing_by_node_at_every_point", async |server| {
        let points = growing(&server, "node", true).await;
        // What is begun, PersistentVolume, claim, and what is forgotten; one call.
        assert!(points[0] >= 8 && points[2] >= 8, "{points:?}");
        assert_eq!([points[1], points[3]], [2, 2]);
    });
}

#[test]
fn growing_at_every_point() {
    with_server("killed::growing_at_every_point", async |server| {
        let points = growing(&server, WHOLE, false).await;
        assert!(points[0] >= 6 && points[2] >= 6, "{points:?}");
        assert_eq!([points[1], points[3]], [2, 2]);
    });
}
