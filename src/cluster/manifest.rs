//! What serves drivers as CSI drivers in a cluster, as text to apply. Pure.
//!
//! A CSIDriver object for each, which follows from the driver's `init`; a DaemonSet with one
//! container for all of them, which registers itself; for those that attach, and where volumes are
//! provisioned or grow, a Deployment with Kubernetes' own sidecars. The node's pod needs no right
//! in the API and has no token.

use crate::csi::name;
use flexvol_model::paths;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::{Capabilities, DriverName};
use flexvol_terminal::emit;
use serde_json::{Value, json};

/// What the controller's containers share.
const SOCKETS: &str = "/csi";

/// What is to be served.
#[derive(Clone, Debug)]
pub struct Request {
    /// The drivers, and what their `init` says. At least one.
    pub drivers: Vec<(DriverName, Capabilities)>,
    /// The plugin directory as the host sees it.
    pub plugin_dir: String,
    /// kubelet's own directory.
    pub kubelet_root: String,
    /// The image that has `/flexvold`, and what the drivers need.
    pub image: String,
    /// The namespace.
    pub namespace: String,
    /// The image of external-attacher, for drivers that attach.
    pub attacher: Option<String>,
    /// The image of external-provisioner, if volumes shall be provisioned.
    pub provisioner: Option<String>,
    /// The image of external-resizer, if claims may grow.
    pub resizer: Option<String>,
    /// Whether a pod may have a volume inline, which every Pod Security level allows.
    pub inline: bool,
}

/// The objects in the order in which they can be made, as YAML.
pub fn make(request: &Request) -> Result<String> {
    check(request)?;
    Ok(emit::documents(&notes(request), &objects(request)))
}

/// The objects.
pub fn objects(request: &Request) -> Vec<Value> {
    let mut objects = vec![namespace(request), account(request, "flexvol-csi-node", false)];
    objects.extend(request.drivers.iter().map(|(driver, can)| csi_driver(request, driver, *can)));
    objects.push(daemon_set(request));
    for (driver, can) in &request.drivers {
        if needs_controller(request, *can) {
            objects.extend(controller(request, driver, *can));
        }
    }
    objects.extend(request.provisioner.iter().flat_map(|_| request.drivers.iter().map(storage_class)));
    objects
}

fn check(request: &Request) -> Result<()> {
    let lacks = request.drivers.iter().find(|(_, can)| can.attach && request.attacher.is_none());
    if let Some((driver, _)) = lacks {
        let fix = "name the image of Kubernetes' external-attacher with --attacher-image";
        return Err(Failure::options(format!("{driver} attaches its volumes: {fix}")));
    }
    let sidecars = [&request.attacher, &request.provisioner, &request.resizer].into_iter().flatten();
    for text in sidecars.chain([&request.image]).chain([&request.plugin_dir, &request.kubelet_root]) {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Failure::options(format!(
                "{text:?} is no word: leave out blanks and special characters"
            )));
        }
    }
    Ok(())
}

fn notes(request: &Request) -> Vec<String> {
    let names: Vec<_> = request.drivers.iter().map(|(driver, _)| driver.to_string()).collect();
    vec![
        format!("{} as CSI drivers: docs/csi.md", names.join(", ")),
        "attachRequired and volumeLifecycleModes cannot be changed later, only with a new object".to_owned(),
    ]
}

fn labels(component: &str) -> Value {
    json!({"app.kubernetes.io/name": "flexvol", "app.kubernetes.io/component": component})
}

fn namespace(request: &Request) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": request.namespace,
            "labels": {"pod-security.kubernetes.io/enforce": "privileged"},
        },
    })
}

fn account(request: &Request, name: &str, token: bool) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": request.namespace, "labels": labels("csi")},
        "automountServiceAccountToken": token,
    })
}

