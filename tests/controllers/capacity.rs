//! What the scheduler is told of a driver's storage, by ours and by upstream's external-provisioner
//! with `--enable-capacity`: the objects after each step, and what the driver was asked, are equal.

use super::api_server::{ApiServer, patience};
use super::driver::{Can, Fault, Says, ZONE};
use super::subject::{Seen, Subject, Whose, Work, both};
use super::with_server;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity, StorageClass};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::time::{Duration, Instant};
use tonic::Code;

pub(crate) const CAN: Can = Can {
    publish: false,
    provision: true,
    topology: true,
    expand: false,
    expand_on_nodes: false,
    capacity: true,
    says: Says::Nothing,
};

/// Classes and nodes, and the objects about them.
pub(crate) struct Told<'a> {
    subject: &'a Subject,
    objects: Api<CSIStorageCapacity>,
}

impl<'a> Told<'a> {
    pub(crate) fn of(subject: &'a Subject) -> Self {
        Self { subject, objects: Api::namespaced(subject.client.clone(), "default") }
    }

    /// A node on which the driver is, if it names keys; in a zone, if it has one.
    pub(crate) async fn node(&self, name: &str, zone: Option<&str>, keys: Option<&[&str]>) {
        let name = self.subject.named(name);
        let labels = zone.map(|zone| json!({ ZONE: zone }));
        self.subject.make::<Node>(json!({"metadata": {"name": name, "labels": labels}})).await;
        let driver =
            keys.map(|keys| json!({"name": self.subject.driver.name, "nodeID": name, "topologyKeys": keys}));
        let drivers: Vec<_> = driver.into_iter().collect();
        let node = json!({"metadata": {"name": name}, "spec": {"drivers": drivers}});
        self.subject.make::<CSINode>(node).await;
    }

    pub(crate) async fn class(&self, name: &str, change: Value) {
        let waits = json!({"volumeBindingMode": "WaitForFirstConsumer"});
        let mut class = waits;
        super::subject::merge(&mut class, change);
        self.subject.class(&self.subject.named(name), class).await;
    }

