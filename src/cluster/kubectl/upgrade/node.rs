//! Node of an upgrade in the API: its object, its pods, and the drivers of the volumes that they
//! use. No list of the whole cluster is read: a claim and its volume are looked up once for each
//! pod.

use super::mark::Marked;
use super::users::{Driver, Pod, Uses};
use crate::fence::store::kubernetes::is_name;
use crate::kubectl::mount_pods::{MountPod, text};
use crate::kubectl::session::Session;
use anyhow::{Context as _, Result};
use futures_util::TryStreamExt as _;
use http::Request;
use kube::Client;
use serde_json::Value;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

/// Duration after which the API server ends a watch, in seconds.
const LASTS: u32 = 290;

/// Pause between two watches.
const PAUSE: Duration = Duration::from_secs(1);

/// Reader of one node.
#[derive(Debug)]
pub struct Node<'a> {
    session: &'a Session,
    name: String,
    /// Drivers of claims, by the uid of the pod and the name of the claim. While the pod uses the
    /// claim, the claim keeps its volume, and both stay.
    claims: HashMap<(String, String), Option<Driver>>,
}

/// State of the node at one look.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Object of the node.
    pub object: Value,
    /// Upgrade that has begun on it.
    pub marked: Marked,
    /// Its pods that have not ended.
    pub pods: Vec<Pod>,
    /// Pods among them that run process 1 of a mount pod.
    pub mount_pods: Vec<MountPod>,
}

impl<'a> Node<'a> {
    /// Returns the reader for the node of this name.
    pub fn new(session: &'a Session, name: &str) -> Self {
        Self { session, name: name.to_owned(), claims: HashMap::new() }
    }

    /// Returns the path of the node in the API.
    pub fn path(&self) -> String {
        format!("/api/v1/nodes/{}", self.name)
    }

    /// Reads the object of the node.
    pub fn object(&self) -> Result<Value> {
        let object = self.session.get(&self.path())?;
        object.with_context(|| format!("node {} is not in the cluster: correct the name", self.name))
    }

    /// Reads the current state.
    pub fn look(&mut self) -> Result<Seen> {
        let object = self.object()?;
        let mut objects = Vec::new();
        let has_ended = |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        self.session.list(&self.pods(), |pod| objects.extend(Some(pod).filter(|pod| !has_ended(pod))))?;
        let mount_pods = objects.iter().filter_map(MountPod::of).collect();
        let mut pods = Vec::new();
        for mut object in objects {
            let metadata = &object["metadata"];
            let shown = format!("{}/{}", text(metadata, "namespace"), text(metadata, "name"));
            let drivers = self.drivers(&object).with_context(|| format!("look up what pod {shown} uses"))?;
            pods.push(Pod { shown, drivers, spec: object["spec"].take() });
        }
        Ok(Seen { marked: Marked::of(&object), object, pods, mount_pods })
    }

    fn pods(&self) -> String {
        format!("/api/v1/pods?fieldSelector=spec.nodeName%3D{}", self.name)
    }

    fn drivers(&mut self, pod: &Value) -> Result<Vec<Driver>> {
        let (uses, metadata) = (Uses::of(pod), &pod["metadata"]);
        let mut drivers = uses.drivers;
        for claim in uses.claims {
            let key = (text(metadata, "uid"), claim);
            if !self.claims.contains_key(&key)
                && let Some(volume) = self.volume_of(&text(metadata, "namespace"), &key.1)?
            {
                self.claims.insert(key.clone(), Driver::of(&volume["spec"]));
            }
            drivers.extend(self.claims.get(&key).cloned().flatten());
        }
        Ok(drivers)
    }

    /// Returns the volume of a claim; `None` while the claim has none.
    fn volume_of(&self, namespace: &str, claim: &str) -> Result<Option<Value>> {
        let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{claim}");
        let claim = self.session.get(&path)?.unwrap_or_default();
        // The creator of the claim may write any text there, too.
        let name = claim["spec"]["volumeName"].as_str().filter(|name| is_name(name));
        name.map_or(Ok(None), |name| self.session.get(&format!("/api/v1/persistentvolumes/{name}")))
    }

    /// Returns a receiver that gets a message when the node or one of its pods has changed.
    pub fn bell(&self) -> Receiver<()> {
        let (bell, rung) = sync_channel(1);
        let node = format!("/api/v1/nodes?fieldSelector=metadata.name%3D{}", self.name);
        for path in [node, self.pods()] {
            let (path, bell) = (format!("{path}&watch=true&timeoutSeconds={LASTS}"), bell.clone());
            self.session.api().begin(move |client| ring(client, path, bell));
        }
        rung
    }
}

async fn ring(client: Client, path: String, bell: SyncSender<()>) {
    loop {
        let request = Request::get(&path).body(Vec::new());
        let Ok(request) = request else { return };
        if let Ok(events) = client.request_events::<Value>(request).await {
            let mut events = pin!(events);
            while let Ok(Some(_)) = events.try_next().await {
                // One unread message is enough.
                let _ = bell.try_send(());
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}
