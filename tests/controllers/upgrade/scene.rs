//! A node with a mount pod, and a run of the command about it.

use super::super::api_server::patience;
use super::super::plugin::Admin;
use super::super::store::{request, waiting};
use super::MARK;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A node with a mount pod of an older template, and a pod with a volume that it serves.
pub(super) struct Scene<'a> {
    pub(super) admin: &'a Admin,
    pub(super) node: String,
    pub(super) owner: String,
}

impl<'a> Scene<'a> {
    pub(super) async fn new(admin: &'a Admin, node: &str) -> Self {
        let mut scene = Self { admin, node: node.to_owned(), owner: String::new() };
        for name in [scene.shop(), scene.tools()] {
            admin.make(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})).await;
        }
        admin.make(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})).await;
        scene.owner = scene.has_set("tools", &json!([{"operator": "Exists"}])).await;
        scene.serves(&["v-1"]);
        scene.begins(scene.mount_pod("tools-a", ("tools", &scene.owner), "old")).await;
        scene.begins(scene.user("web", &json!([]), &flex())).await;
        scene
    }

    pub(super) fn shop(&self) -> String {
        format!("shop-{}", self.node)
    }

    pub(super) fn tools(&self) -> String {
        format!("tools-{}", self.node)
    }

    /// A DaemonSet with two templates; its uid.
    pub(super) async fn has_set(&self, name: &str, tolerations: &Value) -> String {
        let labels = json!({"app": name});
        let pod = json!({"tolerations": tolerations, "containers": [{"name": "c", "image": "i"}]});
        let made = self.admin.make(json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": name, "namespace": self.tools()},
            "spec": {"selector": {"matchLabels": labels}, "updateStrategy": {"type": "OnDelete"},
                "template": {"metadata": {"labels": labels}, "spec": pod}}}));
        let uid = made.await["metadata"]["uid"].as_str().unwrap().to_owned();
        for (number, hash) in [(1, "old"), (2, "new")] {
            let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": name, "uid": uid});
            let made = json!({"apiVersion": "apps/v1", "kind": "ControllerRevision", "revision": number,
                "data": {}, "metadata": {"name": format!("{name}-{hash}"), "namespace": self.tools(),
                    "labels": {"controller-revision-hash": hash}, "ownerReferences": [owner]}});
            self.admin.make(made).await;
        }
        uid
    }

    pub(super) fn mount_pod(&self, name: &str, set: (&str, &str), revision: &str) -> Value {
        let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": set.0, "uid": set.1,
            "controller": true});
        json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.tools(), "ownerReferences": [owner],
                "labels": {"controller-revision-hash": revision}},
            "spec": {"nodeName": self.node, "tolerations": [{"operator": "Exists"}],
                "volumes": [{"name": "k", "hostPath": {"path": "/var/lib/kubelet"}}],
                "containers": [{"name": "mounter", "image": "i", "command": ["/flexvold", "mounter", "init"],
                    "args": ["--plugin=v/sshfs"], "securityContext": {"privileged": true},
                    "volumeMounts": [{"name": "k", "mountPath": "/var/lib/kubelet",
                        "mountPropagation": "Bidirectional"}]}]}})
    }

    pub(super) fn user(&self, name: &str, tolerations: &Value, volume: &Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": self.shop()},
            "spec": {"nodeName": self.node, "tolerations": tolerations, "volumes": [volume],
                "containers": [{"name": "c", "image": "i"}]}})
    }

    /// What its mount pods say.
    pub(super) fn serves(&self, volumes: &[&str]) {
        self.says(&format!("cat <<'END'\n{}\nEND", json!({"volumes": volumes})));
    }

    /// What is run for them.
    pub(super) fn says(&self, script: &str) {
        self.admin.put(&format!("says-{}", self.tools()), script);
    }

    pub(super) async fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        request(&self.admin.server.client(), method, path, body).await.unwrap()
    }

    /// Makes a pod, and it runs; its uid.
    pub(super) async fn begins(&self, pod: Value) -> String {
        let mut made = self.admin.make(pod).await;
        let name = &made["spec"]["containers"][0]["name"];
        made["status"] = json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": name, "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
                "state": {"running": {}}}]});
        let metadata = &made["metadata"];
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}/status",
            metadata["namespace"].as_str().unwrap(),
            metadata["name"].as_str().unwrap()
        );
        let uid = metadata["uid"].as_str().unwrap().to_owned();
        self.ask("PUT", &path, &made).await;
        uid
    }

    /// The next mount pod of the DaemonSet.
    pub(super) async fn makes_a_new_one(&self) -> String {
        self.begins(self.mount_pod("tools-b", ("tools", &self.owner), "new")).await
    }

    pub(super) fn old(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/tools-a", self.tools())
    }

    pub(super) fn web(&self) -> String {
        format!("/api/v1/namespaces/{}/pods/web", self.shop())
    }

    /// As kubelet ends one.
    pub(super) async fn ends(&self, path: &str) {
        self.ask("DELETE", path, &json!({"gracePeriodSeconds": 0})).await;
    }

    pub(super) async fn is_ending(&self, path: &str) -> bool {
        let pod = request(&self.admin.server.client(), "GET", path, &Value::Null).await;
        pod.is_ok_and(|pod| !pod["metadata"]["deletionTimestamp"].is_null())
    }

    /// Nothing was done to them.
    pub(super) async fn is_whole(&self) {
        for path in [self.old(), self.web()] {
            assert_eq!(
                self.ask("GET", &path, &Value::Null).await["metadata"]["deletionTimestamp"],
                Value::Null
            );
        }
        assert_eq!(self.taint().await, None);
    }

    pub(super) async fn uid(&self) -> String {
        self.ask("GET", &self.old(), &Value::Null).await["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    pub(super) async fn object(&self) -> Value {
        self.ask("GET", &format!("/api/v1/nodes/{}", self.node), &Value::Null).await
    }

    pub(super) async fn taint(&self) -> Option<String> {
        let node = self.object().await;
        let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
        let ours = taints.iter().find(|taint| taint["key"] == MARK && taint["effect"] == "NoExecute");
        let noted = node["metadata"]["annotations"][MARK].is_string();
        assert_eq!(noted, ours.is_some(), "both, or none: {node}");
        Some(ours?["value"].as_str().unwrap().to_owned())
    }

    /// As an admin does it, or somebody else.
    pub(super) async fn set_taints(&self, taints: Value, said: Option<&str>) {
        let mut node = self.object().await;
        node["spec"]["taints"] = taints;
        node["metadata"]["annotations"][MARK] = json!(said);
        if said.is_none() {
            node["metadata"]["annotations"].as_object_mut().unwrap().remove(MARK);
        }
        self.ask("PUT", &format!("/api/v1/nodes/{}", self.node), &node).await;
    }

    pub(super) fn words<'b>(&'b self, more: &[&'b str]) -> Vec<&'b str> {
        [&["mounter", "upgrade", "--node", &self.node], more].concat()
    }

    /// What it says when it fails.
    pub(super) async fn refuses(&self, more: &[&str]) -> String {
        let (status, out, error) = self.admin.types(&self.words(more)).await;
        assert_eq!(status, 1, "{out}{error}");
        error
    }

    /// As JSON.
    pub(super) async fn told(&self, more: &[&str]) -> Value {
        serde_json::from_str(&self.admin.told(&self.words(&[more, &["--json"]].concat())).await).unwrap()
    }

    pub(super) fn starts(&self, more: &[&str]) -> Running {
        let mut command = self.admin.command(&self.words(more));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let (output, kept) = (BufReader::new(child.stdout.take().unwrap()), Arc::clone(&lines));
        std::thread::spawn(move || {
            output.lines().map_while(Result::ok).for_each(|line| kept.lock().unwrap().push(line));
        });
        Running { child, lines }
    }
}

/// A run of it. Killed with the test.
pub(super) struct Running {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

impl Running {
    /// Until it says a line with this in it, after what it has said before.
    pub(super) async fn says(&self, what: &str) {
        let lines = || self.lines.lock().unwrap().clone();
        eventually(&format!("it says {what}"), async || {
            lines().last().is_some_and(|line| line.contains(what))
        })
        .await;
    }

    /// Its status, and what it complains of.
    pub(super) async fn ends(mut self) -> (i32, String) {
        waiting(move || {
            let status = self.child.wait().unwrap();
            let mut error = String::new();
            self.child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
            (status.code().unwrap(), error)
        })
        .await
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) async fn eventually(what: &str, is: impl AsyncFn() -> bool) {
    let begun = Instant::now();
    while !is().await {
        assert!(begun.elapsed() < patience(), "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(super) fn flex() -> Value {
    json!({"name": "v", "flexVolume": {"driver": "v/sshfs"}})
}
