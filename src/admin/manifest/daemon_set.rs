//! The pod that keeps drivers in place, and the DaemonSet that puts one on every node.

use super::{Deployment, ManifestRequest};
use flexvol_kubelet::platform::Need;
use flexvol_model::paths;
use serde_json::{Value, json};

/// Where a pod finds the policy.
const POLICY: &str = "/etc/flexvol";

/// Seconds a pod has to leave. It leaves at once; uninstalling takes a moment.
const GRACE: u32 = 10;

/// What every object of a deployment is labelled with.
pub(super) fn labels(request: &ManifestRequest) -> Value {
    let mut labels = selector(request);
    labels["app.kubernetes.io/component"] = "driver-installer".into();
    labels["app.kubernetes.io/version"] = env!("CARGO_PKG_VERSION").into();
    labels
}

/// What the pods of one deployment have and no others; never changes, because a selector cannot be
/// changed.
fn selector(request: &ManifestRequest) -> Value {
    json!({"app.kubernetes.io/name": "flexvol", "app.kubernetes.io/instance": request.name})
}

/// On every Linux node, however tainted: a node without drivers cannot start the pods that need
/// them, nor stop them.
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
            // A version that does not become ready stops the roll-out; drivers of a pod that is
            // being replaced stay.
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
        // Whether a volume is in use is seen in kubelet's mount table, which everybody may read who
        // sees kubelet.
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

/// The same program that ends once the drivers are in place, for someone else's pod.
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

/// User 0 owns the directory and may write there; more is not needed.
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

/// Name, path on the host and in the pod: the same, so that messages name what the admin finds.
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
