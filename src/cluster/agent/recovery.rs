//! Recovery when the agent starts, and after it has lost the store: finds out what this node still
//! holds, what it has lost, and what drivers could not report.

use super::fault::{Code, Fault};
use super::holding::Released;
use super::journal::{CALL, Entry, Phase};
use super::{Agent, Asked};
use crate::fence::decide::Reply;
use crate::fence::record::Holder;
use crate::fence::request::{Left, Request};
use crate::fence::store::StoreError;
use flexvol_linux::fs::files;
use flexvol_linux::proc::clock;
use flexvol_model::agent::Hold;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// Pause between two checks whether another recovery has ended.
const TURN: Duration = Duration::from_millis(5);

/// Limit for a driver's note, in bytes.
const LIMIT: usize = 64 * 1024;

/// Extension of a note about a release.
const RELEASED: &str = "released";

/// Allowed lengths of a holder's id, in hexadecimal digits.
const ID: std::ops::RangeInclusive<usize> = 8..=64;

/// Release that a driver could not report.
#[derive(Deserialize)]
struct Note {
    asked: u64,
    params: Hold,
}

impl Agent {
    /// Finds out what this node holds, and lets the store confirm it under a new agent name. The
    /// name distinguishes its writes from those that were under way when the store was lost.
    pub fn recover(&self, deadline: Instant) -> Result<(), Fault> {
        let _one = self.one_recovers(deadline)?;
        if self.state().is_settled() {
            return Ok(());
        }
        self.state().instance = instance();
        let mut last = self.adopt(deadline).map_err(|error| self.unreachable(&error));
        self.hear_of_releases();
        let pending = self.state().pending.clone();
        for id in pending {
            match self.come_back(&id, deadline) {
                Ok(()) => drop(self.state().pending.remove(&id)),
                Err(fault) => last = Err(fault),
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        last?;
        let done = self.find_tasks(deadline).and_then(|()| self.do_tasks(deadline));
        done.map_err(|error| self.unreachable(&error))
    }

    /// Waits until no other recovery runs: that one may have a later deadline than this one.
    fn one_recovers(&self, deadline: Instant) -> Result<MutexGuard<'_, ()>, Fault> {
        loop {
            match self.recovering.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(guard)) => return Ok(guard.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() < deadline => std::thread::sleep(TURN),
                Err(TryLockError::WouldBlock) => {
                    let text = format!(
                        "the agent still looks at what it holds: check the locks in {}",
                        self.store_name
                    );
                    return Err(Fault::new(Code::Unavailable, text));
                }
            }
        }
    }

    /// Checks everything that is pending: releases that the store or a busy device delayed, notes
    /// of drivers, mounts that were never released, and storage that was lost to another node.
    pub fn sweep(&self, deadline: Instant) -> Result<(), Fault> {
        self.recover(deadline)?;
        self.hear_of_tasks(deadline)?;
        self.hear_of_releases();
        for entry in self.journal.all() {
            let Ok(_turn) = self.turns.take(&entry.id, Instant::now()) else { continue };
            if self.journal.get(&entry.id).as_ref() != Some(&entry) {
                continue;
            }
            if entry.phase == Phase::Releasing || self.is_abandoned(&entry) {
                self.finish(&entry, deadline);
            }
        }
        self.undo_lost().and_then(|()| self.do_tasks(deadline)).map_err(|error| self.unreachable(&error))
    }

    /// Marks all holds as unconfirmed. The next hold request first tries to confirm them.
    pub(super) fn unsettle(&self) {
        let all = self.journal.all().into_iter().map(|entry| entry.id);
        let mut state = self.state();
        (state.adopted, state.admitted) = (false, false);
        state.pending.extend(all);
    }

    /// Restores holds of this node that are in the records but not in the journal, which was lost.
    fn adopt(&self, deadline: Instant) -> Result<(), StoreError> {
        for record in self.store.list_of(&self.node, deadline)? {
            for holder in record.holders.iter().filter(|holder| holder.node.is_same(&self.node)) {
                if self.journal.get(&holder.id).is_none() && is_id(&holder.id) {
                    tracing::warn!(handle = record.handle, target = holder.target, "found in the records");
                    self.note(&record.handle, holder)?;
                }
            }
        }
        self.state().adopted = true;
        Ok(())
    }

    fn note(&self, handle: &str, holder: &Holder) -> Result<(), StoreError> {
        let entry = Entry::of(holder, handle, 0, Phase::Held);
        self.journal.write(&entry).map_err(|error| StoreError::Failed(format!("{error:#}")))?;
        self.state().pending.insert(entry.id);
        Ok(())
    }

