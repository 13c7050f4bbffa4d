//! Objects that a DaemonSet of drivers needs: namespace, policy, quota, rights on OpenShift.

use super::daemon_set::{daemon_set, init_container as container, labels, volumes};
use super::{Deployment, Manifest};
use flexvol_kubelet::platform::Need;
use flexvol_protocol::text::hex;
use flexvol_terminal::emit;
use flexvol_terminal::rights::{account, granted, rule};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

/// The namespace that every cluster has.
const SYSTEM: &str = "kube-system";

/// Returns every object, in an order in which they can be created.
pub(super) fn objects(deployment: &Deployment<'_>) -> Manifest {
    let policy = deployment.request.policy.as_deref();
    // A changed policy becomes an object with another name, so that the pods notice it.
    let map = policy.map(|text| format!("{}-policy-{}", deployment.request.name, digest(text)));
    let mut objects = surroundings(deployment);
    if let (Some(text), Some(map)) = (policy, &map) {
        objects.push(config_map(deployment, map, text));
    }
    objects.push(daemon_set(deployment, map.as_deref()));
    Manifest::Objects(notes(deployment), objects)
}

/// Returns a base for kustomize overlays. kustomize names the policy's object after its content.
pub(super) fn kustomization(deployment: &Deployment<'_>) -> Manifest {
    let request = deployment.request;
    let map = request.policy.is_some().then(|| format!("{}-policy", request.name));
    let mut objects = surroundings(deployment);
    objects.push(daemon_set(deployment, map.as_deref()));
    let resources = format!("{}.yaml", request.name);
    let (image, rest) = split_image(&request.image);
    let mut kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [resources],
    });
    if let Some((key, value)) = rest {
        kustomization["images"] = json!([{"name": image, key: value}]);
    }
    if let Some(map) = map {
        let namespace = &request.namespace;
        kustomization["configMapGenerator"] =
            json!([{"name": map, "namespace": namespace, "files": ["policy.json"]}]);
    }
    let mut files = vec![
        ("kustomization.yaml".to_owned(), emit::document(&kustomization)),
        (resources, emit::documents(&notes(deployment), &objects)),
    ];
    files.extend(request.policy.clone().map(|text| ("policy.json".to_owned(), text)));
    Manifest::Files(files)
}

/// Returns a patch for `kubectl patch daemonset NAME --patch-file`: its pods install the drivers.
pub(super) fn init_container(deployment: &Deployment<'_>) -> Manifest {
    let request = deployment.request;
    let map = request.policy.is_some().then(|| format!("{}-policy", request.name));
    let mut notes = notes(deployment);
    notes.extend(map.as_ref().map(|map| {
        format!("the pods need a ConfigMap {map} in their namespace, with the policy as policy.json")
    }));
    let spec =
        json!({"initContainers": [container(deployment)], "volumes": volumes(deployment, map.as_deref())});
    Manifest::Objects(notes, vec![json!({"spec": {"template": {"spec": spec}}})])
}

/// Returns notes for the reader of the manifest, printed as comments. They hold only fixed texts of
/// this program: a foreign text could end the comment.
fn notes(deployment: &Deployment<'_>) -> Vec<String> {
    let platform = deployment.request.platform;
    let mut notes = vec![format!("FlexVolume drivers for {}", platform.title)];
    notes.extend(deployment.first());
    if deployment.request.uninstall_on_exit {
        notes.push(
            "every pod that ends, for an update as well, takes its drivers along unless volumes are mounted"
                .into(),
        );
    }
    notes
}

/// Returns all objects except the policy and the DaemonSet.
fn surroundings(deployment: &Deployment<'_>) -> Vec<Value> {
    let mut objects = Vec::new();
    if deployment.request.namespace != SYSTEM {
        objects.push(namespace(deployment));
    }
    objects.push(account(&metadata(deployment)));
    if deployment.needs(Need::SecurityContextConstraints) {
        let mut rule = rule("security.openshift.io", &["securitycontextconstraints"], &["use"]);
        rule["resourceNames"] = json!([deployment.request.name]);
        objects.push(constraints(deployment));
        objects.extend(granted(&metadata(deployment), &deployment.request.namespace, &[rule]));
    }
    if deployment.needs(Need::RemountExec) && deployment.request.namespace != SYSTEM {
        objects.push(quota(deployment));
    }
    objects
}

