//! Resource limits: of this process, and of a program that is about to be started.

use crate::raw;
use nix::sys::resource;
use rustix::fs::Mode;
use rustix::process::{Resource, getrlimit, setrlimit, umask};
use std::io;
use std::process::Command;

/// Limits of a process and of those it starts; `None` is the limit of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Number of descriptors that it may have open.
    pub files: Option<u64>,
    /// Number of processes that its user may have. Root may have any number.
    pub processes: Option<u64>,
    /// Size of a file that it writes, in bytes.
    pub file_size: Option<u64>,
    /// True if it cannot start a process, as on a node that has none left; it can start threads.
    /// Applies to root, too.
    pub alone: bool,
}

impl Limits {
    /// Sets the soft limits only: the program may raise them again.
    fn set(self) -> io::Result<()> {
        let all = [
            (Resource::Nofile, self.files),
            (Resource::Nproc, self.processes),
            (Resource::Fsize, self.file_size),
        ];
        for (resource, wanted) in all {
            if let Some(wanted) = wanted {
                let mut limit = getrlimit(resource);
                limit.current = Some(limit.maximum.map_or(wanted, |most| most.min(wanted)));
                setrlimit(resource, limit)?;
            }
        }
        if self.alone { raw::refuse_processes() } else { Ok(()) }
    }
}

/// Minimum that the driver and the programs it starts need: descriptors, bytes of stack, and bytes
/// of a file.
const NEEDED: [(resource::Resource, u64); 3] = [
    (resource::Resource::RLIMIT_NOFILE, 1024),
    (resource::Resource::RLIMIT_STACK, 8 << 20),
    (resource::Resource::RLIMIT_FSIZE, resource::RLIM_INFINITY),
];

/// Raises the limits of this process that are below the needs of a driver, as far as permitted:
/// limits that were set for kubelet must not prevent a driver from recording its mounts.
pub fn lift() {
    for (resource, needed) in NEEDED {
        // Not rustix: it assumes that the kernel always answers.
        let Ok((current, most)) = resource::getrlimit(resource) else { continue };
        if current < needed && resource::setrlimit(resource, needed, most.max(needed)).is_err() {
            let _ = resource::setrlimit(resource, most, most);
        }
    }
}

/// Makes the command start with these limits and this umask, whatever this process has.
pub fn impose(command: &mut Command, limits: Limits, mask: Option<u32>) {
    if limits == Limits::default() && mask.is_none() {
        return;
    }
    raw::before_exec(command, move || {
        if let Some(mask) = mask {
            umask(Mode::from_raw_mode(mask));
        }
        limits.set()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_alone_starts_no_process() {
        if !rustix::process::geteuid().is_root() {
            println!("SKIP who_is_alone_starts_no_process: needs root for a filter of system calls");
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "a test starts a shell")]
        let mut command = Command::new("sh");
        command.args(["-c", "echo still here; /bin/true || echo not started; (echo a child)"]);
        impose(&mut command, Limits { alone: true, ..Limits::default() }, None);
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(said.starts_with("still here") && !said.contains("a child"), "{said}");
        assert!(!output.status.success());
    }
}
