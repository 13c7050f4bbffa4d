//! Cleanup after a call that was killed halfway: by its supervisor at once, or by the next call.

use super::record::{self, Record};
use super::unmount::{MOST_LAYERS, has_dead_device, take_off};
use super::{daemon, store};
use anyhow::{Context as _, Result};
use flexvol_linux::fs::lock::Lock;
use flexvol_linux::mount;
use flexvol_linux::mount::place::{Look, Place, Pulse};
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::helper::Tools;
use flexvol_linux::proc::process;
use flexvol_protocol::TargetPath;
use std::time::Duration;

/// Limit for the cleanup to wait for the lock; another call that has it takes care of the target.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Limit for a mount or a device to prove that it is alive, and for a store to be detached.
const HEALTH_WAIT: Duration = Duration::from_secs(3);

/// Unmounts a dead mount at the target: otherwise kubelet would mount again and again, and never
/// unmount. The program that served the mount of a killed call may have been killed with the call,
/// or ended as one of the processes that the call had left running.
pub(super) fn take_off_dead(target: &TargetPath) -> Result<()> {
    let Some(place) = Place::open(target)? else { return Ok(()) };
    match place.look()? {
        Look::Dead(_) => take_off(&place),
        Look::Mount(_) if place.pulse(HEALTH_WAIT) == Pulse::Dead || has_dead_device(&place) => {
            take_off(&place)
        }
        _ => Ok(()),
    }
}

/// Mounts that a killed call may have left at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Every mount: the call was an unmount.
    All,
    /// Mounts made since the call began; at that time this one was on top, or there was none.
    Since(Option<u64>),
}

/// State of a killed call's worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// The worker has ended, and its lock is released.
    Gone,
    /// The worker is blocked in the kernel, and may hold its lock until it can be killed.
    Stuck,
}

/// Unmounts what a call has left that was killed halfway; waits for nothing that may hang.
///
/// A lazy unmount is used for a mount that was only just made, which no program uses yet, and for
/// one that has already hung in the kernel. After an unmount whose worker merely died, it is not
/// used: it would take a live volume away from its users. A mount with a record of another call
/// belongs to that call, which succeeded; it does not count as left by a failed mount.
pub fn clean_up(target: &TargetPath, left: Left, worker: Worker) -> Result<()> {
    let _lock = match worker {
        Worker::Gone => {
            let patience = Deadline::for_undo(LOCK_WAIT);
            Some(Lock::acquire_beside_strays(record::lock_path(target), &patience)?)
        }
        Worker::Stuck => None,
    };
    let Some(place) = Place::open(target)? else { return Ok(()) };
    let is_another_s = |record: &Record| record.supervisor != process::supervisor();
    let others = Record::read(target).filter(is_another_s).map(|record| record.mount_id);
    let stays = |mount: u64| matches!(left, Left::Since(before) if [before, others].contains(&Some(mount)));
    let lazily = worker == Worker::Stuck || left != Left::All;
    let served = daemon::is_left(target);
    let take_off = || {
        if served && lazily && mount::abort(&place) {
            return Ok(());
        }
        mount::unmount(&place, lazily).with_context(|| format!("take off {target}"))
    };
    if !uncover(&place, stays, take_off)? {
        return Ok(());
    }
    if daemon::is_left(target) {
        daemon::sweep(target)?;
        // The daemon could still mount until it had ended.
        if !uncover(&place, stays, take_off)? {
            return Ok(());
        }
    }
    record::forget(target);
    store::sweep(target, Tools::of_host(&Deadline::for_undo(HEALTH_WAIT)))
}

/// Unmounts one mount after the other. Returns true if the directory was reached, and false at a
/// mount that stays.
fn uncover(place: &Place, stays: impl Fn(u64) -> bool, take_off: impl Fn() -> Result<()>) -> Result<bool> {
    for _ in 0..MOST_LAYERS {
        match place.look()? {
            Look::Missing | Look::Plain(_) => return Ok(true),
            Look::Mount(mounted) if stays(mounted.id) => return Ok(false),
            Look::Mount(_) | Look::Dead(_) => take_off()?,
        }
    }
    Ok(false)
}
