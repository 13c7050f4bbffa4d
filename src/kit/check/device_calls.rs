//! Single calls of the verbs of drivers that attach, without other steps, for cases about that
//! call.

use super::answer::Answer;
use super::evidence::Stopped;
use super::subject::Subject;
use flexvol_kubelet::PodVolume;
use flexvol_linux::mount::mount_table::{self, Entry};
use flexvol_linux::mount::place::Place;
use flexvol_protocol::{Call, TargetPath};
use std::path::Path;

impl Subject<'_> {
    /// Calls `attach` for any node.
    pub fn call_attach(&mut self, volume: &PodVolume, node: &str) -> Answer {
        self.call(&Call::Attach { options: volume.device_options(), node: node.to_owned() })
    }

    /// Calls `detach` for any volume name and any node.
    pub fn call_detach(&mut self, volume: &str, node: &str) -> Answer {
        self.call(&Call::Detach { volume: volume.to_owned(), node: node.to_owned() })
    }

    /// Calls `isattached` for any node.
    pub fn call_is_attached(&mut self, volume: &PodVolume, node: &str) -> Answer {
        self.call(&Call::IsAttached { options: volume.device_options(), node: node.to_owned() })
    }

    /// Calls `waitforattach`.
    pub fn call_wait(&mut self, volume: &PodVolume, device: &str) -> Answer {
        self.call(&Call::WaitForAttach { device: device.to_owned(), options: volume.device_options() })
    }

    /// Calls `mountdevice`.
    pub fn call_mount_device(&mut self, volume: &PodVolume, device: &str) -> Result<Answer, Stopped> {
        let (target, options) = (volume.global()?, volume.device_options());
        Ok(self.call(&Call::MountDevice { target, device: device.to_owned(), options }))
    }

    /// Calls `unmountdevice`.
    pub fn call_unmount_device(&mut self, volume: &PodVolume) -> Result<Answer, Stopped> {
        Ok(self.call(&Call::UnmountDevice { target: volume.global()? }))
    }
}

/// Mounts at a directory: a volume is unchanged while these are the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mounts {
    ids: Vec<u64>,
    /// Unique id of the top mount. The kernel reuses the other ids, but not this one.
    on_top: Option<u64>,
}

impl Mounts {
    pub(super) fn at(target: &TargetPath) -> Result<Self, Stopped> {
        let ids = mounted_at(target.as_path())?.into_iter().map(|entry| entry.id).collect();
        let on_top = Place::open(target)?.and_then(|place| place.unique_mount_id());
        Ok(Self { ids, on_top })
    }

    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }
}

/// Lists the mounts at a path, from the lowest to the top one.
pub(super) fn mounted_at(path: &Path) -> Result<Vec<Entry>, Stopped> {
    Ok(mount_table::read()?.into_iter().filter(|entry| entry.target == path).collect())
}
