//! Objects as the API server last told of them, and who is told of changes.

use futures_util::TryStreamExt as _;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event, watcher};
use kube::runtime::{WatchStreamExt as _, reflector};
use kube::{Api, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use std::collections::HashSet;
use std::fmt::Debug;
use std::pin::pin;
use std::sync::Arc;

/// A kind of objects that is watched: everything in memory, without who manages which field.
pub trait Watchable:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static> Watchable
    for K
{
}

/// What became of an object.
#[derive(Debug)]
pub struct Change<K> {
    /// As it was, if it was known.
    pub before: Option<Arc<K>>,
    /// As it is, if it is still there.
    pub now: Option<Arc<K>>,
}

impl<K> Change<K> {
    /// The object, as last seen.
    pub fn latest(&self) -> Option<&Arc<K>> {
        self.now.as_ref().or(self.before.as_ref())
    }
}

/// All objects of a kind, and what keeps them up to date.
pub fn objects<K: Watchable>() -> (Store<K>, Writer<K>) {
    reflector::store()
}

/// Keeps the objects up to date, for ever, and tells of each change. What was missed while the API
/// server could not be reached is told when it can be again.
pub async fn watch<K: Watchable>(api: Api<K>, mut writer: Writer<K>, mut changed: impl FnMut(&Change<K>)) {
    let objects = writer.as_reader();
    let stream = watcher(api, watcher::Config::default())
        .modify(|object| object.managed_fields_mut().clear())
        .default_backoff();
    let mut stream = pin!(stream);
    loop {
        match stream.try_next().await {
            Ok(Some(event)) => told(&event, &objects, &mut writer).iter().for_each(&mut changed),
            Ok(None) => return,
            // It is asked again, later each time.
            Err(error) => tracing::warn!(kind = %K::kind(&()), reason = %error, "cannot watch"),
        }
    }
}

fn told<K: Watchable>(event: &Event<K>, objects: &Store<K>, writer: &mut Writer<K>) -> Vec<Change<K>> {
    let before = match event {
        Event::Apply(object) | Event::Delete(object) => {
            vec![(ObjectRef::from_obj(object), objects.get(&ObjectRef::from_obj(object)))]
        }
        Event::InitDone => {
            let known = objects.state().into_iter();
            known.map(|object| (ObjectRef::from_obj(object.as_ref()), Some(object))).collect()
        }
        Event::Init | Event::InitApply(_) => Vec::new(),
    };
    writer.apply_watcher_event(event);
    let mut seen = HashSet::new();
    let mut changes = Vec::new();
    for (key, before) in before {
        changes.push(Change { before, now: objects.get(&key) });
        seen.insert(key);
    }
    if matches!(event, Event::InitDone) {
        let new = objects
            .state()
            .into_iter()
            .filter(|object| !seen.contains(&ObjectRef::from_obj(object.as_ref())));
        changes.extend(new.map(|object| Change { before: None, now: Some(object) }));
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::storage::v1::CSINode;

    fn node(name: &str) -> CSINode {
        let mut node = CSINode::default();
        node.metadata.name = Some(name.to_owned());
        node
    }

    fn names(changes: &[Change<CSINode>]) -> Vec<String> {
        let name =
            |object: &Option<Arc<CSINode>>| object.as_ref().map_or("-".to_owned(), |node| node.name_any());
        let mut names: Vec<_> =
            changes.iter().map(|change| name(&change.before) + " " + &name(&change.now)).collect();
        names.sort();
        names
    }

    #[test]
    fn what_was_missed_is_told_of() {
        let (objects, mut writer) = objects::<CSINode>();
        let mut told = |event| names(&told(&event, &objects, &mut writer));
        assert_eq!(told(Event::Init), [""; 0]);
        assert_eq!(told(Event::InitApply(node("a"))), [""; 0]);
        assert_eq!(told(Event::InitApply(node("b"))), [""; 0]);
        assert_eq!(told(Event::InitDone), ["- a", "- b"]);
        assert_eq!(told(Event::Apply(node("c"))), ["- c"]);
        assert_eq!(told(Event::Delete(node("c"))), ["c -"]);
        assert_eq!(told(Event::Init), [""; 0]);
        assert_eq!(told(Event::InitApply(node("b"))), [""; 0]);
        assert_eq!(told(Event::InitApply(node("d"))), [""; 0]);
        assert_eq!(told(Event::InitDone), ["- d", "a -", "b b"]);
    }
}
