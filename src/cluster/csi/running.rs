//! The driver's processes that run, known by number and time of start.
//!
//! A process that hangs in the kernel outlives its deadline, and every process outlives a
//! `flexvold` that is killed. As long as one runs, no other call for its volume may begin. So each
//! has a note in a file, and the next `flexvold` reads the notes.
//!
//! The first line is written before the start, and says what the process will have in its
//! environment; the second as soon as its number is known. Of a `flexvold` that was killed in
//! between there is only the first, and the process is looked for.

use anyhow::{Context as _, Result};
use flexvol_kubelet::Observer;
use flexvol_linux::fs::files;
use flexvol_linux::proc::{orphans, process};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpid};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A note has a few keys, a word and two numbers.
const LIMIT: usize = 16 << 10;

/// In the driver's environment: which call it was started for.
const CALL: &str = "FLEXVOL_CSI_CALL";

/// One process of a driver's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Which it is.
    pub id: Id,
    /// What it holds.
    pub keys: Vec<String>,
}

/// Which process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Id {
    /// Its number.
    pub pid: i32,
    /// When it started, in the kernel's ticks: the number alone is given away again.
    pub started: u64,
}

/// What is known before the start: the first line of a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// What no other call is called as long as the node runs.
    pub name: String,
    /// What it holds.
    pub keys: Vec<String>,
}

impl Id {
    fn of(pid: i32) -> Self {
        Self { pid, started: process::started(pid).unwrap_or_default() }
    }
}

impl Process {
    /// Whether it has ended. One of our own children is reaped.
    pub fn is_gone(&self) -> bool {
        if let Some(pid) = Pid::from_raw(self.id.pid) {
            // Another's child, and one that runs, is left alone.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        process::started(self.id.pid) != Some(self.id.started) || process::is_zombie(self.id.pid)
    }

    /// Ends it and its whole group, by force.
    pub fn kill(&self) {
        if let Some(pid) = Pid::from_raw(self.id.pid).filter(|_| !self.is_gone()) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// The note of one execution. With it goes the file, unless the process outlives the call.
#[derive(Debug)]
pub struct Note {
    path: PathBuf,
    call: Call,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    file: Option<File>,
    process: Option<Id>,
}

impl Note {
    /// For the next execution.
    pub fn new(path: PathBuf, call: Call) -> Self {
        Self { path, call, state: Mutex::default() }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The process, if it still runs.
    pub fn left(&self) -> Option<Process> {
        self.state().process.map(|id| Process { id, keys: self.call.keys.clone() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let state = self.state();
        if state.file.is_some() && state.process.is_none() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Observer for Note {
    /// On a full disk there is no note, and volumes must be unmounted there, too.
    fn prepare(&self, command: &mut Command) -> io::Result<()> {
        command.env(CALL, &self.call.name);
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&self.path);
        // The file is ours to remove, whatever could be written.
        let note = |file: &File| drop(append(file, &self.call));
        self.state().file = file.inspect(note).ok();
        Ok(())
    }

    fn started(&self, driver: Pid, _: Instant) -> io::Result<()> {
        let id = Id::of(driver.as_raw_pid());
        let mut state = self.state();
        state.process = Some(id);
        // Half a line counts as none: a kill can come while it is being written.
        if let Some(file) = &state.file {
            let _ = append(file, &id);
        }
        Ok(())
    }

    fn running(&self, _: Duration) -> Option<Duration> {
        None
    }

    fn ended(&self, exited: bool) -> io::Result<()> {
        if exited {
            self.state().process = None;
        }
        Ok(())
    }
}

fn append(file: &File, line: &impl Serialize) -> io::Result<()> {
    let mut file = file;
    let mut text = serde_json::to_string(line)?;
    text.push('\n');
    file.write_all(text.as_bytes())
}

/// The processes of an earlier `flexvold` that still run. The notes of the others are removed.
///
/// Only for a process with one thread: it may have to fork.
pub fn left_behind(directory: &Path) -> Result<Vec<(PathBuf, Process)>> {
    files::make_private(directory)?;
    let what = || format!("list {}", directory.display());
    let mut left = Vec::new();
    for file in directory.read_dir().with_context(what)? {
        let path = file.with_context(what)?.path();
        let text = files::read_small(&path, LIMIT).ok().flatten().unwrap_or_default();
        match find(&text)?.filter(|process| !process.is_gone()) {
            Some(process) => left.push((path, process)),
            None => std::fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?,
        }
    }
    Ok(left)
}

/// Whose note it is. A kill between two calls of the kernel leaves the first line, and a process
/// that has it in its environment.
fn find(text: &str) -> Result<Option<Process>> {
    let Some((call, id)) = read(text) else { return Ok(None) };
    let id = match id {
        Some(id) => Some(id),
        None => orphans::started_with(CALL, &call.name)?.map(Id::of),
    };
    Ok(id.map(|id| Process { id, keys: call.keys }))
}

/// What a note says; `None` if its writer was killed before anything was started.
pub fn read(text: &str) -> Option<(Call, Option<Id>)> {
    let (call, rest) = text.split_once('\n')?;
    let id = rest.split_once('\n').and_then(|(id, _)| serde_json::from_str(id).ok());
    Some((serde_json::from_str(call).ok()?, id))
}
