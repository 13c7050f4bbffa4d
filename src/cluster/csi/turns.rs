//! Limit for drivers that begin at the same time.
//!
//! Two hundred drivers that all compute on two processors disturb each other, and all of them are
//! late. So only a few have a turn at a time, in the order of their requests. A turn ends with the
//! call, and soon in any case: a driver that waits for a server, or hangs, needs no processor, and
//! must not block others. So a call waits at most until all before it have had a turn.

use crate::turns;
use std::time::Duration;
use tokio::task::{JoinError, spawn_blocking};

/// Limit for simultaneous turns, for each processor.
const PER_PROCESSOR: usize = 4;

/// Longest turn: several times the computing time of a driver.
const TURN: Duration = Duration::from_millis(25);

/// Turns of one driver.
#[derive(Debug)]
pub struct Turns(turns::Turns);

impl Default for Turns {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Self::new(processors * PER_PROCESSOR, TURN)
    }
}

impl Turns {
    fn new(at_once: usize, longest: Duration) -> Self {
        Self(turns::Turns::new(at_once, longest))
    }

    /// Waits for a turn, and does the work in a thread of its own. If the caller gives up earlier,
    /// the work is not started; once started it runs to its end.
    pub async fn run(&self, work: Box<dyn FnOnce() + Send>) -> Result<(), JoinError> {
        let turn = self.0.take().await;
        tokio::spawn(turn.run(spawn_blocking(work))).await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::deadline;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Barrier};

    fn block_on<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
    }

    #[test]
    fn no_more_than_a_few_have_a_turn() {
        let turns = Arc::new(Turns::new(2, deadline(600)));
        // The jobs go in pairs: two may have a turn together.
        let pair = Arc::new(Barrier::new(2));
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        block_on(async {
            let mut all = tokio::task::JoinSet::new();
            for _ in 0..20 {
                let (turns, now, most) = (Arc::clone(&turns), Arc::clone(&now), Arc::clone(&most));
                let pair = Arc::clone(&pair);
                all.spawn(async move {
                    let work = move || {
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        pair.wait();
                        now.fetch_sub(1, Ordering::SeqCst);
                    };
                    turns.run(Box::new(work)).await
                });
            }
            all.join_all().await
        });
        assert_eq!(most.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn one_that_hangs_ends_its_turn() {
        let turns = Arc::new(Turns::new(1, TURN));
        let (end, hung) = channel::<()>();
        block_on(async {
            let first = {
                let turns = Arc::clone(&turns);
                tokio::spawn(async move { turns.run(Box::new(move || hung.recv().unwrap())).await })
            };
            tokio::task::yield_now().await;
            turns.run(Box::new(|| {})).await.unwrap();
            assert!(!first.is_finished());
            end.send(()).unwrap();
            first.await.unwrap().unwrap();
        });
    }

    #[test]
    fn what_waits_and_is_not_waited_for_is_not_done() {
        let turns = Turns::new(0, TURN);
        let wait = Duration::from_millis(5);
        let waited =
            block_on(async { tokio::time::timeout(wait, turns.run(Box::new(|| panic!("done")))).await });
        assert!(waited.is_err());
    }
}
