//! Work by key, as Kubernetes' controllers queue it.
//!
//! A key is in the queue once, however often it is added, and is with one worker at a time: what is
//! added meanwhile comes again when that worker is done. What failed comes again after a delay that
//! doubles; a change of the object comes at once. So the queue is never longer than there are
//! objects.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// After the first failure, as upstream's sidecars have it.
const FIRST: Duration = Duration::from_secs(1);

/// After many.
const LAST: Duration = Duration::from_mins(5);

/// What became of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is nothing to do until it is added again.
    Done,
    /// It failed: it comes again, later each time.
    Failed,
    /// It failed, and would as long as nothing changes: it comes again after the longest time.
    Refused,
}

/// Where a key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ready,
    Later(Instant),
    Running { again: bool },
}

#[derive(Debug)]
struct State<K> {
    places: HashMap<K, Place>,
    ready: VecDeque<K>,
    later: BTreeSet<(Instant, K)>,
    failures: HashMap<K, u32>,
}

/// The queue.
#[derive(Debug)]
pub struct Queue<K> {
    state: Mutex<State<K>>,
    changed: Notify,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        let (places, failures) = (HashMap::new(), HashMap::new());
        let state = State { places, ready: VecDeque::new(), later: BTreeSet::new(), failures };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }
}

impl<K: Clone + Eq + Hash + Ord> Queue<K> {
    fn state(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a key, which is ready at once.
    pub fn add(&self, key: K) {
        self.state().add(key);
        self.changed.notify_one();
    }

    /// The next key; it is to be given back with [`Self::finish`]. May be dropped while it waits.
    pub async fn next(&self) -> K {
        loop {
            let due = match self.state().take(Instant::now()) {
                Ok(key) => return key,
                Err(due) => due,
            };
            tokio::select! {
                () = self.changed.notified() => (),
                () = until(due) => (),
            }
        }
    }

    /// Gives a key back.
    pub fn finish(&self, key: K, outcome: Outcome) {
        self.state().finish(key, outcome, Instant::now());
        self.changed.notify_one();
    }

    /// How many keys wait or are worked on.
    pub fn len(&self) -> usize {
        self.state().places.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

impl<K: Clone + Eq + Hash + Ord> State<K> {
    fn add(&mut self, key: K) {
        match self.places.get(&key).copied() {
            Some(Place::Ready) => return,
            Some(Place::Running { .. }) => {
                self.places.insert(key, Place::Running { again: true });
                return;
            }
            Some(Place::Later(due)) => drop(self.later.remove(&(due, key.clone()))),
            None => (),
        }
        self.make_ready(key);
    }

    fn make_ready(&mut self, key: K) {
        self.places.insert(key.clone(), Place::Ready);
        self.ready.push_back(key);
    }

    /// The next key, or when there is one.
    fn take(&mut self, now: Instant) -> Result<K, Option<Instant>> {
        while let Some((due, key)) = self.later.first().cloned().filter(|(due, _)| *due <= now) {
            self.later.remove(&(due, key.clone()));
            self.make_ready(key);
        }
        let Some(key) = self.ready.pop_front() else {
            return Err(self.later.first().map(|(due, _)| *due));
        };
        self.places.insert(key.clone(), Place::Running { again: false });
        Ok(key)
    }

    fn finish(&mut self, key: K, outcome: Outcome, now: Instant) {
        let again = self.places.remove(&key) == Some(Place::Running { again: true });
        let delay = match outcome {
            Outcome::Done => {
                self.failures.remove(&key);
                None
            }
            _ if again => None,
            Outcome::Failed => Some(self.delay(&key)),
            Outcome::Refused => Some(LAST),
        };
        if let Some(delay) = delay {
            let due = now + delay;
            self.places.insert(key.clone(), Place::Later(due));
            self.later.insert((due, key));
        } else if again {
            self.make_ready(key);
        }
    }

    fn delay(&mut self, key: &K) -> Duration {
        let failures = self.failures.entry(key.clone()).or_default();
        let delay = FIRST.saturating_mul(2_u32.saturating_pow(*failures)).min(LAST);
        *failures = failures.saturating_add(1);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> Queue<&'static str> {
        Queue::default()
    }

    /// What is ready, without waiting.
    async fn ready(queue: &Queue<&'static str>) -> Option<&'static str> {
        tokio::time::timeout(Duration::ZERO, queue.next()).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_is_there_once() {
        let queue = queue();
        queue.add("a");
        queue.add("a");
        queue.add("b");
        assert_eq!((queue.next().await, queue.next().await), ("a", "b"));
        assert_eq!(ready(&queue).await, None);
        queue.finish("a", Outcome::Done);
        queue.finish("b", Outcome::Done);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_worker_has_a_key() {
        let queue = queue();
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        assert_eq!(ready(&queue).await, None);
        queue.finish("a", Outcome::Done);
        assert_eq!(ready(&queue).await, Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn each_failure_is_later() {
        let queue = queue();
        queue.add("a");
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            let key = queue.next().await;
            let failed = Instant::now();
            queue.finish(key, Outcome::Failed);
            let key = queue.next().await;
            assert_eq!(failed.elapsed().as_secs(), seconds);
            queue.finish(key, Outcome::Failed);
            queue.add(key);
            // It comes at once for a change, and is not forgiven.
            let key = queue.next().await;
            queue.state().failures.entry(key).and_modify(|failures| *failures -= 1);
            queue.finish(key, Outcome::Failed);
            queue.state().failures.entry(key).and_modify(|failures| *failures -= 1);
            queue.add(key);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_waits_long_and_comes_for_a_change() {
        let queue = queue();
        queue.add("a");
        let key = queue.next().await;
        queue.finish(key, Outcome::Refused);
        let refused = Instant::now();
        let key = queue.next().await;
        assert_eq!(refused.elapsed(), LAST);
        queue.finish(key, Outcome::Refused);
        queue.add("a");
        assert_eq!(ready(&queue).await, Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn success_is_a_new_start() {
        let queue = queue();
        queue.add("a");
        for outcome in [Outcome::Failed, Outcome::Failed, Outcome::Done] {
            let key = queue.next().await;
            queue.finish(key, outcome);
        }
        queue.add("a");
        let key = queue.next().await;
        queue.finish(key, Outcome::Failed);
        let failed = Instant::now();
        assert_eq!(queue.next().await, "a");
        assert_eq!(failed.elapsed(), FIRST);
    }
}
