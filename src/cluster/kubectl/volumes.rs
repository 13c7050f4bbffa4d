//! Volumes of a cluster: their pods and nodes, and whether their storage is held. Pure.

use super::held::{Held, State, held};
use super::objects::{Objects, Pod};
use serde_json::{Value, json};
use std::collections::HashMap;

/// State of a volume that no pod uses.
pub const UNUSED: &str = "no pod uses it";

/// State of storage that is held and should not be.
pub const FORGOTTEN: &str = "held, and its pod is gone";

/// Volume for one pod that uses it, or for no pod.
#[derive(Debug)]
pub struct Row {
    /// Namespace and name of the pod.
    pub pod: String,
    /// Name of the PersistentVolume, or of the volume in the pod.
    pub volume: String,
    /// Driver that serves it.
    pub driver: String,
    /// Node on which the pod runs.
    pub node: String,
    /// Storage that is held for it.
    pub storage: String,
    /// State, for people.
    pub state: String,
}

/// Indexes for lookups that are repeated often.
struct Index<'a> {
    objects: &'a Objects,
    /// Holders by the name of the volume.
    held: HashMap<&'a str, Vec<Held<'a>>>,
    /// Pods by namespace and claim.
    pods: HashMap<(&'a str, &'a str), Vec<&'a Pod>>,
}

/// Returns each volume of these namespaces, for each pod that uses it; then the storage that is
/// held for pods that are gone.
pub fn rows(objects: &Objects, of: Option<&str>) -> Vec<Row> {
    let held = held(objects, |_| true);
    let wanted = |namespace: &str| of.is_none_or(|of| of == namespace);
    let mut index = Index { objects, held: HashMap::new(), pods: HashMap::new() };
    for held in &held {
        index.held.entry(held.volume()).or_default().push(*held);
    }
    for pod in objects.pods.iter().filter(|pod| !pod.ended && wanted(&pod.namespace)) {
        for claim in &pod.claims {
            index.pods.entry((&pod.namespace, claim)).or_default().push(pod);
        }
    }
    let mut rows = Vec::new();
    for volume in &objects.volumes {
        let (namespace, claim) = volume.claim.as_ref().map_or(("", ""), |(of, name)| (of, name));
        if !wanted(namespace) {
            continue;
        }
        let pods = index.pods.get(&(namespace, claim)).map_or(&[][..], Vec::as_slice);
        rows.extend(pods.iter().map(|pod| index.row(Some(pod), &volume.name, &volume.driver, true)));
        if pods.is_empty() {
            rows.push(index.row(None, &volume.name, &volume.driver, true));
        }
    }
    for pod in objects.pods.iter().filter(|pod| !pod.ended && wanted(&pod.namespace)) {
        rows.extend(pod.inline.iter().map(|(name, driver)| index.row(Some(pod), name, driver, false)));
    }
    rows.extend(
        held.iter().filter(|held| held.pod_is_gone && wanted(&held.holder.pod.namespace)).map(forgotten),
    );
    rows
}

fn forgotten(held: &Held<'_>) -> Row {
    Row {
        pod: held.pod(),
        volume: held.volume().to_owned(),
        driver: "-".to_owned(),
        node: held.node(),
        storage: held.record.handle.clone(),
        state: FORGOTTEN.to_owned(),
    }
}

impl Index<'_> {
    fn row(&self, pod: Option<&Pod>, volume: &str, driver: &str, is_shared: bool) -> Row {
        let none = || "-".to_owned();
        let held = self.held.get(volume).map_or(&[][..], Vec::as_slice);
        let mine = held.iter().find(|held| pod.is_some_and(|pod| pod.has(held.holder)));
        // Without a claim, the name of a volume is local to its pod.
        let other = held.first().filter(|_| is_shared);
        let state = match (pod, mine, other) {
            (None, ..) => UNUSED.to_owned(),
            (_, Some(_), _) => "held".to_owned(),
            (_, None, Some(other)) => format!("pod {} on node {} has it", other.pod(), other.node()),
            (Some(pod), ..) if pod.node.is_empty() => "its pod has no node yet".to_owned(),
            _ => none(),
        };
        let place = pod.map_or_else(none, |pod| match (&*pod.node, mine) {
            ("", _) => none(),
            (_, Some(mine)) if mine.node != State::Ready => mine.node(),
            (name, _) => node_of(self.objects, name),
        });
        Row {
            pod: pod.map_or_else(none, Pod::shown),
            volume: volume.to_owned(),
            driver: driver.to_owned(),
            node: place,
            storage: mine.map_or_else(none, |mine| mine.record.handle.clone()),
            state,
        }
    }
}

fn node_of(objects: &Objects, name: &str) -> String {
    match objects.nodes.get(name) {
        Some(node) if node.ready => name.to_owned(),
        Some(_) => format!("{name} ({})", State::Silent.name()),
        None => format!("{name} ({})", State::Gone.name()),
    }
}

impl Row {
    /// Returns the cells for a table.
    pub fn cells(self) -> [String; 6] {
        [self.pod, self.volume, self.driver, self.node, self.storage, self.state]
    }

    /// Returns the JSON form.
    pub fn as_json(&self) -> Value {
        json!({
            "pod": self.pod,
            "volume": self.volume,
            "driver": self.driver,
            "node": self.node,
            "storage": self.storage,
            "state": self.state,
        })
    }
}
