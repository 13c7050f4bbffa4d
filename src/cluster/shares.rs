//! Places for work that may hang: a fixed number of common places, and one own place for each
//! caller. Requests of other callers, however many, never keep a caller waiting.
//!
//! A caller without work in progress begins at once, in its own place. Its further requests wait,
//! in the order of their arrival, for a common place or until its own place is free again. So the
//! work in progress never exceeds the number of common places plus the number of callers.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot::{self, Sender};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for one kind of work.
#[derive(Debug)]
pub(crate) struct Shares {
    common: Arc<Semaphore>,
    /// Callers whose own place is taken, each with the requests that wait for it.
    own: Mutex<HashMap<String, VecDeque<Sender<Own>>>>,
}

/// Place that is held until it is dropped.
#[derive(Debug)]
#[expect(dead_code, reason = "what is in it is kept, and not read")]
pub(crate) enum Place {
    /// Own place of the caller.
    Own(Own),
    /// Common place.
    Common(OwnedSemaphorePermit),
}

/// Own place of one caller.
#[derive(Debug)]
pub(crate) struct Own {
    shares: Arc<Shares>,
    /// Caller; `None` if the place was passed on.
    who: Option<String>,
}

impl Shares {
    /// Creates the places; `common` is the number of common ones.
    pub(crate) fn new(common: usize) -> Arc<Self> {
        Arc::new(Self { common: Arc::new(Semaphore::new(common)), own: Mutex::default() })
    }

    /// Waits for a place.
    pub(crate) async fn enter(self: &Arc<Self>, who: &str) -> Place {
        let free = match self.own().entry(who.to_owned()) {
            Entry::Vacant(place) => {
                place.insert(VecDeque::new());
                None
            }
            Entry::Occupied(mut place) => {
                let (send, free) = oneshot::channel();
                place.get_mut().push_back(send);
                Some(free)
            }
        };
        let Some(free) = free else {
            return Place::Own(Own { shares: Arc::clone(self), who: Some(who.to_owned()) });
        };
        tokio::select! {
            biased;
            Ok(own) = free => Place::Own(own),
            Ok(permit) = Arc::clone(&self.common).acquire_owned() => Place::Common(permit),
        }
    }

    fn own(&self) -> MutexGuard<'_, HashMap<String, VecDeque<Sender<Own>>>> {
        self.own.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next request that waits for the place; frees the place if there is no such
    /// request.
    fn next(&self, who: &str) -> Option<Sender<Own>> {
        let mut own = self.own();
        let next = own.get_mut(who)?.pop_front();
        if next.is_none() {
            own.remove(who);
        }
        next
    }
}

impl Drop for Own {
    /// Passes the place on. Skips requests that have got another place, or were cancelled,
    /// meanwhile.
    fn drop(&mut self) {
        let Some(mut who) = self.who.take() else { return };
        while let Some(next) = self.shares.next(&who) {
            match next.send(Self { shares: Arc::clone(&self.shares), who: Some(who) }) {
                Ok(()) => return,
                Err(mut back) => who = back.who.take().unwrap_or_default(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    async fn at_once(shares: &Arc<Shares>, who: &str) -> Option<Place> {
        timeout(Duration::from_secs(1), shares.enter(who)).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_crowd_of_another_s() {
        let shares = Shares::new(2);
        let mut crowd = Vec::new();
        for _ in 0..3 {
            crowd.push(at_once(&shares, "crowd").await.unwrap());
        }
        assert!(at_once(&shares, "crowd").await.is_none());
        let others: Vec<_> = [at_once(&shares, "a").await, at_once(&shares, "b").await].into();
        assert!(others.iter().all(|place| matches!(place, Some(Place::Own(_)))));
        assert!(at_once(&shares, "a").await.is_none());
        drop(crowd.pop());
        assert!(matches!(at_once(&shares, "a").await, Some(Place::Common(_))));
    }

    /// The first free place counts, also after a waiting request was cancelled.
    #[tokio::test(start_paused = true)]
    async fn who_waits_has_its_own_place_or_a_common_one() {
        let shares = Shares::new(1);
        let (own, common) = (at_once(&shares, "a").await.unwrap(), at_once(&shares, "a").await.unwrap());
        assert!(at_once(&shares, "a").await.is_none());
        let waiting = tokio::spawn({
            let shares = Arc::clone(&shares);
            async move { shares.enter("a").await }
        });
        tokio::task::yield_now().await;
        drop(own);
        let own = waiting.await.unwrap();
        assert!(matches!(own, Place::Own(_)));
        drop(common);
        let common = at_once(&shares, "a").await.unwrap();
        assert!(matches!(common, Place::Common(_)));
        drop((own, common));
        assert!(shares.own().is_empty() && shares.common.available_permits() == 1);
    }

    /// The place is passed on at the moment at which the waiting request is cancelled.
    #[tokio::test(start_paused = true)]
    async fn no_place_is_lost() {
        let shares = Shares::new(0);
        let own = at_once(&shares, "a").await.unwrap();
        let mut waiting = Box::pin(shares.enter("a"));
        assert!(timeout(Duration::from_secs(1), &mut waiting).await.is_err());
        drop(own);
        drop(waiting);
        assert!(shares.own().is_empty());
        assert!(at_once(&shares, "a").await.is_some());
    }
}
