//! `kubectl flexvol migrate` with a real API server, Kubernetes' own controllers and kubectl:
//! volumes go to CSI and come back; it is killed and cut off at every request, and ends the same.

use super::api_server::{ApiServer, Process, patience};
use super::pace::deadline;
use super::plugin::Admin;
use super::proxy::{Cut, Proxy, Way};
use super::store::request;
use super::with_server;
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};

const DRIVER: &str = "cifs.fstab.flex.flexvol.dev";

/// On whatever a migration has changed.
const MARK: &str = "flexvol.dev/migration";

/// Of all points at which it is killed or cut off one in so many, unless FULL is set.
const SAMPLE: usize = 9;

/// An administrator, a cluster, and what stands between them.
struct Scene {
    admin: Admin,
    proxy: Proxy,
    _controllers: Process,
}

impl Scene {
    async fn new(server: ApiServer) -> Self {
        let proxy = Proxy::listen(server.client()).await;
        let controllers = controllers(&server);
        let address = proxy.address();
        let admin = Admin::by(server, &address).await;
        let scene = Self { admin, proxy, _controllers: controllers };
        scene.has_nodes().await;
        scene
    }

    async fn has_nodes(&self) {
        self.make(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})).await;
        let node = self.make(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}})).await;
        let status = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"kubeletVersion": "v1.33.0", "machineID": "", "systemUUID": "", "bootID": "b",
                "kernelVersion": "", "osImage": "", "containerRuntimeVersion": "", "kubeProxyVersion": "",
                "operatingSystem": "", "architecture": ""}}});
        assert!(node["metadata"]["uid"].is_string());
        self.change("/api/v1/nodes/a/status", &status).await;
        let driver = json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": DRIVER},
            "spec": {"attachRequired": false}});
        self.make(driver).await;
        self.make(json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "a"},
            "spec": {"drivers": [{"name": DRIVER, "nodeID": "a"}]}}))
            .await;
    }

    async fn make(&self, object: Value) -> Value {
        self.admin.make(object).await
    }

    async fn change(&self, path: &str, change: &Value) {
        let client = self.admin.server.client();
        let request = http::Request::patch(path).header("content-type", "application/merge-patch+json");
        let request = request.body(change.to_string().into_bytes()).unwrap();
        client.request::<Value>(request).await.unwrap();
    }

    async fn see(&self, path: &str) -> Option<Value> {
        request(&self.admin.server.client(), "GET", path, &Value::Null).await.ok()
    }

    /// Until something is so; the object.
    async fn becomes(&self, path: &str, is: impl Fn(&Value) -> bool) -> Value {
        let start = Instant::now();
        loop {
            let found = self.see(path).await.unwrap_or_default();
            if is(&found) {
                return found;
            }
            assert!(start.elapsed() < patience(), "{path}: {found:#}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// A flex volume, bound to a claim.
    async fn bound(&self, name: &str) {
        self.make(volume(name, Some(name))).await;
        self.make(claim(name)).await;
        self.becomes(&claim_path(name), |claim| claim["status"]["phase"] == "Bound").await;
        self.becomes(&path(name), |volume| volume["status"]["phase"] == "Bound").await;
    }

    /// Pods that use it: no scheduler gives them a node.
    async fn used(&self, name: &str, replicas: u32) {
        let template = json!({"metadata": {"labels": {"app": name}}, "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": name}}]}});
        self.make(json!({"apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}}))
        .await;
        let pods = format!("/api/v1/namespaces/shop/pods?labelSelector=app%3D{name}");
        self.becomes(&pods, |pods| {
            pods["items"].as_array().is_some_and(|pods| pods.len() == replicas as usize)
        })
        .await;
    }

    /// Runs it to its end, which comes.
    async fn told(&self, words: &[&str]) -> String {
        let (status, out, error) = self.admin.types(words).await;
        assert_eq!(status, 0, "{words:?}: {out}{error}");
        out
    }

    async fn applies(&self) -> String {
        self.told(&["migrate", "apply", "plan", "--ready-timeout=0"]).await
    }

    async fn goes_back(&self) -> String {
        self.told(&["migrate", "rollback", "plan", "--ready-timeout=0"]).await
    }

    /// Begins it again as if it had never been.
    async fn plans(&self, words: &[&str]) -> Value {
        for file in ["plan", "plan.journal"] {
            let _ = std::fs::remove_file(self.admin.home.join(file));
        }
        self.told(&[&["migrate", "plan", "-o", "plan"], words].concat()).await;
        serde_json::from_slice(&std::fs::read(self.admin.home.join("plan")).unwrap()).unwrap()
    }

    /// How long there was no volume, and a little more: from before it was deleted until after it
    /// was there again.
    fn without(&self) -> Duration {
        let text = std::fs::read_to_string(self.admin.home.join("plan.journal")).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let at = |step: &str| {
            let line = lines.iter().find(|line| line["step"] == step).unwrap();
            let time = line["time"].as_str().unwrap().to_owned();
            let part = |range: std::ops::Range<usize>| time[range].parse::<u64>().unwrap();
            Duration::from_millis(
                ((part(11..13) * 60 + part(14..16)) * 60 + part(17..19)) * 1000 + part(20..23),
            )
        };
        at("unmark").saturating_sub(at("delete"))
    }

    /// The plan is not carried out, and nothing is changed.
    async fn is_refused(&self) {
        let before = self.shown("web").await;
        let (status, out, error) = self.admin.types(&["migrate", "apply", "plan", "--ready-timeout=0"]).await;
        assert!(status == 1 && error.contains("PersistentVolume web"), "{out}{error}");
        assert_eq!(self.shown("web").await, before);
    }

    /// What of a volume, its claim and its workload is to be the same again.
    async fn shown(&self, name: &str) -> Value {
        let volume = self.see(&path(name)).await.unwrap();
        let claim = self.see(&claim_path(name)).await.unwrap();
        let workload = self.see(&workload_path(name)).await.unwrap_or_default();
        let annotations = |object: &Value| match &object["metadata"]["annotations"] {
            Value::Null => json!({}),
            annotations => annotations.clone(),
        };
        let mut spec = volume["spec"].clone();
        spec["claimRef"]["resourceVersion"] = Value::Null;
        let mut of_workload = annotations(&workload);
        of_workload["deployment.kubernetes.io/revision"] = Value::Null;
        json!({"volume": spec, "labels": volume["metadata"]["labels"], "notes": annotations(&volume),
            "phase": volume["status"]["phase"], "claim": claim["metadata"]["uid"], "bound": claim["status"]["phase"],
            "claimNotes": annotations(&claim), "replicas": workload["spec"]["replicas"], "workloadNotes": of_workload})
    }
}

fn volume(name: &str, claim: Option<&str>) -> Value {
    let claim = claim.map(|claim| json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop", "name": claim}));
    json!({"apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {"tier": "gold"}, "annotations": {"note": "keep"},
            "finalizers": ["kubernetes.io/pv-protection"]},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteMany"], "storageClassName": "",
            "persistentVolumeReclaimPolicy": "Delete", "claimRef": claim,
            "flexVolume": {"driver": "fstab/cifs", "options": {"networkPath": "//cellar/web"}}}})
}

