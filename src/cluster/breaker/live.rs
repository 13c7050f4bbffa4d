//! Locks, nodes and pods as last reported by the API server, and the locks that a change affects.

use super::kinds::{Lock, Node, Pod};
use super::review::Cluster;
use super::seen::{SeenNode, SeenPod};
use crate::controllers::queue::Queue;
use crate::controllers::watches::{Change, Listener, Objects, Watchable, version};
use crate::fence::record;
use crate::fence::store::StoreError;
use kube::{Client, ResourceExt as _};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use tokio::sync::Notify;

/// Locks to review, by the namespace and name of the object.
pub(super) type Keys = Queue<String>;

/// Known objects.
pub(super) struct Live {
    pub(super) locks: Arc<Objects<Lock>>,
    nodes: Arc<Objects<Node>>,
    pods: Arc<Objects<Pod>>,
    /// Locks by the node that they name, and by the pod that they name.
    named: Mutex<[HashMap<String, HashSet<String>>; 2]>,
    /// Notifies about a node that has disappeared.
    pub(super) gone: Notify,
}

impl Cluster for Live {
    fn node(&self, name: &str, _: Instant) -> Result<Option<SeenNode>, StoreError> {
        Ok(self.nodes.get(name).map(|node| node.seen()))
    }

    fn pod(&self, pod: &record::Pod, _: Instant) -> Result<Option<SeenPod>, StoreError> {
        Ok(self.pods.get_in(&pod.namespace, &pod.name).map(|pod| pod.seen()))
    }
}

/// Listeners, which are called for as long as this is kept.
#[expect(dead_code, reason = "it is kept, and not read")]
pub(super) struct Listening(Listener<Lock>, Listener<Node>, Listener<Pod>);

impl Live {
    /// Watches all these objects and waits until they are known.
    pub(super) async fn begin(client: &Client, namespace: &str) -> Arc<Self> {
        let live = Self {
            locks: Objects::new(Lock::strip),
            nodes: Objects::new(Node::strip),
            pods: Objects::new(Pod::strip),
            named: Mutex::default(),
            gone: Notify::new(),
        };
        live.locks.begin_in(client, namespace);
        live.nodes.begin(client);
        live.pods.begin(client);
        tokio::join!(live.locks.known(), live.nodes.known(), live.pods.known());
        Arc::new(live)
    }

    /// Queues each lock that a change may affect, from now on; first queues all of them.
    pub(super) fn listen(self: &Arc<Self>, queue: &Arc<Keys>) -> Listening {
        let (live, keys) = (Arc::clone(self), Arc::clone(queue));
        let locks: Listener<Lock> = Arc::new(move |change| live.lock_changed(change, &keys));
        let (live, keys) = (Arc::clone(self), Arc::clone(queue));
        let nodes: Listener<Node> = Arc::new(move |change| live.node_changed(change, &keys));
        let (live, keys) = (Arc::clone(self), Arc::clone(queue));
        let pods: Listener<Pod> = Arc::new(move |change| live.pod_changed(change, &keys));
        self.locks.listen(&locks);
        self.nodes.listen(&nodes);
        self.pods.listen(&pods);
        Listening(locks, nodes, pods)
    }

    fn lock_changed(&self, change: &Change<Lock>, queue: &Keys) {
        let mut index = self.named();
        for (lock, is_now) in [(&change.before, false), (&change.now, true)] {
            let Some(lock) = lock else { continue };
            let key = key(&**lock);
            for holder in lock.spec.iter().flat_map(|record| &record.holders) {
                let names = [holder.node.name.clone(), name_of(&holder.pod)];
                for (of, name) in index.iter_mut().zip(names) {
                    note(of, name, &key, is_now);
                }
            }
        }
        drop(index);
        if let Some(lock) = &change.now {
            queue.add_seen_by(key(&**lock), version(&**lock));
        }
    }

    fn node_changed(&self, change: &Change<Node>, queue: &Keys) {
        let seen = |node: &Option<Arc<Node>>| node.as_ref().map(|node| node.seen());
        let (before, now) = (seen(&change.before), seen(&change.now));
        if before == now {
            return;
        }
        if before.is_some_and(|before| now.is_none_or(|now| now.uid != before.uid)) {
            self.gone.notify_one();
        }
        self.queue(0, &change.latest().map(|node| node.name_any()).unwrap_or_default(), queue);
    }

    fn pod_changed(&self, change: &Change<Pod>, queue: &Keys) {
        let seen = |pod: &Option<Arc<Pod>>| pod.as_ref().map(|pod| pod.seen());
        if seen(&change.before) != seen(&change.now) {
            self.queue(1, &change.latest().map(|pod| key(&**pod)).unwrap_or_default(), queue);
        }
    }

    fn queue(&self, of: usize, name: &str, queue: &Keys) {
        for key in self.named()[of].get(name).into_iter().flatten() {
            queue.add(key.clone());
        }
    }

    /// Reports whether a lock names this node.
    pub(super) fn holds(&self, node: &str) -> bool {
        self.named()[0].contains_key(node)
    }

    fn named(&self) -> MutexGuard<'_, [HashMap<String, HashSet<String>>; 2]> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn note(named: &mut HashMap<String, HashSet<String>>, name: String, key: &str, is_now: bool) {
    if is_now {
        named.entry(name).or_default().insert(key.to_owned());
    } else if let Some(keys) = named.get_mut(&name) {
        keys.remove(key);
        if keys.is_empty() {
            named.remove(&name);
        }
    }
}

fn name_of(pod: &record::Pod) -> String {
    format!("{}/{}", pod.namespace, pod.name)
}

/// Returns the key of an object in a namespace.
pub(super) fn key<K: Watchable>(object: &K) -> String {
    format!("{}/{}", object.meta().namespace.as_deref().unwrap_or_default(), object.name_any())
}
