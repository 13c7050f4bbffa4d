//! Volumes made and deleted, and cut short at every request to the API server and at every call of
//! the driver, before it arrives and before its answer does: the process is killed there, or the
//! connection breaks. It converges, no volume is leaked, and no finalizer is left.

use super::cut::{Short, points};
use super::driver::{Can, Fault};
use super::subject::{Subject, Whose, Work, timeout};
use super::with_server;
use k8s_openapi::api::core::v1::PersistentVolume;
use serde_json::{Value, json};

/// A volume that is made and deleted; whether what is cut short came at all.
async fn play(subject: &mut Subject, name: &str, short: Short) -> bool {
    subject.begin();
    short.begin(subject);
    let volume = subject.claim(name, "class", json!({})).await;
    let is = async |subject: &Subject| {
        subject.becomes::<PersistentVolume>(&volume, |object| !object.is_null()).await;
    };
    let mut came = short.wait(subject, is).await;
    assert_eq!(subject.driver.volumes(), [volume.as_str()], "{short:?}");
    subject.phase(&volume, "Bound").await;
    subject.unclaim(name).await;
    subject.phase(&volume, "Released").await;
    let is_not = async |subject: &Subject| {
        subject.becomes::<PersistentVolume>(&volume, Value::is_null).await;
    };
    came |= short.wait(subject, is_not).await;
    assert_eq!(subject.driver.volumes(), [""; 0], "{short:?}");
    short.end(subject, came).await
}

#[test]
fn provisioning_at_every_point() {
    with_server("interrupted::provisioning_at_every_point", async |server| {
        server.has_namespaces().await;
        let can = Can { provision: true, ..Can::default() };
        let mut subject = Subject::new(&server, Whose::Ours, Work::Provision, "cut.example.com", can).await;
        subject.class("class", json!({})).await;
        let points =
            points(&mut subject, "provision", async |subject, _, short| play(subject, "claim", short).await)
                .await;
        // Four lists, the PersistentVolume made, deleted, and its finalizer; two calls.
        assert!(points[0] >= 14 && points[2] >= 14, "{points:?}");
        assert_eq!([points[1], points[3]], [4, 4]);
    });
}

/// It is not known whether the volume was made: it is asked for until it is, and then deleted.
#[test]
fn a_claim_deleted_while_its_volume_is_made() {
    with_server("interrupted::a_claim_deleted_while_its_volume_is_made", async |server| {
        server.has_namespaces().await;
        let can = Can { provision: true, ..Can::default() };
        let mut subject = Subject::new(&server, Whose::Ours, Work::Provision, "gone.example.com", can).await;
        subject.class("class", json!({})).await;
        let volume = subject.claim("claim", "class", json!({})).await;
        subject.driver.fails("create", &volume, &[Fault::Lost(timeout() * 2)]);
        subject.begin();
        subject.soon("made", async || !subject.driver.volumes().is_empty()).await;
        subject.unclaim("claim").await;
        subject.becomes::<PersistentVolume>(&volume, |object| !object.is_null()).await;
        subject.phase(&volume, "Released").await;
        subject.becomes::<PersistentVolume>(&volume, Value::is_null).await;
        assert_eq!(subject.driver.volumes(), [""; 0]);
    });
}
