//! Ownership of a target: by its path, or by a record of what is mounted there.

use super::context::{Context, denied};
use super::record::Record;
use anyhow::Result;
use flexvol_linux::mount::mount_table::{self, Entry};
use flexvol_linux::mount::place::{Look, Place};
use flexvol_protocol::TargetPath;
use flexvol_protocol::volume_dir::VolumeDir;

impl Context<'_> {
    /// Reports whether kubelet made the directory for this driver, or a record says that the mount
    /// is ours.
    pub(super) fn is_ours(&self, target: &TargetPath) -> bool {
        is_volume_of(self.driver, self.directory, target)
    }

    /// Refuses a mount at a volume of another driver: this driver could not unmount it again.
    pub(super) fn refuse_another_s(&self, target: &TargetPath) -> Result<()> {
        match VolumeDir::of(target).driver {
            Some(driver) if !self.is_ours(target) => Err(denied(format!(
                "{target} is a volume of {driver}, not of this driver: name a directory of this driver's, or an empty one elsewhere"
            ))),
            _ => Ok(()),
        }
    }

    /// Refuses an unmount of a target that is not ours.
    pub(super) fn refuse_foreign(&self, target: &TargetPath) -> Result<()> {
        if self.is_ours(target) {
            return Ok(());
        }
        Err(denied(format!("{target} is not a volume of this driver: use umount if you mean it")))
    }
}

/// Reports whether a target is a volume of `driver`, installed in `directory`: by its path, or by a
/// record of this driver and of the mount that is there now. If only the driver were compared, the
/// next mount there would belong to a record that outlived its own mount.
pub fn is_volume_of(driver: &str, directory: Option<&str>, target: &TargetPath) -> bool {
    VolumeDir::of(target).belongs_to(directory)
        || Record::read(target).is_some_and(|record| {
            record.driver == driver && is_nothing_else(target, &record).unwrap_or(false)
        })
}

/// Reports whether the top mount is the record's mount, or there is no mount.
fn is_nothing_else(target: &TargetPath, record: &Record) -> Result<bool> {
    let Some(place) = Place::open(target)? else { return Ok(true) };
    let Some(id) = place.mount_id()? else { return Ok(true) };
    let is_of = record.is_of(id, place.unique_mount_id());
    Ok(is_of || VolumeDir::of(target).is_csi() && shows_the_same(&place, record)?)
}

/// Reports whether this is the record's mount as another mount namespace has it: that of a
/// restarted container of a CSI driver. Elsewhere than in CSI's directories the record could have
/// outlived its mount, and another mount could show the same root.
fn shows_the_same(place: &Place, record: &Record) -> Result<bool> {
    let Some(root) = record.root else { return Ok(false) };
    let look = place.look()?;
    if matches!(look, Look::Mount(mounted) if mounted.root == root) {
        return Ok(true);
    }
    // The inode of a dead mount is unknown. The inode of a FUSE root is what its program says, and
    // the kernel has not asked yet when the record is written. The device number belongs to a
    // single mount.
    let is_by_device = |entry: &Entry| match look {
        Look::Dead(_) => true,
        Look::Mount(_) => entry.is_served(),
        Look::Missing | Look::Plain(_) => false,
    };
    let entry = mount_table::at(&place.resolved()?)?;
    Ok(entry.is_some_and(|entry| entry.device_number() == root.0 && is_by_device(&entry)))
}
