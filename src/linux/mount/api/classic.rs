//! mount(2), for kernels without the mount API: all options in one string, and flags in a second
//! step.

use super::{BindMount, NewMount, fd_path, propagation, unmount};
use crate::mount::place::Place;
use crate::proc::process;
use anyhow::Result;
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::mount_options::{Atime, MountFlags};
use rustix::fs::{Mode, OFlags, StatVfsMountFlags, fstatvfs, openat};
use rustix::mount as api;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::PathBuf;
use sys_mount::{Mount, MountFlags as Classic};
use zeroize::Zeroizing;

/// Opens the target itself, because mount(2) would follow a symlink there.
pub(super) fn target(place: &Place) -> Result<(OwnedFd, PathBuf)> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = openat(place.parent(), place.name(), flags, Mode::empty())?;
    let path = fd_path(fd.as_fd());
    Ok((fd, path))
}

pub(super) fn mount(new: &NewMount<'_>, place: &Place) -> Result<()> {
    let (_fd, target) = target(place)?;
    let data = data(new)?;
    // mount(2) makes the superblock read-only along with the mount, and so every other mount of the
    // device. The flag is passed here only if that is wanted. Otherwise only this mount becomes
    // read-only, in a second step.
    let flags = flags_of(MountFlags { read_only: new.superblock_read_only, ..new.flags });
    let mount = Mount::builder().fstype(new.file_system).flags(flags).data(data.as_str());
    mount.mount(new.source, &target).map_err(process::refused)?;
    if new.flags.read_only && !new.superblock_read_only {
        reflag(place, new.flags).inspect_err(|_| drop(unmount(place, true)))?;
    }
    Ok(())
}

/// Joins all options into one string. Only cifs can escape a comma: as two commas.
fn data(new: &NewMount<'_>) -> Result<Zeroizing<String>> {
    let mut data = Zeroizing::new(String::new());
    for option in new.options {
        if !data.is_empty() {
            data.push(',');
        }
        data.push_str(option.key);
        let Some(value) = option.value.bytes() else { continue };
        let not_here = |what: &str| {
            Failure::options(format!("option {:?} holds {what}: this kernel takes none", option.key))
        };
        let value = std::str::from_utf8(value).map_err(|_| not_here("what is no UTF-8"))?;
        data.push('=');
        match new.file_system {
            "cifs" => data.push_str(&Zeroizing::new(value.replace(',', ",,"))),
            _ if value.contains(',') => return Err(not_here("a comma").into()),
            _ => data.push_str(value),
        }
    }
    Ok(data)
}

/// Sets the flags of the mount on top at `place`, not those of the file system below it.
pub(super) fn reflag(place: &Place, flags: MountFlags) -> Result<()> {
    let flags = Classic::BIND | Classic::REMOUNT | flags_of(flags);
    Ok(Mount::builder().fstype("none").flags(flags).mount("none", place.through_parent()).map(drop)?)
}

fn flags_of(flags: MountFlags) -> Classic {
    let atime = match flags.atime {
        Atime::Relative => Classic::RELATIME,
        Atime::Never => Classic::NOATIME,
        Atime::Strict => Classic::STRICTATIME,
    };
    let wanted = [
        (flags.read_only, Classic::RDONLY),
        (!flags.suid, Classic::NOSUID),
        (!flags.dev, Classic::NODEV),
        (!flags.exec, Classic::NOEXEC),
        (!flags.diratime, Classic::NODIRATIME),
    ];
    wanted.into_iter().filter_map(|(set, flag)| set.then_some(flag)).fold(atime, |all, flag| all | flag)
}

/// Combines the requested flags with the flags of the source's mount. A remount replaces all flags:
/// without this, the new mount would allow what the admin forbade on the source.
fn inherited(bind: &BindMount<'_>) -> Result<MountFlags> {
    let there = fstatvfs(bind.source)?.f_flag;
    let forbidden = |flag| there.contains(flag);
    Ok(MountFlags {
        read_only: bind.flags.read_only || forbidden(StatVfsMountFlags::RDONLY),
        suid: bind.flags.suid && !forbidden(StatVfsMountFlags::NOSUID),
        dev: bind.flags.dev && !forbidden(StatVfsMountFlags::NODEV),
        exec: bind.flags.exec && !forbidden(StatVfsMountFlags::NOEXEC),
        diratime: bind.flags.diratime && !forbidden(StatVfsMountFlags::NODIRATIME),
        ..bind.flags
    })
}

pub(super) fn bind(bind: &BindMount<'_>, place: &Place) -> Result<()> {
    if bind.recursive {
        // The flags would apply only to the topmost mount: the mounts below would keep theirs.
        let text = "a recursive bind needs Linux 5.12: set option recursive to false";
        return Err(Failure::new(Code::ToolMissing, text).into());
    }
    let flags = inherited(bind)?;
    let (_fd, target) = target(place)?;
    let mount = Mount::builder().fstype("none").flags(Classic::BIND);
    mount.mount(fd_path(bind.source), &target).map_err(process::refused)?;
    let propagate = || Ok(api::mount_change(place.through_parent(), propagation(bind.propagation))?);
    reflag(place, flags).and_then(|()| propagate()).inspect_err(|_| drop(unmount(place, true)))
}

/// Adds restricting flags. A remount replaces all flags, so the current ones are passed again.
/// Changes only the mount on top: older kernels cannot change those inside it at once.
pub(super) fn restrict(place: &Place, flags: MountFlags) -> Result<()> {
    let there = fstatvfs(target(place)?.0)?.f_flag;
    let has = |flag| there.contains(flag);
    reflag(
        place,
        MountFlags {
            read_only: flags.read_only || has(StatVfsMountFlags::RDONLY),
            suid: flags.suid && !has(StatVfsMountFlags::NOSUID),
            dev: flags.dev && !has(StatVfsMountFlags::NODEV),
            exec: flags.exec && !has(StatVfsMountFlags::NOEXEC),
            diratime: !has(StatVfsMountFlags::NODIRATIME),
            atime: match (has(StatVfsMountFlags::NOATIME), has(StatVfsMountFlags::RELATIME)) {
                (true, _) => Atime::Never,
                (false, true) => Atime::Relative,
                (false, false) => Atime::Strict,
            },
        },
    )
}