    /// Our pod, of a Deployment.
    pub(crate) async fn pod(&self) {
        let name = self.subject.named("pod");
        let labels = json!({"app": "a"});
        let template =
            json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "none"}]}});
        let spec = json!({"selector": {"matchLabels": labels}, "template": template});
        let deployment = json!({"metadata": {"name": name}, "spec": spec});
        let uid = self.make::<Deployment>(deployment).await;
        let of = |kind: &str, uid: String| {
            let api = "apps/v1";
            json!([{"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": true, "blockOwnerDeletion": true}])
        };
        let owners = of("Deployment", uid);
        let uid = self
            .make::<ReplicaSet>(json!({"metadata": {"name": name, "ownerReferences": owners}, "spec": spec}))
            .await;
        let owners = of("ReplicaSet", uid);
        let pod =
            json!({"metadata": {"name": name, "ownerReferences": owners}, "spec": template["spec"].clone()});
        self.make::<Pod>(pod).await;
    }

    pub(crate) async fn make<K>(&self, object: Value) -> String
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
        K: Clone + Debug + DeserializeOwned + Serialize,
    {
        let api: Api<K> = Api::namespaced(self.subject.client.clone(), "default");
        let made = api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await;
        made.unwrap().uid().unwrap()
    }

    /// An object as one of the driver's would be.
    pub(crate) async fn object(&self, class: &str, change: Value) {
        let labels = json!({"csi.storage.k8s.io/drivername": self.subject.driver.name,
            "csi.storage.k8s.io/managed-by": "external-provisioner"});
        let mut object = json!({"metadata": {"generateName": "csisc-", "labels": labels},
            "storageClassName": self.subject.named(class), "nodeTopology": {"matchLabels": {ZONE: "z1"}},
            "capacity": "1Mi"});
        super::subject::merge(&mut object, change);
        self.make::<CSIStorageCapacity>(object).await;
    }

    /// All objects, without what differs from one to the next.
    pub(crate) async fn see(&self) -> Seen {
        let mut all = self.objects.list(&ListParams::default()).await.unwrap().items;
        all.retain(|object| object.storage_class_name.starts_with(&self.subject.driver.name));
        let text = |object: CSIStorageCapacity| {
            let mut object = serde_json::to_value(object).unwrap();
            let prefix = object["metadata"]["name"].as_str().unwrap().split('-').next().unwrap().to_owned();
            for owner in object["metadata"]["ownerReferences"].as_array_mut().into_iter().flatten() {
                owner["uid"] = Value::Null;
            }
            let metadata = object["metadata"].as_object_mut().unwrap();
            metadata.retain(|key, _| key == "labels" || key == "ownerReferences");
            let text = format!("{prefix} {object}").replace(&self.subject.named(""), "");
            text.replace(&self.subject.driver.name, "DRIVER")
        };
        let mut all: Vec<_> = all.into_iter().map(text).collect();
        all.sort();
        all
    }

    /// The objects as soon as they are as they should be.
    pub(crate) async fn note(&self, step: &str, holds: impl Fn(&[String]) -> bool, seen: &mut Seen) {
        let start = Instant::now();
        let all = loop {
            let all = self.see().await;
            if holds(&all) {
                break all;
            }
            assert!(start.elapsed() < patience(), "{step}: {all:#?}: {}", self.subject.said());
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        seen.extend(all.iter().map(|line| format!("{step}: {line}")));
    }

    /// Deletes the first object of a class.
    pub(crate) async fn lose(&self, class: &str) {
        let all = self.objects.list(&ListParams::default()).await.unwrap();
        let lost = all.into_iter().find(|object| object.storage_class_name == self.subject.named(class));
        self.objects.delete(&lost.unwrap().name_any(), &DeleteParams::default()).await.unwrap();
    }
}

pub(crate) fn say<'a>(all: &'a [String], words: &'a str) -> impl Iterator<Item = &'a String> {
    all.iter().filter(move |line| line.contains(words))
}

/// From nothing: of two classes and two zones; another class, driver and node have none.
async fn begin(subject: &mut Subject) -> Seen {
    let told = Told::of(subject);
    let mut seen = Seen::new();
    told.pod().await;
    told.node("a", Some("z1"), Some(&[ZONE])).await;
    told.node("b", Some("z2"), Some(&[ZONE])).await;
    told.node("c", Some("z1"), Some(&[ZONE])).await;
    told.node("unlabelled", None, Some(&[ZONE])).await;
    told.node("without", Some("z9"), None).await;
    told.class("plain", json!({"parameters": {"kind": "ssd"}})).await;
    told.class("largest", json!({"parameters": {"largest": "1048576"}})).await;
    told.class("immediate", json!({"volumeBindingMode": "Immediate"})).await;
    told.class("other", json!({"provisioner": "other.example.com"})).await;
    // Left by one that was: of a class that has gone, without an owner, and another's.
    told.object("gone", json!({})).await;
    told.object("plain", json!({})).await;
    told.object("other", json!({"metadata": {"labels": {"csi.storage.k8s.io/managed-by": "others"}}})).await;
    subject.begin();
    let told = Told::of(subject);
    let whole = |all: &[String]| all.len() == 5 && say(all, "Deployment").count() == 4;
    told.note("begun", whole, &mut seen).await;
    seen
}

