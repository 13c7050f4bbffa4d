//! Manifest of the agent on every node, with its locks in Kubernetes' API. Pure.
//!
//! The agent may do what it needs, and no more: read its own Node, and work with the two kinds in
//! its own namespace. A policy of the API server restricts its changes to the holders of its own
//! node: an agent's token names its node, so it gives no access to the storage of pods elsewhere.
//!
//! An agent that also carries out calls of drivers is root of its node: it mounts, so its container
//! is privileged and sees the node's processes and control groups. A program that it starts to
//! serve a volume is in a control group of the node: it continues when the agent's pod goes.
//!
//! The controller is part of the manifest: agents never take storage that another node holds, so
//! without a controller the locks of a dead node would stay until an admin edits them.

mod controller;

pub use controller::CONTROLLER;

use super::crds::crds;
use crate::fence::store::kubernetes::{FINALIZER, FORCE_DETACH, GROUP, VERSION};
use flexvol_kubelet::platform::DEFAULT_KUBELET_ROOT;
use flexvol_model::paths;
use flexvol_protocol::failure::Result;
use flexvol_terminal::emit;
use flexvol_terminal::rights::{account, granted, rule};
use serde_json::{Value, json};

/// Name of the service account, the DaemonSet, and the objects that belong to them.
pub const NAME: &str = "flexvol-agent";

/// Mount point of the control groups.
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// Parameters of the manifest.
#[derive(Clone, Debug)]
pub struct Request {
    /// The image that has `/flexvold`.
    pub image: String,
    /// The namespace, of the pods and the locks.
    pub namespace: String,
    /// kubelet's own directory.
    pub kubelet_root: String,
    /// The plugin directory, if the agent shall carry out calls of its drivers.
    pub plugin_dir: Option<String>,
}

/// Returns the objects as YAML, in the order in which they can be created.
pub fn make(request: &Request) -> Result<String> {
    let words = [&request.image, &request.namespace, &request.kubelet_root];
    for word in words.into_iter().chain(&request.plugin_dir) {
        super::check_word(word, "'\"\\")?;
    }
    let notes = ["the agent on every node: docs/agent.md".to_owned()];
    Ok(emit::documents(&notes, &objects(request)))
}

/// Returns the objects.
pub fn objects(request: &Request) -> Vec<Value> {
    let namespace = super::namespace(&request.namespace);
    let account = account(&metadata(request, true));
    let [attachments, tasks] = crds();
    let everywhere = [rule("", &["nodes"], &["get"])];
    let [role, binding] = granted(&metadata(request, false), &request.namespace, &everywhere);
    let [own_role, own_binding] = granted(&metadata(request, true), &request.namespace, &rights());
    let [policy, policy_binding] = policy(request);
    let mut objects = vec![
        namespace,
        attachments,
        tasks,
        account,
        role,
        binding,
        own_role,
        own_binding,
        policy,
        policy_binding,
        daemon_set(request),
    ];
    objects.extend(controller::objects(request));
    objects
}

fn metadata(request: &Request, in_namespace: bool) -> Value {
    let mut metadata = json!({"name": NAME, "labels": super::labels("agent")});
    if in_namespace {
        metadata["namespace"] = json!(request.namespace);
    }
    metadata
}

/// Rules for the agent's own namespace.
fn rights() -> [Value; 3] {
    [
        rule(GROUP, &["flexattachments"], &["get", "list", "create", "update", "delete"]),
        rule(GROUP, &["flexdetachtasks"], &["list", "watch", "create", "delete"]),
        rule(GROUP, &["flexdetachtasks/status"], &["patch"]),
    ]
}

/// Limits to the rights of an agent: each rule in CEL, with its message.
fn validations() -> Value {
    let rule = |expression: &str, message: &str| json!({"expression": expression, "message": message});
    json!([
        rule("variables.node != ''", "the token names no node: an agent's is that of a pod"),
        rule(
            "variables.tasks || variables.before.filter(h, h.node != variables.node) == \
             variables.after.filter(h, h.node != variables.node)",
            "an agent changes the holders of its own node alone"
        ),
        rule(
            "variables.tasks || object == null || variables.after.size() == 0 || \
             (has(object.metadata.finalizers) && variables.held in object.metadata.finalizers)",
            "what is held has a finalizer"
        ),
        rule(
            "variables.tasks || object == null || oldObject == null || \
             object.spec.epoch <= oldObject.spec.epoch + 1",
            "an epoch rises by one"
        ),
        rule(
            "variables.tasks || object == null || oldObject == null || \
             object.spec.policy == oldObject.spec.policy || \
             variables.before.all(h, h.node == variables.node)",
            "how storage is shared does not change while another node holds it"
        ),
        rule(
            "!variables.tasks || (object == null ? oldObject : object).spec.holder.node == variables.node",
            "an agent makes and ends the tasks of its own node alone"
        ),
        rule(
            "variables.tasks || object == null || variables.marked == \
             (oldObject == null ? 'none' : variables.was_marked)",
            "an agent does not ask for a detach by force"
        ),
    ])
}

