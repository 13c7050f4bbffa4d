//! Cleanup tasks of this node: those that others leave because a pod is gone, and lost storage,
//! which another node was given.

use super::Agent;
use super::fault::Fault;
use super::force::Subject;
use super::holding::Released;
use super::journal::{Entry, Phase};
use crate::fence::decide::{Cause, Reply, Task};
use crate::fence::progress::Phase as Progressing;
use crate::fence::request::{Left, Request};
use crate::fence::store::StoreError;
use std::sync::Arc;
use std::time::Instant;

impl Agent {
    /// Registers for tasks: when some may have arrived, marks them for a query and calls `wake`.
    /// Also calls `wake` when a forced unmount makes progress.
    pub(super) fn be_told_of_tasks(self: &Arc<Self>, wake: impl Fn() + Send + Sync + 'static) {
        let (agent, wake) = (Arc::downgrade(self), Arc::new(wake));
        let tell = Arc::clone(&wake);
        let came = move || {
            if let Some(agent) = agent.upgrade() {
                agent.tasks_came();
                wake();
            }
        };
        let came: Arc<dyn Fn() + Send + Sync> = Arc::new(came);
        self.store.hear_of_tasks(&self.node, came);
        self.force.tell(tell);
    }

    /// Notes that tasks may have arrived, or that the store was unreachable. The author of a task
    /// may also have declared this node off, so the store is asked again whether the node may hold
    /// storage.
    pub(super) fn tasks_came(&self) {
        let mut state = self.state();
        (state.came, state.admitted) = (true, false);
    }

    /// Reports whether a cleanup is pending that was not possible yet.
    pub(super) fn has_tasks(&self) -> bool {
        !self.state().tasks.is_empty() || self.lost().iter().any(|entry| entry.taken)
    }

    /// Returns the holds that were mounted here when their record no longer had this node.
    pub(super) fn lost(&self) -> Vec<Entry> {
        self.journal.all().into_iter().filter(|entry| entry.phase == Phase::Lost).collect()
    }

    /// Unmounts lost storage that others were given. They may write already, no other process
    /// unmounts it, and nothing new is mounted here before. Storage that only lacks its record
    /// stays mounted: otherwise removing all records of a cluster would unmount all its volumes.
    pub(super) fn undo_lost(&self) -> Result<(), StoreError> {
        for entry in self.lost().into_iter().filter(|entry| entry.taken) {
            let Ok(_turn) = self.turns.take(&entry.id, Instant::now()) else { continue };
            if self.journal.get(&entry.id).as_ref() == Some(&entry) && !self.is_over(&entry)? {
                self.force.advance(&Subject::of(&entry));
            }
        }
        Ok(())
    }

    pub(super) fn hear_of_tasks(&self, deadline: Instant) -> Result<(), Fault> {
        if !std::mem::take(&mut self.state().came) {
            return Ok(());
        }
        self.find_tasks(deadline).map_err(|error| {
            self.state().came = true;
            self.unreachable(&error)
        })
    }

    pub(super) fn find_tasks(&self, deadline: Instant) -> Result<(), StoreError> {
        let tasks = self.store.tasks(&self.node, deadline)?;
        self.state().tasks = tasks;
        Ok(())
    }

    /// Tries all tasks, and removes those that are done.
    pub(super) fn do_tasks(&self, deadline: Instant) -> Result<(), StoreError> {
        let tasks = std::mem::take(&mut self.state().tasks);
        let lost = self.lost();
        let forced = tasks.iter().filter(|task| task.reason == Cause::Forced).map(id_of);
        self.force.keep(&forced.chain(lost.iter().map(|entry| &*entry.id)).collect());
        let mut left = Vec::new();
        let mut done = Ok(());
        for task in tasks {
            let ended = if done.is_ok() { self.try_task(&task, deadline) } else { Ok(false) };
            if matches!(ended, Ok(true)) {
                tracing::info!(target = task.holder.target, reason = task.reason.name(), "cleaned up");
            } else {
                left.push(task);
            }
            done = done.and(ended.map(drop));
        }
        self.state().tasks.extend(left);
        done
    }

    fn try_task(&self, task: &Task, deadline: Instant) -> Result<bool, StoreError> {
        let done = self.is_done(task, deadline)?;
        if done {
            if task.reason == Cause::Forced {
                self.say(task, Progressing::Done, "");
                self.force.forget(id_of(task));
            }
            self.store.finish(task)?;
        }
        Ok(done)
    }