fn claim(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "shop"},
        "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": name,
            "resources": {"requests": {"storage": "1Gi"}}}})
}

fn path(name: &str) -> String {
    format!("/api/v1/persistentvolumes/{name}")
}

fn claim_path(name: &str) -> String {
    format!("/api/v1/namespaces/shop/persistentvolumeclaims/{name}")
}

fn workload_path(name: &str) -> String {
    format!("/apis/apps/v1/namespaces/shop/deployments/{name}")
}

/// Those that bind volumes, and make pods.
fn controllers(server: &ApiServer) -> Process {
    let home = server.home.path();
    let mut command = Command::new(server.programs.join("kube-controller-manager"));
    command.arg(format!("--kubeconfig={}", server.kubeconfig(&server.address()).display()));
    command.args([
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--v=2",
        "--kube-api-qps=200",
        "--kube-api-burst=200",
        "--controllers=persistentvolume-binder-controller,persistentvolume-protection-controller,\
         deployment-controller,replicaset-controller,statefulset-controller",
    ]);
    Process::start(&mut command, &home.join("controllers.log"))
}

/// With Kubernetes' own controllers: a claim keeps its uid, its volume is another, and back.
#[test]
fn a_bound_volume_goes_and_comes_back() {
    with_server("migrate::a_bound_volume_goes_and_comes_back", async |server| {
        let scene = Scene::new(server).await;
        scene.bound("web").await;
        scene.used("web", 2).await;
        let before = scene.shown("web").await;
        assert_eq!(before["volume"]["persistentVolumeReclaimPolicy"], "Delete");
        let plan = scene.plans(&["--driver", "fstab/cifs"]).await;
        assert_eq!(scene.shown("web").await, before, "a plan changes nothing");
        scene.proxy.requests();
        scene.applies().await;
        let requests = scene.proxy.requests();
        println!("{} requests for one volume, {:?} without it", requests.len(), scene.without());
        // Twenty read what the plan was made of, once for all; eight are those of its workload.
        assert!(requests.len() <= 46, "{requests:#?}");
        // It takes a tenth of a second.
        assert!(scene.without() < deadline(3), "{:?}", scene.without());
        let after = scene.shown("web").await;
        assert_eq!(after["volume"]["csi"]["driver"], DRIVER);
        assert_eq!(after["volume"]["persistentVolumeReclaimPolicy"], "Retain");
        for key in ["labels", "phase", "claim", "bound", "claimNotes", "replicas", "workloadNotes"] {
            assert_eq!(after[key], before[key], "{key}");
        }
        assert_eq!(after["notes"][MARK], plan["id"]);
        // Again, there is nothing to do.
        scene.applies().await;
        assert_eq!(scene.shown("web").await, after);
        let said: Value = serde_json::from_str(&scene.told(&["migrate", "status", "--json"]).await).unwrap();
        assert_eq!(said["migrations"][0]["volumes"][0]["state"], "moved");
        // By its id alone: its file is lost.
        let id = plan["id"].as_str().unwrap();
        scene.told(&["migrate", "rollback", id, "--ready-timeout=0"]).await;
        assert_eq!(scene.shown("web").await, before);
        // A new plan of what is there, and the way back by another plan.
        scene.plans(&["--all"]).await;
        scene.applies().await;
        scene.plans(&["--volume", "web", "--reverse"]).await;
        scene.applies().await;
        assert_eq!(scene.shown("web").await, before);
    });
}

