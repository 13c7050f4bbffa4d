//! The same scenarios by ours and by upstream's external-resizer 2.3: what the objects and the
//! Events say after each step, and what the driver was asked, are equal. What is not is in
//! docs/csi.md.

use super::api_server::{ApiServer, patience};
use super::attach::CODES;
use super::bound_claims::{Claims, SIZE_BEFORE, begun};
use super::driver::{ALWAYS, Can, Fault, Says, WHOLE};
use super::subject::{Seen, Subject, Whose, Work, both, timeout};
use super::with_server;
use k8s_openapi::api::core::v1::{PersistentVolume, Secret};
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tonic::Code;

fn has_condition(claim: &Value, type_: &str) -> bool {
    claim["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(|one| one["type"] == type_))
}

fn progress(claim: &Value) -> Option<&str> {
    claim["status"]["allocatedResourceStatuses"]["storage"].as_str()
}

fn is_pending(claim: &Value) -> bool {
    progress(claim) == Some("NodeResizePending")
}

fn has_failed(claim: &Value) -> bool {
    has_condition(claim, "ControllerResizeError")
}

fn has(size: &str) -> impl Fn(&Value) -> bool + Copy {
    move |claim| claim["status"]["capacity"]["storage"] == size
}

/// Grown by the controller, then by a node, then forgotten.
async fn plain(subject: &Subject) -> Seen {
    let claims = Claims::of(subject).await;
    let mut seen = Seen::new();
    for (name, change) in [
        ("plain", json!({})),
        ("block", json!({"spec": {"volumeMode": "Block"}})),
        (
            "shared",
            json!({"spec": {"accessModes": ["ReadWriteMany", "ReadWriteOnce"], "mountOptions": ["noatime"]}}),
        ),
        ("system", json!({"spec": {"csi": {"fsType": "xfs"}}})),
        ("single", json!({"spec": {"accessModes": ["ReadWriteOncePod"]}})),
    ] {
        let name = subject.named(name);
        claims.bound(&name, change).await;
        claims.ask(&name, "64Mi").await;
        claims.note(&name, is_pending, &mut seen).await;
        claims.kubelet_grows(&name).await;
        claims.forgotten(&name, &mut seen).await;
        claims.end(&name, &mut seen).await;
    }
    seen
}

/// The controller alone; sizes that the driver rounds up; and one after the other.
async fn whole(subject: &Subject) -> Seen {
    let claims = Claims::of(subject).await;
    let mut seen = Seen::new();
    let name = subject.named(WHOLE);
    claims.bound(&name, json!({})).await;
    for (asked, is) in [("40Mi", "48Mi"), ("64Mi", "64Mi"), ("64000001", "64Mi"), ("1000000000", "960Mi")] {
        if claims.ask(&name, asked).await {
            claims.note(&name, |claim| has(is)(claim) && progress(claim).is_none(), &mut seen).await;
        }
    }
    claims.end(&name, &mut seen).await;
    seen
}

/// Asked for more while a node is at it, for less, and what a node cannot do.
async fn nodes(subject: &Subject) -> Seen {
    let claims = Claims::of(subject).await;
    let mut seen = Seen::new();
    let (more, less, fails) = (subject.named("more"), subject.named("less"), subject.named("fails"));
    for name in [&more, &less, &fails] {
        claims.bound(name, json!({})).await;
        claims.ask(name, "64Mi").await;
        claims.note(name, is_pending, &mut seen).await;
    }
    claims.ask(&more, "96Mi").await;
    claims.ask(&less, "48Mi").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    for name in [&more, &less] {
        claims.note(name, is_pending, &mut seen).await;
        claims.kubelet_grows(name).await;
    }
    // What was asked for meanwhile comes next.
    let again =
        |claim: &Value| is_pending(claim) && claim["status"]["allocatedResources"]["storage"] == "96Mi";
    claims.note_claim(&more, again, &mut seen).await;
    // Upstream takes the note of the first time off, then believes that it is there: docs/csi.md.
    let volume = subject.see::<PersistentVolume>(&more).await;
    let noted = &volume["metadata"]["annotations"][SIZE_BEFORE];
    assert_eq!(noted.as_str(), subject.is_ours().then_some("64Mi"));
    claims.forgotten(&less, &mut seen).await;
    claims.kubelet_fails(&fails).await;
    claims.note(&fails, is_pending, &mut seen).await;
    for name in [&more, &less, &fails] {
        claims.end(name, &mut seen).await;
    }
    seen
}

/// Each code, then less is asked for, and the driver has recovered. One claim after the other:
/// upstream makes five requests a second, and Events of many claims that fail together wait for
/// more than a minute; of one claim it drops those after the 25th of a type.
async fn codes(subject: &Subject) -> Seen {
    let claims = Claims::of(subject).await;
    let mut seen = Seen::new();
    for code in CODES {
        let name = subject.named(&format!("{code:?}").to_lowercase());
        subject.driver.fails("expand", &name, &[Fault::Refused(code); ALWAYS]);
        claims.bound(&name, json!({})).await;
        claims.ask(&name, "96Mi").await;
        claims.said(&name, "as it was told").await;
        let settled = if is_unknown(code) { begun } else { has_failed };
        claims.note(&name, settled, &mut seen).await;
        claims.ask(&name, "64Mi").await;
        subject.driver.fails("expand", &name, &[]);
        claims.note(&name, is_pending, &mut seen).await;
        claims.said(&name, "Require file system").await;
        claims.end(&name, &mut seen).await;
    }
    seen
}

/// Whether the volume may grow yet after an answer with this code.
fn is_unknown(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Unavailable
            | Code::ResourceExhausted
            | Code::Aborted
    )
}

