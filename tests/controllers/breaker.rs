//! `flexvold controller` beside a real API server: what it takes and what not, what it may do, and
//! that it is killed and cut off at every request.

use super::agent_rights::{knows, place};
use super::api_server::{ApiServer, Process, patience};
use super::pace::deadline;
use super::proxy::{Cut, Proxy, Right, Way};
use super::rights::{rights, watches_lease};
use super::store::{KIND, has_kinds, request, store_at, waiting};
use super::store_contract::{HANDLE, holder, mount_as, soon};
use super::with_server;
use flexvol_cluster::fence::decide::Cause;
use flexvol_cluster::fence::record::{Holder, Record};
use flexvol_cluster::fence::sharing::Sharing;
use flexvol_cluster::fence::store::RecordStore as _;
use flexvol_cluster::fence::store::kubernetes::{FORCE_DETACH, KubernetesStore, OUT_OF_SERVICE, name_of};
use flexvol_cluster::manifest::agent::{CONTROLLER, Request, objects};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// A cluster of nodes that nobody runs, and a controller whose requests pass a proxy.
struct Scene {
    server: ApiServer,
    store: Arc<KubernetesStore>,
    proxy: Proxy,
    home: PathBuf,
    limit: Duration,
}

type Failed = &'static str;

impl Scene {
    async fn new(server: ApiServer) -> Self {
        has_kinds(&server).await;
        let proxy = Proxy::listen(server.client()).await;
        let home = server.home.path().join("controller");
        std::fs::create_dir(&home).unwrap();
        server.mount_account(&home);
        let store = store_at(server.home.path(), &server.certificate(), &server.address());
        Self { server, store: Arc::new(store), proxy, home, limit: patience() }
    }