/// The driver has less, a volume is made, the driver fails for a while.
async fn amounts(subject: &Subject) -> Seen {
    let told = Told::of(subject);
    let mut seen = Seen::new();
    subject.driver.has_room("z1", 3 << 29);
    told.note("more", |all| say(all, "1536Mi").count() == 2, &mut seen).await;
    subject.driver.has_room("z1", 0);
    told.note("none", |all| say(all, "\"capacity\":\"0\"").count() == 2, &mut seen).await;
    subject.driver.fails("capacity", "z2", &[Fault::Refused(Code::Internal); 3]);
    subject.driver.has_room("z2", 1000);
    told.note(
        "failed",
        |all| say(all, "\"capacity\":\"1k\"").chain(say(all, "\"1000\"")).count() == 2,
        &mut seen,
    )
    .await;
    let selected =
        json!({"metadata": {"annotations": {"volume.kubernetes.io/selected-node": subject.named("b")}}});
    subject.driver.has_room("z2", 1 << 30);
    subject.claim(&subject.named("claim"), &subject.named("plain"), selected).await;
    told.note("made", |all| say(all, "992Mi").count() == 2, &mut seen).await;
    seen
}

/// Nodes, classes and objects come and go.
async fn changes(subject: &Subject) -> Seen {
    let told = Told::of(subject);
    let mut seen = Seen::new();
    let zones = |zone: &'static str, count: usize| move |all: &[String]| say(all, zone).count() == count;
    let label = |zone: &str| json!({"metadata": {"labels": {ZONE: zone}}});
    subject.change::<Node>(&subject.named("unlabelled"), label("z3")).await;
    told.note("labelled", zones("z3", 2), &mut seen).await;
    subject.delete::<CSINode>(&subject.named("unlabelled")).await;
    told.note("the driver has gone", zones("z3", 0), &mut seen).await;
    told.lose("largest").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    told.note("lost", |all| all.len() == 5, &mut seen).await;
    told.object("plain", json!({})).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    told.note("twice", |all| all.len() == 5 && say(all, "\"capacity\":\"1Mi\"").count() == 1, &mut seen)
        .await;
    subject.delete::<StorageClass>(&subject.named("largest")).await;
    told.note("class gone", |all| all.len() == 3, &mut seen).await;
    told.class("new", json!({})).await;
    // Upstream may make a second one before it hears of its first, and deletes it again.
    let of_new = |all: &[String], zone| say(all, "\"new\"").filter(|line| line.contains(zone)).count() == 1;
    told.note("class new", |all| of_new(all, "z1") && of_new(all, "z2"), &mut seen).await;
    seen
}

/// Without a period: a place that is full, an object that is lost, a volume that is made and goes.
async fn of_late(subject: &mut Subject) -> Seen {
    let told = Told::of(subject);
    let mut seen = Seen::new();
    told.pod().await;
    told.node("a", Some("z1"), Some(&[ZONE])).await;
    told.node("b", Some("z2"), Some(&[ZONE])).await;
    told.class("plain", json!({"allowVolumeExpansion": true})).await;
    subject.begin();
    let told = Told::of(subject);
    told.note("begun", |all| say(all, "1Gi").count() == 2, &mut seen).await;
    subject.driver.has_room("z1", 0);
    subject.driver.has_room("z2", 1 << 31);
    let (claim, class) = (subject.named("claim"), subject.named("plain"));
    let volume = subject.claim(&claim, &class, json!({})).await;
    subject.driver.fails("create", &volume, &[Fault::Refused(Code::ResourceExhausted)]);
    subject.select(&claim, Some(&subject.named("a"))).await;
    subject.soon("another node", async || subject.selected(&claim).await.is_none()).await;
    let known = |all: &[String]| say(all, "\"capacity\":\"0\"").chain(say(all, "2Gi")).count() == 2;
    told.note("full", known, &mut seen).await;
    subject.select(&claim, Some(&subject.named("b"))).await;
    told.note("made", |all| say(all, "2016Mi").count() == 1, &mut seen).await;
    subject.phase(&volume, "Bound").await;
    subject.unclaim(&claim).await;
    subject.phase(&volume, "Released").await;
    told.note("deleted", |all| say(all, "2Gi").count() == 1, &mut seen).await;
    told.lose("plain").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    told.note("lost", |all| all.len() == 2, &mut seen).await;
    seen
}

