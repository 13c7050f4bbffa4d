//! Requests of drivers: `hold` before anything is attached, `release` after the last detach.

use super::fault::{Code, Fault};
use super::journal::{Entry, Phase};
use super::usage::Local;
use super::{Agent, Asked};
use crate::fence::decide::{Decision, Reply};
use crate::fence::record::{Holder, Node, Phase as HolderPhase, Pod};
use crate::fence::request::{Left, Request};
use crate::fence::settle::settle;
use crate::fence::sharing::{Scope, Sharing};
use crate::fence::store::StoreError;
use flexvol_linux::proc::clock;
use flexvol_model::agent::{Fence, Hold, HoldAccess};
use flexvol_protocol::TargetPath;
use std::time::{Duration, Instant};

/// Limit for a release's wait for the store. After it, the record is changed later.
const TELL: Duration = Duration::from_secs(2);

/// Limit for each stored name, in bytes.
const LONGEST: usize = 4096;

/// Result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    /// The record no longer has the holder.
    Now,
    /// The release is noted only: the store did not answer, or the device is still attached.
    Later,
    /// Nothing to release: there is a newer hold for the same mount, or none.
    Nothing,
}

impl Released {
    /// Returns the name that is sent to the driver.
    pub fn name(self) -> &'static str {
        match self {
            Self::Now => "released",
            Self::Later => "later",
            Self::Nothing => "nothing",
        }
    }
}

impl Agent {
    /// Holds storage for a mount and returns the epoch. From then on the storage may be attached.
    pub fn hold(&self, hold: &Hold, asked: Asked) -> Result<u64, Fault> {
        let (me, sharing) = (self.holder(hold)?, sharing(hold)?);
        let deadline = asked.deadline()?;
        let _turn = self.turns.take(&me.id, deadline)?;
        asked.deadline()?;
        if self.state().released.get(&me.id).is_some_and(|released| *released > asked.at) {
            return Err(Fault::late());
        }
        self.refuse_lost(deadline)?;
        if self.force.is_about(&hold.handle) {
            let text = format!("{} is being unmounted by force: see kubectl get fxd -A", hold.handle);
            return Err(Fault::new(Code::NotReady, text));
        }
        let before = self.journal.get(&me.id);
        let entry = Entry::of(&me, &hold.handle, asked.at, Phase::Asking);
        self.journal.write(&entry).map_err(|error| Fault::journal(&error))?;
        let request = Request::Mount { me: Box::new(me), sharing };
        let answer = self.settle(&hold.handle, &request, deadline);
        match answer.map(|decision| decision.reply) {
            Ok(Reply::Go { epoch }) => {
                let known = Entry { epoch, phase: Phase::Held, ..entry };
                self.journal.write(&known).map_err(|error| Fault::journal(&error))?;
                Ok(epoch)
            }
            Ok(reply) => {
                self.put_back(&entry.id, before)?;
                let Reply::Refused(refusal) = reply else { return Err(Fault::bad("it was not decided")) };
                Err(Fault::refused(&hold.handle, &refusal, &hold.pod_namespace, &*self.store))
            }
            // It is unknown whether the record was written: `recover` finds out.
            Err(error) => {
                self.unsettle();
                Err(Fault::store(&hold.handle, &self.store_name, &error))
            }
        }
    }

    /// Releases the hold of a mount that is unmounted and whose device is detached.
    pub fn release(&self, hold: &Hold, asked: Asked) -> Result<Released, Fault> {
        let me = self.holder(hold)?;
        // The driver's own deadline does not matter: its unmount is done already.
        let deadline = Instant::now() + TELL;
        let _turn = self.turns.take(&me.id, deadline)?;
        self.note_release(&me.id, asked.at);
        let Some(entry) = self.journal.get(&me.id) else { return Ok(Released::Nothing) };
        if entry.boot == self.node.boot && entry.asked > asked.at {
            return Ok(Released::Nothing);
        }
        let releasing = Entry { phase: Phase::Releasing, ..entry };
        self.journal.write(&releasing).map_err(|error| Fault::journal(&error))?;
        let released = self.finish(&releasing, deadline);
        if released == Released::Later && self.look.left(&releasing) == Left::Nothing {
            self.unsettle();
        }
        Ok(released)
    }

