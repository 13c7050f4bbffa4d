//! A driver repeats in its errors the Secrets that it was given: no object that a tenant reads, and
//! no line of the log, has them.

use super::driver::{ALWAYS, Can, Fault};
use super::subject::{Subject, Whose, Work};
use super::with_server;
use k8s_openapi::api::core::v1::{Event, PersistentVolume, Secret};
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};

const CANARY: &str = "canary-5e1f";

/// A class whose volumes have a Secret for each call of the Controller service.
async fn class(subject: &Subject) {
    let secrets: Api<Secret> = Api::namespaced(subject.client.clone(), "default");
    let secret = json!({"metadata": {"name": "login"}, "stringData": {"password": CANARY}});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let mut parameters = json!({});
    for call in ["provisioner", "controller-publish", "controller-expand"] {
        parameters[format!("csi.storage.k8s.io/{call}-secret-name")] = json!("login");
        parameters[format!("csi.storage.k8s.io/{call}-secret-namespace")] = json!("default");
    }
    subject.class("class", json!({"allowVolumeExpansion": true, "parameters": parameters})).await;
}

/// Until an Event on an object has the driver's words; no Event has what was given to the driver.
async fn is_told(subject: &Subject, reason: &str) {
    let events: Api<Event> = Api::all(subject.client.clone());
    let told = async || {
        let all = events.list(&ListParams::default()).await.unwrap();
        let text = serde_json::to_string(&all.items).unwrap();
        assert!(!text.contains(CANARY), "{text}");
        let says = |event: &Event| event.message.as_deref().unwrap_or_default().contains("***");
        all.iter().any(|event| event.reason.as_deref() == Some(reason) && says(event))
    };
    subject.soon(reason, told).await;
}

#[test]
fn no_error_of_a_driver_tells_a_secret() {
    with_server("repeated::no_error_of_a_driver_tells_a_secret", async |server| {
        server.has_namespaces().await;
        let can = Can { publish: true, provision: true, expand: true, ..Can::default() };
        let mut subject = Subject::new(&server, Whose::Ours, Work::All, "repeats.example.com", can).await;
        subject.node(&subject.driver.name).await;
        class(&subject).await;
        subject.begin();
        let calls = ["create", "expand", "publish", "unpublish", "delete"];
        let always: &[Fault] = &[Fault::Repeated; ALWAYS];
        let faults = calls.map(|call| (call, always));
        let volume = subject.claim_that_fails("claim", "class", json!({}), &faults).await;
        let works_again = |call| subject.driver.fails(call, &volume, &[]);

        is_told(&subject, "ProvisioningFailed").await;
        works_again("create");
        subject.becomes::<PersistentVolume>(&volume, |object| !object.is_null()).await;

        subject.bind("claim", &volume).await;
        is_told(&subject, "VolumeResizeFailed").await;
        works_again("expand");

        subject.attach(&volume, json!({})).await;
        for (call, error) in [("publish", "attachError"), ("unpublish", "detachError")] {
            let failed = |object: &Value| object["status"][error]["message"].is_string();
            let object = subject.becomes::<VolumeAttachment>(&volume, failed).await;
            let said = object["status"][error]["message"].as_str().unwrap();
            assert!(said.contains("***") && !said.contains(CANARY), "{said}");
            works_again(call);
            if call == "publish" {
                subject
                    .becomes::<VolumeAttachment>(&volume, |object| object["status"]["attached"] == true)
                    .await;
                subject.delete::<VolumeAttachment>(&volume).await;
            }
        }
        subject.becomes::<VolumeAttachment>(&volume, Value::is_null).await;

        subject.unclaim("claim").await;
        subject.phase(&volume, "Released").await;
        is_told(&subject, "VolumeFailedDelete").await;
        works_again("delete");
        subject.becomes::<PersistentVolume>(&volume, Value::is_null).await;

        let given = subject.driver.calls(&volume);
        let given = |call: &str| given.iter().any(|line| line.starts_with(call) && line.contains(CANARY));
        assert!(calls.iter().all(|call| given(call)), "it was given each time");
        assert!(!subject.said().contains(CANARY), "{}", subject.said());
    });
}
