//! Step of files in memory: they are complete before anybody sees them.

use super::context::{Context, open_place};
use super::undo::Undo;
use anyhow::Result;
use flexvol_linux::fs::openat_beneath;
use flexvol_linux::mount::{self, NewMount, Parameter, Way};
use flexvol_model::plan::{Ownership, SecretFile};
use flexvol_protocol::TargetPath;
use flexvol_protocol::mount_options::{FsOption, MountFlags};
use std::os::fd::BorrowedFd;

/// Initial content of a file system.
pub(super) struct Content<'a> {
    pub(super) files: &'a [SecretFile],
    pub(super) owner: Ownership,
}

impl Content<'_> {
    fn write(&self, root: BorrowedFd<'_>) -> Result<()> {
        self.files.iter().try_for_each(|file| {
            openat_beneath::write_file(root, &file.name, file.content.expose(), self.owner)
        })
    }
}

impl Context<'_> {
    pub(super) fn mount_files(
        &mut self,
        target: &TargetPath,
        (source, options, flags): (&str, &[FsOption], MountFlags),
        content: &Content<'_>,
    ) -> Result<Option<Undo>> {
        let options: Vec<_> = options.iter().map(Parameter::from).collect();
        let new =
            NewMount { file_system: "tmpfs", source, flags, superblock_read_only: false, options: &options };
        let fill = |root: BorrowedFd<'_>| content.write(root);
        self.mount_id = Some(mount::mount_filled(&new, &fill, &open_place(target)?, Way::Detached)?);
        Ok(Some(Undo::Unmount(target.clone())))
    }
}
