//! `flexvold controller` in the cluster: it reads nodes and pods, changes locks and tasks. Pure.

use super::{GROUP, Request};
use crate::breaker::LEASE;
use flexvol_terminal::rights::{account, granted, rule};
use serde_json::{Value, json};

/// Name of the service account, the Deployment, and the objects that belong to them.
pub const CONTROLLER: &str = LEASE;

/// User id of nobody: the controller reads no file but its token.
const USER: u32 = 65534;

pub(super) fn objects(request: &Request) -> Vec<Value> {
    let labels = crate::manifest::labels("controller");
    let anywhere = json!({"name": CONTROLLER, "labels": labels});
    let metadata = json!({"name": CONTROLLER, "namespace": request.namespace, "labels": labels});
    let watched = ["get", "list", "watch"];
    let everywhere = [rule("", &["nodes"], &watched), rule("", &["pods"], &watched)];
    let own = [
        rule(GROUP, &["flexattachments"], &["get", "list", "watch", "update"]),
        rule(GROUP, &["flexdetachtasks"], &["list", "create", "delete"]),
        rule("coordination.k8s.io", &["leases"], &["get", "watch", "create", "update"]),
    ];
    let mut objects = vec![account(&metadata)];
    objects.extend(granted(&anywhere, &request.namespace, &everywhere));
    objects.extend(granted(&metadata, &request.namespace, &own));
    objects.push(deployment(request, &metadata));
    objects
}

fn deployment(request: &Request, metadata: &Value) -> Value {
    let labels = metadata["labels"].clone();
    json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            // One of them works. When its node dies, the other one takes over at once, not only
            // after the five minutes until its pod is moved.
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": CONTROLLER,
                    "automountServiceAccountToken": true,
                    "enableServiceLinks": false,
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "priorityClassName": "system-cluster-critical",
                    "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                        "weight": 100,
                        "podAffinityTerm": {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchLabels": labels},
                        },
                    }]}},
                    "containers": [container(request)],
                },
            },
        },
    })
}

fn container(request: &Request) -> Value {
    json!({
        "name": "controller",
        "image": request.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/flexvold", "controller"],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    })
}
