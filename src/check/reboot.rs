//! What a node loses when it goes down: played in the sandbox of a case.

use super::evidence::Stopped;
use super::subject::Subject;
use crate::protocol::TargetPath;
use crate::sys::mount;
use crate::sys::place::Place;
use crate::sys::sandbox::Isolation;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long processes have to disappear once they are killed.
const LAST_WAIT: Duration = Duration::from_secs(2);

const TICK: Duration = Duration::from_millis(2);

impl Subject<'_> {
    /// All processes, mounts and loop devices of the node are gone, and so is what was in /run.
    pub fn reboot(&mut self) -> Result<(), Stopped> {
        if self.inside.isolation() == Isolation::None {
            return Err(Stopped::Skipped("needs a sandbox whose mounts are its own".to_owned()));
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
        let (run, lock) = (Path::new("/run"), Path::new("/run/lock"));
        let has_lock = lock.is_dir();
        clear(run, run.symlink_metadata()?.dev())?;
        if has_lock && !lock.is_dir() {
            // Every boot makes it again.
            fs::create_dir(lock)?;
            fs::set_permissions(lock, PermissionsExt::from_mode(0o1777))?;
        }
        Ok(())
    }

    /// Processes end at once, as when the kernel is out of memory. Who is gone already is as good.
    pub fn kill(&self, pids: &[i32]) -> Result<(), Stopped> {
        for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        let end = Instant::now() + LAST_WAIT;
        while self.inside.processes()?.iter().any(|(pid, _)| pids.contains(pid)) && Instant::now() < end {
            std::thread::sleep(TICK);
        }
        // Orphans are ours, and keep their numbers until we ask for them.
        for pid in pids.iter().filter_map(|pid| Pid::from_raw(*pid)) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        Ok(())
    }
}

/// Removes what is in a directory of this file system; what is mounted in it stays.
fn clear(directory: &Path, device: u64) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let (path, about) = {
            let entry = entry?;
            (entry.path(), entry.metadata()?)
        };
        if about.dev() != device {
            continue;
        }
        let removed = if about.is_dir() {
            clear(&path, device)?;
            fs::remove_dir(&path)
        } else {
            fs::remove_file(&path)
        };
        match removed {
            Err(error)
                if ![ErrorKind::DirectoryNotEmpty, ErrorKind::ResourceBusy].contains(&error.kind()) =>
            {
                return Err(error);
            }
            _ => {}
        }
    }
    Ok(())
}
