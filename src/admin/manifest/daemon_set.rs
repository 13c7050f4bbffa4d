//! Pod that keeps drivers in place, and the DaemonSet that runs one on every node.

use super::{Deployment, ManifestRequest};
use flexvol_kubelet::platform::Need;
use flexvol_model::paths;
use serde_json::{Value, json};

/// Directory of the policy in a pod.
const POLICY: &str = "/etc/flexvol";

/// Grace period of a pod, in seconds. It ends at once; uninstalling takes a moment.
const GRACE: u32 = 10;

/// Returns the labels of every object of a deployment.
pub(super) fn labels(request: &ManifestRequest) -> Value {
    let mut labels = selector(request);
    labels["app.kubernetes.io/component"] = "driver-installer".into();
    labels["app.kubernetes.io/version"] = env!("CARGO_PKG_VERSION").into();
    labels
}

/// Returns the labels that only the pods of one deployment have. They never change, because a
/// selector cannot be changed.
fn selector(request: &ManifestRequest) -> Value {
    json!({"app.kubernetes.io/name": "flexvol", "app.kubernetes.io/instance": request.name})
}

/// Returns a DaemonSet for every Linux node, whatever its taints: on a node without drivers, the
/// pods that need them can neither start nor stop.
pub(super) fn daemon_set(deployment: &Deployment<'_>, policy_map: Option<&str>) -> Value {
    let request = deployment.request;
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {
            "name": request.name,
            "namespace": request.namespace,
            "labels": labels(request),
        },
        "spec": {
            "selector": {"matchLabels": selector(request)},
            // A version that does not become ready stops the rollout. The drivers stay in place
            // while their pod is replaced.
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {
                "metadata": {
                    "labels": labels(request),
                    "annotations": {"kubectl.kubernetes.io/default-container": "deploy"},
                },
                "spec": pod(deployment, policy_map),
            },
        },
    })
}

fn pod(deployment: &Deployment<'_>, policy_map: Option<&str>) -> Value {
    let request = deployment.request;
    let mut pod = json!({
        "serviceAccountName": request.name,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "dnsPolicy": "Default",
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "priorityClassName": "system-node-critical",
        "terminationGracePeriodSeconds": GRACE,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container(deployment)],
        "volumes": volumes(deployment, policy_map),
    });
    if request.uninstall_on_exit {
        // Volumes in use are found in kubelet's mount table. A process that sees kubelet's process
        // may read that table.
        pod["hostPID"] = true.into();
    }
    pod
}

fn container(deployment: &Deployment<'_>) -> Value {
    let ready = format!("--ready-file=/run/flexvol/deploy/{}", deployment.request.name);
    let mut container = program(deployment, "deploy", &["/flexvol", "deploy"]);
    container["readinessProbe"] = json!({
        "exec": {"command": ["/flexvol", "deploy", "--is-ready", ready]},
        "periodSeconds": 10,
        "timeoutSeconds": 5,
    });
    container
}

/// Returns an init container with the same program, for pods of others. It ends once it is done.
pub(super) fn init_container(deployment: &Deployment<'_>) -> Value {
    program(deployment, "flexvol", &["/flexvol", "deploy", "--once"])
}

fn program(deployment: &Deployment<'_>, name: &str, command: &[&str]) -> Value {
    json!({
        "name": name,
        "image": deployment.request.image,
        "imagePullPolicy": "IfNotPresent",
        "command": command,
        "args": deployment.arguments(&format!("{POLICY}/policy.json")),
        "resources": {
            "requests": {"cpu": "10m", "memory": "16Mi"},
            "limits": {"memory": "32Mi"},
        },
        "securityContext": security(deployment),
        "volumeMounts": mounts(deployment),
    })
}

/// Returns the rights: user 0 owns the directory and may write there; more is not needed.
fn security(deployment: &Deployment<'_>) -> Value {
    let mut security = json!({
        "privileged": false,
        "allowPrivilegeEscalation": false,
        "readOnlyRootFilesystem": true,
        "runAsUser": 0,
        "runAsGroup": 0,
        "runAsNonRoot": false,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    });
    if deployment.needs(Need::SELinuxType) {
        security["seLinuxOptions"] = json!({"type": "spc_t"});
    }
    security
}

/// Returns name and path of the host's directories. The path in the pod is the same, so that
/// messages show the path that the admin finds on the host.
fn host_directories<'a>(deployment: &Deployment<'a>) -> [(&'static str, &'a str); 3] {
    [("plugins", deployment.directory), ("run", paths::RUN), ("state", paths::STATE)]
}

fn mounts(deployment: &Deployment<'_>) -> Vec<Value> {
    let directories = host_directories(deployment);
    let mut mounts: Vec<_> =
        directories.iter().map(|(name, path)| json!({"name": name, "mountPath": path})).collect();
    if deployment.request.policy.is_some() {
        mounts.push(json!({"name": "policy", "mountPath": POLICY, "readOnly": true}));
    }
    mounts
}

pub(super) fn volumes(deployment: &Deployment<'_>, policy_map: Option<&str>) -> Vec<Value> {
    let host = |(name, path): &(&str, &str)| json!({"name": name, "hostPath": {"path": path, "type": "DirectoryOrCreate"}});
    let mut volumes: Vec<_> = host_directories(deployment).iter().map(host).collect();
    volumes.extend(policy_map.map(|map| json!({"name": "policy", "configMap": {"name": map}})));
    volumes
}