    fn begin(&self) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_flexvold"));
        command.args(["controller", "--gone-after=1", "--log-level=debug", "--server"]);
        command.arg(self.proxy.address()).arg("--account").arg(&self.home);
        Process::start(&mut command, &self.home.join("said"))
    }

    /// As kill -9 would; and its lease has ended, as it would a quarter of a minute later.
    async fn kill(&self, process: &mut Process) {
        process.kill();
        self.ask("DELETE", LEASES, &Value::Null).await.unwrap();
    }

    async fn ask(&self, method: &str, path: &str, object: &Value) -> Result<Value, (u16, String)> {
        request(&self.server.client(), method, path, object).await
    }

    /// A node that is ready, in a boot.
    async fn node(&self, name: &str) {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
        self.ask("POST", "/api/v1/nodes", &node).await.unwrap();
        self.node_is(name, "boot-1", true).await;
    }

    async fn node_is(&self, name: &str, boot: &str, ready: bool) {
        let path = format!("/api/v1/nodes/{name}");
        let mut node = self.ask("GET", &path, &Value::Null).await.unwrap();
        let status = if ready { "True" } else { "Unknown" };
        node["status"]["conditions"] = json!([{"type": "Ready", "status": status}]);
        node["status"]["nodeInfo"] = json!({"bootID": boot, "machineID": "", "systemUUID": "", "kernelVersion": "",
            "osImage": "", "containerRuntimeVersion": "", "kubeletVersion": "", "kubeProxyVersion": "",
            "operatingSystem": "", "architecture": ""});
        self.ask("PUT", &format!("{path}/status"), &node).await.unwrap();
    }

    /// An administrator says that it is off.
    async fn taint(&self, name: &str) {
        let path = format!("/api/v1/nodes/{name}");
        let mut node = self.ask("GET", &path, &Value::Null).await.unwrap();
        node["spec"]["taints"] =
            json!([{"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}]);
        self.ask("PUT", &path, &node).await.unwrap();
    }

    async fn pod(&self, name: &str, node: &str) {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"},
            "spec": {"nodeName": node, "containers": [{"name": "a", "image": "i"}]}});
        self.ask("POST", "/api/v1/namespaces/default/pods", &pod).await.unwrap();
    }

    async fn delete_by_force(&self, pod: &str) {
        let path = format!("/api/v1/namespaces/default/pods/{pod}?gracePeriodSeconds=0");
        self.ask("DELETE", &path, &Value::Null).await.unwrap();
    }

    /// A pod of a node holds the storage.
    async fn holds(&self, node: &str, pod: &str) -> Holder {
        let uid = |object: Value| object["metadata"]["uid"].as_str().unwrap().to_owned();
        let seen = self.ask("GET", &format!("/api/v1/nodes/{node}"), &Value::Null).await.unwrap();
        let mut me = holder(node, pod);
        me.node.boot = seen["status"]["nodeInfo"]["bootID"].as_str().unwrap().to_owned();
        me.node.uid = uid(seen);
        let path = format!("/api/v1/namespaces/default/pods/{pod}");
        me.pod.uid = uid(self.ask("GET", &path, &Value::Null).await.unwrap());
        pod.clone_into(&mut me.pod.name);
        me.id = Holder::id_of(&me.node, &me.pod.uid, HANDLE, &me.target);
        let (store, it) = (Arc::clone(&self.store), me.clone());
        let held = waiting(move || mount_as(&*store, it, Sharing::Exclusive)).await;
        assert!(super::store_contract::goes(&held), "{held:?}");
        me
    }

    async fn record(&self) -> Record {
        let store = Arc::clone(&self.store);
        waiting(move || store.read(HANDLE, soon()).unwrap().record.unwrap()).await
    }

    async fn tasks(&self) -> Vec<(String, Cause)> {
        let store = Arc::clone(&self.store);
        let tasks = waiting(move || store.all_tasks(soon()).unwrap()).await;
        tasks.into_iter().map(|task| (task.holder.node.name, task.reason)).collect()
    }

    async fn step(&self, name: Failed, holds: impl AsyncFn() -> bool) -> Result<(), Failed> {
        let start = Instant::now();
        while !holds().await {
            if start.elapsed() > self.limit {
                return Err(name);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// It is taken under the next epoch.
    async fn taken(&self, name: Failed, epoch: u64) -> Result<(), Failed> {
        self.step(name, async || {
            let record = self.record().await;
            (record.epoch, record.holders.len()) == (epoch, 0)
        })
        .await
    }

    /// It stays, for as long as anything that is about to happen takes.
    async fn stays(&self, epoch: u64) {
        tokio::time::sleep(Duration::from_millis(700)).await;
        let record = self.record().await;
        assert_eq!((record.epoch, record.holders.len()), (epoch, 1), "{}", self.said());
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.home.join("said")).unwrap_or_default()
    }

    async fn lease(&self) -> Value {
        self.ask("GET", &format!("{LEASES}/{CONTROLLER}"), &Value::Null).await.unwrap_or_default()
    }

    /// Failover of a pod: its node is off; then another one reboots; a third lives, and its pod is
    /// gone; at last its Node object is.
    async fn play(&self) -> Result<(), Failed> {
        for (node, pod) in [("a", "one"), ("b", "two"), ("c", "three")] {
            self.node(node).await;
            self.pod(pod, node).await;
        }
        self.holds("a", "one").await;
        // Another has the lease, and gives it back.
        let others = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": CONTROLLER},
            "spec": {"holderIdentity": "another", "leaseDurationSeconds": 3600}});
        self.ask("POST", LEASES, &others).await.unwrap();
        let mut process = self.begin();
        self.step("it watches the lease", async || watches_lease(&self.proxy)).await?;
        self.ask("DELETE", LEASES, &Value::Null).await.unwrap();
        self.step("it has the lease", async || !self.lease().await.is_null()).await?;
        let lease = self.lease().await;
        self.node_is("a", "boot-1", false).await;
        self.delete_by_force("one").await;
        self.stays(0).await;
        self.taint("a").await;
        self.taken("what a node held that is off", 1).await?;
        assert_eq!(self.tasks().await, [("a".to_owned(), Cause::NodeLost)]);
        self.holds("b", "two").await;
        self.node_is("b", "boot-2", true).await;
        self.stays(1).await;
        self.delete_by_force("two").await;
        self.taken("what a pod had before a reboot", 2).await?;
        self.holds("c", "three").await;
        self.delete_by_force("three").await;
        self.step("a node is asked to clean up", async || self.tasks().await.len() == 2).await?;
        self.stays(2).await;
        self.ask("DELETE", "/api/v1/nodes/a", &Value::Null).await.unwrap();
        self.step("a task that is nobody's", async || {
            self.tasks().await == [("c".to_owned(), Cause::PodGone)]
        })
        .await?;
        self.step("it renews the lease", async || self.lease().await != lease).await?;
        process.kill();
        self.step("all that it asks for is allowed", async || self.proxy.refused().is_empty()).await
    }

    /// Nothing is left.
    async fn clear(&self) {
        for node in ["a", "b", "c"] {
            let _ = self.ask("DELETE", &format!("/api/v1/nodes/{node}"), &Value::Null).await;
        }
        for pod in ["one", "two", "three"] {
            let path = format!("/api/v1/namespaces/default/pods/{pod}?gracePeriodSeconds=0");
            let _ = self.ask("DELETE", &path, &Value::Null).await;
        }
        let locks = self.ask("GET", KIND, &Value::Null).await.unwrap();
        for mut lock in locks["items"].as_array().unwrap().clone() {
            let path = format!("{KIND}/{}", lock["metadata"]["name"].as_str().unwrap());
            lock["metadata"]["finalizers"] = json!([]);
            self.ask("PUT", &path, &lock).await.unwrap();
            self.ask("DELETE", &path, &Value::Null).await.unwrap();
        }
        for all in [KIND.replace("flexattachments", "flexdetachtasks"), LEASES.to_owned()] {
            self.ask("DELETE", &all, &Value::Null).await.unwrap();
        }
    }
}

