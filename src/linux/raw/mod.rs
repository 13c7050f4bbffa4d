//! System calls that no crate offers in a safe form. All `unsafe` code of the crate is here.
#![allow(unsafe_code, reason = "ioctls, ptrace, leases, pre_exec and an allocator have no safe form")]

pub(crate) mod landlock;
#[cfg(all(target_env = "musl", panic = "abort"))]
mod never_unwinds;
mod strerror;
pub mod trace;

use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::ptr;

/// The system's allocator, which also zeroes freed memory: it may hold a secret.
#[derive(Debug)]
pub struct Wiping;

// SAFETY: each call is System's own with the same layout. Freed memory has no other owner any more,
// so it may be written to. realloc is the trait's own: it allocates, copies and frees through this.
unsafe impl GlobalAlloc for Wiping {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that System requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: so many bytes at the pointer were allocated with this layout, and still are.
        unsafe {
            libc::explicit_bzero(pointer.cast(), layout.size());
            System.dealloc(pointer, layout);
        }
    }
}

/// Gives the unused memory of this thread's stack back to the kernel, with all that ended calls
/// have left there.
#[inline(never)]
pub(crate) fn release_unused_stack() {
    // More than this function and the system call need for themselves.
    const OWN: usize = 512;
    let page = rustix::param::page_size();
    let here = ptr::from_ref(&page).addr();
    // SAFETY: the attributes are those of the running thread and live until they are destroyed.
    // What is below this function's own frame on this thread's stack belongs to no call any more.
    unsafe {
        let (mut attributes, mut bottom, mut size) = (std::mem::zeroed(), ptr::null_mut(), 0);
        if libc::pthread_getattr_np(libc::pthread_self(), &raw mut attributes) != 0 {
            return;
        }
        let failed = libc::pthread_attr_getstack(&raw const attributes, &raw mut bottom, &raw mut size);
        libc::pthread_attr_destroy(&raw mut attributes);
        let unused = (here - OWN) / page * page - bottom.addr();
        if failed == 0 && unused < size {
            libc::madvise(bottom, unused, libc::MADV_DONTNEED);
        }
    }
}

/// Calls fcntl(2) with an integer.
pub(crate) fn fcntl(fd: BorrowedFd<'_>, command: i32, number: i32) -> nix::Result<i32> {
    // SAFETY: with the commands used here, the kernel touches no memory of ours.
    nix::errno::Errno::result(unsafe { libc::fcntl(fd.as_raw_fd(), command, number) })
}

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoopInfo {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) raw_device: u64,
    pub(crate) offset: u64,
    pub(crate) size_limit: u64,
    pub(crate) number: u32,
    pub(crate) encrypt_type: u32,
    pub(crate) encrypt_key_size: u32,
    pub(crate) flags: u32,
    pub(crate) file_name: [u8; 64],
    pub(crate) crypt_name: [u8; 64],
    pub(crate) encrypt_key: [u8; 32],
    pub(crate) init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
