//! The driver's processes that run, known by number and time of start.
//!
//! A process that hangs in the kernel outlives its deadline, and every process outlives a
//! `flexvold` that is killed. As long as one runs, no other call for its volume may begin. So each
//! is noted in a file as soon as it runs, and the next `flexvold` reads the notes.

use anyhow::{Context as _, Result};
use flexvol_kubelet::Observer;
use flexvol_linux::fs::files;
use flexvol_linux::proc::process;
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpid};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A note has a few keys and two numbers.
const LIMIT: usize = 16 << 10;

/// One process of a driver's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: i32,
    /// When it started, in the kernel's ticks: the number alone is given away again.
    pub started: u64,
    /// What it holds.
    pub keys: Vec<String>,
}

impl Process {
    /// Whether it has ended. One of our own children is reaped.
    pub fn is_gone(&self) -> bool {
        if let Some(pid) = Pid::from_raw(self.pid) {
            // Another's child, and one that runs, is left alone.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        process::started(self.pid) != Some(self.started) || process::is_zombie(self.pid)
    }

    /// Ends it and its whole group, by force.
    pub fn kill(&self) {
        if let Some(pid) = Pid::from_raw(self.pid).filter(|_| !self.is_gone()) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// The note of one execution.
#[derive(Debug)]
pub struct Note {
    path: PathBuf,
    keys: Vec<String>,
    process: Mutex<Option<Process>>,
}

impl Note {
    /// For the next execution.
    pub fn new(path: PathBuf, keys: Vec<String>) -> Self {
        Self { path, keys, process: Mutex::new(None) }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The process, if it still runs.
    pub fn left(&self) -> Option<Process> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, process: Option<Process>) {
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = process;
    }
}

impl Observer for Note {
    fn prepare(&self, _: &mut Command) -> io::Result<()> {
        Ok(())
    }

    fn started(&self, driver: Pid, _: Instant) -> io::Result<()> {
        let pid = driver.as_raw_pid();
        let process =
            Process { pid, started: process::started(pid).unwrap_or_default(), keys: self.keys.clone() };
        let text = serde_json::to_string(&process)?;
        self.set(Some(process));
        // Half a note counts as none: a kill can come while it is being written. On a full disk
        // there is no note at all, and volumes must be unmounted there, too.
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&self.path);
        let _ = file.and_then(|mut file| file.write_all(text.as_bytes()));
        Ok(())
    }

    fn running(&self, _: Duration) -> Option<Duration> {
        None
    }

    fn ended(&self, exited: bool) -> io::Result<()> {
        if exited {
            self.set(None);
            let _ = std::fs::remove_file(&self.path);
        }
        Ok(())
    }
}

/// The processes of an earlier `flexvold` that still run. The notes of the others are removed.
pub fn left_behind(directory: &Path) -> Result<Vec<(PathBuf, Process)>> {
    files::make_private(directory)?;
    let what = || format!("list {}", directory.display());
    let mut left = Vec::new();
    for file in directory.read_dir().with_context(what)? {
        let path = file.with_context(what)?.path();
        let text = files::read_small(&path, LIMIT).ok().flatten().unwrap_or_default();
        match serde_json::from_str::<Process>(&text) {
            Ok(process) if !process.is_gone() => left.push((path, process)),
            _ => std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?,
        }
    }
    Ok(left)
}
