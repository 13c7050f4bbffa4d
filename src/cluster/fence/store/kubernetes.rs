//! Records as Kubernetes API objects: one `FlexAttachment` per storage, and `FlexDetachTask`.
//!
//! Only `spec` contains what fencing needs. One PUT changes it, with the version that was read: of
//! two changes that were decided on the same state, the API server refuses one. A storage without
//! holders has no object, or an object without holders: it is emptied first, which is the release,
//! and then removed without waiting.
//!
//! A caller waits in its own thread, with a deadline. Another thread sends the request.

mod hearing;
mod objects;

use super::{Read, RecordStore, Result, StoreError};
use crate::controllers::blocking::{Answer, Api};
use crate::controllers::client::Place;
use crate::fence::decide::Task;
use crate::fence::progress::Progress;
use crate::fence::record::{Node, Record};
use objects::{ATTACHMENTS, TASKS, Version};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use objects::{
    FINALIZER, FORCE_DETACH, GROUP, NODE_LABEL, OUT_OF_SERVICE, VERSION, is_name, name_of, node_label,
    object_of_task, task_of,
};

/// Time limit to list all objects.
const LIST_TIME: Duration = Duration::from_mins(1);

/// End of the API server's message about a missing object, after the object's name.
const MISSING: &str = "\" not found";

/// Time limit for a request that only adds a detail to a message.
const ASIDE: Duration = Duration::from_secs(2);

/// Time limit for the report or the removal of a task.
const FINISH_TIME: Duration = Duration::from_secs(10);

/// Number of objects in one answer.
const PAGE: usize = 500;

/// Limit for the number of pages: a million objects.
const PAGES: usize = 2000;

/// Store of records in a namespace.
#[derive(Debug)]
pub struct KubernetesStore {
    api: Api,
    namespace: String,
}

impl KubernetesStore {
    /// Opens the store with the API server of a place. Sends no request yet.
    ///
    /// # Errors
    ///
    /// Fails if the token or the certificate cannot be read.
    pub fn open(place: &Place, namespace: &str) -> anyhow::Result<Self> {
        Ok(Self { api: Api::open(place, namespace)?, namespace: namespace.to_owned() })
    }

    /// Returns the current object of another kind, by its path; `None` if it is missing.
    pub fn object(&self, path: String, deadline: Instant) -> Result<Option<Value>> {
        match self.api.ask("GET", path, None, deadline) {
            Answer::Done(object) => Ok(Some(object)),
            Answer::Missing(reason) if reason.ends_with(MISSING) => Ok(None),
            // A proxy in between may lack such a page: that is no answer of the API server.
            Answer::Missing(reason) => Err(StoreError::Unsure(reason)),
            answer => Err(self.failed(&answer)),
        }
    }

    /// Returns a Node object's UID, which distinguishes it from earlier ones of the same name.
    pub fn uid_of_node(&self, name: &str, deadline: Instant) -> Result<String> {
        let found = match self.api.ask("GET", path_of_node(name), None, deadline) {
            Answer::Done(node) => node["metadata"]["uid"].as_str().map(str::to_owned),
            Answer::Missing(reason) => {
                return Err(StoreError::Failed(format!("{reason}: give this node's name with --node")));
            }
            answer => return Err(self.failed(&answer)),
        };
        found.ok_or_else(|| StoreError::Failed(format!("node {name} has no uid")))
    }

    fn path(&self, kind: &str) -> String {
        format!("/apis/{GROUP}/{VERSION}/namespaces/{}/{kind}", self.namespace)
    }

    fn path_of(&self, kind: &str, name: &str) -> String {
        format!("{}/{name}", self.path(kind))
    }

    fn list_all(&self, kind: &str, label: Option<&str>, deadline: Instant) -> Result<Vec<Value>> {
        let selector = label.map(selector).unwrap_or_default();
        let (mut all, mut token) = (Vec::new(), String::new());
        for _ in 0..PAGES {
            let path = format!("{}?limit={PAGE}{selector}&continue={token}", self.path(kind));
            let mut page = match self.api.ask("GET", path, None, deadline) {
                Answer::Done(page) => page,
                answer => return Err(self.failed(&answer)),
            };
            if let Value::Array(items) = page["items"].take() {
                all.extend(items);
            }
            match page["metadata"]["continue"].as_str() {
                // All other letters are safe in a path.
                Some(more) if !more.is_empty() => token = more.replace('=', "%3D"),
                _ => return Ok(all),
            }
        }
        Err(StoreError::Failed(format!("{kind} of namespace {} have no end", self.namespace)))
    }

    fn records(&self, label: Option<&str>, deadline: Instant) -> Result<Vec<Record>> {
        let found = self.list_all(ATTACHMENTS, label, deadline)?;
        let records: Result<Vec<_>> = found.iter().map(objects::record_of).collect();
        Ok(records?.into_iter().filter(|record| !record.is_nothing()).collect())
    }

    /// Converts an unexpected answer into an error.
    fn failed(&self, answer: &Answer) -> StoreError {
        match answer {
            Answer::Conflict => StoreError::Conflict,
            Answer::Unsure(reason) => StoreError::Unsure(reason.clone()),
            Answer::Missing(reason) => StoreError::Failed(format!(
                "{reason}: namespace {} needs what flexvold manifest agent prints",
                self.namespace
            )),
            Answer::Refused(reason) => StoreError::Failed(reason.clone()),
            Answer::Done(_) => {
                StoreError::Failed("the API server gives an answer to another question".into())
            }
        }
    }