    fn come_back(&self, id: &str, deadline: Instant) -> Result<(), Fault> {
        // A call that has the turn now has asked the store itself, or waits for this recovery.
        let Ok(_turn) = self.turns.take(id, Instant::now()) else { return Ok(()) };
        let Some(entry) = self.journal.get(id) else { return Ok(()) };
        if entry.boot != self.node.boot || entry.phase == Phase::Releasing {
            return match self.finish(&entry, deadline) {
                Released::Now | Released::Nothing => Ok(()),
                Released::Later if self.look.left(&entry) != Left::Nothing => Ok(()),
                Released::Later => Err(Fault::new(Code::Unavailable, self.unreached(&entry.handle))),
            };
        }
        self.confirm(entry, deadline)
    }

    /// Confirms with the store that this node still has a hold. The caller must have its turn.
    pub(super) fn confirm(&self, entry: Entry, deadline: Instant) -> Result<(), Fault> {
        let read = self.store.read(&entry.handle, deadline).map_err(|error| self.unreachable(&error))?;
        let recorded = read.record.as_ref().and_then(|record| record.holder(&entry.id));
        let taken = read.record.as_ref().is_some_and(|it| it.epoch > entry.epoch || !it.holders.is_empty());
        let asking = entry.phase == Phase::Asking;
        let epoch = if asking { recorded.map_or(0, |holder| holder.epoch) } else { entry.epoch };
        let agent = self.state().instance.clone();
        let request = Request::Return { id: entry.id.clone(), epoch, agent };
        let answer = self.settle(&entry.handle, &request, deadline);
        let kept = match answer.map(|decision| decision.reply) {
            Ok(Reply::Keep) => true,
            Ok(_) => false,
            Err(error) => return Err(self.unreachable(&error)),
        };
        let done = match kept {
            true => self.journal.write(&Entry { epoch, phase: Phase::Held, ..entry }),
            false if self.look.left(&entry) == Left::Nothing => self.journal.forget(&entry.id),
            false => {
                tracing::error!(handle = entry.handle, target = entry.target, taken, "not held any more");
                self.journal.write(&Entry { phase: Phase::Lost, taken, ..entry })
            }
        };
        done.map_err(|error| Fault::journal(&error))
    }

    /// Reports whether kubelet has removed the directory, and no call can be under way for it.
    fn is_abandoned(&self, entry: &Entry) -> bool {
        let old = entry.boot != self.node.boot || entry.is_old();
        old && self.look.is_removed(&entry.target) && self.look.left(entry) == Left::Nothing
    }

    /// Reads the releases that drivers have noted while no agent answered.
    fn hear_of_releases(&self) {
        for note in self.left() {
            let is_draft = note.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if is_draft && files::age(&note).is_some_and(|age| age > CALL) {
                // A killed driver left this draft.
                let _ = std::fs::remove_file(&note);
            } else if !is_draft && note.extension().is_some_and(|end| end == RELEASED) {
                self.hear(&note);
            }
        }
    }

    /// Returns the files that drivers have left in the spool.
    fn left(&self) -> impl Iterator<Item = PathBuf> {
        self.spool.read_dir().into_iter().flatten().flatten().map(|note| note.path())
    }

    /// Returns the notes about releases that were not read yet.
    pub(super) fn notes(&self) -> impl Iterator<Item = PathBuf> {
        self.left().filter(|note| note.extension().is_some_and(|end| end == RELEASED))
    }

    fn hear(&self, path: &Path) {
        let text = files::read_small(path, LIMIT).ok().flatten().unwrap_or_default();
        let told = match serde_json::from_str::<Note>(&text) {
            Ok(note) => self.release(&note.params, Asked { at: note.asked, until: u64::MAX }).map(drop),
            Err(error) => Err(Fault::bad(error)),
        };
        match told {
            Ok(()) => {}
            Err(Fault { code: Code::BadRequest, message }) => {
                tracing::warn!(note = %path.display(), reason = message, "removed: nobody can read it");
            }
            // The note stays for the next try.
            Err(_) => return,
        }
        let _ = files::forget(path);
    }

    pub(super) fn unreachable(&self, error: &StoreError) -> Fault {
        Fault::new(Code::Unavailable, format!("{error}: check the locks in {}", self.store_name))
    }

    fn unreached(&self, handle: &str) -> String {
        format!("{handle} could not be released: check the locks in {}", self.store_name)
    }
}

/// Returns a new agent name, which no other agent has or had.
fn instance() -> String {
    format!("{}-{}-{:x}", clock::seconds(), std::process::id(), clock::since_boot())
}

fn is_id(text: &str) -> bool {
    ID.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
