//! System calls that change something which outlasts the process.

use flexvol_linux::raw::trace::{self, SystemCall};
use nix::libc;
use std::path::Path;

/// Name of system calls that open a file and may create it.
const OPEN: &str = "open";

/// System calls by number, with their names.
const CHANGING: &[(i64, &str)] = &[
    (libc::SYS_mount, "mount"),
    (libc::SYS_umount2, "umount"),
    (libc::SYS_move_mount, "move_mount"),
    (libc::SYS_mount_setattr, "mount_setattr"),
    (libc::SYS_mkdirat, "mkdir"),
    (libc::SYS_unlinkat, "unlink"),
    (libc::SYS_renameat, "rename"),
    (libc::SYS_renameat2, "rename"),
    (libc::SYS_linkat, "link"),
    (libc::SYS_symlinkat, "symlink"),
    (libc::SYS_openat, OPEN),
    (libc::SYS_ioctl, "ioctl"),
];

/// Older system calls, which newer architectures never had.
#[cfg(target_arch = "x86_64")]
const OLDER: &[(i64, &str)] = &[
    (libc::SYS_mkdir, "mkdir"),
    (libc::SYS_rmdir, "rmdir"),
    (libc::SYS_unlink, "unlink"),
    (libc::SYS_rename, "rename"),
    (libc::SYS_link, "link"),
    (libc::SYS_symlink, "symlink"),
    (libc::SYS_open, OPEN),
    (libc::SYS_creat, OPEN),
];
#[cfg(not(target_arch = "x86_64"))]
const OLDER: &[(i64, &str)] = &[];

/// Requests of loop(4) that change a device.
const LOOP: [u64; 4] = [0x4C00, 0x4C01, 0x4C04, 0x4C0A];

/// Returns the system call that the process is about to make, if it may change something. `None` on
/// a kernel without `PTRACE_GET_SYSCALL_INFO` (before Linux 5.3).
pub(super) fn at_beginning(pid: i32) -> Option<&'static str> {
    let Ok(SystemCall::Begins { number, arguments }) = trace::system_call(pid) else { return None };
    let known = |(known, _): &&(i64, &str)| *known == number;
    let (_, name) = CHANGING.iter().chain(OLDER).find(known)?;
    let creates = |flags: u64| flags & u64::from(libc::O_CREAT.cast_unsigned()) != 0;
    let changes = match *name {
        "ioctl" => LOOP.contains(&arguments[1]),
        OPEN if number == libc::SYS_openat => creates(arguments[2]),
        OPEN => arguments_of_older(number).is_none_or(|flags| creates(arguments[flags])),
        _ => true,
    };
    changes.then_some(name)
}

/// Returns the index of the argument of open(2) that holds the flags; creat(2) has no flags.
#[cfg(target_arch = "x86_64")]
fn arguments_of_older(number: i64) -> Option<usize> {
    (number == libc::SYS_open).then_some(1)
}
#[cfg(not(target_arch = "x86_64"))]
fn arguments_of_older(_number: i64) -> Option<usize> {
    None
}

/// Reports whether the system call has made its change. Opening a file in /dev, /proc or /sys
/// changes nothing.
pub(super) fn is_made(pid: i32, name: &str) -> bool {
    match trace::system_call(pid) {
        Ok(SystemCall::Ends { failed: true, .. }) => false,
        Ok(SystemCall::Ends { result, .. }) if name == OPEN => {
            let path = std::fs::read_link(format!("/proc/{pid}/fd/{result}")).unwrap_or_default();
            !["/dev", "/proc", "/sys"].iter().any(|tree| path.starts_with(Path::new(tree)))
        }
        _ => true,
    }
}
