//! Steps of a bind mount: create its source, and mount it.

use super::context::{Context, denied, open_place};
use super::record;
use super::target::restore_directory;
use super::undo::Undo;
use anyhow::{Context as _, Result};
use flexvol_linux::fs::lock::{Hold, SharedLock};
use flexvol_linux::fs::openat_beneath;
use flexvol_linux::fs::opened::{FileType, OFlags, kind_of};
use flexvol_linux::mount::{self, BindMount, Way};
use flexvol_model::plan::{Ownership, Propagation};
use flexvol_model::policy::Allowed;
use flexvol_protocol::TargetPath;
use flexvol_protocol::mount_options::MountFlags;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Mode and owner of directories above the one that a volume asks for.
const ABOVE: Ownership = Ownership { mode: 0o755, uid: 0, gid: 0 };

/// Properties of a bind mount.
pub(super) struct Binding {
    pub(super) recursive: bool,
    pub(super) flags: MountFlags,
    pub(super) propagation: Propagation,
}

impl Context<'_> {
    /// Creates the directory of a bind. The lock keeps every other bind of this root out until the
    /// call has succeeded or has removed the directory again. Otherwise another pod could show the
    /// directory in between, and would be left with a directory that has no name.
    pub(super) fn make_directory(&mut self, path: &Path, owner: Ownership) -> Result<Option<Undo>> {
        let Allowed { root, below } = self.settings.policy.bind_source(path)?;
        self.lock_sources(&root, Hold::Alone)?;
        let made = openat_beneath::make_directories(
            openat_beneath::open_root(&root)?.as_fd(),
            &below,
            ABOVE,
            owner,
        )?;
        Ok((!made.is_empty()).then_some(Undo::RemoveDirectories(root, made)))
    }

    /// Locks the sources below a root until the call ends. The lock is not on the root itself: a
    /// tenant whose pod shows the root could hold such a lock forever.
    fn lock_sources(&mut self, root: &Path, hold: Hold) -> Result<()> {
        if self.sources.is_none() {
            let path = record::root_lock_path(mount::identity(openat_beneath::open_root(root)?.as_fd())?);
            let doing = "waiting for another bind to make its source";
            self.sources = Some(SharedLock::acquire(path, hold, &self.deadline, doing)?);
        }
        Ok(())
    }

    pub(super) fn bind(
        &mut self,
        target: &TargetPath,
        source: &Path,
        bind: &Binding,
    ) -> Result<Option<Undo>> {
        self.lock_sources(&self.settings.policy.bind_source(source)?.root, Hold::Together)?;
        let (fd, kind) = self.open_source(source)?;
        let place = open_place(target)?;
        if kind == FileType::RegularFile {
            place.turn_into_file()?;
        }
        let what = BindMount {
            source: fd.as_fd(),
            recursive: bind.recursive,
            flags: bind.flags,
            propagation: bind.propagation,
            lift: false,
        };
        let made =
            mount::bind(&what, &place, Way::Detached).with_context(|| format!("show {}", source.display()));
        if made.is_err() && kind == FileType::RegularFile {
            restore_directory(&place)?;
        }
        self.mount_id = Some(made?);
        Ok(Some(match kind {
            FileType::RegularFile => Undo::RestoreTarget(target.clone()),
            _ => Undo::Unmount(target.clone()),
        }))
    }

    pub(super) fn open_source(&self, source: &Path) -> Result<(OwnedFd, FileType)> {
        let Allowed { root, below } = self.settings.policy.bind_source(source)?;
        let fd = openat_beneath::open(openat_beneath::open_root(&root)?.as_fd(), &below, OFlags::PATH)
            .with_context(|| format!("source {}", source.display()))?;
        match kind_of(fd.as_fd())? {
            kind @ (FileType::Directory | FileType::RegularFile) => Ok((fd, kind)),
            _ => Err(denied(format!("{} is neither a directory nor a file", source.display()))),
        }
    }
}
