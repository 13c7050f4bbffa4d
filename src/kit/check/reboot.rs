//! Simulated reboot of a node: takes away what a node loses, in the sandbox of a case.

use super::evidence::{Stopped, skip};
use super::in_time::Deadline;
use super::subject::Subject;
use crate::sandbox::Isolation;
use flexvol_linux::mount;
use flexvol_linux::mount::place::Place;
use flexvol_protocol::TargetPath;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

/// Deadline for processes to disappear after they are killed.
const LAST_WAIT: Duration = Duration::from_secs(2);

const TICK: Duration = Duration::from_millis(2);

impl Subject<'_> {
    /// Removes all processes, mounts and loop devices of the node, and everything in /run.
    pub fn reboot(&mut self) -> Result<(), Stopped> {
        if self.inside.isolation() == Isolation::None {
            return skip("needs a sandbox whose mounts are its own");
        }
        let all: Vec<_> = self.inside.processes()?.into_iter().map(|(pid, _)| pid).collect();
        self.kill(&all)?;
        for entry in self.inside.mounts()?.into_iter().rev() {
            let target = TargetPath::parse(entry.target.as_os_str())?;
            if let Some(place) = Place::open(&target)? {
                mount::unmount(&place, true)?;
            }
        }
        self.inside.detach_devices();
        // The content of a directory sorts after the directory itself.
        for path in self.inside.changed()?.iter().rev().filter(|path| path.starts_with("/run")) {
            remove(path)?;
        }
        Ok(())
    }

    /// Kills processes at once, as if memory had run out. Ignores those that are gone already.
    pub fn kill(&self, pids: &[i32]) -> Result<(), Stopped> {
        for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let mut end = Deadline::new(LAST_WAIT);
        while self.inside.processes()?.iter().any(|(pid, _)| pids.contains(pid)) && !end.is_over() {
            std::thread::sleep(TICK);
        }
        // Orphans become children of this process, and keep their pids until it reaps them.
        for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        Ok(())
    }
}

/// Removes a file or an empty directory. Keeps a directory that is not empty.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match path.symlink_metadata() {
        Ok(about) if about.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if ![ErrorKind::DirectoryNotEmpty, ErrorKind::NotFound].contains(&error.kind()) => {
            Err(error)
        }
        _ => Ok(()),
    }
}
