//! Kinds with few fields in use: only those are kept in memory, and compiled in.

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Defines the API names of a kind. The short form is for namespaced kinds of version 1.
macro_rules! kind {
    ($kind:ident, $name:literal, $plural:literal, $group:literal, $api_version:literal) => {
        crate::controllers::kinds::kind!(
            $kind,
            $name,
            $plural,
            $group,
            $api_version,
            "v1",
            k8s_openapi::NamespaceResourceScope
        );
    };
    ($kind:ident, $name:literal, $plural:literal, $group:literal, $api_version:literal, $version:literal, $scope:ty) => {
        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = $api_version;
            const GROUP: &'static str = $group;
            const KIND: &'static str = $name;
            const URL_PATH_SEGMENT: &'static str = $plural;
            const VERSION: &'static str = $version;

            type Scope = $scope;
        }

        impl k8s_openapi::Metadata for $kind {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use kind;

kind!(Node, "Node", "nodes", "", "v1", "v1", k8s_openapi::ClusterResourceScope);
kind!(Pod, "Pod", "pods", "", "v1");
kind!(ReplicaSet, "ReplicaSet", "replicasets", "apps", "apps/v1");
kind!(StorageCapacity, "CSIStorageCapacity", "csistoragecapacities", "storage.k8s.io", "storage.k8s.io/v1");

/// Object that creates the pods of a Deployment.
#[derive(Clone, Debug, Deserialize)]
pub struct ReplicaSet {
    metadata: ObjectMeta,
}

/// Amount of storage for a `StorageClass`, and its location.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StorageCapacity {
    /// Metadata; the labels name the driver and the manager.
    pub metadata: ObjectMeta,
    /// The class.
    pub storage_class_name: String,
    /// Available storage.
    pub capacity: Option<Quantity>,
    /// Largest possible volume, if the driver reports it.
    pub maximum_volume_size: Option<Quantity>,
    #[serde(default)]
    node_topology: NodeTopology,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeTopology {
    #[serde(default)]
    match_labels: BTreeMap<String, String>,
}

impl StorageCapacity {
    /// Returns the labels of the nodes that have this storage.
    pub fn segment(&self) -> &BTreeMap<String, String> {
        &self.node_topology.match_labels
    }
}

/// Node: its location, and the fields that tell whether it runs.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Node {
    /// Metadata; the labels tell the location.
    pub metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: NodeSpec,
    #[serde(default)]
    pub(crate) status: NodeStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct NodeSpec {
    #[serde(default)]
    pub(crate) taints: Vec<Taint>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Taint {
    pub(crate) key: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NodeStatus {
    #[serde(default)]
    pub(crate) conditions: Vec<Condition>,
    #[serde(default)]
    pub(crate) node_info: NodeInfo,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct NodeInfo {
    #[serde(default, rename = "bootID")]
    pub(crate) boot: String,
}

/// Pod, with the claims that it uses.
#[derive(Clone, Debug, Deserialize)]
pub struct Pod {
    /// Name and other metadata.
    pub metadata: ObjectMeta,
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

impl Pod {
    /// Removes the fields that `uses` reads.
    pub(crate) fn forget_claims(&mut self) {
        (self.spec.volumes, self.status.phase) = (Vec::new(), String::new());
    }

    /// Reports whether it uses a claim of its namespace, or will use it.
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