    fn is_done(&self, task: &Task, deadline: Instant) -> Result<bool, StoreError> {
        let holder = &task.holder;
        let Ok(_turn) = self.turns.take(&holder.id, Instant::now()) else { return Ok(false) };
        let Some(entry) = self.journal.get(&holder.id) else { return Ok(true) };
        // The task is about an earlier boot, or about a hold that was taken from this node before.
        if holder.node.boot != self.node.boot || entry.boot != self.node.boot || entry.epoch > holder.epoch {
            return Ok(true);
        }
        match (task.reason, entry.phase) {
            (Cause::Forced, _) => self.detach(task, &entry, deadline),
            (_, Phase::Lost) => self.is_over(&entry),
            (Cause::NodeLost, _) => {
                self.confirm(entry, deadline).map_err(failed)?;
                let entry = self.journal.get(&holder.id);
                entry
                    .filter(|entry| entry.phase == Phase::Lost)
                    .map_or(Ok(true), |entry| self.is_over(&entry))
            }
            (Cause::PodGone | Cause::StillAttached, _) => self.clean_up(&entry, deadline),
        }
    }

    /// Unmounts by force, and releases once nothing is left. The caller must have the holder's
    /// turn. The unmount itself does not need the turn: its driver calls `release` separately.
    fn detach(&self, task: &Task, entry: &Entry, deadline: Instant) -> Result<bool, StoreError> {
        if self.force.advance(&Subject::of(entry)) {
            self.say(task, Progressing::Running, "");
            return Ok(false);
        }
        let pod = format!("{}/{}", entry.namespace, entry.pod);
        let why = match self.look.left(entry) {
            Left::Nothing if entry.phase == Phase::Lost => return self.is_over(entry),
            // A mount call may still be under way.
            Left::Nothing if !self.force.is_unmounted(&entry.id) && !entry.is_old() => {
                "nothing is mounted, and its driver does not say so: it is released in five minutes"
                    .to_owned()
            }
            Left::Nothing => match self.finish(entry, deadline) {
                Released::Later => "it is unmounted, and the locks do not answer".to_owned(),
                Released::Now | Released::Nothing => return Ok(true),
            },
            Left::Attached => format!("it is unmounted, and its device is in use: delete pod {pod}"),
            Left::Mounted => format!("it is still mounted: delete pod {pod}"),
        };
        self.say(task, Progressing::Stuck, &why);
        Ok(false)
    }

    /// Reports the progress to the store, where the author of the task reads it.
    fn say(&self, task: &Task, phase: Progressing, left: &str) {
        let id = id_of(task);
        let Some(progress) = self.force.news(id, phase, left) else { return };
        if let Err(error) = self.store.report(task, &progress) {
            self.force.unsaid(id);
            tracing::warn!(target = task.holder.target, reason = %error, "how far it is could not be told");
        }
    }

    /// Reports whether nothing of a lost hold is mounted any more. If so, forgets the hold.
    fn is_over(&self, entry: &Entry) -> Result<bool, StoreError> {
        let over = self.look.left(entry) == Left::Nothing;
        if over {
            self.journal.forget(&entry.id).map_err(|error| StoreError::Failed(format!("{error:#}")))?;
        }
        Ok(over)
    }

    /// Changes the record once kubelet has removed everything that the pod had here.
    fn clean_up(&self, entry: &Entry, deadline: Instant) -> Result<bool, StoreError> {
        let left = self.look.left(entry);
        if left != Left::Nothing || !self.look.is_pod_gone(&entry.target) {
            return Ok(false);
        }
        let request = Request::CleanUp { id: entry.id.clone(), epoch: entry.epoch, left };
        match self.settle(&entry.handle, &request, deadline)?.reply {
            Reply::Done => {
                self.journal.forget(&entry.id).map_err(|error| StoreError::Failed(format!("{error:#}")))?;
                Ok(true)
            }
            reply => Ok(reply == Reply::Obsolete),
        }
    }
}

fn id_of(task: &Task) -> &str {
    &task.holder.id
}

fn failed(fault: Fault) -> StoreError {
    StoreError::Failed(fault.message)
}
