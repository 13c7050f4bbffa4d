//! Work queue by key, as in Kubernetes' controllers.
//!
//! A key is in the queue once, however often it is added, and one worker handles it at a time. A
//! key that is added meanwhile comes again when that worker is done, unless the worker has seen the
//! change. A failed key comes again after a delay that doubles; after a change of its object it
//! comes at once. So the queue is never longer than there are objects.

use flexvol_protocol::backoff;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

/// Delay after the first failure, as in upstream's sidecars.
const FIRST: Duration = Duration::from_secs(1);

/// Longest delay after failures.
const LAST: Duration = Duration::from_mins(5);

/// Version of an object: a number that only grows, across all objects of a kind.
pub type Version = u64;

/// Version for a change that no worker can have seen: of another object that a key waits for.
pub const UNSEEN: Version = Version::MAX;

/// Result of the work on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is nothing to do until it is added again.
    Done,
    /// It failed: retry with backoff.
    Failed,
    /// It failed, and will fail until something changes: retry after the longest delay.
    Refused,
}

/// State of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Ready,
    Later(Instant),
    /// A worker has it; `newest` is the newest version that was added meanwhile.
    Running {
        newest: Option<Version>,
    },
}

#[derive(Debug)]
struct State<K> {
    places: HashMap<K, Place>,
    ready: VecDeque<K>,
    later: BTreeSet<(Instant, K)>,
    failures: HashMap<K, u32>,
}

/// Work queue.
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
        self.add_seen_by(key, UNSEEN);
    }

    /// Adds a key for a change of its own object: a worker that has seen this version need not see
    /// it once more.
    pub fn add_seen_by(&self, key: K, version: Version) {
        self.state().add(key, version);
        self.changed.notify_one();
    }

    /// Waits for the next key; [`Self::finish`] gives it back. The future may be dropped.
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

    /// Gives a key back. The worker has seen its object up to the version `seen`, including what it
    /// has written itself.
    pub fn finish(&self, key: K, outcome: Outcome, seen: Version) {
        self.state().finish(key, outcome, seen, Instant::now());
        self.changed.notify_one();
    }

    /// Returns the number of keys that wait or are worked on.
    pub fn len(&self) -> usize {
        self.state().places.len()
    }

    /// Reports whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Limit for keys that are worked on at the same time where calls of the driver take turns: most of
/// them wait.
pub const MANY: usize = 4096;

/// Works on `at_once` keys of a queue at the same time, until it is dropped.
pub async fn work<K, W>(queue: Arc<Queue<K>>, at_once: usize, mut worker: impl FnMut(K) -> W)
where
    K: Clone + Debug + Eq + Hash + Ord + Send + Sync + 'static,
    W: Future<Output = (Outcome, Version)> + Send + 'static,
{
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            key = queue.next(), if running.len() < at_once => {
                let (queue, work) = (Arc::clone(&queue), worker(key.clone()));
                running.spawn(async move {
                    let (outcome, seen) = work.await;
                    queue.finish(key, outcome, seen);
                });
            }
            Some(_) = running.join_next() => (),
        }
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

