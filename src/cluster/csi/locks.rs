//! Locks: one call at a time for a volume, and for a directory.
//!
//! A call that finds its volume busy fails at once (ABORTED): Kubernetes retries it. A lock is held
//! until the driver's process is gone, even if the call has ended for its caller.

use super::running::{Call, Files, Id, Note, Process, left_behind};
use anyhow::Result;
use flexvol_linux::proc::orphans;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tonic::Status;

/// Time that a driver's process may go on after its `flexvold` was killed.
const ALLOWED: Duration = Duration::from_secs(110);

/// Locks of one driver.
#[derive(Debug)]
pub struct Locks {
    notes: Arc<Files>,
    /// Name of this process, and the number of calls that it has begun.
    name: (String, AtomicU64),
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    held: BTreeSet<String>,
    stuck: Vec<Stuck>,
}

/// Process that holds its keys longer than the call for which it was started.
#[derive(Debug)]
struct Stuck {
    note: Option<PathBuf>,
    process: Process,
    /// Time after which it may be killed; `None` if it may not.
    until: Option<Instant>,
}

impl Locks {
    /// Opens the locks, with a directory for the notes of running processes. The keys of processes
    /// that an earlier `flexvold` has left stay locked.
    pub fn open(notes: PathBuf) -> Result<Arc<Self>> {
        let until = Some(Instant::now() + ALLOWED);
        let left = left_behind(&notes)?;
        let stuck: Vec<_> =
            left.into_iter().map(|(note, process)| Stuck { note: Some(note), process, until }).collect();
        let held = stuck.iter().flat_map(|each| each.process.keys.clone()).collect();
        let name = (orphans::own_name(), AtomicU64::new(0));
        Ok(Arc::new(Self { notes: Files::new(notes), name, state: Mutex::new(State { held, stuck }) }))
    }

    /// Locks all keys, or none.
    pub fn take(self: &Arc<Self>, keys: &[&str]) -> Result<Guard, Status> {
        let mut state = self.state();
        state.reap();
        if let Some(busy) = keys.iter().find(|key| state.held.contains(**key)) {
            return Err(Status::aborted(state.why(busy)));
        }
        let keys: Vec<_> = keys.iter().map(|&key| key.to_owned()).collect();
        state.held.extend(keys.iter().cloned());
        drop(state);
        Ok(Guard { locks: Arc::clone(self), keys, note: Mutex::new(None), left: Mutex::default() })
    }

    /// Returns the number of drivers' processes that outlive their call.
    pub fn stuck(&self) -> usize {
        let mut state = self.state();
        state.reap();
        state.stuck.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn reap(&mut self) {
        let now = Instant::now();
        let (gone, stuck) = std::mem::take(&mut self.stuck).into_iter().partition::<Vec<_>, _>(|each| {
            if each.until.is_some_and(|until| now > until) {
                each.process.kill();
            }
            each.process.is_gone()
        });
        self.stuck = stuck;
        for each in gone {
            let _ = each.note.as_ref().map(std::fs::remove_file);
            each.process.keys.iter().for_each(|key| self.release(key));
        }
    }

    /// Releases a key, unless a process still holds it.
    fn release(&mut self, key: &str) {
        if !self.stuck.iter().any(|each| each.process.keys.iter().any(|held| held == key)) {
            self.held.remove(key);
        }
    }

    fn why(&self, key: &str) -> String {
        let stuck = self.stuck.iter().find(|each| each.process.keys.iter().any(|held| held == key));
        stuck.map_or_else(
            || "another call for the same volume has not ended yet".to_owned(),
            |each| {
                let pid = each.process.id.pid;
                format!("process {pid} of an earlier call has not ended: the volume is locked until it has")
            },
        )
    }
}

/// Lock that is held until it is dropped, and until the processes started under it are gone.
#[derive(Debug)]
pub struct Guard {
    locks: Arc<Locks>,
    keys: Vec<String>,
    note: Mutex<Option<Arc<Note>>>,
    /// Leftover processes of drivers that could not be ended.
    left: Mutex<Vec<Id>>,
}

impl Guard {
    /// Makes the note for the next execution of the driver.
    pub fn note(&self) -> Arc<Note> {
        let (process, calls) = &self.locks.name;
        let name = format!("{process}-{}", calls.fetch_add(1, Ordering::Relaxed));
        let note = Arc::new(Note::new(Arc::clone(&self.locks.notes), Call { name, keys: self.keys.clone() }));
        *self.last() = Some(Arc::clone(&note));
        note
    }

    /// Returns the name of the last execution.
    pub fn last_call(&self) -> Option<String> {
        self.last().as_ref().map(|note| note.name().to_owned())
    }

    /// Keeps the lock for processes that could not be ended, and are not in the driver's group.
    pub fn keep_for(&self, left: impl IntoIterator<Item = Id>) {
        self.left().extend(left);
    }

    /// Reports whether the driver's process, or one that it has started, could not be ended.
    pub fn is_stuck(&self) -> bool {
        !self.left().is_empty() || self.last().as_ref().is_some_and(|note| note.left().is_some())
    }