/// What the driver's `init` means for Kubernetes.
fn csi_driver(request: &Request, driver: &DriverName, can: Capabilities) -> Value {
    // What attaches cannot be inline: nothing would attach it.
    let inline = request.inline && !can.attach;
    let modes = if inline { json!(["Persistent", "Ephemeral"]) } else { json!(["Persistent"]) };
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": name::of_driver(driver), "labels": labels("csi")},
        "spec": {
            "attachRequired": can.attach,
            "podInfoOnMount": true,
            "volumeLifecycleModes": modes,
            // FlexVolume's own rule: kubelet gives the files to the group, or the driver does.
            "fsGroupPolicy": if can.fs_group { "File" } else { "None" },
            "requiresRepublish": false,
            "storageCapacity": false,
            "seLinuxMount": false,
        },
    })
}

fn daemon_set(request: &Request) -> Value {
    let labels = labels("csi-node");
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "flexvol-csi-node", "namespace": request.namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": "flexvol-csi-node",
                    "automountServiceAccountToken": false,
                    "enableServiceLinks": false,
                    // Clients of network file systems live in the network of who mounts.
                    "hostNetwork": true,
                    "dnsPolicy": "ClusterFirstWithHostNet",
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "priorityClassName": "system-node-critical",
                    "terminationGracePeriodSeconds": 30,
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [node_container(request)],
                    "volumes": host_directories(request).map(|(name, path, kind, _)| {
                        json!({"name": name, "hostPath": {"path": path, "type": kind}})
                    }),
                },
            },
        },
    })
}

/// Name, path, type, and how mounts come and go.
fn host_directories(request: &Request) -> [(&str, &str, &str, &str); 6] {
    [
        ("plugins", &request.plugin_dir, "Directory", "None"),
        ("kubelet", &request.kubelet_root, "Directory", "Bidirectional"),
        ("state", paths::STATE, "DirectoryOrCreate", "Bidirectional"),
        ("run", paths::RUN, "DirectoryOrCreate", "Bidirectional"),
        ("dev", "/dev", "Directory", "None"),
        ("modules", "/lib/modules", "DirectoryOrCreate", "None"),
    ]
}

fn node_container(request: &Request) -> Value {
    let drivers: Vec<_> = request.drivers.iter().map(|(driver, _)| format!("--driver={driver}")).collect();
    let place =
        [format!("--plugin-dir={}", request.plugin_dir), format!("--kubelet-root={}", request.kubelet_root)];
    let words = |extra: &[&str]| {
        let all = drivers.iter().chain(&place).cloned().chain(extra.iter().map(|&word| word.to_owned()));
        all.collect::<Vec<_>>()
    };
    let check: Vec<_> =
        ["/flexvold", "csi", "--check"].map(str::to_owned).into_iter().chain(words(&[])).collect();
    json!({
        "name": "csi",
        "image": request.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/flexvold", "csi"],
        "args": words(&["--role=node", "--register"]),
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        // Only a privileged container may make mounts that the node sees.
        "securityContext": {
            "privileged": true,
            "readOnlyRootFilesystem": true,
            "runAsUser": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "livenessProbe": {
            "exec": {"command": check},
            "initialDelaySeconds": 10,
            "periodSeconds": 30,
            "timeoutSeconds": 15,
            "failureThreshold": 5,
        },
        "volumeMounts": host_directories(request).map(|(name, path, _, propagation)| json!({
            "name": name,
            "mountPath": path,
            "mountPropagation": propagation,
            "readOnly": matches!(name, "plugins" | "modules"),
        })),
    })
}

fn needs_controller(request: &Request, can: Capabilities) -> bool {
    !Sidecars::of(request, can).is_empty()
}

/// Which of Kubernetes' programs stand beside a driver's controller: what each is called, and its
/// image.
struct Sidecars<'a> {
    attacher: Option<&'a str>,
    provisioner: Option<&'a str>,
    resizer: Option<&'a str>,
}

