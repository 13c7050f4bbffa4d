//! Deployment of a driver's controllers: attach, provision, expand. Each part is done by
//! `flexvold csi-controller` or by Kubernetes' own sidecar, with the least rights for it.

use super::{Request, of_account};
use crate::controllers::client::ACCOUNT;
use flexvol_model::paths;
use flexvol_protocol::{Capabilities, DriverName};
use flexvol_terminal::rights::{account, granted, rule};
use serde_json::{Value, json};

/// Directory that the containers share.
const SOCKETS: &str = "/csi";

/// Program that does one part of the work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Worker {
    /// `flexvold csi-controller`.
    BuiltIn,
    /// Kubernetes' own sidecar, of this image.
    Upstream(String),
}

impl Worker {
    /// Returns the image, if it is not flexvold's own.
    pub fn image(&self) -> Option<&String> {
        match self {
            Self::BuiltIn => None,
            Self::Upstream(image) => Some(image),
        }
    }
}

/// Program for each part of the work that a driver has.
struct Workers<'a> {
    attacher: Option<&'a Worker>,
    provisioner: Option<&'a Worker>,
    resizer: Option<&'a Worker>,
}

impl<'a> Workers<'a> {
    fn of(request: &'a Request, can: Capabilities) -> Self {
        Self {
            attacher: request.attacher.as_ref().filter(|_| can.attach),
            provisioner: request.provisioner.as_ref(),
            resizer: request.resizer.as_ref().filter(|_| can.requires_fs_resize),
        }
    }

    /// Name of the work, name of its sidecar, and the program that does it.
    fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, &'a Worker)> {
        let all = [
            ("attach", "attacher", self.attacher),
            ("provision", "provisioner", self.provisioner),
            ("resize", "resizer", self.resizer),
        ];
        all.into_iter().filter_map(|(work, sidecar, worker)| Some((work, sidecar, worker?)))
    }

    fn built_in(&self) -> Vec<&'static str> {
        self.all().filter(|(.., worker)| **worker == Worker::BuiltIn).map(|(work, ..)| work).collect()
    }

    fn containers(&self, request: &Request, driver: &DriverName) -> Vec<Value> {
        let ours = self.built_in();
        let beside = self.all().filter_map(|(_, name, worker)| Some(sidecar(name, worker.image()?)));
        let ours = (!ours.is_empty()).then(|| built_in(request, &ours));
        [driver_container(request, driver)].into_iter().chain(ours).chain(beside).collect()
    }
}

/// Returns one driver's Deployment with its permissions; nothing if there is no work.
pub(super) fn objects(request: &Request, driver: &DriverName, can: Capabilities) -> Vec<Value> {
    let workers = Workers::of(request, can);
    if workers.all().next().is_none() {
        return Vec::new();
    }
    let name = format!("flexvol-csi-{}", driver.to_string().replace(['/', '.', '_'], "-").to_lowercase());
    let mut objects = vec![account(&of_account(request, &name))];
    let mut metadata = json!({"name": name, "labels": labels(&name)});
    objects.extend(granted(&metadata, &request.namespace, &rules(&workers)));
    if !workers.built_in().is_empty() {
        metadata["namespace"] = json!(request.namespace);
        let lease = rule("coordination.k8s.io", &["leases"], &LEASE);
        objects.extend(granted(&metadata, &request.namespace, &[lease]));
    }
    objects.push(deployment(request, &name, &workers.containers(request, driver)));
    objects
}

fn labels(name: &str) -> Value {
    json!({
        "app.kubernetes.io/name": "flexvol",
        "app.kubernetes.io/component": "csi-controller",
        "app.kubernetes.io/instance": name,
    })
}

fn deployment(request: &Request, name: &str, containers: &[Value]) -> Value {
    let labels = labels(name);
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": request.namespace, "labels": labels},
        "spec": {
            "replicas": 1,
            // Sidecars take no lease here: two of them would both work.
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": name,
                    // Only containers that ask the API server mount the token: not the driver's.
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "priorityClassName": "system-cluster-critical",
                    "containers": containers,
                    "volumes": [
                        {"name": "sockets", "emptyDir": {}},
                        {"name": "state", "emptyDir": {}},
                        {"name": "account", "projected": {"sources": token()}},
                        {"name": "plugins", "hostPath": {"path": request.plugin_dir, "type": "Directory"}},
                    ],
                },
            },
        },
    })
}

/// Sources of the volume that kubelet would mount into each container itself.
fn token() -> Value {
    json!([
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]}},
    ])
}

