//! A `StatefulSet` by Kubernetes' own controllers and scheduler, with volumes in zones that ours
//! makes and deletes. It is killed in the middle, and so is the API server: nothing is lost or
//! leaked.

use super::api_server::{ApiServer, patience};
use super::driver::{Can, ZONE};
use super::proxy::{Cut, Way};
use super::scheduled::{kubernetes, node};
use super::subject::{Subject, Whose, Work};
use super::with_server;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

const REPLICAS: usize = 10;

/// Calls of the driver until something ends: the answer to this one is lost.
const CALLS: usize = 3;

/// All of a kind, by name; none while the API server is away.
async fn all<K>(server: &ApiServer, api: fn(kube::Client) -> Api<K>) -> Option<BTreeMap<String, Value>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + serde::Serialize,
{
    let list = api(server.client()).list(&ListParams::default()).await.ok()?;
    let named =
        |object: K| (object.meta().name.clone().unwrap_or_default(), serde_json::to_value(object).unwrap());
    Some(list.items.into_iter().map(named).collect())
}

fn of_namespace<K>(client: kube::Client) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    Api::namespaced(client, "default")
}

/// Makes one, all of whose pods want to begin at once.
async fn set(server: &ApiServer, class: &str) {
    let labels = json!({"app": "web"});
    let mounts = json!([{"name": "data", "mountPath": "/data"}]);
    let pod = json!({"tolerations": [{"operator": "Exists"}],
        "containers": [{"name": "c", "image": "none", "volumeMounts": mounts}]});
    let claim = json!({"metadata": {"name": "data"}, "spec": {"storageClassName": class,
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "32Mi"}}}});
    let spec = json!({"replicas": REPLICAS, "serviceName": "web", "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod},
        "volumeClaimTemplates": [claim]});
    let set = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
    of_namespace::<StatefulSet>(server.client()).create(&PostParams::default(), &set).await.unwrap();
}

/// Ours is killed while the driver has done what it asked for, and then the API server.
async fn disturb(server: &mut ApiServer, subject: &mut Subject) {
    subject.driver.cut(Some((Cut::After(CALLS), Way::Killed)));
    subject.driver.reached().await;
    subject.kill().await;
    subject.driver.cut(Some((Cut::After(CALLS), Way::Killed)));
    subject.begin();
    subject.driver.reached().await;
    server.again().await;
}

/// The zone of each pod's node, and that of its volume.
async fn places(server: &ApiServer) -> Option<Vec<(String, String)>> {
    let pods = all::<Pod>(server, of_namespace).await?;
    let claims = all::<PersistentVolumeClaim>(server, of_namespace).await?;
    let (volumes, nodes) =
        (all::<PersistentVolume>(server, Api::all).await?, all::<Node>(server, Api::all).await?);
    let place = |number: usize| {
        let (pod, claim) = (pods.get(&format!("web-{number}"))?, claims.get(&format!("data-web-{number}"))?);
        let node = nodes.get(pod["spec"]["nodeName"].as_str()?)?;
        let volume = volumes.get(claim["spec"]["volumeName"].as_str()?)?;
        let bound = claim["status"]["phase"] == "Bound" && volumes.len() == REPLICAS;
        let terms = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
        let zone = terms[0]["matchExpressions"][0]["values"][0].as_str().filter(|_| bound)?;
        Some((node["metadata"]["labels"][ZONE].as_str()?.to_owned(), zone.to_owned()))
    };
    (0..REPLICAS).map(place).collect()
}

fn at_once() -> DeleteParams {
    DeleteParams::default().grace_period(0)
}

/// Deletes pods and claims. Their controller makes them anew until it knows that the set has gone.
async fn clear(server: &ApiServer) {
    let every = ListParams::default();
    let _ = of_namespace::<Pod>(server.client()).delete_collection(&at_once(), &every).await;
    let claims = of_namespace::<PersistentVolumeClaim>(server.client());
    let _ = claims.delete_collection(&at_once(), &every).await;
}

async fn eventually<T>(server: &ApiServer, subject: &mut Subject, holds: impl AsyncFn() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = holds().await {
            return value;
        }
        subject.begin_again_if_failed();
        let said = || [server.said("kube-controller-manager"), server.said("kube-scheduler"), subject.said()];
        assert!(start.elapsed() < patience(), "{}", said().join("\n"));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Of a set of a class, from the beginning to the end: the zones of its volumes.
async fn live(server: &mut ApiServer, subject: &mut Subject, binding: &str) -> Vec<String> {
    let class = subject.named(&binding.to_lowercase());
    subject.class(&class, json!({ "volumeBindingMode": binding })).await;
    set(server, &class).await;
    disturb(server, subject).await;
    let places = eventually(server, subject, async || places(server).await).await;
    for (node, volume) in &places {
        assert_eq!(node, volume, "{places:?}");
    }
    let volumes: Vec<_> = all::<PersistentVolume>(server, Api::all).await.unwrap().into_keys().collect();
    assert_eq!(subject.driver.volumes(), volumes);

    let _ = of_namespace::<StatefulSet>(server.client()).delete("web", &at_once()).await.unwrap();
    clear(server).await;
    disturb(server, subject).await;
    let none = async || {
        clear(server).await;
        all::<PersistentVolume>(server, Api::all).await.filter(BTreeMap::is_empty)
    };
    eventually(server, subject, none).await;
    assert_eq!(subject.driver.volumes(), [""; 0]);
    places.into_iter().map(|(_, zone)| zone).collect()
}

#[test]
fn nothing_is_lost_or_leaked() {
    with_server("stateful::nothing_is_lost_or_leaked", async |mut server| {
        server.has_namespaces().await;
        let controllers = "persistentvolume-binder-controller,statefulset-controller";
        let _kubernetes = kubernetes(&server, controllers).await;
        let can = Can { provision: true, topology: true, ..Can::default() };
        let name = "stateful.example.com";
        let mut subject = Subject::new(&server, Whose::Ours, Work::Provision, name, can).await;
        node(&subject, "a", "z1").await;
        node(&subject, "b", "z2").await;
        subject.begin();
        live(&mut server, &mut subject, "WaitForFirstConsumer").await;
        let zones = live(&mut server, &mut subject, "Immediate").await;
        // One after the other is elsewhere.
        assert!(zones.windows(2).all(|pair| pair[0] != pair[1]), "{zones:?}");
    });
}
