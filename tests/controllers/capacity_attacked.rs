//! Capacity is told whatever comes: answers that are none, kills in the middle, what others have
//! left, and no more rights than docs/csi.md says.

use super::capacity::{CAN, Told, say};
use super::driver::{Fault, ZONE};
use super::pace::deadline;
use super::proxy::{Cut, Right};
use super::rights::{grant, of_a_provisioner};
use super::subject::{Seen, Subject, Whose, Work};
use super::with_server;
use futures_util::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::Api;
use serde_json::json;
use std::time::{Duration, Instant};
use tonic::Code;

/// A zone hangs, one has less than nothing, one has more than there is; an object is another's.
#[test]
fn whatever_the_driver_says() {
    with_server("capacity_attacked::whatever_the_driver_says", async |server| {
        server.has_namespaces().await;
        let mut subject = Subject::new(&server, Whose::Ours, Work::Capacity, "odd.example.com", CAN).await;
        let told = Told::of(&subject);
        told.pod().await;
        for zone in ["hangs", "below", "z1"] {
            told.node(zone, Some(zone), Some(&[ZONE])).await;
        }
        subject.driver.fails("capacity", "hangs", &[Fault::Slow(Duration::from_mins(1)); 99]);
        subject.driver.has_room("below", -1);
        subject.driver.has_room("z1", i64::MAX);
        told.class("plain", json!({})).await;
        let labels = json!({"app": "other"});
        let template =
            json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}});
        let other = json!({"metadata": {"name": "other"},
            "spec": {"selector": {"matchLabels": labels}, "template": template}});
        let uid = told.make::<Deployment>(other).await;
        let owner = |kind: &str, name: &str, uid: &str, is_controller: bool| json!({"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": uid, "controller": is_controller});
        let owners =
            json!([owner("Deployment", "other", &uid, true), owner("DaemonSet", "beside", "some", false)]);
        told.object("plain", json!({"metadata": {"ownerReferences": owners}})).await;
        subject.begin();
        let (told, mut seen) = (Told::of(&subject), Seen::new());
        let is_told = |all: &[String]| {
            let is_ours = |line: &String| line.contains("beside") && !line.contains("\"other\"");
            say(all, "below").any(|line| line.contains("\"capacity\":\"0\""))
                && say(all, "9223372036854775807").any(is_ours)
        };
        told.note("told", is_told, &mut seen).await;
        assert_eq!(say(&seen, "hangs").count(), 0);
        subject.driver.fails("capacity", "hangs", &[]);
        told.note("answers", |all| say(all, "hangs").count() == 1, &mut seen).await;
    });
}

/// An object comes, changes and goes; whether the request at which to end came at all.
async fn play(subject: &mut Subject, class: &str, cut: Cut) -> bool {
    subject.begin();
    let leases: Api<Lease> = Api::namespaced(subject.client.clone(), "default");
    let name = subject.driver.name.replace('.', "-");
    subject.soon("it works", async || leases.get_opt(&name).await.unwrap().is_some()).await;
    subject.proxy.is_quiet(1000).await;
    subject.proxy.cut(Some(cut));
    Told::of(subject).class(class, json!({})).await;
    let mut came = is_seen(subject, |all| all.len() == 1 && all[0].contains("1Gi")).await;
    subject.driver.has_room("z1", 1 << 20);
    came |= is_seen(subject, |all| all.len() == 1 && all[0].contains("1Mi")).await;
    subject.delete::<StorageClass>(&subject.named(class)).await;
    came |= is_seen(subject, <[String]>::is_empty).await;
    // What was seen may have been seen before the answer was held back.
    came = came || tokio::time::timeout(deadline(1), subject.proxy.reached()).await.is_ok();
    subject.kill().await;
    subject.proxy.cut(None);
    subject.driver.has_room("z1", 1 << 30);
    came
}

/// Until the objects are as they should be, though the controller is killed; whether it was.
async fn is_seen(subject: &mut Subject, holds: impl Fn(&[String]) -> bool) -> bool {
    let (proxy, told, mut seen) = (subject.proxy.clone(), Told::of(subject), Seen::new());
    let killed = tokio::select! {
        () = told.note("it is so", &holds, &mut seen) => false,
        () = proxy.reached() => true,
    };
    if killed {
        subject.kill().await;
        subject.proxy.cut(None);
        subject.begin();
        Told::of(subject).note("it is so again", &holds, &mut seen).await;
    }
    killed
}

#[test]
fn killed_at_every_request() {
    with_server("capacity_attacked::killed_at_every_request", async |server| {
        server.has_namespaces().await;
        let name = "killed-capacity.example.com";
        let mut subject = Subject::new(&server, Whose::Ours, Work::Capacity, name, CAN).await;
        let told = Told::of(&subject);
        told.pod().await;
        told.node("a", Some("z1"), Some(&[ZONE])).await;
        let mut number = 1;
        loop {
            let before = play(&mut subject, &format!("before-{number}"), Cut::Before(number)).await;
            let after = play(&mut subject, &format!("after-{number}"), Cut::After(number)).await;
            assert_eq!(before, after, "{number}");
            if !before {
                break;
            }
            number += 1;
        }
        assert_eq!(number, 4, "made, changed, deleted");
    });
}

