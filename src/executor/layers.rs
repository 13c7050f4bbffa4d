//! The step of overlays: the layers are opened, stacked, and shown at once.

use super::node::{Node, Undo, denied, open_place};
use super::record;
use crate::plan::{Overlay, Ownership, Upper};
use crate::protocol::TargetPath;
use crate::sys::mount::{self, NewMount, Parameter, Value};
use crate::sys::{below, namespace};
use anyhow::Result;
use rustix::fs::FileType;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

/// The kernel wants an empty directory of its own beside the upper layer.
const WORK: Ownership = Ownership { mode: 0o700, uid: 0, gid: 0 };

impl Node<'_> {
    pub(super) fn mount_overlay(&mut self, target: &TargetPath, overlay: &Overlay) -> Result<Option<Undo>> {
        let place = open_place(target)?;
        record::prepare()?;
        // The memory of the upper layer is mounted where nobody sees it; in the overlay it lives on.
        let stacked = namespace::privately(|| self.stack(overlay))?;
        self.mount_id = Some(mount::put(&stacked, &place)?);
        Ok(Some(Undo::Unmount(target.clone())))
    }

    /// By descriptor: no name in a path can end an option, and nobody can exchange a directory.
    fn stack(&self, overlay: &Overlay) -> Result<OwnedFd> {
        let directories = overlay.lower.iter().map(|path| self.open_layer(path));
        let lower = directories.collect::<Result<Vec<_>>>()?;
        let upper = match &overlay.upper {
            Upper::Directory(path) => self.open_layer(path)?,
            Upper::Memory(size) => namespace::cover("overlay", Path::new(record::STATE), *size)?,
        };
        below::make_directories(upper.as_fd(), Path::new("upper"), overlay.owner, overlay.owner)?;
        below::make_directories(upper.as_fd(), Path::new("work"), WORK, WORK)?;
        let path = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        let lower = lower.iter().map(path).collect::<Vec<_>>().join(":");
        let (work, upper) = (format!("{}/work", path(&upper)), format!("{}/upper", path(&upper)));
        let own = [("lowerdir", &*lower), ("upperdir", &*upper), ("workdir", &*work)];
        // What a tenant may have put into a layer must not lead to files outside it.
        // With an index the kernel refuses an upper layer that another overlay has, and one of other directories.
        let index = if matches!(overlay.upper, Upper::Directory(_)) { "on" } else { "off" };
        let safe = [("metacopy", "off"), ("redirect_dir", "off"), ("index", index)];
        let parameter = |(key, value)| Parameter { key, value: Value::Text(value) };
        let options: Vec<_> = own.into_iter().chain(safe).map(parameter).collect();
        mount::detached(&NewMount {
            file_system: "overlay",
            source: "overlay",
            flags: overlay.flags,
            superblock_read_only: false,
            options: &options,
        })
    }

    fn open_layer(&self, path: &Path) -> Result<OwnedFd> {
        match self.open_source(path)? {
            (fd, FileType::Directory) => Ok(fd),
            _ => Err(denied(format!("{} is no directory: name one", path.display()))),
        }
    }
}