fn printed(kind: &str) -> Value {
    let (image, kubelet_root) = ("image".to_owned(), "/var/lib/kubelet".to_owned());
    let all = objects(&Request { image, namespace: "default".to_owned(), kubelet_root, plugin_dir: None });
    let is_it = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == CONTROLLER;
    all.iter().find(is_it).unwrap().clone()
}

/// One who may do what is printed, but for one thing, from now on.
async fn grant(server: &ApiServer, user: &str, without: Option<&Right>) {
    for of in ["Cluster", ""] {
        let mut role = printed(&format!("{of}Role"));
        let rights = rights(&role["rules"]);
        let rules: Vec<_> = rights
            .iter()
            .filter(|right| Some(*right) != without)
            .map(|right| json!({"apiGroups": [right.group], "resources": [right.resource], "verbs": [right.verb]}))
            .collect();
        role["rules"] = json!(rules);
        let mut binding = printed(&format!("{of}RoleBinding"));
        binding["roleRef"]["name"] = json!(user);
        binding["subjects"] =
            json!([{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]);
        for mut object in [role, binding] {
            object["metadata"]["name"] = json!(user);
            request(&server.client(), "POST", &place(&object), &object).await.unwrap();
        }
        for right in &rights {
            knows(server, user, right, Some(right) != without).await;
        }
    }
}

/// What is taken and what not; with what is printed, and nothing is refused.
#[test]
fn storage_is_taken_from_nodes_that_are_off_alone() {
    with_server("breaker::storage_is_taken_from_nodes_that_are_off_alone", async |server| {
        grant(&server, "all", None).await;
        let scene = Scene::new(server).await;
        scene.proxy.acts_as("all");
        let played = scene.play().await;
        assert_eq!(played, Ok(()), "{:?} {}", scene.proxy.refused(), scene.said());
    });
}

/// Test 53: a lock that is deleted and marked, while a controller watches and while none does; and
/// one that is only deleted.
#[test]
fn t53_a_deletion_that_was_missed_is_found_by_a_list() {
    with_server("breaker::t53_a_deletion_that_was_missed_is_found_by_a_list", async |server| {
        grant(&server, "all", None).await;
        let scene = Scene::new(server).await;
        scene.proxy.acts_as("all");
        let path = format!("{KIND}/{}", name_of(HANDLE));
        let tasks = KIND.replace("flexattachments", "flexdetachtasks");
        let forced = [("a".to_owned(), Cause::Forced)];
        for watched in [true, false] {
            scene.node("a").await;
            scene.pod("one", "a").await;
            scene.holds("a", "one").await;
            let mut process = scene.begin();
            scene.step("it has the lease", async || !scene.lease().await.is_null()).await.unwrap();
            scene.ask("DELETE", &path, &Value::Null).await.unwrap();
            tokio::time::sleep(Duration::from_millis(700)).await;
            assert_eq!(scene.tasks().await, []);
            if !watched {
                scene.kill(&mut process).await;
            }
            let mark = json!({"metadata": {"annotations": {FORCE_DETACH: "true"}}});
            scene.ask("PATCH", &path, &mark).await.unwrap();
            if !watched {
                process = scene.begin();
            }
            let asked = scene.step("its node is asked", async || scene.tasks().await == forced).await;
            assert_eq!(asked, Ok(()), "{}", scene.said());
            // What the node does then: the lock goes with its last holder.
            let mut lock = scene.ask("GET", &path, &Value::Null).await.unwrap();
            lock["spec"]["holders"] = json!([]);
            lock["metadata"]["finalizers"] = json!([]);
            scene.ask("PUT", &path, &lock).await.unwrap();
            assert_eq!(scene.ask("GET", &path, &Value::Null).await.unwrap_err().0, 404);
            scene.ask("DELETE", &tasks, &Value::Null).await.unwrap();
            scene.kill(&mut process).await;
            scene.clear().await;
        }
        assert!(scene.proxy.refused().is_empty(), "{:?}", scene.proxy.refused());
    });
}

/// Each right is taken away once, and then a step fails.
#[test]
fn the_controllers_rights_are_the_least() {
    with_server("breaker::the_controllers_rights_are_the_least", async |server| {
        let all = ["ClusterRole", "Role"].map(|kind| rights(&printed(kind)["rules"])).concat();
        assert_eq!(all.len(), 17);
        let mut scene = Scene::new(server).await;
        scene.limit = deadline(8);
        let mut steps = Vec::new();
        for (number, right) in all.iter().enumerate() {
            let user = format!("without-{number}");
            grant(&scene.server, &user, Some(right)).await;
            scene.proxy = Proxy::listen(scene.server.client()).await;
            scene.proxy.acts_as(&user);
            let failed = scene.play().await.expect_err(&format!("{right:?} is not needed"));
            steps.push(format!("{} {}: {failed}", right.verb, right.resource));
            scene.clear().await;
        }
        println!("{steps:#?}");
    });
}

/// Killed, and cut off, at every request: what a node held that is off is taken once.
#[test]
fn a_node_that_is_off_at_every_point() {
    with_server("breaker::a_node_that_is_off_at_every_point", async |server| {
        let scene = Scene::new(server).await;
        let mut points = [0, 0];
        for (points, way) in points.iter_mut().zip([Way::Killed, Way::Lost]) {
            for cut in (1..).flat_map(|at| [Cut::Before(at), Cut::After(at)]) {
                if !taken_in_spite_of(&scene, cut, way).await {
                    break;
                }
                *points += 1;
            }
        }
        println!("cut short at {points:?} points");
        // All locks, nodes, pods and tasks; the lock, its node; the task, the lock.
        assert!(points[0] >= 16 && points[1] >= 16, "{points:?}");
    });
}

/// Whether anything was cut short.
async fn taken_in_spite_of(scene: &Scene, cut: Cut, way: Way) -> bool {
    scene.node("a").await;
    scene.pod("one", "a").await;
    scene.holds("a", "one").await;
    scene.node_is("a", "boot-1", false).await;
    scene.taint("a").await;
    scene.proxy.cut_so(Some(cut), way);
    let mut process = scene.begin();
    let taken = async || {
        let taken = scene.taken("it is taken", 1).await;
        assert_eq!(taken, Ok(()), "{way:?} {cut:?}: {}", scene.said());
    };
    let mut reached = tokio::select! {
        biased;
        () = scene.proxy.reached() => true,
        () = taken() => false,
    };
    // The answer to the last request follows what it has changed.
    reached = reached || tokio::time::timeout(deadline(1), scene.proxy.reached()).await.is_ok();
    if way == Way::Killed && reached {
        scene.kill(&mut process).await;
        process = scene.begin();
    }
    taken().await;
    assert_eq!(scene.tasks().await, [("a".to_owned(), Cause::NodeLost)], "{way:?} {cut:?}");
    scene.proxy.cut(None);
    scene.kill(&mut process).await;
    let record = scene.record().await;
    assert_eq!((record.epoch, record.holders.len()), (1, 0), "{way:?} {cut:?}");
    scene.clear().await;
    reached
}
