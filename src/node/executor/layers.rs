//! Step of overlays: the layers are opened, stacked, and shown at once.

use super::context::{Context, denied, open_place};
use super::record;
use super::undo::Undo;
use anyhow::Result;
use flexvol_linux::errno::{Errno, errno_of};
use flexvol_linux::fs::openat_beneath;
use flexvol_linux::fs::opened::FileType;
use flexvol_linux::mount::{self, NewMount, Parameter, Value};
use flexvol_linux::proc::namespace;
use flexvol_model::paths;
use flexvol_model::plan::{Overlay, Ownership, Upper};
use flexvol_protocol::TargetPath;
use flexvol_protocol::failure::{Code, Failure};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

/// Mode and owner of the empty directory that the kernel needs beside the upper layer.
const WORK: Ownership = Ownership { mode: 0o700, uid: 0, gid: 0 };

impl Context<'_> {
    pub(super) fn mount_overlay(&mut self, target: &TargetPath, overlay: &Overlay) -> Result<Option<Undo>> {
        let place = open_place(target)?;
        record::prepare()?;
        // The memory of the upper layer is mounted where it is visible to no other process; the
        // overlay keeps it alive.
        let stacked = namespace::privately(|| self.stack(overlay))?;
        self.mount_id = Some(mount::put(&stacked, &place)?);
        Ok(Some(Undo::Unmount(target.clone())))
    }

    /// Stacks the layers by descriptor: no path can end an option, and nobody can exchange a
    /// directory.
    fn stack(&self, overlay: &Overlay) -> Result<OwnedFd> {
        let directories = overlay.lower.iter().map(|path| self.open_layer(path));
        let lower = directories.collect::<Result<Vec<_>>>()?;
        let upper = match &overlay.upper {
            Upper::Directory(path) => self.open_layer(path)?,
            Upper::Memory(size) => namespace::cover("overlay", Path::new(paths::RUN), *size)?,
        };
        openat_beneath::make_directories(upper.as_fd(), Path::new("upper"), overlay.owner, overlay.owner)?;
        openat_beneath::make_directories(upper.as_fd(), Path::new("work"), WORK, WORK)?;
        let path = |fd: &OwnedFd| format!("/proc/self/fd/{}", fd.as_raw_fd());
        let lower = lower.iter().map(path).collect::<Vec<_>>().join(":");
        let (work, upper) = (format!("{}/work", path(&upper)), format!("{}/upper", path(&upper)));
        let own = [("lowerdir", &*lower), ("upperdir", &*upper), ("workdir", &*work)];
        // Files that a tenant has put into a layer must not lead outside it. With an index, the
        // kernel refuses an upper layer that another overlay uses, or that was made for other
        // directories.
        let index = if matches!(overlay.upper, Upper::Directory(_)) { "on" } else { "off" };
        let safe = [("metacopy", "off"), ("redirect_dir", "off"), ("index", index)];
        let parameter = |(key, value)| Parameter { key, value: Value::Text(value) };
        let options: Vec<_> = own.into_iter().chain(safe).map(parameter).collect();
        let stacked = mount::detached(&NewMount {
            file_system: "overlay",
            source: "overlay",
            flags: overlay.flags,
            superblock_read_only: false,
            options: &options,
        });
        stacked.map_err(|error| explain(error, &overlay.upper))
    }

    fn open_layer(&self, path: &Path) -> Result<OwnedFd> {
        match self.open_source(path)? {
            (fd, FileType::Directory) => Ok(fd),
            _ => Err(denied(format!("{} is no directory: name one", path.display()))),
        }
    }
}

/// Explains a busy upper layer: only that can be busy, but the kernel names no directory.
fn explain(error: anyhow::Error, upper: &Upper) -> anyhow::Error {
    match upper {
        Upper::Directory(path) if errno_of(&error) == Some(Errno::BUSY) => {
            let fix = "give each pod its own, or unmount the other one";
            let text = format!("upper directory {} is used by another overlay: {fix}", path.display());
            Failure::new(Code::Busy, text).into()
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hints::to_failure;
    use crate::wording::wording_of;

    #[test]
    fn an_upper_layer_in_use_is_named() {
        let explained = |errno: Errno, upper: &Upper| {
            to_failure(explain(anyhow::Error::new(errno).context("make it"), upper)).message()
        };
        let upper = Upper::Directory("/srv/u".into());
        let expected = wording_of("upper-in-use", ["/srv/u"]);
        assert_eq!(explained(Errno::BUSY, &upper), expected);
        assert!(explained(Errno::INVAL, &upper).starts_with("make it: "));
        assert!(explained(Errno::BUSY, &Upper::Memory(None)).starts_with("make it: "));
    }
}
