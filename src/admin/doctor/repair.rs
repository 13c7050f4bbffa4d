//! What can be fixed from here. Each looks again before it does anything: between finding and
//! fixing the world goes on.

use crate::plugin_dir::{in_use, litter};
use anyhow::{Context as _, Result};
use flexvol_linux::block::loop_device;
use flexvol_linux::fs::directory::Directory;
use flexvol_model::paths;
use flexvol_node::executor::leftovers;
use flexvol_protocol::TargetPath;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "does", rename_all = "camelCase")]
pub enum Repair {
    /// Takes a dead mount off.
    Detach {
        /// Where it is.
        target: PathBuf,
    },
    /// Unmounts the volumes of a pod that is gone, and removes the directories that are empty then.
    /// No file is removed.
    ClearPod {
        /// The pod's directory.
        directory: PathBuf,
        /// Its flex volumes.
        targets: Vec<PathBuf>,
    },
    /// Detaches a loop device that is not in use.
    ReleaseLoop {
        /// The device.
        device: PathBuf,
        /// The file it must show.
        file: PathBuf,
    },
    /// Ends who serves a volume that is not mounted, and removes its private files.
    RemoveHome {
        /// Their directory's name.
        name: String,
    },
    /// Forgets a volume that is not mounted any more, and releases what was there for it.
    ForgetRecord {
        /// Where it was mounted.
        target: PathBuf,
    },
    /// Removes what killed installers left, under the directory's lock.
    ClearLitter {
        /// The plugin directory.
        directory: PathBuf,
    },
}

impl fmt::Display for Repair {
    /// Completes the sentence `--repair would …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Detach { target } => write!(f, "detach the dead mount at {}", target.display()),
            Self::ClearPod { directory, targets } => {
                write!(
                    f,
                    "unmount {} volumes and remove empty directories in {}",
                    targets.len(),
                    directory.display()
                )
            }
            Self::ReleaseLoop { device, .. } => write!(f, "let {} go", device.display()),
            Self::RemoveHome { name } => write!(f, "end and remove {name} in /run/flexvol/daemons"),
            Self::ForgetRecord { target } => write!(f, "forget the record of {}", target.display()),
            Self::ClearLitter { directory } => {
                write!(f, "remove hidden leftovers in {}", directory.display())
            }
        }
    }
}

impl Repair {
    /// Does it. What is fixed already, or has become something else, is left alone.
    pub fn carry_out(&self) -> Result<()> {
        match self {
            Self::Detach { target } => leftovers::detach_dead(&target_path(target)?),
            Self::ClearPod { directory, targets } => clear_pod(directory, targets),
            Self::ReleaseLoop { device, file } => loop_device::release(device, file),
            Self::RemoveHome { name } => leftovers::remove_home(name, || in_use::mounts(paths::RUN.as_ref())),
            Self::ForgetRecord { target } => {
                leftovers::forget_record(&target_path(target)?, || in_use::mounts(paths::RUN.as_ref()))
            }
            Self::ClearLitter { directory } => litter::clear(directory),
        }
    }
}

fn target_path(path: &Path) -> Result<TargetPath> {
    Ok(TargetPath::parse(path.as_os_str())?)
}

fn clear_pod(pod: &Path, targets: &[PathBuf]) -> Result<()> {
    for target in targets {
        leftovers::unmount(&target_path(target)?)?;
        remove_empty(target)?;
        let _ = target.parent().map(remove_empty);
    }
    // Kubernetes' own volumes may still be there: kubelet removes the rest.
    let volumes = pod.join("volumes");
    let _ = remove_empty(&volumes).and_then(|()| remove_empty(pod));
    Ok(())
}

fn remove_empty(path: &Path) -> Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let Some(parent) = Directory::open(parent)? else { return Ok(()) };
    let name: &OsStr = name;
    parent.remove_directory(name).with_context(|| {
        format!("{} holds something that is not ours to remove: move it away", path.display())
    })
}
