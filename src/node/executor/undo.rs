//! Undo of a performed step; [`dispatch`](super::dispatch) carries it out.

use flexvol_protocol::TargetPath;
use std::fmt;
use std::path::{Path, PathBuf};

/// Undo of a performed step.
#[derive(Debug)]
pub(super) enum Undo {
    /// Remove the target that was made.
    RemoveTarget(TargetPath),
    /// Make the target a directory again.
    RestoreTarget(TargetPath),
    /// Remove directories that were made, innermost last.
    RemoveDirectories(PathBuf, Vec<PathBuf>),
    /// Remove the image file that was made, and the directories that were made above it.
    RemoveImage(PathBuf, Vec<PathBuf>),
    /// Release the loop device.
    ReleaseDevice,
    /// Detach the device that was attached for the target.
    DetachStore(TargetPath),
    /// Release what the agent holds for the target.
    Release(PathBuf, TargetPath),
    /// Have the agent unpublish what it has published for the target.
    Unpublish(PathBuf, TargetPath),
    /// Unmount what was mounted.
    Unmount(TargetPath),
    /// Unmount, end its daemon, and remove its files.
    EndDaemon(TargetPath),
}

impl fmt::Display for Undo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RemoveTarget(target) | Self::RestoreTarget(target) => write!(f, "{target}"),
            Self::RemoveDirectories(root, made) => {
                let outermost = made.first().map_or(Path::new(""), PathBuf::as_path);
                write!(f, "{}", root.join(outermost).display())
            }
            Self::RemoveImage(file, _) => write!(f, "{}", file.display()),
            Self::ReleaseDevice => f.write_str("a loop device"),
            Self::Release(_, target) => write!(f, "the hold for {target}"),
            Self::DetachStore(target) => write!(f, "the device for {target}"),
            Self::Unmount(target) | Self::EndDaemon(target) | Self::Unpublish(_, target) => {
                write!(f, "a mount at {target}")
            }
        }
    }
}