fn driver_container(request: &Request, driver: &DriverName) -> Value {
    json!({
        "name": "csi",
        "image": request.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/flexvold", "csi"],
        "args": [
            format!("--driver={driver}"),
            format!("--plugin-dir={}", request.plugin_dir),
            format!("--endpoint=unix://{SOCKETS}/csi.sock"),
            "--role=controller",
        ],
        "securityContext": {"readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false, "runAsUser": 0},
        "volumeMounts": [
            {"name": "sockets", "mountPath": SOCKETS},
            {"name": "state", "mountPath": paths::STATE},
            {"name": "plugins", "mountPath": request.plugin_dir, "readOnly": true},
        ],
    })
}

fn built_in(request: &Request, works: &[&str]) -> Value {
    let mut container = unprivileged("controller", &request.image);
    container["command"] = json!(["/flexvold", "csi-controller"]);
    container["args"] =
        json!([format!("--endpoint=unix://{SOCKETS}/csi.sock"), format!("--work={}", works.join(","))]);
    container["resources"] = json!({"requests": {"cpu": "10m", "memory": "16Mi"}});
    container
}

fn sidecar(name: &str, image: &str) -> Value {
    let mut container = unprivileged(name, image);
    container["args"] = json!([format!("--csi-address={SOCKETS}/csi.sock")]);
    container
}

fn unprivileged(name: &str, image: &str) -> Value {
    json!({
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {
            "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false,
            "runAsUser": 0,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "sockets", "mountPath": SOCKETS},
            {"name": "account", "mountPath": ACCOUNT, "readOnly": true},
        ],
    })
}

const WATCH: [&str; 2] = ["list", "watch"];
const LEASE: [&str; 4] = ["get", "watch", "create", "update"];

/// Cluster-wide rules: the minimum for a FlexVolume driver (`rights` in tests/controllers removes
/// each of them). Access to a Secret that a StorageClass or a PersistentVolume names is another
/// rule, which the admin adds.
fn rules(workers: &Workers<'_>) -> Vec<Value> {
    let mut rules = Vec::new();
    rules.extend(workers.attacher.into_iter().flat_map(attaches));
    rules.extend(workers.provisioner.into_iter().flat_map(|worker| provisions(worker, workers)));
    rules.extend(workers.resizer.into_iter().flat_map(grows));
    rules
}

/// Rules for expansion. Nodes expand volumes of FlexVolume drivers, also in use: ours reads no
/// pods.
fn grows(worker: &Worker) -> Vec<Value> {
    let verbs: &[&str] = match worker {
        Worker::BuiltIn => &["get", "list", "watch", "patch"],
        Worker::Upstream(_) => &["list", "watch", "patch"],
    };
    let mut rules = vec![
        rule("", &["persistentvolumes"], verbs),
        rule("", &["persistentvolumeclaims"], &WATCH),
        rule("", &["persistentvolumeclaims/status"], &["patch"]),
        rule("", &["events"], &["create", "patch"]),
    ];
    if *worker != Worker::BuiltIn {
        rules.push(rule("", &["pods"], &WATCH));
    }
    rules
}

/// Rules for attaching. Ours also reads objects that others have changed meanwhile.
fn attaches(worker: &Worker) -> [Value; 4] {
    let verbs: &[&str] = match worker {
        Worker::BuiltIn => &["get", "list", "watch", "patch"],
        Worker::Upstream(_) => &["list", "watch", "patch"],
    };
    [
        rule("storage.k8s.io", &["csinodes"], &WATCH),
        rule("", &["persistentvolumes"], verbs),
        rule("storage.k8s.io", &["volumeattachments"], verbs),
        rule("storage.k8s.io", &["volumeattachments/status"], &["patch"]),
    ]
}

/// Rules for provisioning. FlexVolume drivers have no topology: no nodes are read, and no other
/// node is selected for a claim.
fn provisions(worker: &Worker, workers: &Workers<'_>) -> Vec<Value> {
    let volumes: &[&str] = match worker {
        Worker::BuiltIn => &["get", "list", "watch", "create", "patch", "delete"],
        Worker::Upstream(_) => &["list", "watch", "create", "patch", "delete"],
    };
    let mut rules = vec![
        rule("", &["persistentvolumes"], volumes),
        rule("", &["persistentvolumeclaims"], &WATCH),
        rule("", &["events"], &["create", "patch"]),
        rule("storage.k8s.io", &["storageclasses"], &WATCH),
    ];
    // The sidecar reads them if the driver attaches, ours always.
    if *worker == Worker::BuiltIn || workers.attacher.is_some() {
        rules.push(rule("storage.k8s.io", &["volumeattachments"], &WATCH));
    }
    rules
}
