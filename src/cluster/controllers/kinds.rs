//! Kinds of objects of which little is read: only that is in memory, and in the program.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::{Metadata, NamespaceResourceScope, Resource};
use serde::Deserialize;

/// A pod, with the claims that it uses.
#[derive(Clone, Debug, Deserialize)]
pub struct Pod {
    metadata: ObjectMeta,
    spec: PodSpec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Clone, Debug, Deserialize)]
struct PodSpec {
    #[serde(default)]
    volumes: Vec<PodVolume>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodVolume {
    persistent_volume_claim: Option<ClaimSource>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClaimSource {
    claim_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct PodStatus {
    #[serde(default)]
    phase: String,
}

impl Resource for Pod {
    const API_VERSION: &'static str = "v1";
    const GROUP: &'static str = "";
    const KIND: &'static str = "Pod";
    const URL_PATH_SEGMENT: &'static str = "pods";
    const VERSION: &'static str = "v1";

    type Scope = NamespaceResourceScope;
}

impl Metadata for Pod {
    type Ty = ObjectMeta;

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Pod {
    /// Whether it uses a claim of its namespace, or will.
    pub fn uses(&self, claim: &str) -> bool {
        let ended = matches!(self.status.phase.as_str(), "Succeeded" | "Failed");
        let mut claims =
            self.spec.volumes.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
        !ended && claims.any(|source| source.claim_name == claim)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_pod_uses_its_claims_until_it_has_ended() {
        let pod = |phase: &str| -> Pod {
            let volumes = json!([{ "name": "a", "emptyDir": {} },
                { "name": "b", "persistentVolumeClaim": { "claimName": "data" } }]);
            let object = json!({ "metadata": { "name": "pod" }, "spec": { "volumes": volumes, "containers": [] },
                "status": { "phase": phase } });
            serde_json::from_value(object).unwrap()
        };
        assert!(pod("Running").uses("data") && pod("Pending").uses("data"));
        assert!(!pod("Running").uses("other"));
        assert!(!pod("Succeeded").uses("data") && !pod("Failed").uses("data"));
        let bare: Pod = serde_json::from_value(json!({ "metadata": {}, "spec": {} })).unwrap();
        assert!(!bare.uses("data"));
    }
}
