//! `kubectl flexvol …` as an administrator types it: Kubernetes' own kubectl executes the plugin,
//! which asks by it.

use super::agent_rights::place;
use super::api_server::ApiServer;
use super::pace::slow_seconds;
use super::store::{has_kinds, request, store_at, waiting};
use super::store_contract::{Always, goes, holder, mount_as, soon};
use super::with_server;
use super::wording::{wording, wording_of};
use flexvol_cluster::fence::decide::{Cause, Reply, Task};
use flexvol_cluster::fence::progress::{Outcome, Phase, Progress, Step};
use flexvol_cluster::fence::record::Holder;
use flexvol_cluster::fence::request::{Left, Request};
use flexvol_cluster::fence::settle::settle;
use flexvol_cluster::fence::sharing::Sharing;
use flexvol_cluster::fence::store::RecordStore;
use serde_json::{Value, json};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Somebody with kubectl, its configuration and its plugin.
pub(crate) struct Admin {
    pub(crate) server: ApiServer,
    pub(crate) home: PathBuf,
}

impl Admin {
    pub(crate) async fn new(server: ApiServer) -> Self {
        let address = server.address();
        Self::by(server, &address).await
    }

    /// Whose way to the API server is another.
    pub(crate) async fn by(server: ApiServer, address: &str) -> Self {
        has_kinds(&server).await;
        let home = server.home.path().join("admin");
        std::fs::create_dir(&home).unwrap();
        symlink(server.programs.join("kubectl"), home.join("kubectl")).unwrap();
        symlink(env!("CARGO_BIN_EXE_flexvold"), home.join("kubectl-flexvol")).unwrap();
        let config = server.config(address, "shop");
        std::fs::write(home.join("config"), config.to_string()).unwrap();
        Self { server, home }
    }

    /// Puts this in place of kubectl; `$KUBECTL` in it is that.
    pub(crate) fn wrap(&self, script: &str) {
        let (wrapped, kubectl) = (self.home.join("kubectl"), self.server.programs.join("kubectl"));
        std::fs::remove_file(&wrapped).unwrap();
        let text =
            format!("#!/bin/sh\nKUBECTL={}\nHERE={}\n{script}\n", kubectl.display(), self.home.display());
        let mut shell = Command::new("sh")
            .args(["-ec", "printf %s \"$1\" >\"$2\"; chmod 755 \"$2\"", "sh", &text])
            .arg(&wrapped)
            .spawn()
            .unwrap();
        assert!(shell.wait().unwrap().success());
    }

    /// A file that such a script reads.
    pub(crate) fn put(&self, name: &str, text: &str) {
        std::fs::write(self.home.join(name), text).unwrap();
    }

    /// Status, standard output, standard error.
    pub(crate) async fn types(&self, words: &[&str]) -> (i32, String, String) {
        let mut command = self.command(words);
        let output = waiting(move || command.output().unwrap()).await;
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// What is typed.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(self.home.join("kubectl"));
        command.arg("flexvol").args(words).env("PATH", format!("{}:/usr/bin:/bin", self.home.display()));
        command.env("KUBECONFIG", self.home.join("config")).env("HOME", &self.home);
        command.current_dir(&self.home);
        command
    }

    /// What it says, if it is content.
    pub(crate) async fn told(&self, words: &[&str]) -> String {
        let (status, out, error) = self.types(words).await;
        assert_eq!((status, error.as_str()), (0, ""), "{words:?}: {out}");
        out
    }

    pub(crate) async fn make(&self, object: Value) -> Value {
        request(&self.server.client(), "POST", &place(&object), &object).await.unwrap()
    }

    pub(crate) async fn store<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn RecordStore) -> T + Send + 'static,
    ) -> T {
        let store = store_at(self.server.home.path(), &self.server.certificate(), &self.server.address());
        waiting(move || work(&store)).await
    }
}

fn named(api: &str, kind: &str, name: &str, spec: &Value) -> Value {
    json!({"apiVersion": api, "kind": kind, "metadata": {"name": name, "namespace": "shop"}, "spec": spec})
}

