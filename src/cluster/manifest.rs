//! Manifests that serve drivers as CSI drivers in a cluster. Pure.
//!
//! They have a CSIDriver object for each driver, derived from the driver's `init`; a DaemonSet with
//! one container for all drivers, which registers itself; and a Deployment ([`controller`]) for
//! drivers that attach, and where volumes are provisioned or grow. The node's pod needs no
//! permission in the API and has no token.

pub mod agent;
pub mod controller;
pub mod crds;
pub mod mounter;

use crate::csi::name;
use controller::Worker;
use flexvol_model::paths;
use flexvol_protocol::failure::{Failure, Result};
use flexvol_protocol::{Capabilities, DriverName};
use flexvol_terminal::emit;
use flexvol_terminal::rights::account;
use serde_json::{Value, json};

/// Drivers to serve, and the images for that.
#[derive(Clone, Debug)]
pub struct Request {
    /// Drivers, each with the capabilities from its `init`. At least one.
    pub drivers: Vec<(DriverName, Capabilities)>,
    /// Plugin directory in the view of the host.
    pub plugin_dir: String,
    /// kubelet's own directory.
    pub kubelet_root: String,
    /// Image that has `/flexvold`, and the programs that the drivers need.
    pub image: String,
    /// The namespace.
    pub namespace: String,
    /// Program that attaches, for drivers that attach.
    pub attacher: Option<Worker>,
    /// Program that provisions, if volumes are provisioned.
    pub provisioner: Option<Worker>,
    /// Program that expands volumes, if claims may grow.
    pub resizer: Option<Worker>,
    /// True if pods may use inline volumes, which every Pod Security level allows.
    pub inline: bool,
}

/// Returns the objects as YAML, in the order in which they can be created.
pub fn make(request: &Request) -> Result<String> {
    check(request)?;
    Ok(emit::documents(&notes(request), &objects(request)))
}

/// Returns the objects.
pub fn objects(request: &Request) -> Vec<Value> {
    let mut objects = vec![namespace(&request.namespace), account(&of_account(request, "flexvol-csi-node"))];
    objects.extend(request.drivers.iter().map(|(driver, can)| csi_driver(request, driver, *can)));
    objects.push(daemon_set(request));
    for (driver, can) in &request.drivers {
        objects.extend(controller::objects(request, driver, *can));
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
    let workers = [&request.attacher, &request.provisioner, &request.resizer].into_iter().flatten();
    for text in workers
        .filter_map(Worker::image)
        .chain([&request.image])
        .chain([&request.plugin_dir, &request.kubelet_root])
    {
        check_word(text, "")?;
    }
    Ok(())
}

/// Rejects text that is not one word in a manifest, or that contains one of these characters.
fn check_word(text: &str, refused: &str) -> Result<()> {
    let is_plain = |letter: char| letter.is_ascii_graphic() && !refused.contains(letter);
    if text.is_empty() || !text.chars().all(is_plain) {
        return Err(Failure::options(format!(
            "{text:?} is no word: leave out blanks and special characters"
        )));
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

fn namespace(name: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {"pod-security.kubernetes.io/enforce": "privileged"},
        },
    })
}

/// Metadata of the account of CSI's programs.
fn of_account(request: &Request, name: &str) -> Value {
    json!({"name": name, "namespace": request.namespace, "labels": labels("csi")})
}

/// CSIDriver object that follows from the driver's `init`.
fn csi_driver(request: &Request, driver: &DriverName, can: Capabilities) -> Value {
    // Inline volumes are never attached.
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
            // FlexVolume's own rule: kubelet changes the group of the files, or the driver does.
            "fsGroupPolicy": if can.fs_group { "File" } else { "None" },
            "requiresRepublish": false,
            "storageCapacity": false,
            "seLinuxMount": false,
        },
    })
}

fn daemon_set(request: &Request) -> Value {
    let name = "flexvol-csi-node";
    let metadata = json!({"name": name, "namespace": request.namespace, "labels": labels("csi-node")});
    let directories = host_directories(request).map(|(name, path, kind, _)| (name, path, kind));
    on_every_node(&metadata, name, false, &node_container(request), &directories)
}

