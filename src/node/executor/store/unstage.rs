//! Mount that kubelet made once for the node while the driver still attached. Since the driver does
//! not attach any more, kubelet does not ask to unmount it: it is unmounted with the last pod that
//! uses the volume.

use super::{AttachmentRecord, proof, sweep};
use crate::executor::context::Context;
use crate::executor::{lock, record, unmount};
use anyhow::Result;
use flexvol_linux::mount::mount_table::{self, Entry};
use flexvol_linux::mount::place::{Look, Place};
use flexvol_protocol::volume_dir::VolumeDir;
use flexvol_protocol::{TargetPath, Verb};

/// Performs the step that detaches: kubelet does not ask for the volume at this place any more.
pub(super) fn detach(context: &Context<'_>, target: &TargetPath) -> Result<()> {
    proof::give_up(target);
    super::detach(context, target)
}

/// Performs the step. A mount that a pod or another program still uses stays until that has ended.
pub(super) fn unstage(context: &Context<'_>, staged: &TargetPath) -> Result<()> {
    if !VolumeDir::of(staged).belongs_to(context.directory) {
        return Ok(());
    }
    let Some(place) = Place::open(staged)? else { return Ok(()) };
    if place.look()? == Look::Missing && AttachmentRecord::of(staged)?.is_empty() {
        return Ok(());
    }
    let _lock = lock(record::lock_path(staged), Verb::UnmountDevice, &context.deadline)?;
    if let Some(entry) = mount_table::at(&place.resolved()?)? {
        let is_shown = |other: &Entry| other.device == entry.device && other.target != entry.target;
        if mount_table::read()?.iter().any(is_shown) {
            return Ok(());
        }
        unmount::take_off(&place)?;
    }
    sweep(staged, context.tools())?;
    record::forget(staged);
    // The directory is kubelet's, and empty; if it is not, it does no harm.
    let _ = place.remove_directory();
    Ok(())
}

/// Reports whether such a device is left for a target's volume.
pub(super) fn is_left(target: &TargetPath) -> Result<bool> {
    VolumeDir::of(target).staged().map_or(Ok(false), |staged| Ok(!AttachmentRecord::of(&staged)?.is_empty()))
}