/// A claim and its volume, as Kubernetes binds them.
async fn bound(admin: &Admin, claim: &str, volume: &str) {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": volume,
        "resources": {"requests": {"storage": "1Gi"}}});
    let made = admin.make(named("v1", "PersistentVolumeClaim", claim, &spec)).await;
    admin
        .make(json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume}, "spec": {
            "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
            "flexVolume": {"driver": "flexvol/rbd"},
            "claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "shop", "name": claim,
                "uid": made["metadata"]["uid"]}}}))
        .await;
    let path = format!("/api/v1/namespaces/shop/persistentvolumeclaims/{claim}/status");
    let bound = json!({"status": {"phase": "Bound"}});
    request(&admin.server.client(), "PATCH", &path, &bound).await.unwrap();
}

/// A pod of a `StatefulSet` that has begun again on another node than its predecessor.
async fn scene(admin: &Admin) -> Holder {
    admin.make(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})).await;
    for node in ["node-3", "node-7"] {
        admin.make(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})).await;
    }
    bound(admin, "data", "pv").await;
    let pod = json!({"nodeName": "node-3", "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]});
    admin.make(named("v1", "Pod", "db-0", &pod)).await;
    let mut old = holder("node-7", "old");
    (old.pod.namespace, old.pod.name) = ("shop".to_owned(), "db-0".to_owned());
    old.target = "/var/lib/kubelet/pods/old/volumes/flexvol~rbd/pv".to_owned();
    old.since = "2026-11-26T10:02:03Z".to_owned();
    let me = old.clone();
    assert!(admin.store(move |store| goes(&mount_as(store, me, Sharing::Exclusive))).await);
    old
}

#[test]
fn an_administrator_sees_who_holds_what() {
    with_server("an_administrator_sees_who_holds_what", async |server| {
        let admin = Admin::new(server).await;
        assert_eq!(admin.told(&["locks"]).await, format!("{}\n", wording("nothing-held")));
        let old = scene(&admin).await;
        let out = admin.told(&["locks"]).await;
        let cells = ["rbd:f/pool/image", "shop/db-0", "node-7 (", "2026-11-26T10:02:03Z"];
        assert!(cells.iter().all(|cell| out.contains(cell)), "{out}");
        // Its namespace is that of kubectl's context.
        for words in [&["why", "data"][..], &["why", "data", "-n", "shop"], &["locks", "data"]] {
            let out = admin.told(words).await;
            let lines: Vec<_> = out.lines().collect();
            assert_eq!(lines[0], wording_of("has-it-not", ["shop/db-0", "node node-3"]), "{out}");
            let facts = ["rbd:f/pool/image", "shop/db-0", "node node-7", "2026-11-26T10:02:03Z", "epoch 0"];
            assert!(facts.iter().all(|fact| lines[1].contains(fact)), "{out}");
            // Its Node has another uid than the one that held it.
            assert!(lines[1].contains(wording("not-in-the-cluster")), "{out}");
        }
        let task = Task { holder: old, reason: Cause::PodGone };
        admin.store(move |store| store.note(&task, soon())).await.unwrap();
        assert!(admin.told(&["why", "data"]).await.contains("PodGone"));
        let said: Value = serde_json::from_str(&admin.told(&["why", "data", "--json"]).await).unwrap();
        assert_eq!((&said["waiting"], &said["locks"][0]["epoch"]), (&json!(["db-0"]), &json!(0)));
        let said: Value = serde_json::from_str(&admin.told(&["status", "--json"]).await).unwrap();
        assert_eq!(said["tasks"], json!({"node-7": 1}));
        let row = &said["volumes"][0];
        assert_eq!((&row["pod"], &row["volume"]), (&json!("shop/db-0"), &json!("pv")), "{said}");
        assert!(row["state"].as_str().unwrap().contains("node-7"), "{said}");
        let other = admin.told(&["status", "--namespace", "default"]).await;
        assert!(!other.contains("db-0"), "{other}");
        refusals(&admin).await;
    });
}

/// What kubectl cannot do it says itself; here is said which question it was.
async fn refusals(admin: &Admin) {
    let (status, out, error) = admin.types(&["why", "nothing"]).await;
    assert_eq!((status, out.as_str()), (1, ""));
    assert!(error.contains("NotFound") && error.contains("persistentvolumeclaims/nothing"), "{error}");
    let (status, _, error) = admin.types(&["why", "../../secrets", "-n", "shop"]).await;
    assert!(status == 1 && error.contains(wording("no-kubernetes-name")), "{error}");
    let (status, _, error) = admin.types(&["locks", "--context", "elsewhere"]).await;
    assert!(status == 1 && error.contains("elsewhere"), "{error}");
    assert_eq!(admin.types(&["locks", "--store", "file:/nowhere", "data"]).await.0, 2);
}

/// A node that reports, and what a pod of it holds.
async fn alive(admin: &Admin, name: &str, handle: &str, volume: &str) -> Task {
    alive_in(admin, "shop", name, handle, volume).await
}

async fn alive_in(admin: &Admin, namespace: &str, name: &str, handle: &str, volume: &str) -> Task {
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name},
        "status": {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"bootID": "boot-1"}}});
    let made = admin.make(node).await;
    let mut holder = holder(name, volume);
    made["metadata"]["uid"].as_str().unwrap().clone_into(&mut holder.node.uid);
    "boot-1".clone_into(&mut holder.node.boot);
    (holder.pod.namespace, holder.pod.name) = (namespace.to_owned(), format!("of-{volume}"));
    holder.target = format!("/var/lib/kubelet/pods/{volume}/volumes/flexvol~rbd/{volume}");
    let (me, handle) = (holder.clone(), handle.to_owned());
    let request = Request::Mount { me: Box::new(me), sharing: Sharing::Exclusive };
    let held = admin.store(move |store| settle(store, &handle, &request, &Always::default(), soon())).await;
    assert!(matches!(held.unwrap().reply, Reply::Go { .. }));
    Task { holder, reason: Cause::Forced }
}

