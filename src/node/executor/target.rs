//! Target: the directory of a pod that a volume is mounted on.

use super::context::{Context, denied, open_place};
use super::undo::Undo;
use super::{store, unmount};
use anyhow::Result;
use flexvol_linux::fs::opened::FileType;
use flexvol_linux::mount::place::{Look, Place};
use flexvol_linux::mount::{self, NewMount, Parameter, Way};
use flexvol_model::plan::MountFrom;
use flexvol_protocol::TargetPath;
use flexvol_protocol::mount_options::MountFlags;

impl Context<'_> {
    pub(super) fn prepare_target(&self, target: &TargetPath) -> Result<Option<Undo>> {
        let place = open_place(target)?;
        match place.look()? {
            Look::Missing => {}
            Look::Plain(FileType::Directory) => {
                return self.refuse_used_directory(target, &place).map(|()| None);
            }
            // A killed bind of a file has left an empty file in place of the directory.
            Look::Plain(FileType::RegularFile) if self.is_ours(target) => place.remove_file_if_empty()?,
            Look::Mount(_) if store::is_dead_at(&place, target)? => unmount::take_off(&place)?,
            look => {
                return Err(denied(format!(
                    "{target} is no directory to mount on but {look}: remove what is there"
                )));
            }
        }
        Ok(place.make_directory()?.then(|| Undo::RemoveTarget(target.clone())))
    }

    /// Refuses a directory with content. kubelet's directories are accepted as they are; any other
    /// must be empty, so that a mistake does not hide /etc.
    fn refuse_used_directory(&self, target: &TargetPath, place: &Place) -> Result<()> {
        if self.is_ours(target) || place.entries()?.is_empty() {
            return Ok(());
        }
        Err(denied(format!(
            "{target} is neither a volume directory of this driver nor empty: name another directory"
        )))
    }

    pub(super) fn mount_from(
        &mut self,
        target: &TargetPath,
        (file_system, from): (Option<&str>, &MountFrom),
        flags: MountFlags,
        options: &[Parameter<'_>],
    ) -> Result<Option<Undo>> {
        match from {
            MountFrom::Name(source) => {
                let file_system = file_system.unwrap_or(source);
                self.mount(
                    target,
                    &NewMount { file_system, source, flags, superblock_read_only: false, options },
                )
            }
            MountFrom::AttachedDevice => self.mount_device(target, file_system, flags, options),
        }
    }

    pub(super) fn mount(&mut self, target: &TargetPath, new: &NewMount<'_>) -> Result<Option<Undo>> {
        self.mount_id = Some(mount::mount(new, &open_place(target)?, Way::Detached)?);
        Ok(Some(Undo::Unmount(target.clone())))
    }
}

/// Replaces the file that a bind of a file needed by a directory again.
pub(super) fn restore_directory(place: &Place) -> Result<()> {
    place.remove_file()?;
    place.make_directory().map(drop)
}
