//! Repairs that `doctor` can carry out. Each one checks again before it acts: the node may have
//! changed since the finding.

use crate::inventory::{CSI_NOTE, pods};
use crate::plugin_dir::{in_use, litter};
use anyhow::{Context as _, Result, ensure};
use flexvol_linux::block::loop_device;
use flexvol_linux::fs::directory::Directory;
use flexvol_linux::fs::files;
use flexvol_linux::mount::mount_table;
use flexvol_model::paths;
use flexvol_node::executor::leftovers;
use flexvol_protocol::TargetPath;
use flexvol_protocol::volume_dir::VolumeDir;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

/// One repair.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "does", rename_all = "camelCase")]
pub enum Repair {
    /// Detaches a dead mount.
    Detach {
        /// Its mount point.
        target: PathBuf,
    },
    /// Unmounts the volumes of a pod that is gone, and removes the directories that are then empty.
    /// The only file that it removes is kubelet's note of a CSI volume that is not mounted.
    ClearPod {
        /// The pod's directory.
        directory: PathBuf,
        /// Its flex volumes, and CSI volumes that `flexvold` serves.
        targets: Vec<PathBuf>,
    },
    /// Detaches a loop device that is not in use.
    ReleaseLoop {
        /// The device.
        device: PathBuf,
        /// Its expected backing file.
        file: PathBuf,
    },
    /// Ends the processes that serve a volume that is not mounted, and removes its private files.
    RemoveHome {
        /// Name of the directory of these files.
        name: String,
    },
    /// Removes the record of a volume that is no longer mounted, and releases what belonged to it.
    ForgetRecord {
        /// Its former mount point.
        target: PathBuf,
    },
    /// Removes leftovers of killed installers, under the directory's lock.
    ClearLitter {
        /// The plugin directory.
        directory: PathBuf,
    },
}

/// Reads what the process of the check wrote. Written by hand: the derived code for a tagged enum
/// is twenty times as large.
impl<'de> Deserialize<'de> for Repair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        Self::read(&value).ok_or_else(|| D::Error::custom("no repair"))
    }
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
    fn read(value: &Value) -> Option<Self> {
        let path = |key: &str| Some(PathBuf::from(value.get(key)?.as_str()?));
        let paths = |key: &str| {
            let paths = value.get(key)?.as_array()?.iter();
            paths.map(|path| Some(PathBuf::from(path.as_str()?))).collect::<Option<Vec<_>>>()
        };
        Some(match value.get("does")?.as_str()? {
            "detach" => Self::Detach { target: path("target")? },
            "clearPod" => Self::ClearPod { directory: path("directory")?, targets: paths("targets")? },
            "releaseLoop" => Self::ReleaseLoop { device: path("device")?, file: path("file")? },
            "removeHome" => Self::RemoveHome { name: value.get("name")?.as_str()?.to_owned() },
            "forgetRecord" => Self::ForgetRecord { target: path("target")? },
            "clearLitter" => Self::ClearLitter { directory: path("directory")? },
            _ => return None,
        })
    }

    /// Carries out the repair. Does nothing if the problem is fixed already, or is another one now.
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
    let uid = pod.file_name().and_then(OsStr::to_str).unwrap_or_default();
    ensure!(pods::has_gone(uid), "the pod of {} is here again: nothing was done", pod.display());
    for target in targets {
        let path = target_path(target)?;
        if VolumeDir::of(&path).is_csi() {
            clear_csi(target)?;
            continue;
        }
        leftovers::unmount(&path)?;
        remove_empty(target)?;
        let _ = target.parent().map(remove_empty);
    }
    // Kubernetes' own volumes may still be there: kubelet removes the rest.
    let volumes = pod.join("volumes");
    let _ = remove_empty(&volumes).and_then(|()| remove_empty(pod));
    Ok(())
}

/// Clears a volume that is not mounted. A mounted one stays: kubelet unpublishes it at its start.
fn clear_csi(target: &Path) -> Result<()> {
    let volume = target.parent().context("a volume has a directory")?;
    ensure!(mount_table::at(target)?.is_none(), "{} is mounted again: nothing was done", target.display());
    remove_empty(target)?;
    let note = volume.join(CSI_NOTE);
    files::forget(&note).with_context(|| format!("remove {}", note.display()))?;
    remove_empty(volume)?;
    let _ = volume.parent().map(remove_empty);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let path = || PathBuf::from("/a b");
        for repair in [
            Repair::Detach { target: path() },
            Repair::ClearPod { directory: path(), targets: vec![path(), "/c".into()] },
            Repair::ReleaseLoop { device: path(), file: "/c".into() },
            Repair::RemoveHome { name: "a".to_owned() },
            Repair::ForgetRecord { target: path() },
            Repair::ClearLitter { directory: path() },
        ] {
            let mut value = serde_json::to_value(&repair).unwrap();
            assert_eq!(serde_json::from_value::<Repair>(value.clone()).unwrap(), repair);
            value.as_object_mut().unwrap().remove("does");
            assert!(serde_json::from_value::<Repair>(value).is_err());
        }
        assert!(serde_json::from_str::<Repair>(r#"{"does":"detach"}"#).is_err(), "nothing is detached at ''");
    }
}
