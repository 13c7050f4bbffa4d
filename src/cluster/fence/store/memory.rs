//! Records in memory, for tests: versions as in an API server, and all of its faults.

use super::{Ending, Read, RecordStore, Result, StoreError};
use crate::fence::decide::Task;
use crate::fence::progress::Progress;
use crate::fence::record::{Node, Record};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Fault of the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No fault.
    None,
    /// The call is done, but its answer is lost.
    LostReply,
    /// The call never arrives, and has no answer.
    LostRequest,
    /// The server refuses the call.
    Unavailable,
}

/// Function that chooses the fault of each access, by its name.
type Faults = Box<dyn FnMut(&'static str) -> Fault + Send>;

#[derive(Default)]
struct Kept {
    records: BTreeMap<String, (Record, u64)>,
    tasks: Vec<Task>,
    /// Reported progress, with the names of the tasks.
    reports: Vec<(String, Progress)>,
    version: u64,
    ending: Ending,
}

/// Store that several agents of one test share.
#[derive(Default)]
pub(crate) struct MemoryStore {
    kept: Mutex<Kept>,
    faults: Mutex<Option<Faults>>,
    /// Reason why no node may hold storage; `None` if all may.
    pub(crate) refuses: Mutex<Option<String>>,
}

impl MemoryStore {
    pub(crate) fn with_faults(faults: impl FnMut(&'static str) -> Fault + Send + 'static) -> Self {
        let store = Self::default();
        *store.faults.lock().unwrap() = Some(Box::new(faults));
        store
    }

    fn access<T>(&self, name: &'static str, work: impl FnOnce(&mut Kept) -> Result<T>) -> Result<T> {
        let fault = self.faults.lock().unwrap().as_mut().map_or(Fault::None, |faults| faults(name));
        match fault {
            Fault::Unavailable => return Err(StoreError::Failed("503".to_owned())),
            Fault::LostRequest => return Err(StoreError::Unsure("timed out".to_owned())),
            Fault::None | Fault::LostReply => (),
        }
        let done = work(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        if fault == Fault::LostReply { Err(StoreError::Unsure("timed out".to_owned())) } else { done }
    }

    /// Marks all records as deleted. They stay while they have holders.
    pub(crate) fn end(&self, ending: Ending) {
        self.kept.lock().unwrap().ending = ending;
    }

    /// Returns the last reported progress of a task with this name.
    pub(crate) fn reported(&self, name: &str) -> Option<Progress> {
        let kept = self.kept.lock().unwrap();
        kept.reports.iter().rfind(|(of, _)| of == name).map(|(_, progress)| progress.clone())
    }

    pub(crate) fn record(&self, handle: &str) -> Option<Record> {
        self.kept.lock().unwrap().records.get(handle).map(|(record, _)| record.clone())
    }
}

impl RecordStore for MemoryStore {
    fn read(&self, handle: &str, _: Instant) -> Result<Read> {
        self.access("read", |kept| {
            let found = kept.records.get(handle);
            let version = found.map(|(_, version)| version.to_string()).unwrap_or_default();
            Ok(Read { record: found.map(|(record, _)| record.clone()), version, ending: kept.ending })
        })
    }

    fn write(&self, handle: &str, read: &Read, next: Option<&Record>, _: Instant) -> Result<()> {
        self.access("write", |kept| {
            let now = kept.records.get(handle).map(|(_, version)| version.to_string()).unwrap_or_default();
            if now != read.version {
                return Err(StoreError::Conflict);
            }
            kept.version += 1;
            match next {
                Some(next) => kept.records.insert(handle.to_owned(), (next.clone(), kept.version)),
                None => kept.records.remove(handle),
            };
            Ok(())
        })
    }

    fn list(&self) -> Result<Vec<Record>> {
        self.access("list", |kept| Ok(kept.records.values().map(|(record, _)| record.clone()).collect()))
    }

    fn note(&self, task: &Task, _: Instant) -> Result<()> {
        self.access("note", |kept| {
            if !kept.tasks.contains(task) {
                kept.tasks.push(task.clone());
            }
            Ok(())
        })
    }

    fn tasks(&self, node: &Node, _: Instant) -> Result<Vec<Task>> {
        self.access("tasks", |kept| {
            let of_node = |task: &&Task| task.holder.node.is_same(node);
            Ok(kept.tasks.iter().filter(of_node).cloned().collect())
        })
    }

    fn all_tasks(&self, _: Instant) -> Result<Vec<Task>> {
        self.access("all_tasks", |kept| Ok(kept.tasks.clone()))
    }

    fn admits(&self, _: &Node, _: Instant) -> Result<()> {
        self.refuses.lock().unwrap().clone().map_or(Ok(()), |why| Err(StoreError::Failed(why)))
    }

    fn report(&self, task: &Task, progress: &Progress) -> Result<()> {
        self.access("report", |kept| {
            kept.reports.push((task.name(), progress.clone()));
            Ok(())
        })
    }

    fn finish(&self, task: &Task) -> Result<()> {
        self.access("finish", |kept| {
            kept.tasks.retain(|known| known != task);
            Ok(())
        })
    }
}

/// One store for several agents and controllers.
impl RecordStore for Arc<MemoryStore> {
    fn read(&self, handle: &str, deadline: Instant) -> Result<Read> {
        (**self).read(handle, deadline)
    }

    fn write(&self, handle: &str, read: &Read, next: Option<&Record>, deadline: Instant) -> Result<()> {
        (**self).write(handle, read, next, deadline)
    }

    fn list(&self) -> Result<Vec<Record>> {
        (**self).list()
    }

    fn note(&self, task: &Task, deadline: Instant) -> Result<()> {
        (**self).note(task, deadline)
    }

    fn tasks(&self, node: &Node, deadline: Instant) -> Result<Vec<Task>> {
        (**self).tasks(node, deadline)
    }

    fn all_tasks(&self, deadline: Instant) -> Result<Vec<Task>> {
        (**self).all_tasks(deadline)
    }

    fn admits(&self, node: &Node, deadline: Instant) -> Result<()> {
        (**self).admits(node, deadline)
    }

    fn report(&self, task: &Task, progress: &Progress) -> Result<()> {
        (**self).report(task, progress)
    }

    fn finish(&self, task: &Task) -> Result<()> {
        (**self).finish(task)
    }
}