/// What an agent says of a task as soon as that is there, and then does.
async fn agent(admin: &Admin, task: Task, handle: &'static str, phase: Phase) {
    admin
        .store(move |store| {
            while !store.all_tasks(soon()).unwrap().iter().any(|known| known.name() == task.name()) {
                std::thread::sleep(Duration::from_millis(20));
            }
            let step =
                |outcome, message: &str| Step { name: "umount -l", outcome, message: message.to_owned() };
            let say = |phase, step, message: &str| {
                let progress = Progress { phase, steps: vec![step], message: message.to_owned() };
                store.report(&task, &progress).unwrap();
            };
            say(Phase::Running, step(Outcome::Running, ""), "");
            if phase == Phase::Stuck {
                return say(phase, step(Outcome::Failed, "busy"), "process 7 (dd) uses it");
            }
            let request = Request::EndUnmount { id: task.holder.id.clone(), left: Left::Nothing };
            settle(store, handle, &request, &Always::default(), soon()).unwrap();
            say(Phase::Done, step(Outcome::Done, ""), "");
            store.finish(&task).unwrap();
        })
        .await;
}

/// Test 52: what a node does not answer for is not asked of it; of each of the others it is said
/// what became of it. No claim is deleted that nobody named for that.
#[test]
fn t52_an_administrator_unmounts_by_force() {
    with_server("t52_an_administrator_unmounts_by_force", async |server| {
        let admin = Admin::new(server).await;
        let none = ["force-detach", "--node", "node-9"];
        assert!(admin.told(&none).await.contains("kubectl flexvol locks"));
        scene(&admin).await;
        let one = alive(&admin, "node-8", "rbd:one", "one").await;
        for words in [&["force-detach"][..], &["force-detach", "--node", "x", "--dry-run", "--yes"]] {
            assert_eq!(admin.types(words).await.0, 2);
        }
        // It is shown, and nothing is done; and what cannot be done is said.
        let all = ["rbd:one", "rbd:f/pool/image", "node-8 (", "node-7 ("];
        let (status, out, _) = admin.types(&["force-detach", "-l", "!none"]).await;
        assert!(status == 1 && all.iter().all(|cell| out.contains(cell)) && out.contains("--yes"), "{out}");
        let dry = admin.told(&["force-detach", "data", "--dry-run"]).await;
        assert!(dry.contains("node-7") && !dry.contains("node-8"), "{dry}");
        let words = ["force-detach", "data", "--yes", "--json"];
        let (status, out, _) = admin.types(&words).await;
        let said: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((status, &said["volumes"][0]["result"]), (1, &json!("refused")), "{said}");
        assert!(admin.store(|store| store.all_tasks(soon())).await.unwrap().is_empty());
        // It is stuck, and then is not: who asks again waits for the same task.
        let words = ["force-detach", "--handle", "rbd:one", "--yes"];
        let ((status, out, _), ()) =
            tokio::join!(admin.types(&words), agent(&admin, one.clone(), "rbd:one", Phase::Stuck));
        assert!(status == 1 && out.contains("process 7 (dd)") && out.contains("kubectl delete fxd"), "{out}");
        let finished = async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            agent(&admin, one, "rbd:one", Phase::Done).await;
        };
        let seconds = slow_seconds(30).to_string();
        let again =
            ["force-detach", "--node", "node-8", "--handle", "rbd:one", "--yes", "--timeout", &seconds];
        let ((status, out, _), ()) = tokio::join!(admin.types(&again), finished);
        assert!(status <= 1 && out.contains("rbd:one"), "{status} {out}");
        assert!(!admin.told(&["locks"]).await.contains("rbd:one"));
        claims(&admin).await;
        // Whoever takes a task back has nothing released.
        let task = alive(&admin, "node-13", "rbd:three", "three").await;
        let taken_back = admin.store(move |store| {
            while !store.all_tasks(soon()).unwrap().iter().any(|known| known.name() == task.name()) {
                std::thread::sleep(Duration::from_millis(20));
            }
            store.finish(&task).unwrap();
        });
        let words = ["force-detach", "--node", "node-13", "--yes", "--json"];
        let ((status, out, _), ()) = tokio::join!(admin.types(&words), taken_back);
        let said: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((status, &said["volumes"][0]["result"]), (1, &json!("stuck")), "{said}");
    });
}

