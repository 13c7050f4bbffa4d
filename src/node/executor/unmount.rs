//! Unmount of a target: whatever is there, afterwards it is an empty directory of the node, or
//! missing, and no data is touched.
//!
//! * Not mounted, never mounted, missing: nothing to do.
//! * Several mounts on top of each other: all are unmounted.
//! * Mounts below the target, made by others: they are unmounted first, innermost first. They are
//!   inside the volume, and unmounting loses nothing. A pod can rename the directories above them
//!   at any time. So they are looked up from the volume's own root, which no rename leads out of,
//!   and identified by their mount ids.
//! * In use by a living process: a short wait, then a failure that names the processes; kubelet
//!   tries again. A healthy mount is never detached lazily, because its user would continue to
//!   write to a volume that counts as gone.
//! * Dead (its daemon or server is gone) or silent (it has not answered for half of the time that
//!   the verb has): detached lazily if it is busy, because its users can only wait, and nothing
//!   else would ever free it.
//! * Not ours (`/`, `/etc`, a mount outside kubelet's tree that no record names): refused.
//! * Files in the directory that were written while nothing was mounted: they stay, and are named.

use super::carry_out::TargetState;
use super::context::Context;
use anyhow::{Context as _, Result};
use flexvol_linux::errno::Errno;
use flexvol_linux::fs::opened::FileType;
use flexvol_linux::mount::mount_health::{self, Vitals};
use flexvol_linux::mount::mount_table::Entry;
use flexvol_linux::mount::place::{Look, Place, Pulse};
use flexvol_linux::mount::{self, mount_table, users};
use flexvol_linux::proc::deadline::Deadline;
use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::{Code, Failure};
use std::io;
use std::time::Duration;

/// Limit for mounts on top of each other: no target has more. It stops us if another process mounts
/// as fast as we unmount.
pub(super) const MOST_LAYERS: usize = 256;

/// Limit for waiting for a busy mount: its containers may just be ending.
const UMOUNT_BUSY_WAIT: Duration = Duration::from_secs(3);

/// Returns the state of a target that is to be unmounted.
pub(super) fn standing(target: &TargetPath) -> Result<TargetState> {
    let Some(place) = Place::open(target)? else { return Ok(TargetState::Reached) };
    match place.look()? {
        Look::Missing => Ok(TargetState::Reached),
        Look::Plain(FileType::Directory) if place.entries()?.is_empty() => Ok(TargetState::Reached),
        _ => Ok(TargetState::Open),
    }
}

/// Performs the step: unmounts everything, and fails unless the directory is empty.
pub(super) fn unmount(context: &Context<'_>, target: &TargetPath) -> Result<()> {
    let Some(place) = Place::open(target)? else { return Ok(()) };
    context.refuse_foreign(target)?;
    peel(&place, &context.deadline)?;
    empty_directory(&place)
}

/// Performs the undo: unmounts everything at once. Nothing can have begun to use it.
pub(super) fn take_off(place: &Place) -> Result<()> {
    peel(place, &Deadline::for_undo(UMOUNT_BUSY_WAIT))
}

/// Unmounts everything above the lowest mount at a place, as long as it is not in use.
pub(super) fn uncover(place: &Place) -> Result<()> {
    let path = place.resolved()?;
    let count =
        || -> Result<usize> { Ok(mount_table::read()?.iter().filter(|entry| entry.target == path).count()) };
    for _ in 0..MOST_LAYERS {
        // One unmount may remove other mounts as well.
        if count()? < 2 || mount::unmount(place, false).is_err() {
            break;
        }
    }
    Ok(())
}

/// Reports whether the mount's device is gone. The file system does not tell: it answers from
/// memory.
pub(super) fn has_dead_device(place: &Place) -> bool {
    let asked = mount_health::with_devices(&[place.path().to_owned()], UMOUNT_BUSY_WAIT);
    matches!(asked.as_deref(), Ok([Vitals::Dead(_)]))
}

/// Returns the id of the top mount at the target.
pub fn mount_at(target: &TargetPath) -> Option<u64> {
    match Place::open(target).ok()??.look().ok()? {
        Look::Mount(mounted) => Some(mounted.id),
        _ => None,
    }
}

