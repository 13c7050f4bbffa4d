//! Locks of calls while they are carried out.

use super::record;
use crate::hints::to_failure;
use flexvol_linux::fs::lock::Lock;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_model::plan::Plan;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::{Call, Verb};
use std::path::PathBuf;

/// Returns the lock of a call: that of its target, or of the volume that is attached to a node.
/// `None` for a call with nothing to do.
pub(super) fn lock_path(call: &Call, plan: &Plan) -> Option<PathBuf> {
    match call {
        Call::Attach { .. } | Call::Detach { .. } if plan.steps.is_empty() => None,
        Call::Attach { options, node } => {
            options.volume_name.as_ref().map(|volume| record::attachment_lock_path(volume, node))
        }
        Call::Detach { volume, node } => Some(record::attachment_lock_path(volume, node)),
        call => call.target().map(record::lock_path),
    }
}

/// Takes the lock. Two cases go without it if they must: an unmount, on a node whose /run is full
/// or read-only, and an attachment beside kube-controller-manager, where there is no /run.
pub(super) fn lock(path: PathBuf, verb: Verb, deadline: &Deadline) -> Result<Option<Lock>, Failure> {
    match record::prepare().and_then(|()| Lock::acquire(path, deadline)) {
        Ok(lock) => Ok(Some(lock)),
        Err(error) => {
            let failure = to_failure(error);
            if can_go_without_lock(verb, failure.code()) { Ok(None) } else { Err(failure) }
        }
    }
}

/// Reports whether a call may run without its lock: never at the same time as another call.
/// Processes left by a killed call do not block an unmount, but they might undo an attachment.
fn can_go_without_lock(verb: Verb, why_none: Code) -> bool {
    match verb {
        Verb::Unmount | Verb::UnmountDevice => why_none != Code::Timeout,
        Verb::Attach | Verb::Detach => !matches!(why_none, Code::Timeout | Code::Busy),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_attaches_beside_what_a_killed_call_left_running() {
        let codes = [Code::Timeout, Code::Busy, Code::Internal];
        let without = |verb| codes.map(|code| can_go_without_lock(verb, code));
        assert_eq!(without(Verb::Unmount), [false, true, true]);
        assert_eq!(without(Verb::Detach), [false, false, true]);
        assert_eq!(without(Verb::Mount), [false; 3]);
    }
}
