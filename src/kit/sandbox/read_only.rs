//! Makes mounts read-only, with all mounts in them.

use anyhow::Result;
use flexvol_linux::mount::mount_table;
use flexvol_linux::raw;
use rustix::fs::{CWD, Mode, OFlags, StatVfsMountFlags, openat, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountAttrFlags, MountFlags, mount_remount};
use std::os::fd::AsFd as _;
use std::path::Path;

/// Makes the topmost mount at a path read-only, and those below it.
pub(super) fn make(path: &Path) -> Result<()> {
    let change = raw::MountAttributes {
        set: u64::from(MountAttrFlags::MOUNT_ATTR_RDONLY.bits()),
        clear: 0,
        propagation: 0,
        user_namespace: 0,
    };
    let mount = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    match raw::set_mount_attributes(mount.as_fd(), true, &change) {
        Err(Errno::NOSYS) => make_each(path),
        changed => Ok(changed?),
    }
}

/// Makes each mount read-only separately, as needed before Linux 5.12, and keeps its other flags. A
/// covered mount cannot be changed, and need not be.
pub(super) fn make_each(path: &Path) -> Result<()> {
    for entry in mount_table::below(&std::fs::canonicalize(path)?)? {
        let there = statvfs(&entry.target)?.f_flag;
        let kept = [
            (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
            (StatVfsMountFlags::NODEV, MountFlags::NODEV),
            (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
            (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
            (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
            (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
        ];
        let kept = kept.into_iter().filter(|(has, _)| there.contains(*has)).map(|(_, flag)| flag);
        let flags = kept.fold(MountFlags::BIND | MountFlags::RDONLY, |all, flag| all | flag);
        mount_remount(&entry.target, flags, c"")?;
    }
    Ok(())
}