impl<'a> Sidecars<'a> {
    fn of(request: &'a Request, can: Capabilities) -> Self {
        Self {
            attacher: request.attacher.as_deref().filter(|_| can.attach),
            provisioner: request.provisioner.as_deref(),
            resizer: request.resizer.as_deref().filter(|_| can.requires_fs_resize),
        }
    }

    fn named(&self) -> impl Iterator<Item = (&'static str, &'a str)> {
        let all = [("attacher", self.attacher), ("provisioner", self.provisioner), ("resizer", self.resizer)];
        all.into_iter().filter_map(|(name, image)| Some((name, image?)))
    }

    fn is_empty(&self) -> bool {
        self.named().next().is_none()
    }
}

/// One driver's, with what its sidecars may do.
fn controller(request: &Request, driver: &DriverName, can: Capabilities) -> Vec<Value> {
    let name = format!("flexvol-csi-{}", driver.to_string().replace(['/', '.', '_'], "-").to_lowercase());
    let labels = json!({
        "app.kubernetes.io/name": "flexvol",
        "app.kubernetes.io/component": "csi-controller",
        "app.kubernetes.io/instance": name,
    });
    let sidecars = Sidecars::of(request, can);
    let beside = sidecars.named().map(|(name, image)| sidecar(name, image));
    let containers: Vec<_> = [controller_container(request, driver)].into_iter().chain(beside).collect();
    let rules = rules(&sidecars);
    vec![
        account(request, &name, true),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name, "labels": labels},
            "rules": rules,
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name, "labels": labels},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": request.namespace}],
        }),
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": request.namespace, "labels": labels},
            "spec": {
                "replicas": 1,
                // Two would both attach.
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "serviceAccountName": name,
                        "enableServiceLinks": false,
                        "nodeSelector": {"kubernetes.io/os": "linux"},
                        "priorityClassName": "system-cluster-critical",
                        "containers": containers,
                        "volumes": [
                            {"name": "sockets", "emptyDir": {}},
                            {"name": "state", "emptyDir": {}},
                            {"name": "plugins", "hostPath": {"path": request.plugin_dir, "type": "Directory"}},
                        ],
                    },
                },
            },
        }),
    ]
}

fn controller_container(request: &Request, driver: &DriverName) -> Value {
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

fn sidecar(name: &str, image: &str) -> Value {
    json!({
        "name": name,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "args": [format!("--csi-address={SOCKETS}/csi.sock")],
        "securityContext": {
            "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false,
            "runAsUser": 0,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "sockets", "mountPath": SOCKETS}],
    })
}

/// What the sidecars' own documents say they need.
fn rules(sidecars: &Sidecars<'_>) -> Vec<Value> {
    const READ: [&str; 3] = ["get", "list", "watch"];
    let rule = |group: &str, resources: &[&str], verbs: &[&str]| json!({"apiGroups": [group], "resources": resources, "verbs": verbs});
    let mut rules = vec![rule("storage.k8s.io", &["csinodes"], &READ)];
    if sidecars.attacher.is_some() {
        rules.extend([
            rule("", &["persistentvolumes"], &["get", "list", "watch", "patch"]),
            rule("storage.k8s.io", &["volumeattachments"], &["get", "list", "watch", "patch"]),
            rule("storage.k8s.io", &["volumeattachments/status"], &["patch"]),
        ]);
    }
    if sidecars.provisioner.is_some() {
        rules.extend([
            rule("", &["persistentvolumes"], &["get", "list", "watch", "create", "patch", "delete"]),
            rule("", &["persistentvolumeclaims"], &["get", "list", "watch", "update"]),
            rule("", &["nodes"], &READ),
            rule("", &["events"], &["list", "watch", "create", "update", "patch"]),
            rule("storage.k8s.io", &["storageclasses", "volumeattachments"], &READ),
        ]);
    }
    if sidecars.resizer.is_some() {
        rules.extend([
            rule("", &["persistentvolumes"], &["get", "list", "watch", "patch"]),
            rule("", &["persistentvolumeclaims", "pods"], &READ),
            rule("", &["persistentvolumeclaims/status"], &["patch"]),
            rule("", &["events"], &["list", "watch", "create", "update", "patch"]),
            rule("storage.k8s.io", &["volumeattributesclasses"], &READ),
        ]);
    }
    rules
}