fn metadata(deployment: &Deployment<'_>) -> Value {
    let request = deployment.request;
    json!({"name": request.name, "namespace": request.namespace, "labels": labels(request)})
}

/// Returns the namespace. For Pod Security a pod with a directory of the host is `privileged`,
/// however few other rights it has.
fn namespace(deployment: &Deployment<'_>) -> Value {
    let mut labels = labels(deployment.request);
    for mode in ["enforce", "audit", "warn"] {
        labels[format!("pod-security.kubernetes.io/{mode}")] = "privileged".into();
    }
    if deployment.needs(Need::SecurityContextConstraints) {
        labels["security.openshift.io/scc.podSecurityLabelSync"] = "false".into();
    }
    let name = &deployment.request.namespace;
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
}

fn config_map(deployment: &Deployment<'_>, name: &str, policy: &str) -> Value {
    let mut metadata = metadata(deployment);
    metadata["name"] = name.into();
    json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": true,
        "data": {"policy.json": policy},
    })
}

/// Returns the quota. GKE allows critical pods outside kube-system only with such a quota.
fn quota(deployment: &Deployment<'_>) -> Value {
    let critical = json!({
        "scopeName": "PriorityClass",
        "operator": "In",
        "values": ["system-node-critical"],
    });
    json!({
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": metadata(deployment),
        "spec": {"hard": {"pods": "10k"}, "scopeSelector": {"matchExpressions": [critical]}},
    })
}

/// Returns what OpenShift allows this pod to do: exactly what the pod requests.
fn constraints(deployment: &Deployment<'_>) -> Value {
    let request = deployment.request;
    let any = json!({"type": "RunAsAny"});
    json!({
        "apiVersion": "security.openshift.io/v1",
        "kind": "SecurityContextConstraints",
        "metadata": {"name": request.name, "labels": labels(request)},
        "allowHostDirVolumePlugin": true,
        "allowHostIPC": false,
        "allowHostNetwork": false,
        "allowHostPID": request.uninstall_on_exit,
        "allowHostPorts": false,
        "allowPrivilegeEscalation": false,
        "allowPrivilegedContainer": false,
        "allowedCapabilities": [],
        "defaultAddCapabilities": [],
        "requiredDropCapabilities": [],
        "readOnlyRootFilesystem": true,
        "runAsUser": any,
        "fsGroup": any,
        "supplementalGroups": any,
        // This allows every type, also the one that the pod requests.
        "seLinuxContext": any,
        "seccompProfiles": ["runtime/default"],
        "volumes": ["configMap", "hostPath"],
        // OpenShift before 3.11 has no role that may use constraints.
        "users": [format!("system:serviceaccount:{}:{}", request.namespace, request.name)],
        "groups": [],
    })
}

/// Returns the start of a digest: enough to distinguish two policies.
fn digest(text: &str) -> String {
    hex(&Sha256::digest(text)[..4])
}

/// Returns the image's name, and its tag or digest with kustomize's key for it.
fn split_image(image: &str) -> (&str, Option<(&'static str, &str)>) {
    if let Some((name, digest)) = image.split_once('@') {
        return (name, Some(("digest", digest)));
    }
    match image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) {
        Some((name, tag)) => (name, Some(("newTag", tag))),
        None => (image, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_split_as_kustomize_does() {
        assert_eq!(split_image("flexvol:1"), ("flexvol", Some(("newTag", "1"))));
        assert_eq!(split_image("host:5000/flexvol"), ("host:5000/flexvol", None));
        assert_eq!(split_image("host:5000/a/flexvol:2"), ("host:5000/a/flexvol", Some(("newTag", "2"))));
        assert_eq!(split_image("a/b@sha256:12"), ("a/b", Some(("digest", "sha256:12"))));
    }
}