fn peel(place: &Place, deadline: &Deadline) -> Result<()> {
    for _ in 0..MOST_LAYERS {
        let dead = match place.look()? {
            Look::Missing | Look::Plain(_) => return Ok(()),
            Look::Mount(_) => false,
            Look::Dead(_) => true,
        };
        match mount::unmount(place, false).map_err(|error| (Errno::from_io_error(&error), error)) {
            // EINVAL: another process was faster.
            Ok(()) | Err((Some(Errno::INVAL | Errno::NOENT), _)) => {}
            Err((Some(Errno::BUSY), _)) => free(place, dead, deadline)?,
            Err((_, error)) if dead => lazily(place, error)?,
            Err((_, error)) => {
                return Err(error).with_context(|| format!("unmount {}", place.path().display()));
            }
        }
    }
    Err(Failure::new(
        Code::Busy,
        format!("{} cannot be unmounted: another process keeps remounting it", place.path().display()),
    )
    .into())
}

fn lazily(place: &Place, cause: io::Error) -> Result<()> {
    mount::unmount(place, true)
        .map_err(|_| cause)
        .with_context(|| format!("detach {}", place.path().display()))
}

/// Frees a busy mount: unmounts what is mounted inside, or waits for its users.
fn free(place: &Place, dead: bool, deadline: &Deadline) -> Result<()> {
    if unmount_children(place)? > 0 {
        return Ok(());
    }
    // A healthy server answers at once. The other half of the time is for the mount's users, if the
    // server comes back.
    if dead || place.pulse(deadline.remaining() / 2) != Pulse::Alive {
        return lazily(place, io::ErrorKind::ResourceBusy.into());
    }
    // A failure that names the users says more than a timeout, so the wait ends before the deadline
    // does.
    let patience = Deadline::for_undo(UMOUNT_BUSY_WAIT.min(deadline.remaining()));
    while !patience.expired() {
        deadline.check_signals("waiting for the users of the volume")?;
        match mount::unmount(place, false) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => {
                std::thread::sleep(Duration::from_millis(50));
            }
            // The caller checks again.
            _ => return Ok(()),
        }
    }
    let users = users::of(&place.resolved()?);
    Err(Failure::new(
        Code::Busy,
        format!("{} is in use{users}: end it, kubelet tries again", place.path().display()),
    )
    .into())
}

/// Limit for searches for the mounts inside, while a pod renames the directories above them.
const SEARCHES: usize = 100;

/// Unmounts the mounts inside the volume. Returns their number.
fn unmount_children(place: &Place) -> Result<usize> {
    for _ in 0..SEARCHES {
        let Some(top) = place.mount_id()? else { return Ok(0) };
        let children = mount_table::inside(top)?;
        if children.is_empty() {
            return Ok(0);
        }
        match unmount_each(place, &children)? {
            // Either the table is outdated, or a name in it leads elsewhere now.
            0 => std::thread::sleep(Duration::from_millis(1)),
            count => return Ok(count),
        }
    }
    Err(Failure::new(
        Code::Busy,
        format!(
            "the mounts inside {} cannot be reached: end who renames or hides them, kubelet tries again",
            place.path().display()
        ),
    )
    .into())
}

/// Unmounts those mounts that are where the table says, and returns their number. Others stay:
/// their path may now lead to another pod's volume.
fn unmount_each(place: &Place, children: &[Entry]) -> Result<usize> {
    let mut count = 0;
    for child in children {
        let Some(inner) = place.inside(&child.target)? else { continue };
        if !inner.mount_id().is_ok_and(|id| id == Some(child.id)) {
            continue;
        }
        match mount::unmount(&inner, false) {
            Err(error) if !matches!(Errno::from_io_error(&error), Some(Errno::INVAL | Errno::NOENT)) => {
                let users = users::of(&child.target);
                return Err(error)
                    .with_context(|| format!("unmount {} inside the volume{users}", child.target.display()));
            }
            _ => count += 1,
        }
    }
    Ok(count)
}

/// Fails unless the directory is empty: kubelet removes it next, and would try forever.
fn empty_directory(place: &Place) -> Result<()> {
    match place.look()? {
        Look::Plain(FileType::RegularFile) => return place.remove_file_if_empty(),
        Look::Plain(FileType::Directory) => {}
        _ => return Ok(()),
    }
    let names = place.entries()?;
    if names.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        Code::Conflict,
        format!(
            "{} is unmounted but holds {}, written while nothing was mounted: move that away",
            place.path().display(),
            names.join(", ")
        ),
    )
    .into())
}
