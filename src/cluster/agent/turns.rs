//! Locks that allow one operation at a time for each holder.

use super::fault::{Code, Fault};
use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Turns of all holders.
#[derive(Debug, Default)]
pub struct Turns {
    taken: Mutex<BTreeSet<String>>,
    ended: Condvar,
}

impl Turns {
    /// Waits until no other operation has the turn of this holder, and takes it.
    pub fn take<'a>(&'a self, id: &str, deadline: Instant) -> Result<Turn<'a>, Fault> {
        let mut taken = self.taken();
        while taken.contains(id) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let text = "another call for the same volume is under way: kubelet tries again";
                return Err(Fault::new(Code::InProgress, text));
            }
            taken = self.ended.wait_timeout(taken, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        taken.insert(id.to_owned());
        Ok(Turn { turns: self, id: id.to_owned() })
    }

    fn taken(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Turn of one holder. It ends when it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a Turns,
    id: String,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.taken().remove(&self.id);
        self.turns.ended.notify_all();
    }
}
