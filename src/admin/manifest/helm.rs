//! Helm chart: the part that is made here. `flexvol-kit` makes the rest, which a node does not
//! need: it replaces the placeholders by Helm's expressions.

use super::ManifestRequest;
use serde_json::{Value, json};

/// Returns a copy of the request, with a placeholder for each value that differs between
/// installations of a chart. `chart.rs` of the kit has the same placeholders.
pub fn marked(request: &ManifestRequest) -> ManifestRequest {
    ManifestRequest {
        drivers: vec!["flexvol-helm/tmpfs".to_owned()],
        plugin_dir: Some("/flexvol-helm-directory".to_owned()),
        image: "flexvol-helm-image".to_owned(),
        namespace: "flexvol-helm-namespace".to_owned(),
        name: "flexvol-helm-name".to_owned(),
        policy: Some("flexvol-helm-policy".to_owned()),
        arguments: vec!["--flexvol-helm-arguments".to_owned()],
        ..request.clone()
    }
}

/// Returns the chart's default values, taken from the request.
pub fn values(request: &ManifestRequest) -> Value {
    let has = |flag: &str| request.arguments.iter().any(|argument| argument == flag);
    let set: Vec<_> =
        request.arguments.iter().filter_map(|argument| argument.strip_prefix("--set=")).collect();
    let policy = request.policy.as_deref().unwrap_or("{}");
    json!({
        "image": request.image,
        "drivers": request.drivers,
        "pluginDir": request.plugin_dir.as_deref().or(request.platform.directory()),
        "set": set,
        "takeOver": has("--take-over"),
        "allowDowngrade": has("--allow-downgrade"),
        "policy": serde_json::from_str(policy).unwrap_or(Value::Null),
    })
}
