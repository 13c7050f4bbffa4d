//! Less than usual for a program that is about to be started.

use super::raw;
use rustix::fs::Mode;
use rustix::process::{Resource, getrlimit, setrlimit, umask};
use std::io;
use std::process::Command;

/// How much a process may use up, and those it starts; `None` is as much as this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// How many descriptors it may have open.
    pub files: Option<u64>,
    /// How many processes its user may have. Root may have any number.
    pub processes: Option<u64>,
    /// How many bytes a file may have that it writes.
    pub file_size: Option<u64>,
}

impl Limits {
    /// Only the soft ones: who asks for more gets it.
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
        Ok(())
    }
}

/// The command starts with these limits and this umask, whatever this process has.
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
