//! Object cache of one kind: the newest known state of each object, by its key and by what it
//! names. Pure.
//!
//! An object arrives in a page of a list, in an event of the watch, or from our own write, which
//! may be newer than both. Each call returns the changes that it made: a listener that applies all
//! of them knows what the cache knows. An object is gone when the watch says so, or when a list
//! that began after the object was last seen ends without it.

use super::queue::{UNSEEN, Version};
use kube::Resource;
use serde::de::DeserializeOwned;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::sync::Arc;

/// A kind of objects that can be watched.
pub trait Watchable:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
}

impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static> Watchable
    for K
{
}

/// Change of an object.
#[derive(Debug)]
pub struct Change<K> {
    /// Object before the change, if it was known.
    pub before: Option<Arc<K>>,
    /// Object after the change, if it still exists.
    pub now: Option<Arc<K>>,
}

impl<K> Change<K> {
    /// Returns the object as last seen.
    pub fn latest(&self) -> Option<&Arc<K>> {
        self.now.as_ref().or(self.before.as_ref())
    }
}

/// Returns the version of an object. One that cannot be compared is newer than any other.
pub fn version<K: Resource>(object: &K) -> Version {
    object.meta().resource_version.as_deref().map_or(UNSEEN, number)
}

pub(super) fn number(version: &str) -> Version {
    version.parse().unwrap_or(UNSEEN)
}

/// Names of the other objects that an object names; see [`Cache::naming`].
pub type Links<K> = fn(&K) -> [Option<&str>; 2];

#[derive(Debug)]
struct Cached<K> {
    object: Arc<K>,
    /// Number of the last list, or of the list before the watch, that had the object.
    list: u64,
    /// True if we wrote it after the last list began, which may not contain that version.
    written: bool,
}

/// Objects of one kind.
#[derive(Debug)]
pub struct Cache<K> {
    objects: HashMap<Arc<str>, Cached<K>>,
    links_of: Links<K>,
    /// Pairs of a name and the key of an object that names it.
    links: BTreeSet<(Arc<str>, Arc<str>)>,
    /// Version up to which the API server has reported.
    heard: Version,
    /// Number of the current list.
    list: u64,
}

