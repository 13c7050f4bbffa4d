//! The same claims before ours and before upstream's external-provisioner 6.4: what the objects and
//! the Events say after each step, and what the driver was asked, are equal. What is not is in
//! docs/csi.md.

use super::api_server::ApiServer;
use super::attach::CODES;
use super::claimed::SELECTED;
use super::driver::{Can, Fault, ZONE};
use super::subject::{Seen, Subject, Whose, Work, both, timeout};
use super::with_server;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume};
use k8s_openapi::api::storage::v1::CSINode;
use serde_json::{Value, json};
use std::time::Duration;
use tonic::Code;

/// Who has made a volume: another each time.
const IDENTITY: &str = "storage.kubernetes.io/csiProvisionerIdentity";

fn is_there(object: &Value) -> bool {
    !object.is_null()
}

fn selected(node: &str) -> Value {
    json!({"metadata": {"annotations": { SELECTED: node }}})
}

/// Claims of a scenario.
struct Claims<'a> {
    subject: &'a Subject,
    seen: Seen,
}

impl Claims<'_> {
    /// Asks for a volume; returns its name.
    async fn ask(&self, name: &str, class: &str, change: Value) -> String {
        self.subject.claim(name, &self.subject.named(class), change).await
    }

    /// Asks for a volume, and the driver's calls go wrong.
    async fn fail(
        &self,
        name: &str,
        class: &str,
        change: Value,
        faults: &[(&'static str, &[Fault])],
    ) -> String {
        self.subject.claim_that_fails(name, &self.subject.named(class), change, faults).await
    }

    /// Without what differs from one claim to the next.
    fn note(&mut self, claim: &str, volume: &str, text: &str) {
        let uid = volume.trim_start_matches("pvc-");
        let text =
            text.replace(volume, "VOLUME").replace(uid, "UID").replace(&self.subject.namespace, "NAMESPACE");
        self.seen.push(format!("{claim}: {}", text.replace(&self.subject.named(""), "")));
    }

    /// As soon as it has a volume: that, what the driver was asked, and what was said.
    async fn has_volume(&mut self, claim: &str, volume: &str) {
        let mut object = self.subject.becomes::<PersistentVolume>(volume, is_there).await;
        let spec = object["spec"].as_object_mut().unwrap();
        spec["claimRef"].as_object_mut().unwrap().remove("resourceVersion");
        spec["csi"]["volumeAttributes"].as_object_mut().unwrap().remove(IDENTITY);
        object["status"].as_object_mut().unwrap().remove("lastPhaseTransitionTime");
        self.note(claim, volume, &object.to_string());
        self.said(claim, volume, "ProvisioningSucceeded").await;
    }

    /// As soon as something was said of it; and the calls.
    async fn said(&mut self, claim: &str, volume: &str, reason: &str) {
        let is_said = async || self.reasons(claim).await.contains(&reason.to_owned());
        self.subject.soon(reason, is_said).await;
        let mut calls = self.subject.driver.calls(volume);
        calls.dedup();
        let mut reasons = self.reasons(claim).await;
        // Ours says that it asks the driver when it does: docs/csi.md.
        reasons.retain(|reason| reason != "Provisioning" || !calls.is_empty());
        let text = format!("{reasons:?} {calls:?}");
        self.note(claim, volume, &text);
    }

    async fn reasons(&self, name: &str) -> Vec<String> {
        let mut reasons: Vec<_> =
            self.subject.events(name).await.into_iter().map(|(reason, _)| reason).collect();
        reasons.sort();
        reasons.dedup();
        reasons
    }

    /// Released and deleted.
    async fn goes(&mut self, claim: &str, volume: &str) {
        self.subject.phase(volume, "Bound").await;
        self.subject.unclaim(claim).await;
        self.subject.phase(volume, "Released").await;
        self.subject.becomes::<PersistentVolume>(volume, Value::is_null).await;
        let mut calls = self.subject.driver.calls(volume);
        calls.dedup();
        self.note(claim, volume, &format!("{:?}", calls.last()));
    }
}

fn begin(subject: &Subject) -> Claims<'_> {
    Claims { subject, seen: Seen::new() }
}

