//! Current state of nodes and pods, read from the API server.

use super::kinds::{Node, Pod};
use super::review::Cluster;
use super::seen::{SeenNode, SeenPod};
use crate::fence::record;
use crate::fence::store::StoreError;
use crate::fence::store::kubernetes::{KubernetesStore, path_of_node};
use serde::de::DeserializeOwned;
use std::time::Instant;

/// Reader of that state.
#[derive(Debug)]
pub struct Asking(pub KubernetesStore);

impl Asking {
    fn ask<K: DeserializeOwned>(&self, path: String, deadline: Instant) -> Result<Option<K>, StoreError> {
        let Some(object) = self.0.object(path, deadline)? else { return Ok(None) };
        // Parse text, as watches do: another source would put a second parser into the program.
        let object = serde_json::from_str(&object.to_string());
        object.map(Some).map_err(|error| StoreError::Failed(error.to_string()))
    }
}

impl Cluster for Asking {
    fn node(&self, name: &str, deadline: Instant) -> Result<Option<SeenNode>, StoreError> {
        Ok(self.ask(path_of_node(name), deadline)?.map(|node: Node| node.seen()))
    }

    fn pod(&self, pod: &record::Pod, deadline: Instant) -> Result<Option<SeenPod>, StoreError> {
        let path = format!("/api/v1/namespaces/{}/pods/{}", pod.namespace, pod.name);
        Ok(self.ask(path, deadline)?.map(|pod: Pod| pod.seen()))
    }
}
