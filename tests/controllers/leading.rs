//! Who leads for a driver: the lease goes when the driver does, and comes back with it.

use super::api_server::patience;
use super::driver::Can;
use super::subject::{Subject, Whose, Work};
use super::with_server;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::storage::v1::VolumeAttachment;
use kube::Api;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Of the lease of a driver.
async fn holder(subject: &Subject) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(subject.client.clone(), "default");
    let name = format!("external-attacher-leader-{}", subject.driver.name.replace('.', "-"));
    leases.get_opt(&name).await.unwrap()?.spec?.holder_identity.filter(|holder| !holder.is_empty())
}

/// Waits until the lease has a holder, or has none; returns how long that took.
async fn led(subject: &Subject, is_led: bool) -> Duration {
    let start = Instant::now();
    while holder(subject).await.is_some() != is_led {
        assert!(start.elapsed() < patience(), "{}", subject.said());
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    start.elapsed()
}

#[test]
fn a_silent_driver_loses_its_lease() {
    with_server("leading::a_silent_driver_loses_its_lease", async |server| {
        let can = Can { publish: true, ..Can::default() };
        let mut subject = Subject::new(&server, Whose::Ours, Work::Attach, "silent.example.com", can).await;
        subject.node(&subject.driver.name).await;
        subject.begin();
        led(&subject, true).await;
        for round in ["first", "second"] {
            subject.driver.falls_silent(true);
            let waited = led(&subject, false).await;
            // As long as it may be away, less a probe; else it would be gone with the next probe.
            assert!(waited > Duration::from_secs(7), "one that starts again keeps it: {waited:?}");
            // Created while there is no leader: the next leader finds it.
            subject.volume(round, json!({})).await;
            subject.attach(round, json!({})).await;
            subject.driver.falls_silent(false);
            led(&subject, true).await;
            let attached = |object: &Value| object["status"]["attached"] == true;
            subject.becomes::<VolumeAttachment>(round, attached).await;
        }
    });
}
