//! What is done after a call that was killed on its way: by its supervisor at once, or by the next
//! call.

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

/// How long cleaning up waits for the lock; whoever else has it knows what to do about the target.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// How long a mount or a device is asked whether it is alive, and how long a store may take to go.
const HEALTH_WAIT: Duration = Duration::from_secs(3);

/// Who served the mount of a killed call may have been killed with it, or was among what it had
/// left running. kubelet would mount again for ever, and never unmount.
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

/// What a killed call may have left at its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Every mount: it was an unmount.
    All,
    /// What was mounted since the call began, when this mount or none was there.
    Since(Option<u64>),
}

/// What became of a killed call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Worker {
    /// It is gone, and with it its lock.
    Gone,
    /// It sits in the kernel and may hold its lock until it can be killed.
    Stuck,
}

/// For when a call was killed on its way: takes off what it left, waiting for nothing that may
/// hang.
///
/// Detached lazily is what no program uses yet, a mount that was only just made, and what has hung
/// in the kernel already; an unmount whose worker merely died must not tear a living volume from
/// its users. A mount with a record of another call belongs to that one, which succeeded, and is
/// not taken for what a mount left.
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
        // Until it had ended it could still mount.
        if !uncover(&place, stays, take_off)? {
            return Ok(());
        }
    }
    record::forget(target);
    store::sweep(target, Tools::of_host(&Deadline::for_undo(HEALTH_WAIT)))
}

/// Takes off one mount after the other; whether the directory was reached, and not a mount that
/// stays.
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