/// What cuts it short.
#[derive(Clone, Copy, Debug)]
struct Point {
    cut: Cut,
    way: Way,
}

/// Runs it, cut short at a point; whether it came there.
async fn run_until(scene: &Scene, words: &[&str], point: Point) -> bool {
    scene.proxy.cut_so(Some(point.cut), point.way);
    let log = scene.admin.home.join("said");
    let mut run = Process::start(&mut scene.admin.command(words), &log);
    let ended = async {
        while !run.has_ended() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let came = tokio::select! {
        biased;
        () = scene.proxy.reached() => true,
        () = ended => false,
    };
    if came && point.way == Way::Killed {
        run.kill();
    }
    while !run.has_ended() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    scene.proxy.cut(None);
    came
}

/// The same, and it is begun again if it did not come to its end.
async fn cut_short(scene: &Scene, words: &[&str], point: Point) -> bool {
    let came = run_until(scene, words, point).await;
    if came {
        scene.told(words).await;
    }
    came
}

/// The points of one way, each with a volume of its own; how many there are.
async fn at_each_point(scene: &Scene, goal: &str, way: Way) -> usize {
    let step = if std::env::var_os("FULL").is_some() { 1 } else { SAMPLE };
    let (apply, rollback) = (
        ["migrate", "apply", "plan", "--ready-timeout=0"],
        ["migrate", "rollback", "plan", "--ready-timeout=0"],
    );
    let words: &[&str] = if goal == "apply" { &apply } else { &rollback };
    let mut number = 1;
    loop {
        let mut came = false;
        for cut in [Cut::Before(number), Cut::After(number)] {
            let before = scene.shown("web").await;
            scene.plans(&["--volume", "web"]).await;
            if goal != "apply" {
                scene.applies().await;
            }
            came = cut_short(scene, words, Point { cut, way }).await;
            let after = scene.shown("web").await;
            if goal == "apply" {
                assert_eq!(after["volume"]["csi"]["driver"], DRIVER, "{cut:?}");
                assert_eq!((&after["phase"], &after["bound"]), (&json!("Bound"), &json!("Bound")), "{cut:?}");
                assert_eq!(
                    (&after["claim"], &after["claimNotes"]),
                    (&before["claim"], &before["claimNotes"]),
                    "{cut:?}"
                );
                assert_eq!(
                    (&after["replicas"], &after["workloadNotes"]),
                    (&before["replicas"], &before["workloadNotes"]),
                    "{cut:?}"
                );
                scene.goes_back().await;
            }
            assert_eq!(scene.shown("web").await, before, "{goal} {cut:?} {way:?}");
        }
        if !came {
            return number;
        }
        number += step;
    }
}

fn at_every_point(test: &str, goal: &'static str, way: Way) {
    with_server(test, async |server| {
        let scene = Scene::new(server).await;
        scene.bound("web").await;
        scene.used("web", 1).await;
        let points = at_each_point(&scene, goal, way).await;
        println!("{goal}, {way:?}: it has about {points} requests");
        assert!(points > 20, "{points}");
    });
}

#[test]
fn killed_while_it_applies() {
    at_every_point("migrate::killed_while_it_applies", "apply", Way::Killed);
}

#[test]
fn killed_while_it_goes_back() {
    at_every_point("migrate::killed_while_it_goes_back", "rollback", Way::Killed);
}

#[test]
fn cut_off_while_it_applies() {
    at_every_point("migrate::cut_off_while_it_applies", "apply", Way::Lost);
}

/// Ended halfway, it goes back as well as on.
#[test]
fn killed_on_the_way_it_goes_back() {
    with_server("migrate::killed_on_the_way_it_goes_back", async |server| {
        let scene = Scene::new(server).await;
        scene.bound("web").await;
        scene.used("web", 1).await;
        let before = scene.shown("web").await;
        let step = if std::env::var_os("FULL").is_some() { 1 } else { SAMPLE };
        for number in (1..).step_by(step) {
            scene.plans(&["--volume", "web"]).await;
            let point = Point { cut: Cut::After(number), way: Way::Killed };
            let came = run_until(&scene, &["migrate", "apply", "plan", "--ready-timeout=0"], point).await;
            scene.goes_back().await;
            assert_eq!(scene.shown("web").await, before, "{number}");
            if !came {
                assert!(number > 20, "{number}");
                break;
            }
        }
    });
}

/// A volume, a claim or a workload that somebody changes after the plan was made.
#[test]
fn nothing_is_applied_to_what_has_changed() {
    with_server("migrate::nothing_is_applied_to_what_has_changed", async |server| {
        let scene = Scene::new(server).await;
        scene.bound("web").await;
        scene.used("web", 1).await;
        let label = json!({"metadata": {"labels": {"tier": "silver"}}});
        let more = json!({"spec": {"replicas": 2}});
        for (path, change) in [(path("web"), label), (workload_path("web"), more)] {
            scene.plans(&["--volume", "web"]).await;
            scene.change(&path, &change).await;
            scene.is_refused().await;
        }
        // A pod that nothing makes again.
        scene.plans(&["--volume", "web"]).await;
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "web"}}]);
        scene
            .make(
                json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bare", "namespace": "shop"},
                "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": volumes}}),
            )
            .await;
        scene.is_refused().await;
        let (status, out, _) = scene.admin.types(&["migrate", "plan", "--all", "--json"]).await;
        let said: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((status, &said["refused"][0]["reason"]), (1, &json!("bare-pod")), "{out}");
    });
}

