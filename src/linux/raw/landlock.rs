//! Landlock's three system calls (linux/landlock.h).

use nix::libc;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::ptr;

/// `struct landlock_ruleset_attr`: access that is refused unless a rule grants it.
#[repr(C)]
pub(crate) struct Refused {
    pub(crate) files: u64,
    pub(crate) network: u64,
    pub(crate) scoped: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct Granted {
    access: u64,
    file: i32,
}

const _: () = assert!(size_of::<Refused>() == 24 && size_of::<Granted>() == 12);

/// Returns the kernel's version of Landlock, from 1 on; an error if it has no Landlock.
pub(crate) fn version() -> io::Result<libc::c_long> {
    // SAFETY: with this flag the kernel touches no memory.
    result(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, ptr::null::<Refused>(), 0_usize, 1_u32)
    })
}

/// Makes a set of rules that refuses this access.
/// `length` is the size of the structure in this kernel.
pub(crate) fn rules(refused: &Refused, length: usize) -> io::Result<OwnedFd> {
    let length = length.min(size_of::<Refused>());
    // SAFETY: the kernel reads no more bytes of the structure than it has.
    let fd = result(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, ptr::from_ref(refused), length, 0_u32)
    })?;
    let fd = i32::try_from(fd).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it, and no other code knows of it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Grants access to a file, or to all files below a directory.
pub(crate) fn grant(rules: BorrowedFd<'_>, file: BorrowedFd<'_>, access: u64) -> io::Result<()> {
    let granted = Granted { access, file: file.as_raw_fd() };
    // SAFETY: the kernel reads one structure of the kind that 1 stands for, with the size asserted
    // above.
    result(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            rules.as_raw_fd(),
            1_u32,
            ptr::from_ref(&granted).cast::<libc::c_void>(),
            0_u32,
        )
    })
    .map(drop)
}

/// Applies the rules to this thread and all that it executes. Safe between fork and exec.
pub(crate) fn restrict(rules: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: two integers.
    result(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, rules.as_raw_fd(), 0_u32) }).map(drop)
}

fn result(value: libc::c_long) -> io::Result<libc::c_long> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