/// What docs/csi.md says that an account needs for topology and capacity, in the cluster and in the
/// namespace.
fn rights() -> [Vec<Right>; 2] {
    let of = |group: &str, resource: &str, verbs: &[&str]| -> Vec<Right> {
        let right = |verb: &&str| Right {
            group: group.to_owned(),
            resource: resource.to_owned(),
            verb: (*verb).to_owned(),
        };
        verbs.iter().map(right).collect()
    };
    let read = ["list", "watch"];
    let capacities = ["list", "watch", "create", "patch", "delete"];
    [
        [
            of("", "nodes", &read),
            of("storage.k8s.io", "csinodes", &read),
            of("", "persistentvolumeclaims", &["get", "patch"]),
        ]
        .concat(),
        [
            of("storage.k8s.io", "csistoragecapacities", &capacities),
            of("", "pods", &["get"]),
            of("apps", "replicasets", &["get"]),
        ]
        .concat(),
    ]
}

/// What failed without one of the rights.
async fn trial(subject: &mut Subject, limit: Duration) -> Result<(), &'static str> {
    let told = Told::of(subject);
    told.pod().await;
    told.node("a", Some("z1"), Some(&[ZONE])).await;
    told.node("b", None, Some(&[ZONE])).await;
    told.class("plain", json!({})).await;
    told.object("gone", json!({})).await;
    subject.begin();
    let told = Told::of(subject);
    let start = Instant::now();
    let step = async |failed, holds: &dyn Fn(&[String]) -> bool| {
        while !holds(&told.see().await) {
            if start.elapsed() > limit {
                return Err(failed);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    };
    let zones = |zone: &'static str, count| move |all: &[String]| say(all, zone).count() == count;
    step("one is made, and one of no use is deleted", &|all| all.len() == 1 && zones("plain", 1)(all))
        .await?;
    step("it is owned", &zones("Deployment", 1)).await?;
    subject.driver.has_room("z1", 1 << 20);
    step("it changes", &zones("1Mi", 1)).await?;
    subject.change::<Node>(&subject.named("b"), json!({"metadata": {"labels": {ZONE: "z2"}}})).await;
    step("a node gets a label", &zones("z2", 1)).await?;
    subject.delete::<CSINode>(&subject.named("b")).await;
    step("a node has no driver any more", &zones("z2", 0)).await?;
    let claim = subject.named("claim");
    let volume = subject.claim(&claim, &subject.named("plain"), json!({})).await;
    subject.driver.fails("create", &volume, &[Fault::Refused(Code::ResourceExhausted)]);
    subject.select(&claim, Some(&subject.named("a"))).await;
    let start_of_claim = Instant::now();
    while subject.selected(&claim).await.is_some() {
        if start_of_claim.elapsed() > limit {
            return Err("another node is selected");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    told.lose("plain").await;
    step("one is made again", &zones("z1", 1)).await?;
    step("all that it asks for is allowed", &|_| subject.proxy.refused().is_empty()).await
}

#[test]
fn rights_are_the_least() {
    with_server("capacity_attacked::rights_are_the_least", async |server| {
        server.has_namespaces().await;
        let (server, all) = (&server, rights());
        let granted = |number: usize, without: Option<Right>| async move {
            let name = format!("capacity-{number}.example.com");
            let mut subject = Subject::new(server, Whose::Ours, Work::Capacity, &name, CAN).await;
            let [cluster, namespace] = of_a_provisioner();
            let [more, and_more] = rights();
            let rights = [[cluster, more].concat(), [namespace, and_more].concat()];
            grant(&subject, &rights, without.as_ref()).await;
            let limit = deadline(if without.is_some() { 20 } else { 120 });
            let failed = trial(&mut subject, limit).await;
            (without, failed, subject.proxy.refused(), subject.said())
        };
        let (_, failed, refused, said) = granted(0, None).await;
        assert!(failed.is_ok() && refused.is_empty(), "{failed:?} {refused:?}: {said}");
        let full = std::env::var_os("FULL").is_some();
        let taken = all.concat().into_iter().enumerate().filter(|(number, _)| full || number % 4 == 0);
        let trials = taken.map(|(number, right)| granted(number + 1, Some(right)));
        let trials: Vec<_> = futures_util::stream::iter(trials).buffer_unordered(6).collect().await;
        for (right, failed, refused, said) in trials {
            let right = right.unwrap();
            let step = failed.expect_err(&format!("{right:?} is needless"));
            assert!(refused.contains(&right), "{right:?}: {said}");
            println!("without {right:?}: not {step:?}");
        }
    });
}
