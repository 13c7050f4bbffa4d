//! Kubernetes' own scheduler and PersistentVolume controller go by what ours tells: pods run where
//! there is room for their volumes.

use super::api_server::{ApiServer, Process};
use super::capacity::{CAN, Told, say};
use super::driver::{Fault, ZONE};
use super::proxy::Proxy;
use super::subject::{Seen, Subject, Whose, Work};
use super::with_server;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kube::Api;
use serde_json::json;
use std::process::Command;
use tonic::Code;

/// Both programs, for as long as they are kept; of the second one these controllers.
pub(crate) async fn kubernetes(server: &ApiServer, controllers: &str) -> Vec<Process> {
    let (home, proxy) = (server.home.path(), Proxy::listen(server.client()).await);
    let kubeconfig = server.kubeconfig(&proxy.address());
    let start = |program: &str, more: &[&str]| {
        let mut command = Command::new(server.programs.join(program));
        command.arg(format!("--kubeconfig={}", kubeconfig.display()));
        command.args(["--leader-elect=false", "--secure-port=0"]).args(more);
        Process::start(&mut command, &home.join(program).with_extension("log"))
    };
    vec![
        start("kube-scheduler", &[]),
        start("kube-controller-manager", &[&format!("--controllers={controllers}")]),
    ]
}

/// A node that can run pods, with the driver on it.
pub(crate) async fn node(subject: &Subject, name: &str, zone: &str) {
    let name = subject.named(name);
    let has = json!({"cpu": "8", "memory": "8Gi", "pods": "110"});
    let status = json!({"capacity": has, "allocatable": has});
    let labels = json!({ ZONE: zone });
    subject.make::<Node>(json!({"metadata": {"name": name, "labels": labels}, "status": status})).await;
    let driver = json!({"name": subject.driver.name, "nodeID": name, "topologyKeys": [ZONE]});
    subject.make::<CSINode>(json!({"metadata": {"name": name}, "spec": {"drivers": [driver]}})).await;
}

/// The node on which a pod runs that uses a claim.
async fn runs(server: &ApiServer, subject: &Subject, claim: &str) -> String {
    let volume = json!({"name": "v", "persistentVolumeClaim": {"claimName": claim}});
    let spec = json!({"containers": [{"name": "c", "image": "none"}], "volumes": [volume],
        "tolerations": [{"operator": "Exists"}]});
    Told::of(subject).make::<Pod>(json!({"metadata": {"name": claim}, "spec": spec})).await;
    let pods: Api<Pod> = Api::namespaced(subject.client.clone(), "default");
    let node = async || pods.get(claim).await.unwrap().spec.and_then(|spec| spec.node_name);
    let start = std::time::Instant::now();
    loop {
        if let Some(node) = node().await {
            return node.replace(&subject.named(""), "");
        }
        assert!(start.elapsed() < super::api_server::patience(), "{}", server.said("kube-scheduler"));
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
}

#[test]
fn pods_run_where_there_is_room() {
    with_server("scheduled::pods_run_where_there_is_room", async |server| {
        server.has_namespaces().await;
        let _kubernetes = kubernetes(&server, "persistentvolume-binder-controller").await;
        let name = "room.example.com";
        let mut subject = Subject::new(&server, Whose::Ours, Work::CapacityOfLate, name, CAN).await;
        let spec = json!({"attachRequired": false, "storageCapacity": true});
        subject.make::<CSIDriver>(json!({"metadata": {"name": name}, "spec": spec})).await;
        let told = Told::of(&subject);
        told.pod().await;
        node(&subject, "a", "z1").await;
        node(&subject, "b", "z2").await;
        told.class("plain", json!({})).await;
        subject.driver.has_room("z1", 0);
        subject.begin();
        let (told, mut seen) = (Told::of(&subject), Seen::new());
        told.note("told", |all| all.len() == 2, &mut seen).await;
        let class = subject.named("plain");
        for number in 0..3 {
            let claim = subject.named(&format!("first-{number}"));
            subject.claim(&claim, &class, json!({})).await;
            assert_eq!(runs(&server, &subject, &claim).await, "b", "there is no room on a");
        }
        // Nobody knows it yet.
        subject.driver.has_room("z1", 1 << 30);
        subject.driver.has_room("z2", 0);
        let claim = subject.named("second");
        let volume = subject.claim(&claim, &class, json!({})).await;
        subject.driver.fails("create", &volume, &[Fault::Refused(Code::ResourceExhausted)]);
        assert_eq!(runs(&server, &subject, &claim).await, "a", "there was none on b");
        let full = |all: &[String]| say(all, "\"capacity\":\"0\"").any(|line| line.contains("z2"));
        told.note("what is full is told", full, &mut seen).await;
    });
}
