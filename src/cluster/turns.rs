//! Limit for work that begins at the same time. Work that takes long gives its turn back before it
//! ends, so that others begin.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// Turns, in the order of the requests for them.
#[derive(Clone, Debug)]
pub struct Turns {
    free: Arc<Semaphore>,
    longest: Duration,
}

/// One turn.
#[derive(Debug)]
pub struct Turn {
    turn: Option<OwnedSemaphorePermit>,
    longest: Duration,
}

impl Turns {
    /// Creates a limit of `at_once` turns, each of which ends after `longest`.
    pub fn new(at_once: usize, longest: Duration) -> Self {
        Self { free: Arc::new(Semaphore::new(at_once)), longest }
    }

    /// Waits for a turn.
    pub async fn take(&self) -> Turn {
        // The semaphore is never closed.
        let turn = Arc::clone(&self.free).acquire_owned().await.ok();
        Turn { turn, longest: self.longest }
    }
}

impl Turn {
    /// Does the work to its end, and ends the turn with it or after the longest time.
    pub async fn run<T>(self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        if let Ok(done) = timeout(self.longest, work.as_mut()).await {
            return done;
        }
        drop(self.turn);
        work.await
    }
}
