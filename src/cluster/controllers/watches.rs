//! Objects as the API server last reported them, and the listeners that are told of changes. Each
//! kind is watched once per process, for all drivers.
//!
//! A listener is told of every object that exists when it subscribes, and of every change after
//! that: nothing is missed and nothing is told twice, however late it subscribes. So no driver's
//! work depends on having been subscribed when something happened.
//!
//! An object that this process writes is known as soon as it is written; the same event of the
//! watch, which comes later, is ignored.

use super::cache::{Cache, Links};
pub use super::cache::{Change, Watchable, version};
use super::kinds::{Node, StorageCapacity};
use super::queue::Version;
use super::volumes::{PersistentVolume, VolumeAttachment};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::Resource;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use tokio::sync::watch;

/// Function that is called for a change.
type Hears<K> = dyn Fn(&Change<K>) + Send + Sync;

/// Subscription of a listener: it ends when this is dropped.
pub type Listener<K> = Arc<Hears<K>>;

/// Message from the API server.
#[derive(Debug)]
pub enum Told<K> {
    /// A list begins.
    Lists,
    /// Some objects of the list.
    Page(Vec<K>),
    /// The list is complete, as of a version.
    Listed(Version),
    /// One object, as it is now.
    Is(Box<K>),
    /// One object that is gone, as it was.
    Gone(Box<K>),
    /// Nothing has changed up to this version.
    Still(Version),
}

/// All objects of a kind.
#[expect(missing_debug_implementations, reason = "listeners have none")]
pub struct Objects<K> {
    cache: RwLock<Cache<K>>,
    /// Listeners. The lock is held while they are told something: nothing is missed between the
    /// first objects that a new listener is told and the next change. Reads do not wait for it.
    listeners: Mutex<Vec<Weak<Hears<K>>>>,
    ready: watch::Sender<bool>,
    begun: AtomicBool,
    strip: fn(&mut K),
}

impl<K: Watchable> Objects<K> {
    /// Creates the set of a kind, still empty. `strip` removes unused fields from each new object.
    pub(crate) fn new(strip: fn(&mut K)) -> Arc<Self> {
        Self::linked(strip, |_| [None; 2])
    }

    /// Creates the same for objects that are looked up by the names that they refer to.
    pub(crate) fn linked(strip: fn(&mut K), links: Links<K>) -> Arc<Self> {
        Arc::new(Self {
            cache: RwLock::new(Cache::new(links)),
            listeners: Mutex::default(),
            ready: watch::Sender::new(false),
            begun: AtomicBool::new(false),
            strip,
        })
    }

    /// Reports whether the caller has to begin the watch: true for the first caller alone.
    pub(super) fn may_begin(&self) -> bool {
        !self.begun.swap(true, Ordering::Relaxed)
    }

    /// Tells a listener of each object, and of each later change.
    pub fn listen(&self, listener: &Listener<K>) {
        let mut listeners = self.listeners();
        for object in self.all() {
            listener(&Change { before: None, now: Some(object) });
        }
        listeners.push(Arc::downgrade(listener));
    }

    /// Waits until all objects are known.
    pub async fn known(&self) {
        // The sender is a field of `self`, so it exists.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// Returns an object that is in no namespace.
    pub fn get(&self, name: &str) -> Option<Arc<K>> {
        self.read().get(name).map(Arc::clone)
    }

    /// Returns an object of a namespace.
    pub fn get_in(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.get(&format!("{namespace}/{name}"))
    }

    /// Returns all objects.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.filtered(|_| true)
    }

    /// Returns the objects for which `holds` is true, after a look at each.
    pub fn filtered(&self, holds: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.read().all().filter(|object| holds(object)).map(Arc::clone).collect()
    }

    /// Returns the objects that name another object, by the links of the kind.
    pub fn naming(&self, other: &str) -> Vec<Arc<K>> {
        self.read().naming(other).map(Arc::clone).collect()
    }

