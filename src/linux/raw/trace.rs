//! ptrace(2), and waiting for traced processes (linux/ptrace.h).

use super::{end, fork};
use nix::libc;
use std::io;

/// Requests of ptrace(2) that take an integer or nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PtraceRequest {
    /// Lets the parent trace this process.
    TraceMe = 0,
    /// Continues to the next event.
    Continue = 7,
    /// Ends the trace.
    Detach = 17,
    /// Continues to the next beginning or end of a system call.
    SystemCall = 24,
    /// Traces a process that keeps running.
    Seize = 0x4206,
    /// Leaves the process stopped, but reports events.
    Listen = 0x4208,
}

/// Calls ptrace(2) with a number: a signal to continue with, or options.
pub fn ptrace(request: PtraceRequest, pid: i32, number: i32) -> io::Result<()> {
    // SAFETY: none of these requests takes a pointer.
    match unsafe { libc::syscall(libc::SYS_ptrace, request as i64, i64::from(pid), 0_i64, i64::from(number)) }
    {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Calls `PTRACE_GETEVENTMSG`, for an event whose message is a PID.
pub fn ptrace_message(pid: i32) -> io::Result<i32> {
    let mut message: libc::c_ulong = 0;
    // SAFETY: the kernel writes one unsigned long.
    match unsafe { libc::syscall(libc::SYS_ptrace, 0x4201_i64, i64::from(pid), 0_i64, &raw mut message) } {
        -1 => Err(io::Error::last_os_error()),
        _ => i32::try_from(message).map_err(io::Error::other),
    }
}

/// System call at which a process has stopped.
#[derive(Clone, Copy, Debug)]
pub enum SystemCall {
    /// The call is about to begin.
    Begins {
        /// Number of the call.
        number: i64,
        /// Its arguments.
        arguments: [u64; 6],
    },
    /// The call has ended.
    Ends {
        /// Its return value.
        result: i64,
        /// True if the return value is an error.
        failed: bool,
    },
}

/// Calls `PTRACE_GET_SYSCALL_INFO` (Linux 5.3).
pub fn system_call(pid: i32) -> io::Result<SystemCall> {
    // `struct ptrace_syscall_info` of linux/ptrace.h: the kind, two addresses, and then a union.
    let mut info = [0_u64; 11];
    let size = size_of_val(&info) as u64;
    // SAFETY: the kernel writes no more than the size passed, and any number is valid there.
    match unsafe { libc::syscall(libc::SYS_ptrace, 0x420e_i64, i64::from(pid), size, &raw mut info) } {
        -1 => Err(io::Error::last_os_error()),
        _ => match info {
            [head, _, _, number, arguments @ .., _] if head.to_ne_bytes()[0] == 1 => Ok(SystemCall::Begins {
                number: number.cast_signed(),
                arguments: arguments[..6].try_into().unwrap_or_default(),
            }),
            [head, _, _, result, failed, ..] if head.to_ne_bytes()[0] == 2 => {
                Ok(SystemCall::Ends { result: result.cast_signed(), failed: failed.to_ne_bytes()[0] != 0 })
            }
            _ => Err(io::ErrorKind::InvalidData.into()),
        },
    }
}

/// State change of a traced process.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// PID of the process.
    pub pid: i32,
    code: i32,
    /// For a stopped process: a signal, and an event in the bits above.
    pub status: i32,
}

impl Change {
    /// Reports whether the process has ended.
    pub fn has_ended(&self) -> bool {
        matches!(self.code, libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED)
    }
}

/// Calls waitid(2) for one process, or for any that this thread traces or has started.
/// Returns `None` if there is no change yet, or no process.
pub fn wait_traced(pid: Option<i32>, flags: i32) -> io::Result<Option<Change>> {
    let (kind, id) = pid.map_or((libc::P_ALL, 0), |pid| (libc::P_PID, pid.cast_unsigned()));
    let flags = flags | libc::__WALL | libc::__WNOTHREAD;
    loop {
        // SAFETY: every bit pattern is a valid siginfo_t, and all zeros mean that nothing happened.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel writes one siginfo_t.
        if unsafe { libc::waitid(kind, id, &raw mut info, flags) } == 0 {
            // SAFETY: waitid fills in the fields of SIGCHLD, or leaves zeros.
            let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
            return Ok((pid != 0).then_some(Change { pid, code: info.si_code, status }));
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ECHILD) if pid.is_none() => return Ok(None),
            _ => return Err(error),
        }
    }
}

/// Reports whether ptrace(2) is permitted: tries it on a child that makes only system calls.
pub fn can_trace() -> bool {
    let Ok((reader, writer)) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC) else {
        return false;
    };
    match fork() {
        Err(_) => false,
        Ok(None) => {
            drop(writer);
            // Waits until the parent has closed its end.
            let _ = rustix::io::read(&reader, &mut [0]);
            end()
        }
        Ok(Some(child)) => {
            let possible = ptrace(PtraceRequest::Seize, child.as_raw(), 0).is_ok();
            drop(writer);
            let _ = nix::sys::wait::waitpid(child, None);
            possible
        }
    }
}