pub(crate) struct LoopConfig {
    pub(crate) fd: u32,
    pub(crate) block_size: u32,
    pub(crate) info: LoopInfo,
    pub(crate) reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

impl LoopInfo {
    pub(crate) const EMPTY: Self = Self {
        device: 0,
        inode: 0,
        raw_device: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        file_name: [0; 64],
        crypt_name: [0; 64],
        encrypt_key: [0; 32],
        init: [0; 2],
    };
}

/// Linux's numbers of the loop ioctls that take an integer or nothing (linux/loop.h).
#[derive(Clone, Copy)]
#[repr(u16)]
pub(crate) enum LoopCall {
    SetFd = 0x4C00,
    ClearFd = 0x4C01,
    SetCapacity = 0x4C07,
    SetDirectIo = 0x4C08,
    GetFree = 0x4C82,
}

/// Ends a connection of any process: `NBD_DISCONNECT` and `NBD_CLEAR_SOCK` (linux/nbd.h).
pub(crate) fn nbd_end(device: BorrowedFd<'_>) -> io::Result<()> {
    for request in [0xAB08, 0xAB04] {
        // SAFETY: these requests take no argument.
        unsafe { ioctl(device, request, ptr::null_mut()) }?;
    }
    Ok(())
}

/// Calls a loop ioctl that takes an integer or nothing. Returns its return value.
pub(crate) fn loop_call(fd: BorrowedFd<'_>, call: LoopCall, argument: usize) -> io::Result<i32> {
    // SAFETY: none of these calls takes a pointer; the kernel reads the argument as an integer.
    unsafe { ioctl(fd, call as u16, ptr::without_provenance_mut(argument)) }
}

/// `LOOP_CONFIGURE` (Linux 5.8): backing file, window and flags in one step.
pub(crate) fn loop_configure(device: BorrowedFd<'_>, config: &LoopConfig) -> io::Result<()> {
    // SAFETY: the kernel only reads sizeof(struct loop_config) bytes, the size asserted above.
    unsafe { ioctl(device, 0x4C0A, ptr::from_ref(config).cast_mut().cast()) }.map(drop)
}

/// `LOOP_SET_STATUS64`: window and flags of a device that has its backing file.
pub(crate) fn loop_set_status(device: BorrowedFd<'_>, info: &LoopInfo) -> io::Result<()> {
    // SAFETY: the kernel only reads sizeof(struct loop_info64) bytes, the size asserted above.
    unsafe { ioctl(device, 0x4C04, ptr::from_ref(info).cast_mut().cast()) }.map(drop)
}

/// `LOOP_GET_STATUS64`; `ENXIO` when the device has no backing file.
pub(crate) fn loop_status(device: BorrowedFd<'_>) -> io::Result<LoopInfo> {
    let mut info = LoopInfo::EMPTY;
    // SAFETY: the kernel writes sizeof(struct loop_info64) bytes; every bit pattern is a LoopInfo.
    unsafe { ioctl(device, 0x4C05, ptr::from_mut(&mut info).cast()) }?;
    Ok(info)
}

/// `struct ifreq` of linux/if.h, for the calls that read or write flags.
#[repr(C)]
struct InterfaceFlags {
    name: [u8; 16],
    flags: u16,
    unused: [u8; 22],
}

const _: () = assert!(size_of::<InterfaceFlags>() == 40);

/// `SIOCSIFFLAGS`: sets the loopback device of this network namespace up, by any socket in it.
pub fn set_loopback_up(socket: BorrowedFd<'_>) -> io::Result<()> {
    let mut name = [0; 16];
    name[..2].copy_from_slice(b"lo");
    let mut request = InterfaceFlags { name, flags: 0x1 | 0x40, unused: [0; 22] };
    // SAFETY: the kernel reads at most sizeof(struct ifreq) bytes, the size asserted above.
    unsafe { ioctl(socket, 0x8914, ptr::from_mut(&mut request).cast()) }.map(drop)
}

/// Adds a key of this type to the calling thread's key ring (`KEY_SPEC_THREAD_KEYRING`).
pub(crate) fn add_thread_key(kind: &CStr, name: &CStr, bytes: &[u8]) -> io::Result<()> {
    // SAFETY: the kernel reads two terminated strings, and as many bytes as there are.
    let id = unsafe {
        libc::syscall(libc::SYS_add_key, kind.as_ptr(), name.as_ptr(), bytes.as_ptr(), bytes.len(), -1_i32)
    };
    if id < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// # Safety
///
/// `argument` must be what `request` takes: an integer, or a pointer to a whole structure.
unsafe fn ioctl(fd: BorrowedFd<'_>, request: u16, argument: *mut libc::c_void) -> io::Result<i32> {
    // SAFETY: the descriptor is open for the whole call; the rest is the caller's promise.
    match unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(request), argument) } {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// `struct mount_attr` of linux/mount.h.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct MountAttributes {
    /// Flags to set, `MOUNT_ATTR_*`.
    pub set: u64,
    /// Flags to clear.
    pub clear: u64,
    /// `MS_SHARED` and the like; 0 changes nothing.
    pub propagation: u64,
    /// The user namespace of `MOUNT_ATTR_IDMAP`.
    pub user_namespace: u64,
}

const _: () = assert!(size_of::<MountAttributes>() == 32);

/// `mount_setattr(2)` (Linux 5.12) on the mount behind `tree`, with those below if `recursive`.
pub fn set_mount_attributes(
    tree: BorrowedFd<'_>,
    recursive: bool,
    change: &MountAttributes,
) -> rustix::io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    let fd = tree.as_raw_fd();
    // SAFETY: the path is a constant; the kernel only reads the structure, of the size passed.
    match unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd,
            c"".as_ptr(),
            flags,
            ptr::from_ref(change),
            size_of_val(change),
        )
    } {
        -1 => {
            Err(rustix::io::Errno::from_io_error(&io::Error::last_os_error())
                .unwrap_or(rustix::io::Errno::IO))
        }
        _ => Ok(()),
    }
}