/// Each code of `CreateVolume`, and of `DeleteVolume`, once.
async fn codes(subject: &Subject) -> Seen {
    let mut claims = begin(subject);
    subject.class(&subject.named("codes"), json!({})).await;
    let mut volumes = Vec::new();
    for code in CODES.into_iter().filter(|code| *code != Code::InvalidArgument) {
        let claim = format!("{code:?}").to_lowercase();
        let fault: &[Fault] = &[Fault::Refused(code)];
        let faults = [("create", fault), ("delete", fault)];
        let volume = claims.fail(&claim, "codes", json!({}), &faults).await;
        volumes.push((claim, volume));
    }
    for (claim, volume) in &volumes {
        claims.has_volume(claim, volume).await;
    }
    for (claim, volume) in &volumes {
        claims.goes(claim, volume).await;
        let text = format!("{:?}", claims.reasons(volume).await);
        claims.note(claim, volume, &text);
    }
    assert_eq!(subject.driver.volumes(), [""; 0]);
    claims.seen
}

/// What can never be made is not asked for again soon.
async fn infeasible(subject: &Subject) -> Seen {
    let mut claims = begin(subject);
    subject.class(&subject.named("infeasible"), json!({})).await;
    let faults: [(_, &[Fault]); 1] = [("create", &[Fault::Refused(Code::InvalidArgument)])];
    let volume = claims.fail("infeasible", "infeasible", json!({}), &faults).await;
    claims.said("infeasible", &volume, "ProvisioningFailed").await;
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(subject.driver.calls(&volume).len(), 1);
    subject.unclaim("infeasible").await;
    claims.seen
}

/// The answer is lost; once the claim is deleted meanwhile.
async fn lost(subject: &Subject) -> Seen {
    let mut claims = begin(subject);
    subject.class(&subject.named("lost"), json!({})).await;
    for claim in ["kept", "deleted"] {
        let late: &[Fault] = &[Fault::Lost(timeout() * 2)];
        let faults = [("create", late), ("delete", late)];
        let volume = claims.fail(claim, "lost", json!({}), &faults).await;
        subject.soon("made", async || subject.driver.volumes().contains(&volume)).await;
        if claim == "deleted" {
            subject.unclaim(claim).await;
            subject.becomes::<PersistentVolume>(&volume, is_there).await;
            subject.phase(&volume, "Released").await;
            subject.becomes::<PersistentVolume>(&volume, Value::is_null).await;
        } else {
            claims.has_volume(claim, &volume).await;
            claims.goes(claim, &volume).await;
        }
        assert_eq!(subject.driver.volumes(), [""; 0]);
    }
    claims.seen
}

/// No space, for a driver to which nodes do not matter: no other node is selected.
async fn full(subject: &Subject) -> Seen {
    let mut claims = begin(subject);
    let waits = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    subject.class(&subject.named("full"), waits).await;
    let faults: [(_, &[Fault]); 1] = [("create", &[Fault::Refused(Code::ResourceExhausted)])];
    let volume = claims.fail("full", "full", selected("zone-1"), &faults).await;
    claims.has_volume("full", &volume).await;
    node_of(&mut claims, "full", &volume).await;
    claims.goes("full", &volume).await;
    claims.seen
}

async fn node_of(claims: &mut Claims<'_>, claim: &str, volume: &str) {
    let node = claims.subject.selected(claim).await;
    claims.note(claim, volume, &format!("{node:?}"));
}

