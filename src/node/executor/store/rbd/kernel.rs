//! Images of a Ceph cluster, by the kernel's own client.
//!
//! A device is found again by the name of the key that it was mapped with, which is made of the
//! store's. A device that others have mapped is not used: the call that names it here has not shown
//! a key for it.

use super::super::{Site, TICK, With};
use super::login::{self, Login};
use super::{ABSENT, KEPT, REFUSED, SILENT, mapping, second};
use crate::executor::ceph;
use crate::hints::after_rollback;
use anyhow::{Context as _, Result};
use flexvol_linux::block::rbd::{self, Image, Key, Mapped};
use flexvol_linux::errno::Errno;
use flexvol_linux::mount::users;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::kernel_module;
use flexvol_model::plan::RbdImage;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::secret::Secret;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Limit for a device without a mount to be busy: a program of the node may be looking at it.
const LETTING_GO: Duration = Duration::from_secs(5);

/// Limit for another node to release the image, in seconds. A crashed node is noticed after half a
/// minute, and kubelet tries again.
const LOCK_WAIT: u64 = 10;

/// Returns the name of the key that a store is mapped with.
fn key_name(at: &Site<'_>) -> String {
    format!("flexvol-{}", at.id.as_str())
}

/// Returns the store's device.
pub(super) fn find(at: &Site<'_>) -> Result<Option<Mapped>> {
    rbd::by_key(&key_name(at))
}

pub(super) fn attach(image: &RbdImage, at: &Site<'_>, with: &With<'_>) -> Result<PathBuf> {
    kernel_module::load("rbd", Path::new(rbd::BUS), at.tools())?;
    let login = Login::of(image, at, with)?;
    login.refuse_second_daemon(with.read_only)?;
    if !with.read_only {
        login.refuse_watched(at)?;
    }
    map(&login, at, with, &ceph::decode(&login.key)?)?;
    let mapped = find(at)?.context("the kernel has mapped it, and it is gone")?;
    match refuse_second(&mapped).and_then(|()| mapped.wait(at.deadline)) {
        Ok(path) => Ok(path),
        Err(error) => Err(after_rollback(error, unmap(&mapped, at.deadline), "a device")),
    }
}

pub(super) fn detach(at: &Site<'_>) -> Result<()> {
    find(at)?.map_or(Ok(()), |mapped| unmap(&mapped, at.deadline))
}

/// Refuses an image that the kernel has mapped already, by the same monitor and the same name.
pub(super) fn refuse_second_to(login: &Login<'_>, read_only: bool) -> Result<()> {
    let spec = login.image.spec();
    refuse_clash(read_only, |other| other.is_of(&login.monitor, &spec).unwrap_or(false))
}

/// Refuses a device that shows the same, unless both devices are read-only.
fn refuse_clash(read_only: bool, is_same: impl Fn(&Mapped) -> bool) -> Result<()> {
    let clashes = |other: &Mapped| !(read_only && other.is_read_only());
    let other = rbd::all()?.into_iter().find(|other| is_same(other) && clashes(other));
    other.map_or(Ok(()), |other| Err(second(&format!("to {}", other.path().display()))))
}

/// Maps the image. For writing it is claimed if possible: a kernel that cannot claim, or an image
/// without that feature, returns `INVAL`.
fn map(login: &Login<'_>, at: &Site<'_>, with: &With<'_>, key: &Secret) -> Result<()> {
    let RbdImage { pool, image, snapshot, .. } = login.image;
    let mapped = Image { pool, image, snapshot: snapshot.as_deref() };
    let name = key_name(at);
    let key = Key { name: &name, bytes: key.expose() };
    let map = |access: &str| rbd::map(&login.monitor, &options(login.image, at, access), &mapped, &key);
    let claim = format!("rw,exclusive,lock_timeout={LOCK_WAIT}");
    let mapped = match (with.read_only, login.image.exclusive) {
        (true, _) => map("ro"),
        (false, false) => map("rw"),
        (false, true) => match map(&claim) {
            Err(Errno::INVAL) => map("rw"),
            mapped => mapped,
        },
    };
    mapped.map_err(|errno| mapping(login, &errno.to_string(), explain(errno, with.read_only)).into())
}

fn options(image: &RbdImage, at: &Site<'_>, access: &str) -> String {
    let namespace = image.namespace.as_ref().map(|space| format!(",_pool_ns={space}"));
    let mode = image.mode.as_ref().map(|mode| format!(",ms_mode={mode}"));
    let patience = Some(image.patience).filter(|patience| *patience > 0);
    let patience = patience.map(|patience| format!(",osd_request_timeout={patience}"));
    let further: String = [namespace, mode, patience].into_iter().flatten().collect();
    format!("name={},{access},mount_timeout={}{further}", image.user, login::patience(at))
}

fn explain(errno: Errno, read_only: bool) -> (Code, &'static str) {
    match errno {
        Errno::NOENT => ABSENT,
        Errno::ACCESS | Errno::PERM | Errno::NOKEY => REFUSED,
        Errno::ROFS => KEPT,
        Errno::TIMEDOUT if !read_only => (
            Code::Timeout,
            "the cluster does not answer, or another node has the image and does not release it: check both",
        ),
        Errno::TIMEDOUT => SILENT,
        Errno::NXIO => (
            Code::Conflict,
            "the image has a feature that this kernel lacks: take it off with rbd feature disable, or set mounter: rbd-nbd",
        ),
        Errno::INVAL => (Code::BadOptions, "an option does not suit this kernel: check msMode and namespace"),
        _ => (Code::Internal, "the kernel's log says more: see dmesg"),
    }
}

/// Refuses a second device: two of one image, of which one writes, destroy it, and the kernel
/// allows them.
fn refuse_second(mapped: &Mapped) -> Result<()> {
    let identity = mapped.identity()?;
    refuse_clash(mapped.is_read_only(), |other| {
        other != mapped && other.identity().is_ok_and(|other| other == identity)
    })
}

fn unmap(mapped: &Mapped, deadline: &Deadline) -> Result<()> {
    let patience = Deadline::for_undo(LETTING_GO.min(deadline.remaining()));
    loop {
        match mapped.unmap() {
            Err(Errno::BUSY) if !patience.expired() => std::thread::sleep(TICK),
            Err(Errno::BUSY) => {
                let path: PathBuf = mapped.path();
                let text =
                    format!("{} is in use{}: end it, kubelet tries again", path.display(), users::of(&path));
                return Err(Failure::new(Code::Busy, text).into());
            }
            unmapped => return unmapped.with_context(|| format!("unmap {}", mapped.path().display())),
        }
    }
}
