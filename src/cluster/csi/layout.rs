//! FlexVolume's own directories: for drivers that attach, for drivers that refuse other paths, and
//! for targets of another driver's.
//!
//! A driver that attaches derives the path of the mounted device from the path of `mount`, because
//! kubelet's paths allow that. CSI's paths tell neither the owner of the volume nor its staging
//! path, and careful drivers refuse them. So our own state contains a tree with kubelet's layout.
//! The driver works in it, and its mount for a pod is shown at CSI's target.
//!
//! The same applies if the target belongs to a FlexVolume driver that uses this one as its CSI
//! driver: that driver holds the target's lock until it gets the answer, and the directory is its
//! own.
//!
//! ```text
//! <state>/<CSI name>/kubelet/plugins/kubernetes.io/flexvolume/<vendor>/<driver>/mounts/<volume>
//! <state>/<CSI name>/kubelet/pods/<hash of the target>/volumes/<vendor>~<driver>/<volume>
//! ```

use super::codes::of_error;
use super::handle::Handle;
use super::name::hash;
use super::request::inline_name;
use super::served::Served;
use super::target::{self, Standing};
use anyhow::Context as _;
use flexvol_kubelet::PodVolume;
use flexvol_model::csi_journal::key;
use flexvol_protocol::volume_dir::VolumeDir;
use flexvol_protocol::{Options, TargetPath};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use tonic::Status;

/// Volume for one target, in our own tree.
#[derive(Debug)]
pub struct Inner {
    volume: PodVolume,
    /// Path for `mount` and `unmount`.
    pub target: TargetPath,
}

impl Served {
    /// Returns the path for `mountdevice` and `unmountdevice`.
    pub(super) fn global(&self, id: &str) -> Result<TargetPath, Status> {
        let Some(Handle::Persistent(name)) = Handle::parse(id) else {
            return Err(Status::not_found("no such volume"));
        };
        self.as_kubelet_has_it(name, "").global().map_err(|failure| Status::internal(failure.message()))
    }

    /// Returns the place where the driver mounts for a pod, if that is not the target itself;
    /// `None` for a volume that has no such place.
    pub(super) fn inner(&self, id: &str, target: &TargetPath) -> Option<Inner> {
        let name = match Handle::parse(id)? {
            Handle::Persistent(name) => name,
            Handle::Inline => inline_name(target)?.to_owned(),
        };
        let volume = self.as_kubelet_has_it(name, &hash(key(target).as_bytes())[..32]);
        let target = volume.target().ok()?;
        Some(Inner { volume, target })
    }

    /// Returns the same place, if anything is there.
    pub(super) fn inner_in_use(&self, id: &str, target: &TargetPath) -> Result<Option<Inner>, Status> {
        let Some(inner) = self.inner(id, target) else { return Ok(None) };
        Ok((target::look(&inner.target)? != Standing::Missing).then_some(inner))
    }

    fn as_kubelet_has_it(&self, name: String, pod: &str) -> PodVolume {
        PodVolume {
            kubelet_root: self.tree.clone(),
            pod_uid: pod.to_owned(),
            driver: self.driver.clone(),
            name,
            options: Options::default(),
            capacity: None,
        }
    }
}

impl Inner {
    /// Removes the directories, which are empty and unmounted.
    pub(super) fn remove(&self) -> Result<(), Status> {
        target::remove(&self.target).map_err(|error| of_error(&error))?;
        match self.volume.clean_up().failure {
            Some(failure) => Err(Status::internal(failure.message())),
            None => Ok(()),
        }
    }
}

/// Reports whether kubelet made this directory for a FlexVolume driver.
pub(super) fn is_flex_volume(target: &TargetPath) -> bool {
    VolumeDir::of(target).driver.is_some()
}

/// Makes a directory of our own tree, and those above it.
pub(super) fn make(path: &TargetPath) -> Result<(), Status> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(path.as_path());
    made.with_context(|| format!("make {path}")).map_err(|error| of_error(&error))
}