/// Returns a DaemonSet with a container on every node, in the node's network: a client of a network
/// file system uses the network in which it was mounted, and volumes can be mounted even if the
/// cluster's network does not work. `directories` are the node's, by name, path and type.
fn on_every_node(
    metadata: &Value,
    account: &str,
    asks_the_api: bool,
    container: &Value,
    directories: &[(&str, &str, &str)],
) -> Value {
    let labels = metadata["labels"].clone();
    let volumes: Vec<_> = directories
        .iter()
        .map(|(name, path, kind)| json!({"name": name, "hostPath": {"path": path, "type": kind}}))
        .collect();
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": metadata,
        "spec": {
            "selector": {"matchLabels": labels},
            // Two pods on one node would disturb each other: one ends before the next begins, and
            // drivers wait for that.
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "serviceAccountName": account,
                    "automountServiceAccountToken": asks_the_api,
                    "enableServiceLinks": false,
                    "hostNetwork": true,
                    "dnsPolicy": "ClusterFirstWithHostNet",
                    "nodeSelector": {"kubernetes.io/os": "linux"},
                    "priorityClassName": "system-node-critical",
                    "terminationGracePeriodSeconds": 30,
                    "tolerations": [{"operator": "Exists"}],
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    })
}

/// Returns name, path, type and mount propagation of each directory.
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

/// StorageClass to be copied: its parameters are the driver's options.
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
            attacher: Some(Worker::BuiltIn),
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
        let upstream = Request { attacher: Some(Worker::Upstream("a".into())), ..request(true) };
        let controller = ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Deployment"];
        assert_eq!(kinds(&upstream), [&node[..], &controller].concat());
        // The Role is for the lease.
        let built_in =
            ["ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "Deployment"];
        assert_eq!(kinds(&request(true)), [&node[..], &built_in].concat());
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
    fn containers_follow_from_what_the_driver_can() {
        let containers = |request: &Request| {
            let all = objects(request);
            let deployment = all.iter().find(|object| object["kind"] == "Deployment")?;
            let containers = deployment["spec"]["template"]["spec"]["containers"].as_array()?;
            Some(containers.iter().map(|each| each["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>())
        };
        let upstream = |name: &str| Some(Worker::Upstream(name.into()));
        let provisions = Request { provisioner: Some(Worker::BuiltIn), ..request(false) };
        assert_eq!(containers(&provisions).unwrap(), ["csi", "controller"]);
        let grows = Request { resizer: Some(Worker::BuiltIn), ..request(false) };
        assert_eq!(containers(&grows).unwrap(), ["csi", "controller"]);
        let all = |attach| Request {
            provisioner: upstream("p"),
            resizer: upstream("r"),
            attacher: upstream("a"),
            ..request(attach)
        };
        assert_eq!(containers(&all(true)).unwrap(), ["csi", "attacher", "provisioner", "resizer"]);
        assert_eq!(containers(&all(false)).unwrap(), ["csi", "provisioner", "resizer"]);
        let ours = Request { attacher: Some(Worker::BuiltIn), ..all(true) };
        assert_eq!(containers(&ours).unwrap(), ["csi", "controller", "provisioner", "resizer"]);
        let nothing = Request { provisioner: None, resizer: None, ..ours };
        assert_eq!(containers(&nothing).unwrap(), ["csi", "controller"]);
        let mut fixed = Request { provisioner: None, ..all(false) };
        fixed.drivers[0].1.requires_fs_resize = false;
        assert_eq!(containers(&fixed), None);
    }

    /// The driver's container runs third-party code.
    #[test]
    fn the_driver_has_no_token() {
        for worker in [Worker::BuiltIn, Worker::Upstream("image".into())] {
            let objects = objects(&Request { attacher: Some(worker), ..request(true) });
            let of = |kind| objects.iter().rfind(|object| object["kind"] == kind).unwrap();
            assert_eq!(of("ServiceAccount")["automountServiceAccountToken"], false);
            let pod = &of("Deployment")["spec"]["template"]["spec"];
            assert_eq!(pod["automountServiceAccountToken"], false);
            let with_token = |container: &&Value| {
                let mounts = container["volumeMounts"].as_array().unwrap();
                mounts.iter().any(|mount| mount["name"] == "account")
            };
            let containers = pod["containers"].as_array().unwrap();
            let names: Vec<_> = containers.iter().filter(with_token).map(|each| &each["name"]).collect();
            assert_eq!(names, [&containers[1]["name"]]);
        }
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