/// Key of an object: `name` or `namespace/name`.
pub fn key<K: Resource>(object: &K) -> String {
    let meta = object.meta();
    let name = meta.name.as_deref().unwrap_or_default();
    meta.namespace.as_ref().map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

impl<K: Watchable> Cache<K> {
    /// Creates an empty cache; `links_of` returns the names that an object refers to.
    pub fn new(links_of: Links<K>) -> Self {
        Self { objects: HashMap::new(), links_of, links: BTreeSet::new(), heard: 0, list: 0 }
    }

    /// Returns the object with this key.
    pub fn get(&self, key: &str) -> Option<&Arc<K>> {
        self.objects.get(key).map(|cached| &cached.object)
    }

    /// Returns all objects.
    pub fn all(&self) -> impl Iterator<Item = &Arc<K>> {
        self.objects.values().map(|cached| &cached.object)
    }

    /// Returns the objects that name `other`, whatever its kind, without scanning all objects.
    pub fn naming(&self, other: &str) -> impl Iterator<Item = &Arc<K>> {
        let first = (Arc::from(other), Arc::from(""));
        let links = self.links.range(first.clone()..).take_while(move |(named, _)| *named == first.0);
        links.filter_map(|(_, key)| self.get(key))
    }

    /// Begins a list: objects written from now on may be newer than it.
    pub fn list_begins(&mut self) {
        self.list += 1;
        self.objects.values_mut().for_each(|cached| cached.written = false);
    }

    /// Adds one page of the list.
    pub fn page(&mut self, objects: Vec<K>) -> Vec<Change<K>> {
        let mut changes = Vec::with_capacity(objects.len());
        for object in objects {
            let key = key(&object);
            if let Some(cached) = self.objects.get_mut(key.as_str())
                && cached.written
                && version(&*cached.object) > version(&object)
            {
                cached.list = self.list;
                continue;
            }
            changes.push(self.put(key, Arc::new(object), false));
        }
        changes
    }

    /// Ends the list, which is as of this version: objects that were not in it are gone.
    pub fn list_ends(&mut self, listed: Version) -> Vec<Change<K>> {
        self.heard = listed;
        let list = self.list;
        let made_since = |cached: &Cached<K>| cached.written && version(&*cached.object) > listed;
        let gone = |cached: &Cached<K>| cached.list != list && !made_since(cached);
        let gone: Vec<_> =
            self.objects.iter().filter(|(_, cached)| gone(cached)).map(|(key, _)| Arc::clone(key)).collect();
        gone.iter().filter_map(|key| self.take(key)).collect()
    }

    /// Updates an object that the watch reports.
    pub fn update(&mut self, object: K) -> Option<Change<K>> {
        let key = key(&object);
        self.heard = version(&object);
        let before = self.objects.get(key.as_str());
        if before.is_some_and(|cached| cached.written && version(&*cached.object) >= version(&object)) {
            return None;
        }
        Some(self.put(key, Arc::new(object), false))
    }

    /// Removes an object that the watch reports as gone, in its last state.
    pub fn remove(&mut self, object: &K) -> Option<Change<K>> {
        self.heard = version(object);
        self.take(&key(object))
    }

    /// Takes note that nothing has changed up to this version, as the watch reports.
    pub fn still(&mut self, version: Version) {
        self.heard = version;
    }

    /// Stores an object as we wrote it. One that is gone meanwhile does not come back.
    pub fn written(&mut self, object: Arc<K>) -> Option<Change<K>> {
        let key = key(&*object);
        let since = self.get(&key).map_or(self.heard, |before| version(&**before));
        let is_newer = version(&*object) != UNSEEN && version(&*object) > since;
        is_newer.then(|| self.put(key, object, true))
    }

    fn put(&mut self, key: String, object: Arc<K>, written: bool) -> Change<K> {
        let key: Arc<str> = match self.objects.get_key_value(key.as_str()) {
            Some((key, _)) => Arc::clone(key),
            None => key.into(),
        };
        let before = self.objects.get(&key).map(|cached| (Arc::clone(&cached.object), cached.list));
        // An object that only we know is in no list yet.
        let list = if written { before.as_ref().map_or(0, |(_, list)| *list) } else { self.list };
        let before = before.map(|(object, _)| object);
        let links_of = self.links_of;
        if before.as_ref().is_none_or(|before| links_of(before) != links_of(&object)) {
            self.unlink(&key, before.as_deref());
            let names = links_of(&object).into_iter().flatten();
            self.links.extend(names.map(|name| (Arc::from(name), Arc::clone(&key))));
        }
        self.objects.insert(key, Cached { object: Arc::clone(&object), list, written });
        Change { before, now: Some(object) }
    }

    fn take(&mut self, key: &str) -> Option<Change<K>> {
        let (key, cached) = self.objects.remove_entry(key)?;
        self.unlink(&key, Some(&cached.object));
        Some(Change { before: Some(cached.object), now: None })
    }

    fn unlink(&mut self, key: &Arc<str>, object: Option<&K>) {
        let names = object.map(self.links_of).into_iter().flatten().flatten();
        for name in names {
            self.links.remove(&(Arc::from(name), Arc::clone(key)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::volumes::VolumeAttachment;
    use super::*;
    use kube::ResourceExt as _;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn attachment(name: u8, volume: u8, node: u8, version: Version) -> VolumeAttachment {
        let mut object = VolumeAttachment::default();
        object.metadata.name = Some(format!("a{name}"));
        object.metadata.resource_version = Some(version.to_string());
        object.spec.source.persistent_volume_name = (volume > 0).then(|| format!("v{volume}"));
        object.spec.node_name = format!("n{node}");
        object
    }

    #[derive(Clone, Debug)]
    enum Act {
        Update(u8, u8, u8),
        Remove(u8),
        Write(u8, u8, u8),
        /// A list of these objects, one page each.
        List(Vec<(u8, u8, u8)>),
    }

    fn act() -> impl Strategy<Value = Act> {
        let names = (0..4_u8, 0..4_u8, 0..3_u8);
        prop_oneof![
            names.clone().prop_map(|(name, volume, node)| Act::Update(name, volume, node)),
            (0..4_u8).prop_map(Act::Remove),
            names.clone().prop_map(|(name, volume, node)| Act::Write(name, volume, node)),
            prop::collection::vec(names, 0..4).prop_map(Act::List),
        ]
    }

    proptest! {
        /// A lookup by name finds what a scan of all objects finds, and a listener that applies the
        /// changes knows what the cache knows.
        #[test]
        fn objects_are_found_by_what_they_name(acts in prop::collection::vec(act(), 0..40)) {
            let (mut cache, mut version) = (Cache::new(VolumeAttachment::names), 0);
            let mut known: BTreeMap<String, Version> = BTreeMap::new();
            for act in acts {
                version += 1;
                let mut changes = Vec::new();
                match act {
                    Act::Update(name, volume, node) => {
                        changes.extend(cache.update(attachment(name, volume, node, version)));
                    }
                    Act::Remove(name) => changes.extend(cache.remove(&attachment(name, 0, 0, version))),
                    Act::Write(name, volume, node) => {
                        changes.extend(cache.written(Arc::new(attachment(name, volume, node, version))));
                    }
                    Act::List(objects) => {
                        cache.list_begins();
                        for (name, volume, node) in objects {
                            changes.extend(cache.page(vec![attachment(name, volume, node, version)]));
                        }
                        changes.extend(cache.list_ends(version));
                    }
                }
                for change in changes {
                    let name = change.latest().unwrap().name_any();
                    let before = change.before.map(|object| super::version(&*object));
                    let now = change.now.map(|object| super::version(&*object));
                    prop_assert_eq!(known.get(&name).copied(), before);
                    match now {
                        Some(now) => drop(known.insert(name, now)),
                        None => drop(known.remove(&name)),
                    }
                }
                prop_assert_eq!(cache.all().count(), known.len());
                for other in ["v1", "v2", "v3", "n0", "n1", "n2", "v", ""] {
                    let names = |object: &&Arc<VolumeAttachment>| object.names().contains(&Some(other));
                    let mut by_look: Vec<_> = cache.all().filter(names).map(|object| object.name_any()).collect();
                    by_look.sort();
                    let by_name: Vec<_> = cache.naming(other).map(|object| object.name_any()).collect();
                    prop_assert_eq!(by_name, by_look);
                }
            }
            let links: usize = cache.all().map(|object| object.names().iter().flatten().count()).sum();
            prop_assert_eq!(cache.links.len(), links);
        }
    }
}