/// With their own flag alone, and only of what was released.
async fn claims(admin: &Admin) {
    bound(admin, "two", "two").await;
    let is_kept = async |path: &str| {
        let read = request(&admin.server.client(), "GET", path, &Value::Null).await;
        read.is_ok_and(|object| object["metadata"]["deletionTimestamp"].is_null())
    };
    let places = ["/api/v1/namespaces/shop/persistentvolumeclaims/two", "/api/v1/persistentvolumes/two"];
    // A tenant calls a volume of its pod like the PersistentVolume of a stranger.
    let task = alive_in(admin, "tenants", "node-20", "rbd:own", "two").await;
    let words = ["force-detach", "--node", "node-20", "--yes", "--delete-claims"];
    let ((status, out, error), ()) =
        tokio::join!(admin.types(&words), agent(admin, task, "rbd:own", Phase::Done));
    assert!(status == 1 && out.contains("released") && error.contains("kubectl delete pvc"), "{out} {error}");
    for place in places {
        assert!(is_kept(place).await, "{place}: {out} {error}");
    }
    for (name, flag, phase, kept) in [
        ("node-10", "--json", Phase::Done, true),
        ("node-11", "--delete-claims", Phase::Stuck, true),
        ("node-12", "--delete-claims", Phase::Done, false),
    ] {
        let task = alive(admin, name, "rbd:two", "two").await;
        let words = ["force-detach", "--node", name, "--yes", flag];
        let ((status, out, error), ()) =
            tokio::join!(admin.types(&words), agent(admin, task.clone(), "rbd:two", phase));
        assert_eq!(status, i32::from(phase != Phase::Done), "{out} {error}");
        for place in places {
            assert_eq!(is_kept(place).await, kept, "{place}: {out} {error}");
        }
        if phase == Phase::Stuck {
            agent(admin, task, "rbd:two", Phase::Done).await;
        } else if flag == "--json" {
            let said: Value = serde_json::from_str(&out).unwrap();
            assert_eq!(said["volumes"][0]["result"], "released", "{said}");
            assert_eq!(said["volumes"][0]["steps"][0]["step"], "umount -l", "{said}");
        }
    }
}
