//! Objects as the API server last reported them, and the listeners that are told of changes. Each
//! kind is watched once per process, for all drivers.
//!
//! A listener is told of every object that exists when it subscribes, and of every change after
//! that: nothing is missed and nothing is told twice, however late it subscribes. So no driver's
//! work depends on having been subscribed when something happened.
//!
//! An object that this process writes is known as soon as it is written; the same event of the
//! watch, which comes later, is ignored.

use super::kinds::{Node, StorageCapacity};
use super::queue::{UNSEEN, Version};
use super::volumes::{PersistentVolume, VolumeAttachment};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::{CSINode, StorageClass};
use kube::Resource;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use tokio::sync::watch;

/// A kind of objects that can be watched.
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

/// What is done when something is told.
type Hears<K> = dyn Fn(&Change<K>) + Send + Sync;

/// Who is told, for as long as it keeps this.
pub type Listener<K> = Arc<Hears<K>>;

/// What the API server says.
#[derive(Debug)]
pub enum Told<K> {
    /// All that there is, as of a version.
    All(Vec<K>, Version),
    /// One, as it is now.
    Is(Box<K>),
    /// One that has gone, as it was.
    Gone(Box<K>),
    /// Nothing has changed up to this version.
    Still(Version),
}

/// How new an object is. One that cannot be compared is newer than any.
pub fn version<K: Resource>(object: &K) -> Version {
    object.meta().resource_version.as_deref().map_or(UNSEEN, number)
}

pub(super) fn number(version: &str) -> Version {
    version.parse().unwrap_or(UNSEEN)
}

#[derive(Debug)]
struct Known<K> {
    object: Arc<K>,
    /// We have written it, and a list that was asked for before may not have it.
    written: bool,
}

#[derive(Debug)]
struct State<K> {
    known: HashMap<String, Known<K>>,
    /// How far the API server has told.
    heard: Version,
}

/// Who is told, and whether everything was told once.
struct Telling<K> {
    ready: bool,
    listeners: Vec<Weak<Hears<K>>>,
}

/// All objects of a kind.
#[expect(missing_debug_implementations, reason = "listeners have none")]
pub struct Objects<K> {
    state: RwLock<State<K>>,
    /// Held while something is told, so that nothing is told between what a new listener hears
    /// first and what it hears next. Reading does not wait for it.
    telling: Mutex<Telling<K>>,
    ready: watch::Sender<bool>,
    begun: AtomicBool,
    strip: fn(&mut K),
}

impl<K: Watchable> Objects<K> {
    /// None yet. What is never read is removed from each that is told.
    pub(crate) fn new(strip: fn(&mut K)) -> Arc<Self> {
        Arc::new(Self {
            state: RwLock::new(State { known: HashMap::new(), heard: 0 }),
            telling: Mutex::new(Telling { ready: false, listeners: Vec::new() }),
            ready: watch::Sender::new(false),
            begun: AtomicBool::new(false),
            strip,
        })
    }

    /// Whether the caller has to begin the watch: true for the first caller alone.
    pub(super) fn may_begin(&self) -> bool {
        !self.begun.swap(true, Ordering::Relaxed)
    }

    /// Tells of each object and of each change, as soon as all are known.
    pub fn listen(&self, listener: &Listener<K>) {
        let mut telling = self.telling();
        if telling.ready {
            for object in self.all() {
                listener(&Change { before: None, now: Some(object) });
            }
        }
        telling.listeners.push(Arc::downgrade(listener));
    }