    /// Removes an unmounted holder from the record, unless its device is still attached. The caller
    /// must have the holder's turn.
    pub(super) fn finish(&self, entry: &Entry, deadline: Instant) -> Released {
        let left = if entry.boot == self.node.boot { self.look.left(entry) } else { Left::Nothing };
        let request = Request::EndUnmount { id: entry.id.clone(), left };
        match self.settle(&entry.handle, &request, deadline).map(|decision| decision.reply) {
            Ok(Reply::Done) => {
                if let Err(error) = self.journal.forget(&entry.id) {
                    tracing::warn!(handle = entry.handle, reason = format!("{error:#}"), "the journal");
                }
                Released::Now
            }
            Ok(_) => Released::Later,
            Err(error) => {
                tracing::warn!(handle = entry.handle, reason = %error, "released later");
                Released::Later
            }
        }
    }

    /// Decides a request with this node's own evidence, and writes the decision to the store.
    pub(super) fn settle(
        &self,
        handle: &str,
        request: &Request,
        deadline: Instant,
    ) -> Result<Decision, StoreError> {
        let local = Local { look: &*self.look, node: &self.node, off: self.store.off()? };
        settle(&*self.store, handle, request, &local, deadline)
    }

    /// Refuses a new hold while this node still uses storage that another node was given.
    fn refuse_lost(&self, deadline: Instant) -> Result<(), Fault> {
        // A failure is ignored: one unreadable record must not block other storage. Half of the
        // time is kept, because the record of this hold is read next.
        let now = Instant::now();
        let _ = self.recover(now + deadline.saturating_duration_since(now) / 2);
        self.be_admitted(deadline)?;
        if self.store.off().is_ok_and(|off| off.iter().any(|off| off.is_about(&self.node))) {
            let node = &self.node.name;
            let text = format!("node {node} was said to be off: flexvold locks --on {node}, if it is not");
            return Err(Fault::new(Code::NotReady, text));
        }
        let Some(lost) = self.lost().pop() else { return Ok(()) };
        if self.look.left(&lost) == Left::Nothing {
            return self.journal.forget(&lost.id).map_err(|error| Fault::journal(&error));
        }
        let Entry { handle, namespace, pod, target, .. } = &lost;
        let text = format!(
            "this node has lost {handle} to another one, and unmounts it from {target}: \
             if that does not end, delete pod {namespace}/{pod}"
        );
        Err(Fault::new(Code::NotReady, text))
    }

    fn be_admitted(&self, deadline: Instant) -> Result<(), Fault> {
        if !self.state().admitted {
            self.store.admits(&self.node, deadline).map_err(|error| match error {
                StoreError::Failed(why) => Fault::new(Code::NotReady, why),
                error => self.unreachable(&error),
            })?;
            self.state().admitted = true;
        }
        Ok(())
    }

    fn put_back(&self, id: &str, before: Option<Entry>) -> Result<(), Fault> {
        let done = before.map_or_else(|| self.journal.forget(id), |entry| self.journal.write(&entry));
        done.map_err(|error| Fault::journal(&error))
    }

    /// Remembers a release: a hold that was requested before it is refused from now on.
    fn note_release(&self, id: &str, at: u64) {
        let mut state = self.state();
        let oldest = clock::since_boot().saturating_sub(super::LATEST.as_nanos().try_into().unwrap_or(0));
        state.released.retain(|_, at| *at >= oldest);
        state.released.insert(id.to_owned(), at);
    }

    fn holder(&self, hold: &Hold) -> Result<Holder, Fault> {
        let Hold { handle, target, pod_namespace, pod_name, pod_uid, .. } = hold;
        let texts = [handle, target, pod_namespace, pod_name, pod_uid];
        if handle.is_empty() || pod_uid.is_empty() || texts.iter().any(|text| text.len() > LONGEST) {
            return Err(Fault::bad("handle and podUid must be given, and no name over 4096 bytes"));
        }
        TargetPath::parse(target.as_ref()).map_err(|failure| Fault::bad(failure.message()))?;
        Ok(Holder {
            id: Holder::id_of(&self.node, pod_uid, handle, target),
            node: Node::clone(&self.node),
            agent: self.state().instance.clone(),
            pod: Pod { namespace: pod_namespace.clone(), name: pod_name.clone(), uid: pod_uid.clone() },
            target: target.clone(),
            read_only: hold.access == HoldAccess::ReadOnly,
            phase: HolderPhase::Reserved,
            epoch: 0,
            device: String::new(),
            since: clock::now(),
        })
    }
}

fn sharing(hold: &Hold) -> Result<Sharing, Fault> {
    let scope = match hold.fence {
        Fence::Pod => Scope::Pod,
        Fence::Node => Scope::Node,
        Fence::Off => return Err(Fault::bad("fence must be pod or node")),
    };
    Ok(Sharing::choose(None, &[], scope, hold.access == HoldAccess::ReadOnly))
}