/// The volume grows, and the answer is lost; a Secret that is missing at first.
async fn lost(subject: &Subject) -> Seen {
    let claims = Claims::of(subject).await;
    let mut seen = Seen::new();
    let (late, secret) = (subject.named("late"), subject.named("secret"));
    subject.driver.fails("expand", &late, &[Fault::Lost(timeout() * 2)]);
    claims.bound(&late, json!({})).await;
    claims.ask(&late, "64Mi").await;
    claims.said(&late, "DeadlineExceeded").await;
    claims.note(&late, is_pending, &mut seen).await;
    assert_eq!(subject.driver.size(&late), Some(64 << 20));
    let named = json!({"name": secret, "namespace": "default"});
    claims.bound(&secret, json!({"spec": {"csi": {"controllerExpandSecretRef": named}}})).await;
    claims.ask(&secret, "64Mi").await;
    claims.said(&secret, "secret").await;
    claims.note(&secret, begun, &mut seen).await;
    assert_eq!(subject.driver.calls(&secret), [""; 0]);
    let data = json!({"metadata": {"name": secret}, "stringData": {"key": "value of a secret"}});
    let secrets: Api<Secret> = Api::namespaced(subject.client.clone(), "default");
    secrets.create(&PostParams::default(), &serde_json::from_value(data).unwrap()).await.unwrap();
    claims.note(&secret, is_pending, &mut seen).await;
    assert!(!subject.said().contains("value of a secret"));
    claims.end(&late, &mut seen).await;
    seen.extend(subject.driver.calls(&secret));
    claims.end_quietly(&secret).await;
    seen
}

/// A driver that grows what is in no use, and a pod that uses it.
async fn in_use(subject: &Subject) -> Seen {
    let claims = Claims::of(subject).await;
    let mut seen = Seen::new();
    let name = subject.named("used");
    subject.driver.fails("expand", &name, &[Fault::Refused(Code::FailedPrecondition)]);
    claims.bound(&name, json!({})).await;
    claims.pod(&name).await;
    claims.ask(&name, "64Mi").await;
    claims.said(&name, "currently in-use").await;
    claims.note(&name, has_failed, &mut seen).await;
    assert_eq!(subject.driver.calls(&name).len(), 1, "it is not asked while a pod is there");
    claims.no_pod(&name).await;
    claims.note(&name, is_pending, &mut seen).await;
    claims.end(&name, &mut seen).await;
    seen
}