/// Returns PID and user of the process at the other end of a socket, as it has connected or
/// listened. Unlike rustix's function, this also reports a process in a PID namespace that is not
/// ours, which has the PID 0 here.
pub(crate) fn peer(socket: BorrowedFd<'_>) -> io::Result<(i32, u32)> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).unwrap_or_default();
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the kernel writes at most `length` bytes to `peer`, which is as long, and any bytes
    // are valid.
    let got =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut peer).cast(), &raw mut length) };
    if got == 0 { Ok((peer.pid, peer.uid)) } else { Err(io::Error::last_os_error()) }
}

/// Calls fork(2): returns the child's PID in the parent, `None` in the child.
///
/// Sound only in a process with one thread, as every process of the verb path is.
/// The tests fork beside other threads and rely on the C library, whose allocator survives that.
pub fn fork() -> nix::Result<Option<nix::unistd::Pid>> {
    // SAFETY: see above.
    match unsafe { nix::unistd::fork() }? {
        nix::unistd::ForkResult::Parent { child } => Ok(Some(child)),
        nix::unistd::ForkResult::Child => Ok(None),
    }
}

/// Calls _exit(2) with 0: destructors and exit handlers belong to the process that forked.
pub fn end() -> ! {
    end_with(0)
}

/// Does the same with another status.
pub fn end_with(status: i32) -> ! {
    // SAFETY: takes an integer and does not return.
    unsafe { libc::_exit(status) }
}

/// Moves fd 1 to fd 3, close-on-exec, and closes everything above it; `None` if fd 1 is not open.
///
/// Called once, before all else: no code in this process owns a descriptor above 2 yet.
pub(crate) fn take_stdout() -> Option<OwnedFd> {
    // SAFETY: integers only; an open descriptor 3 was inherited and has no owner here.
    let moved = unsafe { libc::dup3(libc::STDOUT_FILENO, 3, libc::O_CLOEXEC) };
    close_from(if moved == 3 { 4 } else { 3 });
    // SAFETY: dup3 has just made it, and no other code knows of it.
    (moved == 3).then(|| unsafe { OwnedFd::from_raw_fd(3) })
}