    /// Waits until all are known.
    pub async fn known(&self) {
        // The sender is ours: it is there.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// One of the cluster's.
    pub fn get(&self, name: &str) -> Option<Arc<K>> {
        self.read().known.get(name).map(|known| Arc::clone(&known.object))
    }

    /// One of a namespace.
    pub fn get_in(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.get(&format!("{namespace}/{name}"))
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.filtered(|_| true)
    }

    /// Those of which something holds.
    pub fn filtered(&self, holds: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        let state = self.read();
        let objects = state.known.values().map(|known| &known.object);
        objects.filter(|object| holds(object)).map(Arc::clone).collect()
    }

    /// An object as we have written it. One that has gone meanwhile does not come back.
    pub fn written(&self, object: &Arc<K>) {
        if version(&**object) == UNSEEN {
            // The watch tells of it.
            return;
        }
        let mut object = Arc::clone(object);
        if object.meta().managed_fields.is_some() {
            self.strip(Arc::make_mut(&mut object));
        }
        let telling = self.telling();
        let key = key(&*object);
        let before = {
            let mut state = self.write();
            let before = state.known.get(&key).map(|known| Arc::clone(&known.object));
            let since = before.as_ref().map_or(state.heard, |before| version(&**before));
            if version(&*object) <= since {
                return;
            }
            state.known.insert(key, Known { object: Arc::clone(&object), written: true });
            before
        };
        telling.tell(&Change { before, now: Some(object) });
    }

    /// Removes the fields that are never read.
    pub(super) fn strip(&self, object: &mut K) {
        (self.strip)(object);
    }

    /// Before a list is asked for: what is written from now on may be newer.
    pub(super) fn will_list(&self) {
        self.write().known.values_mut().for_each(|known| known.written = false);
    }

    /// What the API server has told.
    pub fn told(&self, told: Told<K>) {
        let mut telling = self.telling();
        let all = matches!(told, Told::All(..));
        let changes = match told {
            Told::All(objects, version) => self.replace(objects, version),
            Told::Is(object) => self.update(*object).into_iter().collect(),
            Told::Gone(object) => self.remove(&object).into_iter().collect(),
            Told::Still(version) => {
                self.write().heard = version;
                Vec::new()
            }
        };
        telling.listeners.retain(|listener| listener.strong_count() > 0);
        telling.ready |= all;
        if telling.ready {
            for change in &changes {
                telling.tell(change);
            }
        }
        drop(telling);
        if all {
            self.ready.send_replace(true);
        }
    }

    fn update(&self, mut object: K) -> Option<Change<K>> {
        self.strip(&mut object);
        let (key, object) = (key(&object), Arc::new(object));
        let mut state = self.write();
        state.heard = version(&*object);
        let before = state.known.get(&key);
        if before.is_some_and(|known| known.written && version(&*known.object) >= version(&*object)) {
            return None;
        }
        let known = Known { object: Arc::clone(&object), written: false };
        let before = state.known.insert(key, known).map(|known| known.object);
        Some(Change { before, now: Some(object) })
    }

    fn remove(&self, object: &K) -> Option<Change<K>> {
        let mut state = self.write();
        state.heard = version(object);
        let before = state.known.remove(&key(object)).map(|known| known.object)?;
        Some(Change { before: Some(before), now: None })
    }

    fn replace(&self, objects: Vec<K>, listed: Version) -> Vec<Change<K>> {
        let mut state = self.write();
        let mut before = std::mem::take(&mut state.known);
        state.heard = listed;
        let mut changes = Vec::new();
        for object in objects {
            let key = key(&object);
            let known = before.remove(&key);
            let newer = |known: &Known<K>| known.written && version(&*known.object) > version(&object);
            let (before, now) = match known {
                Some(known) if newer(&known) => (Some(Arc::clone(&known.object)), known),
                known => {
                    let now = Known { object: Arc::new(object), written: false };
                    (known.map(|known| known.object), now)
                }
            };
            changes.push(Change { before, now: Some(Arc::clone(&now.object)) });
            state.known.insert(key, now);
        }
        for (key, known) in before {
            // Made after the list.
            if known.written && version(&*known.object) > listed {
                state.known.insert(key, known);
            } else {
                changes.push(Change { before: Some(known.object), now: None });
            }
        }
        changes
    }

    fn telling(&self) -> MutexGuard<'_, Telling<K>> {
        self.telling.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State<K>> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, State<K>> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Telling<K> {
    fn tell(&self, change: &Change<K>) {
        self.listeners.iter().filter_map(Weak::upgrade).for_each(|listener| listener(change));
    }
}

fn key<K: Resource>(object: &K) -> String {
    let meta = object.meta();
    let name = meta.name.as_deref().unwrap_or_default();
    meta.namespace.as_ref().map_or_else(|| name.to_owned(), |namespace| format!("{namespace}/{name}"))
}

/// The kinds that controllers look at. None is watched before one begins to.
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
    /// `CSIStorageCapacities` of the namespace where ours are.
    pub capacities: Arc<Objects<StorageCapacity>>,
    /// What drivers have registered on nodes.
    pub csi_nodes: Arc<Objects<CSINode>>,
    /// Nodes, of which the labels count.
    pub nodes: Arc<Objects<Node>>,
}

impl Default for Watches {
    fn default() -> Self {
        Self {
            volumes: Objects::new(strip),
            claims: Objects::new(strip),
            attachments: Objects::new(strip),
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

/// Who manages which field is nothing to us.
fn strip<K: Resource<DynamicType = ()>>(object: &mut K) {
    object.meta_mut().managed_fields = None;
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::ResourceExt as _;

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

    fn all(objects: &[(&str, Version)], version: Version) -> Told<CSINode> {
        Told::All(objects.iter().map(|(name, version)| node(name, *version)).collect(), version)
    }

    fn text(node: &Arc<CSINode>) -> String {
        format!("{}{}", node.name_any(), version(&**node))
    }

    /// A listener, and what it was told.
    fn listener() -> (Listener<CSINode>, Arc<Mutex<Vec<String>>>) {
        let heard: Arc<Mutex<Vec<String>>> = Arc::default();
        let notes = Arc::clone(&heard);
        let part = |part: &Option<Arc<CSINode>>| part.as_ref().map_or("-".to_owned(), text);
        let listener: Listener<CSINode> = Arc::new(move |change| {
            notes.lock().unwrap().push(format!("{}>{}", part(&change.before), part(&change.now)));
        });
        (listener, heard)
    }

    /// What a listener knows that has kept to what it was told.
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
        vec![
            all(&[("a", 1), ("b", 2)], 3),
            is("c", 4),
            is("a", 5),
            gone("c", 6),
            Told::Still(7),
            // The API server could not be reached, and has begun anew.
            all(&[("b", 2), ("d", 8)], 9),
            is("b", 10),
            gone("d", 11),
        ]
    }

    /// Wherever it comes: before all is known, in the middle, at the end.
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

    /// Something changes in the very moment in which a listener hears what is there.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "another thread is what is tested")]
    fn nothing_is_missed_between_what_is_there_and_what_changes() {
        let objects: Arc<Objects<CSINode>> = Objects::new(strip);
        objects.told(all(&[("a", 1)], 2));
        let (notes, heard) = listener();
        let changing: Mutex<Option<std::thread::JoinHandle<()>>> = Mutex::new(None);
        let (begun, telling) = (Arc::new(changing), Arc::clone(&objects));
        let of_listener = Arc::clone(&begun);
        let listener: Listener<CSINode> = Arc::new(move |change| {
            of_listener.lock().unwrap().get_or_insert_with(|| {
                let objects = Arc::clone(&telling);
                let change = std::thread::spawn(move || objects.told(is("a", 3)));
                // Time enough, if it need not wait for us.
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
        objects.told(all(&[], 1));
        drop(listener);
        objects.told(is("a", 2));
        assert_eq!(*heard.lock().unwrap(), [""; 0]);
        assert!(objects.telling().listeners.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_known_before_all_is() {
        let objects = Objects::new(strip);
        let (listener, heard) = listener();
        objects.listen(&listener);
        objects.told(is("a", 1));
        let known = tokio::time::timeout(std::time::Duration::from_mins(1), objects.known()).await;
        assert!(known.is_err() && heard.lock().unwrap().is_empty());
        objects.told(all(&[("a", 1)], 2));
        objects.known().await;
        assert_eq!(sum(&heard.lock().unwrap()), ["a1"]);
    }

    #[test]
    fn what_we_have_written_is_known_at_once_and_told_once() {
        let objects = Objects::new(strip);
        let (listener, heard) = listener();
        objects.listen(&listener);
        objects.told(all(&[("a", 1), ("b", 2)], 3));
        objects.written(&Arc::new(node("a", 6)));
        // The watch tells of what was before, of it, and of what comes after.
        for version in [4, 6, 7] {
            objects.told(is("a", version));
        }
        // An answer that comes later than the watch has told.
        objects.written(&Arc::new(node("a", 5)));
        assert_eq!(heard.lock().unwrap()[2..], ["a1>a6", "a6>a7"]);
    }

    /// They are larger than the object, and the API server answers a write with them.
    #[test]
    fn who_manages_fields_is_not_kept() {
        let objects = Objects::new(strip);
        let managed = |version| {
            let mut object = node("a", version);
            object.metadata.managed_fields = Some(Vec::new());
            object
        };
        objects.told(Told::All(vec![node("a", 1)], 1));
        objects.written(&Arc::new(managed(2)));
        assert!(objects.get("a").unwrap().metadata.managed_fields.is_none());
        objects.told(Told::Is(Box::new(managed(3))));
        assert!(objects.get("a").unwrap().metadata.managed_fields.is_none());
    }

    #[test]
    fn what_has_gone_does_not_come_back() {
        let objects = Objects::new(strip);
        objects.told(all(&[("a", 1)], 1));
        objects.told(gone("a", 5));
        objects.written(&Arc::new(node("a", 4)));
        assert_eq!(there(&objects), [""; 0]);
        // But one that is made after all that was heard of is there.
        objects.written(&Arc::new(node("a", 6)));
        objects.told(is("a", 6));
        assert_eq!(there(&objects), ["a6"]);
    }

    #[test]
    fn a_list_is_right_but_for_what_was_written_meanwhile() {
        let objects = Objects::new(strip);
        objects.told(all(&[("a", 1), ("b", 2), ("c", 3)], 3));
        objects.written(&Arc::new(node("c", 20)));
        objects.will_list();
        objects.written(&Arc::new(node("a", 12)));
        objects.written(&Arc::new(node("d", 13)));
        // The API server has an older store than it had: what was written before is lost.
        objects.told(all(&[("a", 1), ("b", 4), ("c", 3)], 5));
        assert_eq!(there(&objects), ["a12", "b4", "c3", "d13"]);
    }
}