fn policy(request: &Request) -> [Value; 2] {
    let api = "admissionregistration.k8s.io/v1";
    let variable = |name: &str, expression: &str| json!({"name": name, "expression": expression});
    let key = "authentication.kubernetes.io/node-name";
    let holders = |of: &str| format!("variables.tasks || {of} == null ? dyn([]) : dyn({of}.spec.holders)");
    let mark = |of: &str| {
        format!(
            "{of} != null && has({of}.metadata.annotations) && '{FORCE_DETACH}' in {of}.metadata.annotations \
             ? {of}.metadata.annotations['{FORCE_DETACH}'] : 'none'"
        )
    };
    let account = format!("system:serviceaccount:{}:{NAME}", request.namespace);
    let policy = json!({
        "apiVersion": api,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": metadata(request, false),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [GROUP],
                "apiVersions": [VERSION],
                "operations": ["CREATE", "UPDATE", "DELETE"],
                "resources": ["flexattachments", "flexdetachtasks", "flexdetachtasks/status"],
            }]},
            "matchConditions": [
                variable("agent", &format!("request.userInfo.username == '{account}'")),
            ],
            "variables": [
                variable("tasks", "request.resource.resource == 'flexdetachtasks'"),
                variable("held", &format!("'{FINALIZER}'")),
                variable("node", &format!(
                    "has(request.userInfo.extra) && '{key}' in request.userInfo.extra && \
                     request.userInfo.extra['{key}'].size() == 1 ? request.userInfo.extra['{key}'][0] : ''"
                )),
                variable("before", &holders("oldObject")),
                variable("after", &holders("object")),
                variable("marked", &mark("object")),
                variable("was_marked", &mark("oldObject")),
            ],
            "validations": validations(),
        },
    });
    let binding = json!({
        "apiVersion": api,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": metadata(request, false),
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    });
    [policy, binding]
}

fn daemon_set(request: &Request) -> Value {
    let directories = directories(request);
    let directories: Vec<_> =
        directories.iter().map(|directory| (directory.name, &*directory.path, directory.kind)).collect();
    let mut set =
        super::on_every_node(&metadata(request, true), NAME, true, &container(request), &directories);
    if request.plugin_dir.is_some() {
        // Programs that serve volumes are known by their pid, also to the next agent.
        set["spec"]["template"]["spec"]["hostPID"] = json!(true);
    }
    set
}

/// Directory of the node.
struct Directory {
    name: &'static str,
    path: String,
    kind: &'static str,
    /// True if the agent only reads there.
    read_only: bool,
    /// Mount propagation.
    propagation: &'static str,
}

fn directories(request: &Request) -> Vec<Directory> {
    let Some(plugin_dir) = &request.plugin_dir else {
        // Later mounts of the host are visible.
        let seen = |name, path: &str, kind, read_only| Directory {
            name,
            path: path.to_owned(),
            kind,
            read_only,
            propagation: "HostToContainer",
        };
        return vec![
            seen("kubelet", &request.kubelet_root, "Directory", true),
            // Staging directories of CSI volumes: the agent only creates the directories.
            seen("csi", &staging(&request.kubelet_root), "DirectoryOrCreate", false),
            seen("state", paths::STATE, "DirectoryOrCreate", false),
            seen("run", paths::RUN, "DirectoryOrCreate", false),
        ];
    };
    let of = |name, path: &str, kind, read_only, propagation| Directory {
        name,
        path: path.to_owned(),
        kind,
        read_only,
        propagation,
    };
    let own = |name, path, kind, propagation| of(name, path, kind, false, propagation);
    let used = |name, path, kind| of(name, path, kind, true, "None");
    vec![
        own("kubelet", &request.kubelet_root, "Directory", "Bidirectional"),
        own("state", paths::STATE, "DirectoryOrCreate", "Bidirectional"),
        own("run", paths::RUN, "DirectoryOrCreate", "Bidirectional"),
        own("dev", "/dev", "Directory", "None"),
        own("groups", CONTROL_GROUPS, "Directory", "HostToContainer"),
        used("plugins", plugin_dir, "Directory"),
        used("modules", "/lib/modules", "DirectoryOrCreate"),
    ]
}

fn staging(kubelet_root: &str) -> String {
    format!("{}/{}", kubelet_root.trim_end_matches('/'), crate::agent::csi::STAGING)
}