/// A thousand volumes: seconds, and no more memory than a page of them needs.
#[test]
fn a_thousand_volumes_are_planned_soon() {
    with_server("migrate::a_thousand_volumes_are_planned_soon", async |server| {
        let scene = Scene::new(server).await;
        for number in 0..1000 {
            let mut object = volume(&format!("pv-{number}"), None);
            object["spec"].as_object_mut().unwrap().remove("claimRef");
            scene.make(object).await;
        }
        let last = "/api/v1/persistentvolumes/pv-999";
        scene.becomes(last, |volume| volume["status"]["phase"] == "Available").await;
        let start = Instant::now();
        let plan = scene.plans(&["--driver", "fstab/cifs"]).await;
        let (elapsed, groups) = (start.elapsed(), plan["groups"].as_array().unwrap().len());
        println!("{groups} volumes in {elapsed:?}, peak {} KiB", peak(&scene));
        assert_eq!(groups, 1000);
        // A debug build beside others: a release build takes less than a second.
        assert!(elapsed < deadline(60), "{elapsed:?}");
    });
}

/// The most memory that a plan takes, as the kernel has counted it.
fn peak(scene: &Scene) -> u64 {
    let mut command = scene.admin.command(&["migrate", "plan", "--all", "--json"]);
    let mut run = command.stdout(std::process::Stdio::null()).spawn().unwrap();
    let mut most = 0;
    while run.try_wait().unwrap().is_none() {
        let status = std::fs::read_to_string(format!("/proc/{}/status", run.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let read = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        most = most.max(read.unwrap_or(0));
        std::thread::sleep(Duration::from_millis(5));
    }
    most
}
