//! Mount pods: a DaemonSet whose image has the programs that serve the volumes of some drivers.
//! Pure.
//!
//! The pods have no permission in the API, and no token.

use flexvol_model::mounter::KUBELET;
use flexvol_model::paths;
use flexvol_protocol::DriverName;
use flexvol_protocol::failure::Result;
use flexvol_terminal::emit;
use flexvol_terminal::rights::account;
use serde_json::{Value, json};

/// Grace period of a mount pod beyond the wait for its volumes, in seconds.
const END: u32 = 10;

/// Parameters of the manifest.
#[derive(Clone, Debug)]
pub struct Request {
    /// The drivers whose programs the image has. At least one.
    pub drivers: Vec<DriverName>,
    /// The image that has `/flexvold`, and those programs.
    pub image: String,
    /// Name of the DaemonSet.
    pub name: String,
    /// The namespace.
    pub namespace: String,
    /// kubelet's own directory.
    pub kubelet_root: String,
    /// True if a new image replaces the pods one by one without an admin.
    pub rolling: bool,
    /// Time that a terminating pod waits for volumes in use, in seconds.
    pub grace: u32,
}

/// Returns the objects as YAML, in the order in which they can be created.
pub fn make(request: &Request) -> Result<String> {
    let Request { image, name, namespace, kubelet_root, .. } = request;
    for word in [image, name, namespace, kubelet_root] {
        super::check_word(word, "")?;
    }
    let drivers: Vec<_> = request.drivers.iter().map(ToString::to_string).collect();
    let mut notes = vec![format!("mount pods for {}: docs/mounter.md", drivers.join(", "))];
    if !request.rolling {
        notes.push("a pod is replaced when it is deleted: what it serves ends with it".to_owned());
    }
    Ok(emit::documents(&notes, &objects(request)))
}

/// Returns the objects.
pub fn objects(request: &Request) -> Vec<Value> {
    let namespace = super::namespace(&request.namespace);
    vec![namespace, account(&metadata(request)), daemon_set(request)]
}

fn metadata(request: &Request) -> Value {
    let mut labels = super::labels("mounter");
    // Each DaemonSet has pods of its own.
    labels["app.kubernetes.io/instance"] = json!(request.name);
    json!({"name": request.name, "namespace": request.namespace, "labels": labels})
}

fn daemon_set(request: &Request) -> Value {
    let directories = directories(request).map(|(name, path, kind, _)| (name, path, kind));
    let container = container(request);
    let mut set = super::on_every_node(&metadata(request), &request.name, false, &container, &directories);
    let spec = &mut set["spec"];
    spec["template"]["spec"]["terminationGracePeriodSeconds"] = json!(request.grace.saturating_add(END));
    if !request.rolling {
        spec["updateStrategy"] = json!({"type": "OnDelete"});
    }
    set
}

/// Returns name, path, type and mount propagation of each directory.
fn directories(request: &Request) -> [(&str, &str, &str, &str); 4] {
    [
        ("kubelet", &request.kubelet_root, "Directory", "Bidirectional"),
        ("run", paths::RUN, "DirectoryOrCreate", "HostToContainer"),
        ("scratch", paths::SCRATCH, "DirectoryOrCreate", "HostToContainer"),
        ("modules", "/lib/modules", "DirectoryOrCreate", "None"),
    ]
}

fn container(request: &Request) -> Value {
    let mut words: Vec<_> = request.drivers.iter().map(|driver| format!("--plugin={driver}")).collect();
    if request.kubelet_root != KUBELET {
        words.push(format!("--root={}", request.kubelet_root));
    }
    let check: Vec<_> = ["/flexvold", "mounter", "init", "--check"].map(str::to_owned).into();
    let check = [check, words.clone()].concat();
    words.push(format!("--grace={}", request.grace));
    let field =
        |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    json!({
        "name": "mounter",
        "image": request.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/flexvold", "mounter", "init"],
        "args": words,
        "env": [
            field("POD_NAMESPACE", "metadata.namespace"),
            field("POD_NAME", "metadata.name"),
            field("POD_UID", "metadata.uid"),
            {"name": "CONTAINER_NAME", "value": "mounter"},
        ],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        // Only a privileged container may make mounts that the node sees.
        "securityContext": {"privileged": true, "runAsUser": 0},
        // No livenessProbe: a container that it kills takes all its volumes along.
        "readinessProbe": {
            "exec": {"command": check},
            "initialDelaySeconds": 1,
            "periodSeconds": 10,
            "timeoutSeconds": 10,
        },
        "volumeMounts": directories(request).map(|(name, path, _, propagation)| json!({
            "name": name,
            "mountPath": path,
            "mountPropagation": propagation,
            "readOnly": name == "modules",
        })),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_kit::yaml;

    fn request() -> Request {
        Request {
            drivers: ["example.com/sshfs", "example.com/rclone"]
                .map(|name| DriverName::parse(name).unwrap())
                .into(),
            image: "registry.example/tools:1".to_owned(),
            name: "flexvol-mounter".to_owned(),
            namespace: "flexvol-mounter".to_owned(),
            kubelet_root: KUBELET.to_owned(),
            rolling: false,
            grace: 50,
        }
    }

    #[test]
    fn what_is_printed_is_what_was_meant() {
        assert_eq!(yaml::parse(&make(&request()).unwrap()).unwrap(), objects(&request()));
        for name in ["", "a b", "a\nb"] {
            assert!(make(&Request { name: name.to_owned(), ..request() }).is_err(), "{name}");
        }
    }

    #[test]
    fn what_is_served_from_a_pod_is_not_replaced_by_itself() {
        let set = |request: &Request| objects(request)[2]["spec"].clone();
        let (fuse, kernel) = (set(&request()), set(&Request { rolling: true, ..request() }));
        assert_eq!(fuse["updateStrategy"], json!({"type": "OnDelete"}));
        assert_eq!(kernel["updateStrategy"]["type"], json!("RollingUpdate"));
        let pod = &fuse["template"]["spec"];
        assert_eq!(pod["terminationGracePeriodSeconds"], json!(60));
        let container = &pod["containers"][0];
        assert_eq!(
            container["args"],
            json!(["--plugin=example.com/sshfs", "--plugin=example.com/rclone", "--grace=50"])
        );
        assert_eq!(container["livenessProbe"], Value::Null);
        let elsewhere = set(&Request { kubelet_root: "/k".to_owned(), ..request() });
        let container = &elsewhere["template"]["spec"]["containers"][0];
        assert_eq!(container["args"][2], json!("--root=/k"));
        assert_eq!(container["volumeMounts"][0]["mountPath"], json!("/k"));
        assert_eq!(container["readinessProbe"]["exec"]["command"][6], json!("--root=/k"));
    }
}
