//! Reads and writes of objects, shared by all controllers.

use super::queue::Outcome;
use http::Request;
use http::header::CONTENT_TYPE;
use k8s_openapi::api::core::v1::{Secret, SecretReference};
use kube::api::{Patch, PatchParams};
use kube::core::{ClusterResourceScope, Status};
use kube::{Api, Client, Error, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::Arc;

/// Limit for attempts after a conflict: another controller was faster, and its version decides.
pub const CONFLICTS: usize = 16;

/// Reports whether the API server answered with this code.
pub fn is(error: &Error, code: u16) -> bool {
    matches!(error, Error::Api(status) if status.code == code)
}

/// Returns the API server's error for an object that does not exist.
pub fn gone() -> Error {
    Error::Api(Status::failure("another object has its name now", "NotFound").with_code(404).boxed())
}

/// Returns the reason of a failed request, in the API server's own words if it has answered.
pub fn reason(error: &Error) -> String {
    match error {
        Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// Returns the outcome of work that ends with this write: a deleted object needs no more work.
pub fn outcome<T>(written: kube::Result<T>) -> Outcome {
    match written {
        Ok(_) => Outcome::Done,
        Err(error) if is(&error, 404) => Outcome::Done,
        Err(error) => {
            tracing::warn!(reason = reason(&error), "the API server failed");
            Outcome::Failed
        }
    }
}

/// Returns an object's finalizers, including this one.
pub fn finalizers_with<K: Resource>(object: &K, finalizer: &str) -> Vec<String> {
    let mut finalizers = object.finalizers().to_vec();
    if !finalizers.iter().any(|name| name == finalizer) {
        finalizers.push(finalizer.to_owned());
    }
    finalizers
}

/// Object that is in no namespace.
pub trait OfCluster:
    Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug
{
}

impl<K> OfCluster for K where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug
{
}

/// Changes an object's metadata, or reads the object again if it has changed since it was read.
pub async fn replace<K: OfCluster>(client: &Client, object: &K, mut metadata: Value) -> kube::Result<Arc<K>> {
    let api: Api<K> = Api::all(client.clone());
    let name = object.name_any();
    metadata["resourceVersion"] = json!(object.resource_version());
    let patch = Patch::Merge(json!({ "metadata": metadata }));
    match api.patch(&name, &PatchParams::default(), &patch).await {
        Err(error) if is(&error, 409) => api.get(&name).await.map(Arc::new),
        patched => patched.map(Arc::new),
    }
}

/// Removes finalizers from an object, even if other parts of it have changed since it was read.
/// Reads the object again if its finalizers have changed.
pub async fn unguard<K: OfCluster>(client: &Client, object: &K, finalizers: &[&str]) -> kube::Result<Arc<K>> {
    let mut changes = vec![json!({ "op": "test", "path": "/metadata/uid", "value": object.uid() })];
    // The last finalizer is removed first, so that the indexes of the others stay valid.
    for (at, name) in object.finalizers().iter().enumerate().rev() {
        if finalizers.contains(&name.as_str()) {
            let path = format!("/metadata/finalizers/{at}");
            changes.push(json!({ "op": "test", "path": path, "value": name }));
            changes.push(json!({ "op": "remove", "path": path }));
        }
    }
    let name = object.name_any();
    let request = Request::patch(format!("{}/{name}", K::url_path(&(), None)))
        .header(CONTENT_TYPE, "application/json-patch+json")
        .body(Value::from(changes).to_string().into_bytes());
    match client.request(request.map_err(|error| Error::Service(error.into()))?).await {
        Err(error) if is(&error, 422) || is(&error, 409) => {
            Api::all(client.clone()).get(&name).await.map(Arc::new)
        }
        patched => patched.map(Arc::new),
    }
}

/// Changes an object's status; `None` if the object has changed since it was read.
pub async fn replace_status<K: OfCluster>(
    client: &Client,
    object: &K,
    status: &Value,
) -> kube::Result<Option<Arc<K>>> {
    let api: Api<K> = Api::all(client.clone());
    let metadata = json!({ "uid": object.uid(), "resourceVersion": object.resource_version() });
    let patch = Patch::Merge(json!({ "metadata": metadata, "status": status }));
    match api.patch_status(&object.name_any(), &PatchParams::default(), &patch).await {
        Err(error) if is(&error, 409) => Ok(None),
        patched => patched.map(|object| Some(Arc::new(object))),
    }
}

/// Reads the data of a Secret for the driver; empty if no Secret is named.
///
/// # Errors
///
/// Fails if the Secret cannot be read, or if a value is not UTF-8, as CSI requires. The message
/// does not contain the value.
pub async fn secrets(
    client: &Client,
    named: Option<&SecretReference>,
) -> Result<HashMap<String, String>, String> {
    let Some(named) = named else { return Ok(HashMap::new()) };
    let part = |part: &Option<String>| part.clone().unwrap_or_default();
    let (namespace, name) = (part(&named.namespace), part(&named.name));
    let failed = |why: String| format!("failed to load secret \"{namespace}/{name}\": {why}");
    let api: Api<Secret> = Api::namespaced(client.clone(), &namespace);
    let secret = api.get(&name).await.map_err(|error| failed(reason(&error)))?;
    let pairs = secret.data.unwrap_or_default().into_iter().map(|(key, value)| {
        let text = String::from_utf8(value.0);
        let text = text.map_err(|_| failed(format!("the value of {key:?} is not UTF-8, as CSI's are")))?;
        Ok((key, text))
    });
    pairs.collect()
}