/// Closes every descriptor from 3 on except `kept`, in a fork that never returns to their owners.
pub fn close_all_but<const N: usize>(kept: [BorrowedFd<'_>; N]) {
    let mut kept = kept.map(|fd| fd.as_raw_fd());
    kept.sort_unstable();
    let mut first = 3;
    for fd in kept {
        if fd > first {
            close_between(first, fd - 1);
        }
        first = first.max(fd + 1);
    }
    close_from(first);
}

fn close_from(first: i32) {
    close_between(first, i32::MAX);
}

fn close_between(first: i32, last: i32) {
    // SAFETY: integers only; the callers own every descriptor in the range, or it has no owner.
    if unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0 {
        return;
    }
    for fd in first..=last.min(most_descriptors()) {
        // SAFETY: as above; for a number that is not open, the result is EBADF.
        unsafe { libc::close(fd) };
    }
}

/// Runs `hook` in the child between fork and exec.
///
/// The hook may only make system calls that signal-safety(7) allows: no allocation, no lock. All
/// hooks are in [`crate::proc`] (helpers and limits) and in the kit, whose tracer has one.
pub fn before_exec(command: &mut Command, hook: impl FnMut() -> io::Result<()> + Send + Sync + 'static) {
    // SAFETY: the hook is async-signal-safe by the rule above.
    unsafe { command.pre_exec(hook) };
}

/// The kernel's number for the architecture whose system calls these are (linux/audit.h).
const MACHINE: Option<u32> = if cfg!(target_arch = "x86_64") {
    Some(0xC000_003E)
} else if cfg!(target_arch = "aarch64") {
    Some(0xC000_00B7)
} else {
    None
};

/// Forbids this process and all that it becomes to start processes (`EAGAIN`); threads are allowed.
///
/// Safe between fork and exec.
pub(crate) fn refuse_processes() -> io::Result<()> {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W};
    let Some(machine) = MACHINE else { return Err(io::ErrorKind::Unsupported.into()) };
    let step = |code: u32, k: u32, yes: u8, no: u8| {
        let code = u16::try_from(code).unwrap_or_default();
        libc::sock_filter { code, jt: yes, jf: no, k }
    };
    let load = |at| step(BPF_LD | BPF_W | BPF_ABS, at, 0, 0);
    let is = |number: i64, yes, no| {
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        step(BPF_JMP | BPF_JEQ | BPF_K, number, yes, no)
    };
    let end = |value| step(BPF_RET | BPF_K, value, 0, 0);
    let refuse = |errno: i32| end(libc::SECCOMP_RET_ERRNO | errno.cast_unsigned());
    // Newer architectures have only clone(2).
    #[cfg(target_arch = "x86_64")]
    let old = [libc::SYS_fork, libc::SYS_vfork];
    #[cfg(not(target_arch = "x86_64"))]
    let old = [libc::SYS_clone; 2];
    let mut program = [
        load(4),
        is(i64::from(machine), 0, 8),
        load(0),
        is(libc::SYS_clone3, 7, 0),
        is(libc::SYS_clone, 2, 0),
        is(old[0], 3, 0),
        is(old[1], 2, 3),
        load(16),
        step(BPF_JMP | BPF_JSET | BPF_K, libc::CLONE_THREAD.cast_unsigned(), 1, 0),
        // The jumps above count from the step after them to these.
        refuse(libc::EAGAIN),
        end(libc::SECCOMP_RET_ALLOW),
        // The flags of clone3 are in memory, where no filter can look: clone(2) is tried next.
        refuse(libc::ENOSYS),
    ];
    let length = u16::try_from(program.len()).unwrap_or_default();
    let filter = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, whose length is passed with it.
    match unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, ptr::from_ref(&filter)) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Marks every descriptor from `first` on as close-on-exec: with `close_range` since Linux 5.11,
/// one by one before.
///
/// Safe between fork and exec. The descriptors are not closed here: the standard library reports a
/// failed exec through one of them.
pub(crate) fn close_on_exec_from(first: u32) {
    // SAFETY: three integers, no memory; the flag only changes what the next exec does.
    let done =
        unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC) };
    if done == 0 {
        return;
    }
    for fd in first.cast_signed()..=most_descriptors() {
        // SAFETY: F_SETFD takes an integer; for a number that is not open, the result is EBADF.
        unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
}

/// Returns the limit of the slow loops: no descriptor was opened above it, unless it was lowered
/// since. At most 65,536, which are 20 ms of system calls.
fn most_descriptors() -> i32 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    i32::try_from(limit.min(65_536)).unwrap_or(65_536)
}

/// Gives `signal` a disposition, without `SA_RESTART`, so that a blocking call ends with `EINTR`.
///
/// A handler must be async-signal-safe; the only one, in [`crate::proc::signal`], stores to an
/// atomic.
pub(crate) fn set_disposition(signal: Signal, handler: SigHandler) -> nix::Result<()> {
    let action = SigAction::new(handler, SaFlags::empty(), SigSet::empty());
    // SAFETY: see above; the previous handler is not needed again.
    unsafe { sigaction(signal, &action) }.map(drop)
}