    fn left(&self) -> MutexGuard<'_, Vec<Id>> {
        self.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn last(&self) -> MutexGuard<'_, Option<Arc<Note>>> {
        self.note.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let driver = self.last().take().and_then(|note| Some((note.path(), note.left()?)));
        let left = std::mem::take(&mut *self.left());
        let mut state = self.locks.state();
        let driver = driver.map(|(note, process)| Stuck { note, process, until: None });
        let others = left.into_iter().map(|id| Process { id, keys: self.keys.clone() });
        let others = others.map(|process| Stuck { note: None, process, until: None });
        state.stuck.extend(driver.into_iter().chain(others));
        self.keys.iter().for_each(|key| state.release(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flexvol_kubelet::Observer as _;
    use rustix::process::Pid;
    use tonic::Code;

    #[test]
    fn a_busy_volume_is_not_waited_for() {
        let state = tempfile::tempdir().unwrap();
        let locks = Locks::open(state.path().to_owned()).unwrap();
        let guard = locks.take(&["a", "b"]).unwrap();
        assert_eq!(locks.take(&["c", "b"]).unwrap_err().code(), Code::Aborted);
        assert!(locks.take(&["c"]).is_ok());
        drop(guard);
        assert!(locks.take(&["b", "c"]).is_ok());
    }

    #[test]
    fn a_process_that_lives_on_keeps_its_lock_even_over_a_restart() {
        let state = tempfile::tempdir().unwrap();
        let locks = Locks::open(state.path().to_owned()).unwrap();
        let guard = locks.take(&["a"]).unwrap();
        let mut child = sleeper(&guard.note());
        drop(guard);
        assert_eq!((locks.take(&["a"]).unwrap_err().code(), locks.stuck()), (Code::Aborted, 1));
        let later = Locks::open(state.path().to_owned()).unwrap();
        assert!(later.take(&["a"]).unwrap_err().message().contains(&child.id().to_string()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(later.take(&["a"]).is_ok() && locks.take(&["a"]).is_ok());
        assert_eq!(state.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn what_could_not_be_started_leaves_no_note() {
        let state = tempfile::tempdir().unwrap();
        let locks = Locks::open(state.path().to_owned()).unwrap();
        let guard = locks.take(&["a"]).unwrap();
        let mut command = command();
        guard.note().prepare(&mut command).unwrap();
        assert_eq!(said(state.path()).len(), 1);
        assert!(command.get_envs().any(|(name, _)| name == "FLEXVOL_CSI_CALL"));
        drop(guard);
        assert!(locks.take(&["a"]).is_ok() && said(state.path()).is_empty());
    }

    #[test]
    fn a_note_overwrites_one_that_is_over() {
        let state = tempfile::tempdir().unwrap();
        let locks = Locks::open(state.path().to_owned()).unwrap();
        for keys in [["long-and-longer", "and another"], ["b", "c"]] {
            let guard = locks.take(&keys).unwrap();
            let mut child = sleeper(&guard.note());
            let notes = said(state.path());
            assert_eq!(notes.len(), 1);
            assert_eq!(notes[0].0.keys, keys);
            assert_eq!(notes[0].1.unwrap().pid, i32::try_from(child.id()).unwrap());
            child.kill().unwrap();
            child.wait().unwrap();
            guard.last().as_ref().unwrap().ended(true).unwrap();
            // The process number in this file is that of the call before.
            let next = guard.note();
            next.prepare(&mut command()).unwrap();
            assert_eq!(said(state.path())[0].1, None);
        }
        assert!(said(state.path()).is_empty());
        assert!(
            left_behind(state.path()).unwrap().is_empty() && state.path().read_dir().unwrap().count() == 0
        );
    }

    #[test]
    fn few_files_are_kept() {
        let state = tempfile::tempdir().unwrap();
        let locks = Locks::open(state.path().to_owned()).unwrap();
        let keys: Vec<_> = (0..40).map(|number| number.to_string()).collect();
        let guards: Vec<_> = keys.iter().map(|key| locks.take(&[key]).unwrap()).collect();
        for guard in &guards {
            guard.note().prepare(&mut command()).unwrap();
        }
        assert_eq!(said(state.path()).len(), 40);
        drop(guards);
        assert_eq!(state.path().read_dir().unwrap().count(), 16);
    }

    /// Reads the notes in a directory.
    fn said(directory: &std::path::Path) -> Vec<(Call, Option<Id>)> {
        let files = directory.read_dir().unwrap().map(|file| file.unwrap().path());
        files
            .filter_map(|file| super::super::running::read(&std::fs::read_to_string(file).unwrap()))
            .collect()
    }

    fn sleeper(note: &Note) -> std::process::Child {
        let mut command = command();
        note.prepare(&mut command).unwrap();
        let child = command.arg("600").spawn().unwrap();
        note.started(Pid::from_child(&child), Instant::now()).unwrap();
        child
    }

    #[expect(clippy::disallowed_methods, reason = "a process to look at")]
    fn command() -> std::process::Command {
        std::process::Command::new("sleep")
    }
}