    /// Stores an object as we wrote it. One that is gone meanwhile does not come back. One whose
    /// version cannot be compared is left to the watch.
    pub fn written(&self, object: &Arc<K>) {
        let mut object = Arc::clone(object);
        if object.meta().managed_fields.is_some() {
            self.strip(Arc::make_mut(&mut object));
        }
        let listeners = self.listeners();
        let change = self.write().written(object);
        tell(&listeners, change.as_slice());
    }

    /// Removes the fields that are never read.
    fn strip(&self, object: &mut K) {
        (self.strip)(object);
    }

    /// Handles a message from the API server.
    pub fn told(&self, told: Told<K>) {
        let mut listeners = self.listeners();
        let complete = matches!(told, Told::Listed(_));
        let changes = self.change(told);
        listeners.retain(|listener| listener.strong_count() > 0);
        tell(&listeners, &changes);
        drop(listeners);
        if complete {
            self.ready.send_replace(true);
        }
    }

    fn change(&self, told: Told<K>) -> Vec<Change<K>> {
        let mut cache = self.write();
        match told {
            Told::Lists => {
                cache.list_begins();
                Vec::new()
            }
            Told::Page(mut objects) => {
                for object in &mut objects {
                    self.strip(object);
                }
                cache.page(objects)
            }
            Told::Listed(version) => cache.list_ends(version),
            Told::Is(mut object) => {
                self.strip(&mut object);
                cache.update(*object).into_iter().collect()
            }
            Told::Gone(object) => cache.remove(&object).into_iter().collect(),
            Told::Still(version) => {
                cache.still(version);
                Vec::new()
            }
        }
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<Weak<Hears<K>>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, Cache<K>> {
        self.cache.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Cache<K>> {
        self.cache.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell<K>(listeners: &[Weak<Hears<K>>], changes: &[Change<K>]) {
    for change in changes {
        listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener(change));
    }
}

/// Objects of the kinds that controllers read. A kind is watched when a controller first needs it.
#[derive(Clone)]
#[expect(missing_debug_implementations, reason = "objects have none")]
pub struct Watches {
    /// `PersistentVolumes`.
    pub volumes: Arc<Objects<PersistentVolume>>,
    /// `PersistentVolumeClaims`.
    pub claims: Arc<Objects<PersistentVolumeClaim>>,
    /// `VolumeAttachments`.
    pub attachments: Arc<Objects<VolumeAttachment>>,
    /// `StorageClasses`.
    pub classes: Arc<Objects<StorageClass>>,
    /// `CSIStorageCapacities` in the namespace of our own.
    pub capacities: Arc<Objects<StorageCapacity>>,
    /// `CSINodes`: registrations of drivers on nodes.
    pub csi_nodes: Arc<Objects<CSINode>>,
    /// Nodes, with their labels.
    pub nodes: Arc<Objects<Node>>,
}

impl Default for Watches {
    fn default() -> Self {
        Self {
            volumes: Objects::new(strip),
            claims: Objects::new(strip),
            attachments: Objects::linked(strip, VolumeAttachment::names),
            classes: Objects::new(strip),
            capacities: Objects::new(strip),
            csi_nodes: Objects::new(strip),
            nodes: Objects::new(|node| {
                strip(node);
                (node.spec, node.status) = Default::default();
            }),
        }
    }
}

/// Removes the managers of fields, which are not used.
fn strip<K: Resource<DynamicType = ()>>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::ResourceExt as _;
    use std::collections::HashMap;

    fn node(name: &str, version: Version) -> CSINode {
        let mut node = CSINode::default();
        node.metadata.name = Some(name.to_owned());
        node.metadata.resource_version = Some(version.to_string());
        node
    }

    fn is(name: &str, version: Version) -> Told<CSINode> {
        Told::Is(Box::new(node(name, version)))
    }

    fn gone(name: &str, version: Version) -> Told<CSINode> {
        Told::Gone(Box::new(node(name, version)))
    }

    /// Returns a list in pages of one object.
    fn all(objects: &[(&str, Version)], version: Version) -> Vec<Told<CSINode>> {
        let pages = objects.iter().map(|(name, version)| Told::Page(vec![node(name, *version)]));
        std::iter::once(Told::Lists).chain(pages).chain([Told::Listed(version)]).collect()
    }

    fn tell_all(objects: &Objects<CSINode>, told: Vec<Told<CSINode>>) {
        for told in told {
            objects.told(told);
        }
    }

    fn text(node: &Arc<CSINode>) -> String {
        format!("{}{}", node.name_any(), version(&**node))
    }

    /// Returns a listener, and the changes that it was told.
    fn listener() -> (Listener<CSINode>, Arc<Mutex<Vec<String>>>) {
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let notes = Arc::clone(&heard);
        let part = |part: &Option<Arc<CSINode>>| part.as_ref().map_or("-".to_owned(), text);
        let listener: Listener<CSINode> = Arc::new(move |change| {
            notes.lock().unwrap().push(format!("{}>{}", part(&change.before), part(&change.now)));
        });
        (listener, heard)
    }

    /// Returns the objects that result from the changes that a listener was told.
    fn sum(heard: &[String]) -> Vec<String> {
        let mut known: HashMap<String, String> = HashMap::new();
        for change in heard {
            let (before, now) = change.split_once('>').unwrap();
            let name = |text: &str| text[..1].to_owned();
            if now == "-" {
                assert!(known.remove(&name(before)).is_some(), "{heard:?}");
            } else {
                let known = known.insert(name(now), now.to_owned());
                assert!(known.is_none_or(|known| known == before), "{heard:?}");
            }
        }
        let mut known: Vec<_> = known.into_values().collect();
        known.sort();
        known
    }

    fn there(objects: &Objects<CSINode>) -> Vec<String> {
        let mut all: Vec<_> = objects.all().iter().map(text).collect();
        all.sort();
        all
    }

    fn history() -> Vec<Told<CSINode>> {
        let mut history = all(&[("a", 1), ("b", 2)], 3);
        history.extend([is("c", 4), is("a", 5), gone("c", 6), Told::Still(7)]);
        // The API server could not be reached, and begins with a new list.
        history.extend(all(&[("b", 2), ("d", 8)], 9));
        history.extend([is("b", 10), gone("d", 11)]);
        history
    }

    /// A listener may come at any time: before all is known, in the middle, at the end.
    #[test]
    fn a_listener_knows_what_is_there_whenever_it_came() {
        for came in 0..=history().len() {
            let objects = Objects::new(strip);
            let (listener, heard) = listener();
            for (step, told) in history().into_iter().enumerate() {
                if step == came {
                    objects.listen(&listener);
                }
                objects.told(told);
                if step >= came {
                    assert_eq!(sum(&heard.lock().unwrap()), there(&objects), "{came} {step}");
                }
            }
            if came == history().len() {
                objects.listen(&listener);
            }
            assert_eq!(sum(&heard.lock().unwrap()), ["b10"], "{came}");
        }
    }

    /// An object changes at the very moment when a listener is told the existing objects.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "another thread is what is tested")]
    fn nothing_is_missed_between_what_is_there_and_what_changes() {
        let objects: Arc<Objects<CSINode>> = Objects::new(strip);
        tell_all(&objects, all(&[("a", 1)], 2));
        let (notes, heard) = listener();
        let changing: Mutex<Option<std::thread::JoinHandle<()>>> = Mutex::new(None);
        let (begun, telling) = (Arc::new(changing), Arc::clone(&objects));
        let of_listener = Arc::clone(&begun);
        let listener: Listener<CSINode> = Arc::new(move |change| {
            of_listener.lock().unwrap().get_or_insert_with(|| {
                let objects = Arc::clone(&telling);
                let change = std::thread::spawn(move || objects.told(is("a", 3)));
                // This is enough time for the change, if it did not have to wait for us.
                std::thread::sleep(std::time::Duration::from_millis(100));
                change
            });
            notes(change);
        });
        objects.listen(&listener);
        let change = begun.lock().unwrap().take().unwrap();
        change.join().unwrap();
        assert_eq!(sum(&heard.lock().unwrap()), ["a3"]);
    }

    #[test]
    fn who_has_gone_is_told_nothing() {
        let objects = Objects::new(strip);
        let (listener, heard) = listener();
        objects.listen(&listener);
        tell_all(&objects, all(&[], 1));
        drop(listener);
        objects.told(is("a", 2));
        assert_eq!(*heard.lock().unwrap(), [""; 0]);
        assert!(objects.listeners().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_known_before_all_is() {
        let objects = Objects::new(strip);
        let (listener, heard) = listener();
        objects.listen(&listener);
        objects.told(Told::Lists);
        objects.told(Told::Page(vec![node("a", 1)]));
        let known = tokio::time::timeout(std::time::Duration::from_mins(1), objects.known()).await;
        assert!(known.is_err());
        tell_all(&objects, all(&[("a", 1)], 2));
        objects.known().await;
        assert_eq!(sum(&heard.lock().unwrap()), ["a1"]);
    }

    #[test]
    fn what_we_have_written_is_known_at_once_and_told_once() {
        let objects = Objects::new(strip);
        let (listener, heard) = listener();
        objects.listen(&listener);
        tell_all(&objects, all(&[("a", 1), ("b", 2)], 3));
        objects.written(&Arc::new(node("a", 6)));
        // The watch reports an older version, this version, and a newer one.
        for version in [4, 6, 7] {
            objects.told(is("a", version));
        }
        // The answer to a write comes later than a report of the watch.
        objects.written(&Arc::new(node("a", 5)));
        assert_eq!(heard.lock().unwrap()[2..], ["a1>a6", "a6>a7"]);
    }

    /// Managed fields are larger than the object, and the API server's answer to a write has them.
    #[test]
    fn who_manages_fields_is_not_kept() {
        let objects = Objects::new(strip);
        let managed = |version| {
            let mut object = node("a", version);
            object.metadata.managed_fields = Some(Vec::new());
            object
        };
        tell_all(&objects, all(&[("a", 1)], 1));
        objects.written(&Arc::new(managed(2)));
        assert!(objects.get("a").unwrap().metadata.managed_fields.is_none());
        objects.told(Told::Is(Box::new(managed(3))));
        assert!(objects.get("a").unwrap().metadata.managed_fields.is_none());
    }

    #[test]
    fn what_has_gone_does_not_come_back() {
        let objects = Objects::new(strip);
        tell_all(&objects, all(&[("a", 1)], 1));
        objects.told(gone("a", 5));
        objects.written(&Arc::new(node("a", 4)));
        assert_eq!(there(&objects), [""; 0]);
        // An object that is newer than all that was reported exists.
        objects.written(&Arc::new(node("a", 6)));
        objects.told(is("a", 6));
        assert_eq!(there(&objects), ["a6"]);
    }

    #[test]
    fn a_list_is_right_but_for_what_was_written_meanwhile() {
        let objects = Objects::new(strip);
        tell_all(&objects, all(&[("a", 1), ("b", 2), ("c", 3)], 3));
        objects.written(&Arc::new(node("c", 20)));
        let mut list = all(&[("a", 1), ("b", 4), ("c", 3)], 5);
        objects.told(list.remove(0));
        objects.written(&Arc::new(node("a", 12)));
        objects.written(&Arc::new(node("d", 13)));
        // The API server has an older store than before: the earlier writes are lost.
        tell_all(&objects, list);
        assert_eq!(there(&objects), ["a12", "b4", "c3", "d13"]);
    }
}