/// What the API server refuses, and what is another's.
async fn refused(subject: &Subject) -> Seen {
    let claims = Claims::of(subject).await;
    let mut seen = Seen::new();
    let (shrinks, fixed) = (subject.named("shrinks"), subject.named("fixed"));
    let (foreign, stolen) = (subject.named("foreign"), subject.named("stolen"));
    claims.bound(&shrinks, json!({})).await;
    assert!(!claims.ask(&shrinks, "16Mi").await, "less than there is");
    claims.bound_of_class(&fixed, &subject.named("fixed"), json!({})).await;
    assert!(!claims.ask(&fixed, "64Mi").await, "allowVolumeExpansion");
    claims.bound(&foreign, json!({"spec": {"csi": {"driver": "another.example.com"}}})).await;
    assert!(claims.ask(&foreign, "64Mi").await);
    claims.bound(&stolen, json!({"spec": {"claimRef": {"uid": "another"}}})).await;
    assert!(claims.ask(&stolen, "64Mi").await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    for name in [&shrinks, &fixed, &foreign, &stolen] {
        claims.note(name, |_| true, &mut seen).await;
        claims.end(name, &mut seen).await;
        assert_eq!(subject.driver.calls(name), [""; 0], "{name}");
    }
    seen
}

/// A driver whose controller grows nothing: its nodes do.
async fn by_nodes(subject: &Subject) -> Seen {
    let claims = Claims::of(subject).await;
    let mut seen = Seen::new();
    let (name, fails) = (subject.named("trivial"), subject.named("trivial-fails"));
    for name in [&name, &fails] {
        claims.bound(name, json!({})).await;
        claims.ask(name, "61000000").await;
        claims.note(name, is_pending, &mut seen).await;
        assert_eq!(subject.driver.calls(name), [""; 0]);
    }
    claims.kubelet_fails(&fails).await;
    claims.note(&fails, is_pending, &mut seen).await;
    // The node is at it until it fails: the other way round it may have been told to go on.
    claims.ask(&fails, "48Mi").await;
    claims.kubelet_fails(&fails).await;
    let less =
        |claim: &Value| is_pending(claim) && claim["status"]["allocatedResources"]["storage"] == "48Mi";
    claims.note(&fails, less, &mut seen).await;
    claims.kubelet_grows(&name).await;
    claims.forgotten(&name, &mut seen).await;
    for name in [&name, &fails] {
        claims.end(name, &mut seen).await;
    }
    seen
}

/// An API server for each: upstream's resizer takes notes off the volumes of other drivers, too.
async fn servers(first: ApiServer) -> [ApiServer; 2] {
    let second = ApiServer::start(first.programs.clone()).await;
    for server in [&first, &second] {
        server.has_namespaces().await;
    }
    [first, second]
}

async fn subjects(servers: &[ApiServer; 2], name: &str, can: Can) -> [Subject; 2] {
    let subject = async |server, whose, named: &str| {
        Subject::new(server, whose, Work::Resize, &format!("{named}-{name}.example.com"), can).await
    };
    let mut both = [
        subject(&servers[0], Whose::Ours, "ours").await,
        subject(&servers[1], Whose::Upstream, "upstream").await,
    ];
    for subject in &mut both {
        subject.begin();
    }
    both
}

const GROWS: Can = Can {
    publish: false,
    provision: false,
    topology: false,
    expand: true,
    expand_on_nodes: true,
    capacity: false,
    says: Says::Nothing,
};

#[test]
fn as_upstream_does_it() {
    with_server("resize::as_upstream_does_it", async |server| {
        let servers = servers(server).await;
        let growing = subjects(&servers, "a", GROWS).await;
        both!(growing, plain);
        both!(growing, whole);
        both!(growing, nodes);
        both!(growing, lost);
        both!(growing, in_use);
        both!(growing, refused);
        both!(growing, codes);
        let others = subjects(&servers, "b", Can { expand: false, ..GROWS }).await;
        both!(others, by_nodes);
    });
}

/// Upstream's ends where nobody grows the volumes; ours says it.
#[test]
fn what_nobody_grows_is_refused_in_words() {
    with_server("resize::what_nobody_grows_is_refused_in_words", async |server| {
        server.has_namespaces().await;
        let mut subject =
            Subject::new(&server, Whose::Ours, Work::Resize, "fixed.example.com", Can::default()).await;
        subject.begin();
        let claims = Claims::of(&subject).await;
        claims.bound("fixed", json!({})).await;
        claims.ask("fixed", "64Mi").await;
        claims.said("fixed", "EXPAND_VOLUME").await;
        assert_eq!(claims.see("fixed").await["status"]["conditions"], Value::Null);
    });
}

/// How many requests the API server gets for one volume that grows, with and without a node.
#[test]
fn costs_no_more_than_upstream() {
    with_server("resize::costs_no_more_than_upstream", async |server| {
        let servers = servers(server).await;
        let both = subjects(&servers, "c", GROWS).await;
        let mut requests = Vec::new();
        for subject in &both {
            let claims = Claims::of(subject).await;
            let (first, node, whole) = (subject.named("first"), subject.named("node"), subject.named(WHOLE));
            for name in [&first, &node, &whole] {
                claims.bound(name, json!({})).await;
            }
            // What is done once, is done.
            claims.ask(&first, "64Mi").await;
            claims.becomes(&first, is_pending).await;
            subject.proxy.is_quiet(500).await;
            subject.proxy.requests();
            claims.ask(&node, "64Mi").await;
            claims.becomes(&node, is_pending).await;
            claims.kubelet_grows(&node).await;
            claims.forgotten(&node, &mut Seen::new()).await;
            claims.ask(&whole, "64Mi").await;
            claims.becomes(&whole, |claim| has("64Mi")(claim)).await;
            subject.proxy.is_quiet(500).await;
            let sent = subject.proxy.requests();
            println!("{} requests of {}: {sent:#?}", sent.len(), subject.driver.name);
            requests.push(sent.len());
        }
        assert!(requests[0] <= requests[1], "{requests:?}");
    });
}

/// Bounded, and said once: what a claim asks for while nothing works is done when it does.
#[test]
fn what_was_missed_is_done() {
    with_server("resize::what_was_missed_is_done", async |server| {
        server.has_namespaces().await;
        let mut subject = Subject::new(&server, Whose::Ours, Work::Resize, "late.example.com", GROWS).await;
        let claims = Claims::of(&subject).await;
        for number in 0..20 {
            let name = format!("late-{number}");
            claims.bound(&name, json!({})).await;
            claims.ask(&name, "64Mi").await;
        }
        let start = Instant::now();
        subject.begin();
        for number in 0..20 {
            Claims::of(&subject).await.becomes(&format!("late-{number}"), is_pending).await;
        }
        assert!(start.elapsed() < patience());
    });
}
