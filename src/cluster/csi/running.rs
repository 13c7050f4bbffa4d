//! The driver's processes that run, known by number and time of start.
//!
//! A process that hangs in the kernel outlives its deadline, and every process outlives a
//! `flexvold` that is killed. As long as one runs, no other call for its volume may begin. So each
//! has a note in a file, and the next `flexvold` reads the notes.
//!
//! The first line is written before the start, and says what the process will have in its
//! environment; the second as soon as its number is known. Of a `flexvold` that was killed in
//! between there is only the first, and the process is looked for. A note that begins with an empty
//! line is over.

use anyhow::{Context as _, Result};
use flexvol_kubelet::Observer;
use flexvol_linux::fs::files;
use flexvol_linux::proc::{orphans, process};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpid};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// A note has a few keys, a word and two numbers.
const LIMIT: usize = 16 << 10;

/// How many files are kept for calls to come: about as many as have a turn at a time.
const SPARE: usize = 16;

/// In the environment of the driver and of all that it starts: which call it was started for.
pub const CALL: &str = "FLEXVOL_CSI_CALL";

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
    /// The process that has this number now.
    pub fn of(pid: i32) -> Self {
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

/// The files of the notes of one driver.
///
/// A call overwrites what an earlier one has left: on ext4 a file that is made and removed costs
/// more than everything else that a call writes, the more so the more of them there were.
#[derive(Debug)]
pub struct Files {
    directory: PathBuf,
    spare: Mutex<Vec<Slot>>,
}

/// One file, and what it is called.
#[derive(Debug)]
struct Slot {
    path: PathBuf,
    file: File,
}

impl Files {
    /// In a directory of their own.
    pub fn new(directory: PathBuf) -> Arc<Self> {
        Arc::new(Self { directory, spare: Mutex::default() })
    }

    /// One that no other call has, for a call that no other is called like.
    fn take(&self, name: &str) -> io::Result<Slot> {
        if let Some(spare) = self.spare().pop() {
            return Ok(spare);
        }
        let path = self.directory.join(name);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Slot { path, file })
    }

    /// What it says is over.
    fn put_back(&self, slot: Slot) {
        let mut spare = self.spare();
        if spare.len() < SPARE && slot.file.write_all_at(b"\n", 0).is_ok() {
            spare.push(slot);
        } else {
            let _ = std::fs::remove_file(&slot.path);
        }
    }

    fn spare(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The note of one execution. Afterwards it says nothing, unless the process outlives the call.
#[derive(Debug)]
pub struct Note {
    files: Arc<Files>,
    call: Call,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    slot: Option<Slot>,
    process: Option<Id>,
}

impl Note {
    /// For the next execution.
    pub fn new(files: Arc<Files>, call: Call) -> Self {
        Self { files, call, state: Mutex::default() }
    }

    /// What the call is called.
    pub fn name(&self) -> &str {
        &self.call.name
    }

    /// Where it is, if it could be written.
    pub fn path(&self) -> Option<PathBuf> {
        self.state().slot.as_ref().map(|slot| slot.path.clone())
    }

    /// The process, if it still runs.
    pub fn left(&self) -> Option<Process> {
        self.state().process.map(|id| Process { id, keys: self.call.keys.clone() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is known before the start.
    fn first_line(&self) -> io::Result<String> {
        Ok(serde_json::to_string(&self.call)? + "\n")
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let mut state = self.state();
        if let (Some(slot), None) = (state.slot.take(), state.process) {
            self.files.put_back(slot);
        }
    }
}

impl Observer for Note {
    /// On a full disk there is no note, and volumes must be unmounted there, too.
    fn prepare(&self, command: &mut Command) -> io::Result<()> {
        command.env(CALL, &self.call.name);
        let Ok(slot) = self.files.take(&self.call.name) else { return Ok(()) };
        // The empty line is the end, whatever an earlier call has written there.
        let _ = slot.file.write_all_at((self.first_line()? + "\n").as_bytes(), 0);
        self.state().slot = Some(slot);
        Ok(())
    }

    fn started(&self, driver: Pid, _: Instant) -> io::Result<()> {
        let id = Id::of(driver.as_raw_pid());
        let mut state = self.state();
        state.process = Some(id);
        // Half a line counts as none: a kill can come while it is being written.
        if let Some(slot) = &state.slot {
            let line = serde_json::to_string(&id)? + "\n";
            let _ = slot.file.write_all_at(line.as_bytes(), self.first_line()?.len() as u64);
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
