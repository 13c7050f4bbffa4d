//! Images of a Ceph cluster, by the kernel's own client or by Ceph's daemon.
//!
//! With either client, the device is found again without a record, by a name that is made of the
//! store's. A node has only one device of an image, whichever client its pods ask for.

mod kernel;
mod login;
mod rbd_nbd;

use super::{Backend, Found, Site, With};
use anyhow::{Context as _, Result};
use flexvol_linux::block::block_status::Zeros;
use flexvol_linux::block::nbd::Device;
use flexvol_model::plan::{RbdImage, RbdMounter};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::quantity::Quantity;
use login::Login;
use std::path::Path;

/// Driver of such devices.
pub(super) const DRIVER: &str = "rbd";

/// Limit for asking the monitors, in seconds.
const MONITORS: u64 = 60;

/// Reasons for an image that is not mapped, each with a fix.
const ABSENT: (Code, &str) =
    (Code::NotFound, "the cluster has no such pool, image or snapshot: check pool, image and snapshot");
const REFUSED: (Code, &str) = (
    Code::Denied,
    "the cluster refuses user and key: check option user and the Secret's key, and what ceph auth get says of the user",
);
const KEPT: (Code, &str) = (Code::Busy, "another node has it mapped and keeps it: unmount it there");
const SILENT: (Code, &str) = (Code::Timeout, "the cluster does not answer: check its monitors and disks");

/// Further steps to let an image grow: before it for the kernel's client, after it for rbd-nbd.
const HELD: &str = "unmount it everywhere (a volume with option exclusive: \"false\" need not be) and ";
const UNHEARD: &str = " and, if it has that size, unmount the volume everywhere and mount it again, because rbd-nbd does not tell the kernel";

impl Backend for RbdImage {
    fn find(&self, at: &Site<'_>) -> Result<Option<Found>> {
        let path = match kernel::find(at)? {
            Some(mapped) => Some(mapped.wait(at.deadline)?),
            None => rbd_nbd::find(at)?.map(Device::path),
        };
        Ok(path.map(|path| Found { path, held: None }))
    }

    fn attach(&self, at: &Site<'_>, with: &With<'_>) -> Result<Found> {
        rbd_nbd::clear(at).context("remove what a killed call left")?;
        let path = match self.mounter {
            RbdMounter::Kernel => kernel::attach(self, at, with),
            RbdMounter::RbdNbd => rbd_nbd::attach(self, at, with),
        };
        Ok(Found { path: path?, held: None })
    }

    fn adopt(&self, at: &Site<'_>, _: &With<'_>) -> Result<()> {
        login::forget(at)
    }

    fn detach(&self, at: &Site<'_>, _: Option<&Path>) -> Result<()> {
        unmap(at)?;
        end_daemon(at)
    }

    fn zeros(&self, at: &Site<'_>, with: &With<'_>) -> Zeros {
        Login::of(self, at, with).and_then(|login| login.zeros(at)).unwrap_or_default()
    }

    /// Checks the size, because only the cluster can grow the image. The cluster tells the kernel's
    /// client, which is asked again in any case.
    fn grow(&self, at: &Site<'_>, _: &Path, size: u64) -> Result<()> {
        let (is, before, after) = match kernel::find(at)? {
            Some(mapped) => {
                mapped.refresh()?;
                let is_held = self.exclusive && mapped.has_exclusive_lock()?;
                (mapped.size()?, if is_held { HELD } else { "" }, "")
            }
            None => (rbd_nbd::size_once(at, size)?, "", UNHEARD),
        };
        if is >= size {
            return Ok(());
        }
        let (spec, is, wanted) = (self.spec(), Quantity(is), Quantity(size));
        let text = format!(
            "image {spec} has {is}: {before}grow it with rbd resize --size {wanted}{after}, kubelet tries again"
        );
        Err(Failure::new(Code::Conflict, text).into())
    }
}

/// Returns the failure that an image is not mapped, with the message about it.
fn mapping(login: &Login<'_>, said: &str, (code, text): (Code, &str)) -> Failure {
    Failure::new(code, format!("map {} of {}: {said}: {text}", login.image.spec(), login.monitor))
}

/// Returns the failure that the image would be mapped twice.
fn second(how: &str) -> anyhow::Error {
    let text = format!("the image is mapped {how}, already by others on this node: unmap that");
    Failure::new(Code::Busy, text).into()
}

/// Unmaps the kernel's device of the store, if there is one.
pub(super) fn unmap(at: &Site<'_>) -> Result<()> {
    kernel::detach(at)
}

/// Removes rbd-nbd's device of the store, if there is one.
pub(super) fn end_daemon(at: &Site<'_>) -> Result<()> {
    rbd_nbd::detach(at)
}