/// Where volumes go: by the class, by the name of a claim, by the selected node.
async fn places(subject: &Subject) -> Seen {
    let mut claims = begin(subject);
    let waits = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    let allowed = json!({"allowedTopologies": [{"matchLabelExpressions":
        [{"key": ZONE, "values": ["two", "three"]}]}]});
    subject.class(&subject.named("any"), json!({})).await;
    subject.class(&subject.named("allowed"), allowed).await;
    subject.class(&subject.named("first"), waits).await;
    let sets = (0..4).flat_map(|number| [format!("data-web-{number}"), format!("log-web-{number}")]);
    let others = ["plain", "a", "data-db-0", "data-db-10", "x-0", "data-web-x"].map(str::to_owned);
    let mut volumes = Vec::new();
    for claim in sets.chain(others) {
        volumes.push((claim.clone(), claims.ask(&claim, "any", json!({})).await));
    }
    for (claim, class, node) in [
        ("allowed-0", "allowed", None),
        ("allowed-1", "allowed", None),
        ("first-1", "first", Some("zone-1")),
        ("first-2", "first", Some("zone-2")),
        ("first-allowed", "allowed", Some("zone-2")),
    ] {
        let change = node.map_or(json!({}), selected);
        volumes.push((claim.to_owned(), claims.ask(claim, class, change).await));
    }
    for (claim, volume) in &volumes {
        claims.has_volume(claim, volume).await;
    }
    for (claim, volume) in &volumes {
        claims.goes(claim, volume).await;
    }
    claims.seen
}

/// No space on one node, and a node that is not there: another is selected.
async fn elsewhere(subject: &Subject) -> Seen {
    let mut claims = begin(subject);
    let waits = json!({"volumeBindingMode": "WaitForFirstConsumer"});
    subject.class(&subject.named("elsewhere"), waits).await;
    for (claim, node) in [("exhausted", "zone-1"), ("nowhere", "nowhere")] {
        let volume = claims.ask(claim, "elsewhere", json!({})).await;
        if claim == "exhausted" {
            subject.driver.fails("create", &volume, &[Fault::Refused(Code::ResourceExhausted)]);
        }
        subject.select(claim, Some(node)).await;
        subject.soon("another node", async || subject.selected(claim).await.is_none()).await;
        claims.said(claim, &volume, "ProvisioningFailed").await;
        subject.select(claim, Some("zone-2")).await;
        claims.has_volume(claim, &volume).await;
        node_of(&mut claims, claim, &volume).await;
        claims.goes(claim, &volume).await;
    }
    assert_eq!(subject.driver.volumes(), [""; 0]);
    claims.seen
}

/// Ours and upstream's, each with a namespace for its claims.
pub(crate) async fn subjects(server: &ApiServer, name: &str, topology: bool) -> [Subject; 2] {
    let can = Can { provision: true, topology, ..Can::default() };
    let mut both = Vec::new();
    for (whose, label) in [(Whose::Ours, "ours"), (Whose::Upstream, "upstream")] {
        let driver = format!("{label}-{name}.example.com");
        let mut subject = Subject::new(server, whose, Work::Provision, &driver, can).await;
        subject.namespace = format!("claims-of-{label}-{name}");
        subject.make::<Namespace>(json!({"metadata": {"name": subject.namespace}})).await;
        both.push(subject);
    }
    let drivers: Vec<_> = both
        .iter()
        .map(|subject| json!({"name": subject.driver.name, "nodeID": "id", "topologyKeys": [ZONE]}))
        .collect();
    for (node, zone) in [("zone-1", "one"), ("zone-2", "two"), ("zone-3", "three"), ("zone-4", "two")] {
        if topology {
            both[0].make::<Node>(json!({"metadata": {"name": node, "labels": { ZONE: zone }}})).await;
            both[0].make::<CSINode>(json!({"metadata": {"name": node}, "spec": {"drivers": drivers}})).await;
        }
    }
    both.iter_mut().for_each(Subject::begin);
    both.try_into().ok().unwrap()
}

#[test]
fn as_upstream_does_it() {
    with_server("provision::as_upstream_does_it", async |server| {
        server.has_namespaces().await;
        let plain = subjects(&server, "p", false).await;
        both!(plain, lost);
        both!(plain, full);
        both!(plain, infeasible);
        both!(plain, codes);
        let placed = subjects(&server, "t", true).await;
        both!(placed, places);
        both!(placed, elsewhere);
    });
}
