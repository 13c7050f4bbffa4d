//! Reading and writing objects, as all controllers do it.

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

/// A conflict means that another controller was faster: what it wrote is read, and decides.
pub const CONFLICTS: usize = 16;

/// Whether the API server has answered with this code.
pub fn is(error: &Error, code: u16) -> bool {
    matches!(error, Error::Api(status) if status.code == code)
}

/// As the API server says it of an object that is not there.
pub fn gone() -> Error {
    Error::Api(Status::failure("another object has its name now", "NotFound").with_code(404).boxed())
}

/// Why a request failed, in the API server's own words if it has answered.
pub fn reason(error: &Error) -> String {
    match error {
        Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        other => other.to_string(),
    }
}

/// What a write means for the work that it ends: what has gone is done.
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

/// An object's finalizers and this one.
pub fn finalizers_with<K: Resource>(object: &K, finalizer: &str) -> Vec<String> {
    let mut finalizers = object.finalizers().to_vec();
    if !finalizers.iter().any(|name| name == finalizer) {
        finalizers.push(finalizer.to_owned());
    }
    finalizers
}

/// An object that is in no namespace.
pub trait OfCluster:
    Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug
{
}

impl<K> OfCluster for K where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + DeserializeOwned + Debug
{
}

/// Changes an object's metadata if it is still as it was read; else it is read once more.
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

/// Takes finalizers off an object, whatever else of it has changed meanwhile; if its finalizers
/// have, it is read once more.
pub async fn unguard<K: OfCluster>(client: &Client, object: &K, finalizers: &[&str]) -> kube::Result<Arc<K>> {
    let mut changes = vec![json!({ "op": "test", "path": "/metadata/uid", "value": object.uid() })];
    // The last one first, so that the places of the others stay.
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

/// Changes an object's status if it is still as it was read; `None` if it is not.
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

/// What a Secret holds for the driver; nothing if none is named.
///
/// # Errors
///
/// It cannot be read, or a value is not text as CSI's are: a sentence without the value.
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
