//! Killed at every request to the API server, before it arrives and before its answer does: the
//! next one ends what was begun, and nothing is left.

use super::claims::{Claims, SIZE_BEFORE};
use super::driver::{Can, WHOLE};
use super::proxy::Cut;
use super::subject::{Subject, Whose, Work};
use super::with_server;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use serde_json::{Value, json};

/// Attaches and detaches; whether the request at which to end came at all.
async fn play(subject: &mut Subject, name: &str, cut: Cut) -> bool {
    subject.volume(name, json!({})).await;
    subject.begin();
    subject.proxy.cut(Some(cut));
    subject.attach(name, json!({})).await;
    let attached = |object: &Value| object["status"]["attached"] == true;
    let mut came = wait(subject, name, attached).await;
    assert_eq!(subject.driver.nodes(name), ["id"], "{cut:?}");
    subject.delete::<PersistentVolume>(name).await;
    subject.delete::<VolumeAttachment>(name).await;
    came |= wait(subject, name, Value::is_null).await;
    came |= wait_until(subject, name, Value::is_null).await;
    assert_eq!(subject.driver.nodes(name), [""; 0], "{cut:?}");
    subject.kill().await;
    came
}

/// Until the object is as it should be, though the controller is killed; whether it was.
async fn wait(subject: &mut Subject, name: &str, holds: impl Fn(&Value) -> bool + Copy) -> bool {
    let proxy = subject.proxy.clone();
    let killed = tokio::select! {
        _ = subject.becomes::<VolumeAttachment>(name, holds) => false,
        () = proxy.reached() => true,
    };
    if killed {
        again(subject).await;
        subject.becomes::<VolumeAttachment>(name, holds).await;
    }
    killed
}

async fn wait_until(subject: &mut Subject, name: &str, holds: impl Fn(&Value) -> bool + Copy) -> bool {
    let proxy = subject.proxy.clone();
    let killed = tokio::select! {
        _ = subject.becomes::<PersistentVolume>(name, holds) => false,
        () = proxy.reached() => true,
    };
    if killed {
        again(subject).await;
        subject.becomes::<PersistentVolume>(name, holds).await;
    }
    killed
}

async fn again(subject: &mut Subject) {
    subject.kill().await;
    subject.proxy.cut(None);
    subject.begin();
}

#[test]
fn at_every_request() {
    with_server("killed::at_every_request", async |server| {
        let can = Can { publish: true, ..Can::default() };
        let mut subject = Subject::new(&server, Whose::Ours, Work::Attach, "killed.example.com", can).await;
        subject.node(&subject.driver.name).await;
        let mut points = 0;
        for number in 1.. {
            let before = play(&mut subject, &format!("before-{number}"), Cut::Before(number)).await;
            let after = play(&mut subject, &format!("after-{number}"), Cut::After(number)).await;
            assert_eq!(before, after, "{number}");
            if !before {
                break;
            }
            points += 2;
        }
        // Two finalizers on, status, two finalizers off.
        assert!(points >= 10, "{points}");
        println!("killed at {points} points");
    });
}

/// Has a volume grow, by a node or without one; whether the request at which to end came at all.
async fn grow(subject: &mut Subject, name: &str, by_node: bool, cut: Cut) -> bool {
    Claims::of(subject).await.bound(name, json!({})).await;
    subject.begin();
    subject.proxy.cut(Some(cut));
    assert!(Claims::of(subject).await.ask(name, "64Mi").await);
    let is_grown = |claim: &Value| {
        let status = &claim["status"];
        let pending = status["allocatedResourceStatuses"]["storage"] == "NodeResizePending";
        if by_node { pending } else { status["capacity"]["storage"] == "64Mi" }
    };
    let mut came = wait_claim(subject, name, is_grown).await;
    assert_eq!(subject.driver.size(name), Some(64 << 20), "{cut:?}");
    if by_node {
        Claims::of(subject).await.kubelet_grows(name).await;
        let forgotten = |volume: &Value| volume["metadata"]["annotations"][SIZE_BEFORE].is_null();
        came |= wait_until(subject, name, forgotten).await;
    }
    let volume = subject.see::<PersistentVolume>(name).await;
    assert_eq!(volume["spec"]["capacity"]["storage"], "64Mi", "{cut:?}");
    let conditions = Claims::of(subject).await.see(name).await["status"]["conditions"].clone();
    assert_eq!(conditions, Value::Null, "{cut:?}");
    subject.kill().await;
    Claims::of(subject).await.end_quietly(name).await;
    came
}

async fn wait_claim(subject: &mut Subject, name: &str, holds: impl Fn(&Value) -> bool + Copy) -> bool {
    let proxy = subject.proxy.clone();
    let claims = Claims::of(subject).await;
    let killed = tokio::select! {
        _ = claims.becomes(name, holds) => false,
        () = proxy.reached() => true,
    };
    if killed {
        again(subject).await;
        Claims::of(subject).await.becomes(name, holds).await;
    }
    killed
}

#[test]
fn growing_at_every_request() {
    with_server("killed::growing_at_every_request", async |server| {
        server.has_namespaces().await;
        let can = Can { expand: true, ..Can::default() };
        let mut subject = Subject::new(&server, Whose::Ours, Work::Resize, "grows.example.com", can).await;
        let mut points = Vec::new();
        for (flow, by_node) in [("node", true), (WHOLE, false)] {
            let mut number = 1;
            loop {
                let (before, after) = (Cut::Before(number), Cut::After(number));
                let before = grow(&mut subject, &format!("before-{number}-{flow}"), by_node, before).await;
                let after = grow(&mut subject, &format!("after-{number}-{flow}"), by_node, after).await;
                assert_eq!(before, after, "{number}");
                if !before {
                    break;
                }
                number += 1;
            }
            points.push(2 * (number - 1));
        }
        // What is begun, PersistentVolume, claim, and what is forgotten.
        assert!(points[0] >= 8 && points[1] >= 6, "{points:?}");
        println!("killed at {points:?} points");
    });
}