/// For copying: its parameters are the driver's options.
fn storage_class((driver, _): &(DriverName, Capabilities)) -> Value {
    let name = name::of_driver(driver);
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name.trim_end_matches(".flex.flexvol.dev"), "labels": labels("csi")},
        "provisioner": name,
        "parameters": {},
        "reclaimPolicy": "Retain",
        "volumeBindingMode": "Immediate",
        "allowVolumeExpansion": true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_kit::yaml;

    fn request(attach: bool) -> Request {
        let driver = DriverName::parse("example.com/my_driver").unwrap();
        Request {
            drivers: vec![(driver, Capabilities { attach, ..Capabilities::KUBELET_DEFAULT })],
            plugin_dir: "/usr/libexec/kubernetes/kubelet-plugins/volume/exec".into(),
            kubelet_root: "/var/lib/kubelet".into(),
            image: "registry.example/flexvol:1".into(),
            namespace: "flexvol-csi".into(),
            attacher: attach.then(|| "registry.example/csi-attacher:v4".into()),
            provisioner: None,
            resizer: None,
            inline: true,
        }
    }

    fn kinds(request: &Request) -> Vec<String> {
        objects(request).iter().map(|object| object["kind"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn init_decides_what_is_there() {
        let node = ["Namespace", "ServiceAccount", "CSIDriver", "DaemonSet"];
        assert_eq!(kinds(&request(false)), node);
        let controller = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Deployment"];
        assert_eq!(kinds(&request(true)), [&node[..], &controller].concat());
        let spec = |attach| objects(&request(attach))[2]["spec"].clone();
        assert_eq!(
            (&spec(true)["attachRequired"], &spec(true)["volumeLifecycleModes"]),
            (&json!(true), &json!(["Persistent"]))
        );
        let claims_alone = objects(&Request { inline: false, ..request(false) })[2]["spec"].clone();
        assert_eq!(claims_alone["volumeLifecycleModes"], json!(["Persistent"]));
        assert_eq!(
            (&spec(false)["attachRequired"], &spec(false)["fsGroupPolicy"]),
            (&json!(false), &json!("File"))
        );
    }

    #[test]
    fn sidecars_follow_from_what_the_driver_can() {
        let containers = |request: &Request| {
            let all = objects(request);
            let deployment = all.iter().find(|object| object["kind"] == "Deployment")?;
            let containers = deployment["spec"]["template"]["spec"]["containers"].as_array()?;
            Some(containers.iter().map(|each| each["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>())
        };
        let all = |attach| Request {
            provisioner: Some("p".into()),
            resizer: Some("r".into()),
            attacher: Some("a".into()),
            ..request(attach)
        };
        assert_eq!(containers(&all(true)).unwrap(), ["csi", "attacher", "provisioner", "resizer"]);
        assert_eq!(containers(&all(false)).unwrap(), ["csi", "provisioner", "resizer"]);
        let mut fixed = Request { provisioner: None, ..all(false) };
        fixed.drivers[0].1.requires_fs_resize = false;
        assert_eq!(containers(&fixed), None);
    }

    #[test]
    fn what_is_printed_is_what_was_meant() {
        let request = request(true);
        assert_eq!(yaml::parse(&make(&request).unwrap()).unwrap(), objects(&request));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let missing = Request { attacher: None, ..request(true) };
        assert!(make(&missing).unwrap_err().message().contains("--attacher-image"));
        assert!(make(&Request { image: "a\nb".into(), ..request(false) }).is_err());
    }
}