#[test]
fn when_something_has_happened() {
    with_server("capacity::when_something_has_happened", async |server| {
        server.has_namespaces().await;
        let work = Work::CapacityOfLate;
        let mut ours = Subject::new(&server, Whose::Ours, work, "ours-late.example.com", CAN).await;
        let mut upstream =
            Subject::new(&server, Whose::Upstream, work, "upstream-late.example.com", CAN).await;
        let seen = tokio::join!(of_late(&mut ours), of_late(&mut upstream));
        super::subject::alike("of_late", [&ours, &upstream], seen.into());
        let asked = |zone| ours.driver.calls(zone).len();
        println!("ours asked {} and {} times", asked("z1"), asked("z2"));
    });
}

/// What the driver was asked, each question once.
async fn calls(subject: &Subject) -> Seen {
    let zones = ["", "z1", "z2", "z3"].iter().flat_map(|zone| subject.driver.calls(zone));
    zones.collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
fn as_upstream_tells_it() {
    with_server("capacity::as_upstream_tells_it", async |first| {
        let second = ApiServer::start(first.programs.clone()).await;
        for server in [&first, &second] {
            server.has_namespaces().await;
        }
        let mut ours =
            Subject::new(&first, Whose::Ours, Work::Capacity, "ours-capacity.example.com", CAN).await;
        let mut upstream =
            Subject::new(&second, Whose::Upstream, Work::Capacity, "upstream-capacity.example.com", CAN)
                .await;
        let seen = tokio::join!(begin(&mut ours), begin(&mut upstream));
        super::subject::alike("begin", [&ours, &upstream], seen.into());
        let subjects = [ours, upstream];
        both!(subjects, amounts);
        both!(subjects, changes);
        both!(subjects, calls);
    });
}

/// Upstream makes objects for ever where the driver names no keys: docs/csi.md.
#[test]
fn a_driver_without_topology_has_one_object_for_each_class() {
    with_server("capacity::a_driver_without_topology_has_one_object_for_each_class", async |server| {
        server.has_namespaces().await;
        let can = Can { topology: false, ..CAN };
        let name = "everywhere.example.com";
        let mut subject = Subject::new(&server, Whose::Ours, Work::Capacity, name, can).await;
        let told = Told::of(&subject);
        told.pod().await;
        told.node("a", None, Some(&[])).await;
        told.node("b", Some("z1"), Some(&[])).await;
        told.class("plain", json!({})).await;
        subject.begin();
        let (told, mut seen) = (Told::of(&subject), Seen::new());
        let one = |all: &[String]| all.len() == 1 && all[0].contains("1Gi");
        told.note("one", one, &mut seen).await;
        subject.soon("it is asked again", async || subject.driver.calls("").len() >= 3).await;
        subject.proxy.is_quiet(1000).await;
        assert!(one(&told.see().await), "it is asked again, and nothing is written");
    });
}

/// What costs the API server nothing, as long as nothing changes.
#[test]
fn what_has_not_changed_is_not_written() {
    with_server("capacity::what_has_not_changed_is_not_written", async |server| {
        server.has_namespaces().await;
        let mut subject = Subject::new(&server, Whose::Ours, Work::Capacity, "same.example.com", CAN).await;
        let told = Told::of(&subject);
        told.pod().await;
        told.node("a", Some("z1"), Some(&[ZONE])).await;
        told.class("plain", json!({})).await;
        subject.begin();
        let (told, mut seen) = (Told::of(&subject), Seen::new());
        told.note("one", |all| all.len() == 1, &mut seen).await;
        let asked = subject.driver.calls("z1").len();
        subject.proxy.requests();
        let (start, asked_since) = (Instant::now(), || subject.driver.calls("z1").len() - asked);
        subject.soon("it is asked again", async || asked_since() >= 2).await;
        subject.proxy.is_quiet(1000).await;
        let periods = start.elapsed().as_secs() / 3;
        assert!(asked_since() as u64 <= periods + 1, "once in a period");
        assert_eq!(subject.proxy.requests(), [""; 0]);
    });
}