fn container(request: &Request) -> Value {
    let mut words = vec!["--store=kubernetes".to_owned()];
    words.extend(request.plugin_dir.iter().map(|directory| format!("--plugin-dir={directory}")));
    let root = Some(&request.kubelet_root).filter(|root| *root != DEFAULT_KUBELET_ROOT);
    words.extend(root.map(|root| format!("--kubelet-root={root}")));
    json!({
        "name": "agent",
        "image": request.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["/flexvold", "agent"],
        "args": words,
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}},
        "securityContext": if request.plugin_dir.is_some() {
            // Only a privileged container may make mounts that the node sees.
            json!({"privileged": true, "runAsUser": 0})
        } else {
            looking_on()
        },
        // The agent answers without the API server as well.
        "livenessProbe": {
            "exec": {"command": ["/flexvold", "agent", "--status"]},
            "initialDelaySeconds": 30,
            "periodSeconds": 30,
            "timeoutSeconds": 10,
            "failureThreshold": 5,
        },
        "volumeMounts": directories(request).iter().map(|directory| json!({
            "name": directory.name,
            "mountPath": directory.path,
            "readOnly": directory.read_only,
            "mountPropagation": directory.propagation,
        })).collect::<Vec<_>>(),
    })
}

/// Security context of an agent that mounts nothing.
fn looking_on() -> Value {
    json!({
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": true,
        "runAsUser": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
        // Type of a privileged container: SELinux denies others the node's directories.
        "seLinuxOptions": {"type": "spc_t"},
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fence::sharing::Sharing;
    use flexvol_kit::yaml;

    fn request() -> Request {
        Request {
            image: "registry.example/flexvold:1".to_owned(),
            namespace: "flexvol".to_owned(),
            kubelet_root: "/var/lib/kubelet".to_owned(),
            plugin_dir: None,
        }
    }

    #[test]
    fn what_is_printed_is_what_was_meant() {
        assert_eq!(yaml::parse(&make(&request()).unwrap()).unwrap(), objects(&request()));
        // The first one would end the text of a rule.
        for namespace in ["a' || true || 'a' == 'a", "", "a b", "a\nb"] {
            assert!(make(&Request { namespace: namespace.to_owned(), ..request() }).is_err(), "{namespace}");
        }
    }

    #[test]
    fn only_what_carries_out_calls_is_privileged() {
        let pod = |plugin_dir: Option<&str>| {
            let request = Request { plugin_dir: plugin_dir.map(str::to_owned), ..request() };
            assert_eq!(yaml::parse(&make(&request).unwrap()).unwrap(), objects(&request));
            let objects = objects(&request);
            objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap()["spec"]["template"]["spec"]
                .clone()
        };
        let mounts = |pod: &Value, key: &str, is: &Value| {
            let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap().iter();
            mounts
                .filter(|mount| mount[key] == *is)
                .map(|mount| mount["name"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        let looks = pod(None);
        assert_eq!((&looks["hostPID"], &looks["hostNetwork"]), (&Value::Null, &json!(true)));
        assert_eq!(looks["containers"][0]["securityContext"]["privileged"], Value::Null);
        assert_eq!(mounts(&looks, "mountPropagation", &json!("Bidirectional")), [""; 0]);
        // The agent creates the staging directories of CSI drivers, below one that it only reads.
        assert_eq!(mounts(&looks, "readOnly", &json!(true)), ["kubelet"]);
        let at = "/var/lib/kubelet/plugins/kubernetes.io/csi";
        assert_eq!(mounts(&looks, "mountPath", &json!(at)), ["csi"]);
        let carries_out = pod(Some("/plugins"));
        assert_eq!(carries_out["hostPID"], json!(true));
        let container = &carries_out["containers"][0];
        assert_eq!(container["securityContext"]["privileged"], json!(true));
        assert_eq!(container["args"], json!(["--store=kubernetes", "--plugin-dir=/plugins"]));
        assert_eq!(
            mounts(&carries_out, "mountPropagation", &json!("Bidirectional")),
            ["kubelet", "state", "run"]
        );
        assert_eq!(mounts(&carries_out, "readOnly", &json!(true)), ["plugins", "modules"]);
    }

    #[test]
    fn another_kubelet_s_directory_is_told() {
        let request = Request { kubelet_root: "/var/snap/kubelet".to_owned(), ..request() };
        let objects = objects(&request);
        let agent = objects.iter().find(|object| object["kind"] == "DaemonSet").unwrap();
        let args = &agent["spec"]["template"]["spec"]["containers"][0]["args"];
        assert_eq!(*args, json!(["--store=kubernetes", "--kubelet-root=/var/snap/kubelet"]));
    }

    #[test]
    fn every_way_to_share_is_known_to_the_api_server() {
        let [attachments, _] = crds();
        let schema = &attachments["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let known = schema["properties"]["spec"]["properties"]["policy"]["enum"].as_array().unwrap();
        let all = [
            Sharing::Exclusive,
            Sharing::ExclusivePerNode,
            Sharing::SharedReadOnly,
            Sharing::SharedReadWrite,
        ];
        assert_eq!(*known, all.map(|sharing| json!(sharing.name())));
    }
}