impl<K: Clone + Eq + Hash + Ord> State<K> {
    fn add(&mut self, key: K, version: Version) {
        match self.places.get(&key).copied() {
            Some(Place::Ready) => return,
            Some(Place::Running { newest }) => {
                self.places.insert(key, Place::Running { newest: newest.max(Some(version)) });
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

    /// Takes the next key, or returns the time when one is due.
    fn take(&mut self, now: Instant) -> Result<K, Option<Instant>> {
        while let Some((due, key)) = self.later.first().cloned().filter(|(due, _)| *due <= now) {
            self.later.remove(&(due, key.clone()));
            self.make_ready(key);
        }
        let Some(key) = self.ready.pop_front() else {
            return Err(self.later.first().map(|(due, _)| *due));
        };
        self.places.insert(key.clone(), Place::Running { newest: None });
        Ok(key)
    }

    fn finish(&mut self, key: K, outcome: Outcome, seen: Version, now: Instant) {
        let place = self.places.remove(&key);
        let again = matches!(place, Some(Place::Running { newest: Some(newest) }) if newest > seen);
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
        let delay = backoff(FIRST, LAST, *failures);
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

    /// Returns the next key if one is ready, without waiting.
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
        queue.finish("a", Outcome::Done, 0);
        queue.finish("b", Outcome::Done, 0);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn one_worker_has_a_key() {
        let queue = queue();
        queue.add("a");
        assert_eq!(queue.next().await, "a");
        queue.add("a");
        assert_eq!(ready(&queue).await, None);
        queue.finish("a", Outcome::Done, 0);
        assert_eq!(ready(&queue).await, Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn each_failure_is_later() {
        let queue = queue();
        queue.add("a");
        for seconds in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            let key = queue.next().await;
            let failed = Instant::now();
            queue.finish(key, Outcome::Failed, 0);
            let key = queue.next().await;
            assert_eq!(failed.elapsed().as_secs(), seconds);
            queue.finish(key, Outcome::Failed, 0);
            queue.add(key);
            // A change brings it back at once, but its failures still count.
            let key = queue.next().await;
            queue.state().failures.entry(key).and_modify(|failures| *failures -= 1);
            queue.finish(key, Outcome::Failed, 0);
            queue.state().failures.entry(key).and_modify(|failures| *failures -= 1);
            queue.add(key);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_waits_long_and_comes_for_a_change() {
        let queue = queue();
        queue.add("a");
        let key = queue.next().await;
        queue.finish(key, Outcome::Refused, 0);
        let refused = Instant::now();
        let key = queue.next().await;
        assert_eq!(refused.elapsed(), LAST);
        queue.finish(key, Outcome::Refused, 0);
        queue.add("a");
        assert_eq!(ready(&queue).await, Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn success_is_a_new_start() {
        let queue = queue();
        queue.add("a");
        for outcome in [Outcome::Failed, Outcome::Failed, Outcome::Done] {
            let key = queue.next().await;
            queue.finish(key, outcome, 0);
        }
        queue.add("a");
        let key = queue.next().await;
        queue.finish(key, Outcome::Failed, 0);
        let failed = Instant::now();
        assert_eq!(queue.next().await, "a");
        assert_eq!(failed.elapsed(), FIRST);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_worker_has_seen_comes_no_more() {
        for (added, seen, comes) in [(7, 7, false), (7, 8, false), (8, 7, true), (UNSEEN, 9, true)] {
            for outcome in [Outcome::Done, Outcome::Failed] {
                let queue = queue();
                queue.add("a");
                queue.next().await;
                queue.add_seen_by("a", added);
                queue.add_seen_by("a", 1);
                queue.finish("a", outcome, seen);
                assert_eq!(ready(&queue).await.is_some(), comes, "{added} {seen} {outcome:?}");
            }
        }
    }

    /// Version that was last added, version that was last seen, and true while it is worked on.
    type Worked = (Version, Version, bool);

    /// Keys are added in many orders while others are worked on: each is worked on after it was
    /// last added, and never twice at the same time.
    #[tokio::test(start_paused = true)]
    async fn every_key_is_seen_after_it_was_added() {
        for seed in 0_u64..500 {
            let queue = Arc::new(Queue::<u64>::default());
            let state: Arc<Mutex<HashMap<u64, Worked>>> = Arc::default();
            let (working, of_workers) = (Arc::clone(&queue), Arc::clone(&state));
            let workers = tokio::spawn(work(working, 3, move |key| {
                let state = Arc::clone(&of_workers);
                async move {
                    let begun = {
                        let mut state = state.lock().unwrap();
                        let (added, _, running) = state.entry(key).or_default();
                        assert!(!std::mem::replace(running, true), "{key} twice");
                        *added
                    };
                    tokio::time::sleep(Duration::from_millis((key * 7 + begun) % 5)).await;
                    let mut state = state.lock().unwrap();
                    let (_, seen, running) = state.entry(key).or_default();
                    (*seen, *running) = (begun, false);
                    (if begun % 4 == 0 { Outcome::Failed } else { Outcome::Done }, begun)
                }
            }));
            let mut random = seed;
            for version in 1..=40 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let (key, pause) = ((random >> 33) % 4, (random >> 40) % 4);
                state.lock().unwrap().entry(key).or_default().0 = version;
                queue.add_seen_by(key, version);
                tokio::time::sleep(Duration::from_millis(pause)).await;
            }
            tokio::time::sleep(Duration::from_mins(10)).await;
            workers.abort();
            let state = state.lock().unwrap();
            assert!(
                state.values().all(|(added, seen, running)| added == seen && !running),
                "{seed}: {state:?}"
            );
        }
    }
}
