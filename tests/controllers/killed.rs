//! Killed at every request to the API server, before it arrives and before its answer does: the
//! next one ends what was begun, and nothing is left.

use super::proxy::Cut;
use super::subject::{Subject, Whose};
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
    came |= wait_volume(subject, name).await;
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

async fn wait_volume(subject: &mut Subject, name: &str) -> bool {
    let proxy = subject.proxy.clone();
    let killed = tokio::select! {
        _ = subject.becomes::<PersistentVolume>(name, Value::is_null) => false,
        () = proxy.reached() => true,
    };
    if killed {
        again(subject).await;
        subject.becomes::<PersistentVolume>(name, Value::is_null).await;
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
        let mut subject = Subject::new(&server, Whose::Ours, "killed.example.com", true).await;
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