    /// Removes an empty object, if it has no holder yet.
    fn forget(&self, handle: &str, emptied: &Value) {
        let Some(version) = Version::of(emptied) else { return };
        let preconditions = json!({"uid": version.uid, "resourceVersion": version.resource});
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": preconditions});
        self.api.tell("DELETE", self.path_of(ATTACHMENTS, &name_of(handle)), options);
    }
}

/// Returns the label selector as part of a query.
fn selector(label: &str) -> String {
    format!("&labelSelector={}%3D1", label.replace('/', "%2F"))
}

/// Returns the path of a Node object.
pub fn path_of_node(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

impl RecordStore for KubernetesStore {
    fn read(&self, handle: &str, deadline: Instant) -> Result<Read> {
        let path = self.path_of(ATTACHMENTS, &name_of(handle));
        let object = match self.api.ask("GET", path, None, deadline) {
            Answer::Done(object) => object,
            Answer::Missing(_) => return Ok(Read::default()),
            // A read writes nothing, so the failure is certain.
            Answer::Unsure(reason) => return Err(StoreError::Failed(reason)),
            answer => return Err(self.failed(&answer)),
        };
        let record = objects::record_of(&object)?;
        if record.handle != handle {
            return Err(objects::damaged(&object, "it is of another storage"));
        }
        let version = Version::of(&object).ok_or_else(|| objects::damaged(&object, "it has no version"))?;
        let record = Some(record).filter(|record| !record.is_nothing());
        Ok(Read { record, version: version.to_string(), ending: objects::ending_of(&object) })
    }

    fn unread(&self) -> Option<Read> {
        Some(Read::default())
    }

    fn write(&self, handle: &str, read: &Read, next: Option<&Record>, deadline: Instant) -> Result<()> {
        let free = Record::free(handle);
        let version = Version::parse(&read.version);
        let next = match (next, &version) {
            (None, None) => return Ok(()),
            (next, _) => next.unwrap_or(&free),
        };
        let object = objects::object_of(next, version.as_ref());
        let (method, path) = match version {
            None => ("POST", self.path(ATTACHMENTS)),
            Some(_) => ("PUT", self.path_of(ATTACHMENTS, &name_of(handle))),
        };
        match self.api.ask(method, path, Some(object), deadline) {
            Answer::Done(written) if next.is_nothing() => self.forget(handle, &written),
            Answer::Done(_) => {}
            // The object was removed meanwhile, which is a change like any other.
            Answer::Missing(_) if method == "PUT" => return Err(StoreError::Conflict),
            answer => return Err(self.failed(&answer)),
        }
        Ok(())
    }

    fn list(&self) -> Result<Vec<Record>> {
        self.records(None, Instant::now() + LIST_TIME)
    }

    fn list_of(&self, node: &Node, deadline: Instant) -> Result<Vec<Record>> {
        self.records(Some(&node_label(&node.name)), deadline)
    }

    fn note(&self, task: &Task, deadline: Instant) -> Result<()> {
        match self.api.ask("POST", self.path(TASKS), Some(object_of_task(task)), deadline) {
            Answer::Done(_) | Answer::Conflict => Ok(()),
            answer => Err(self.failed(&answer)),
        }
    }

    fn tasks(&self, node: &Node, deadline: Instant) -> Result<Vec<Task>> {
        let found = self.list_all(TASKS, Some(&node_label(&node.name)), deadline)?;
        // An invalid task is left for people; it must not block the others.
        let tasks = found.iter().filter_map(task_of);
        Ok(tasks.filter(|task| task.holder.node.is_same(node)).collect())
    }

    fn all_tasks(&self, deadline: Instant) -> Result<Vec<Task>> {
        Ok(self.list_all(TASKS, None, deadline)?.iter().filter_map(task_of).collect())
    }

    fn hear_of_tasks(&self, node: &Node, came: Arc<dyn Fn() + Send + Sync>) {
        let path = format!("{}?{}", self.path(TASKS), &selector(&node_label(&node.name))[1..]);
        self.api.begin(|client| hearing::hear(client, path, came));
    }

    fn admits(&self, node: &Node, deadline: Instant) -> Result<()> {
        let object = self.object(path_of_node(&node.name), deadline)?.unwrap_or_default();
        objects::refuses(&object, node).map_or(Ok(()), |why| Err(StoreError::Failed(why)))
    }

    fn how_to_take(&self, node: &str) -> String {
        let asked = if is_name(node) {
            self.object(path_of_node(node), Instant::now() + ASIDE)
        } else {
            Err(StoreError::Conflict)
        };
        objects::how_to_take(node, asked)
    }

    fn report(&self, task: &Task, progress: &Progress) -> Result<()> {
        let path = format!("{}/status", self.path_of(TASKS, &task.name()));
        let status = json!({"status": progress.to_json()});
        match self.api.ask("PATCH", path, Some(status), Instant::now() + FINISH_TIME) {
            Answer::Done(_) | Answer::Missing(_) => Ok(()),
            answer => Err(self.failed(&answer)),
        }
    }

    fn finish(&self, task: &Task) -> Result<()> {
        let path = self.path_of(TASKS, &task.name());
        match self.api.ask("DELETE", path, None, Instant::now() + FINISH_TIME) {
            Answer::Done(_) | Answer::Missing(_) => Ok(()),
            answer => Err(self.failed(&answer)),
        }
    }
}
