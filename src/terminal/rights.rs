//! Objects of a manifest that give its pods an account and rights.

use serde_json::{Value, json};

/// API group of roles.
const RBAC: &str = "rbac.authorization.k8s.io";

/// Returns a service account. Pods that need its token mount it themselves.
pub fn account(metadata: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": false,
    })
}

/// Returns a rule of a role.
pub fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> Value {
    json!({"apiGroups": [group], "resources": resources, "verbs": verbs})
}

/// Returns a role with these rules, and its binding to the account of the same name in `namespace`.
/// Their scope is the namespace that `metadata` names, or the cluster if it names none.
pub fn granted(metadata: &Value, namespace: &str, rules: &[Value]) -> [Value; 2] {
    let scope = if metadata.get("namespace").is_some() { "" } else { "Cluster" };
    let (name, kind) = (&metadata["name"], format!("{scope}Role"));
    let object = |kind: &str| json!({"apiVersion": format!("{RBAC}/v1"), "kind": kind, "metadata": metadata});
    let (mut role, mut binding) = (object(&kind), object(&format!("{kind}Binding")));
    role["rules"] = rules.into();
    binding["roleRef"] = json!({"apiGroup": RBAC, "kind": kind, "name": name});
    binding["subjects"] = json!([{"kind": "ServiceAccount", "name": name, "namespace": namespace}]);
    [role, binding]
}
