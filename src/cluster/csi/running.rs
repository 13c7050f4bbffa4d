//! Running processes of the driver, known by number and start time.
//!
//! A process that hangs in the kernel outlives its deadline, and every process outlives a
//! `flexvold` that is killed. As long as one runs, no other call for its volume may begin. So each
//! has a note in a file, and the next `flexvold` reads the notes.
//!
//! The first line is written before the start, with the value that the process will have in its
//! environment. The second line is written as soon as the process number is known. If `flexvold`
//! was killed in between, there is only the first line, and the process is searched for. A note
//! that begins with an empty line is over.

use anyhow::{Context as _, Result};
use flexvol_kubelet::Observer;
use flexvol_linux::fs::files;
use flexvol_linux::proc::{memory, orphans, process};
use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, waitpid};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Limit for a note, in bytes: it has a few keys, a word and two numbers.
const LIMIT: usize = 16 << 10;

/// Limit for files that are kept for later calls: about as many as have a turn at a time.
const SPARE: usize = 16;

/// Variable in the environment of the driver and of all its children: the call that started them.
pub const CALL: &str = "FLEXVOL_CSI_CALL";

/// Process of a driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Identity of the process.
    pub id: Id,
    /// Keys of the locks that it holds.
    pub keys: Vec<String>,
}

/// Identity of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Id {
    /// Process number.
    pub pid: i32,
    /// Start time, in the kernel's ticks: the number alone is used again for other processes.
    pub started: u64,
}

/// Facts known before the start: the first line of a note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Name that no other call has as long as the node runs.
    pub name: String,
    /// Keys of the locks that it holds.
    pub keys: Vec<String>,
}

impl Id {
    /// Returns the process that has this number now.
    pub fn of(pid: i32) -> Self {
        Self { pid, started: process::started(pid).unwrap_or_default() }
    }
}

impl Process {
    /// Reports whether it has ended. Reaps it if it is one of our own children.
    pub fn is_gone(&self) -> bool {
        if let Some(pid) = Pid::from_raw(self.id.pid) {
            // This leaves a child of another process alone, and a child that runs.
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
        process::started(self.id.pid) != Some(self.id.started) || process::is_zombie(self.id.pid)
    }

    /// Kills it and its whole group.
    pub fn kill(&self) {
        if let Some(pid) = Pid::from_raw(self.id.pid).filter(|_| !self.is_gone()) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// Files for the notes of one driver.
///
/// A call overwrites the file of an earlier one: on ext4, creating and removing a file costs more
/// than everything else that a call writes, and the cost grows with the number of such files.
#[derive(Debug)]
pub struct Files {
    directory: PathBuf,
    spare: Mutex<Vec<Slot>>,
}

/// File with its path.
#[derive(Debug)]
struct Slot {
    path: PathBuf,
    file: File,
}

impl Files {
    /// Creates the files in a directory of their own.
    pub fn new(directory: PathBuf) -> Arc<Self> {
        Arc::new(Self { directory, spare: Mutex::default() })
    }

    /// Returns a file that no other call uses; no other call may have this `name`.
    fn take(&self, name: &str) -> io::Result<Slot> {
        if let Some(spare) = self.spare().pop() {
            return Ok(spare);
        }
        let path = self.directory.join(name);
        let file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Slot { path, file })
    }

    /// Keeps a file for later calls, and marks its note as over.
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

/// Note of one execution. It is over after the call, unless the process outlives the call.
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
    /// Creates the note for the next execution.
    pub fn new(files: Arc<Files>, call: Call) -> Self {
        Self { files, call, state: Mutex::default() }
    }

    /// Returns the name of the call.
    pub fn name(&self) -> &str {
        &self.call.name
    }

    /// Returns the path of the note, if it could be written.
    pub fn path(&self) -> Option<PathBuf> {
        self.state().slot.as_ref().map(|slot| slot.path.clone())
    }

    /// Returns the process, if it still runs.
    pub fn left(&self) -> Option<Process> {
        self.state().process.map(|id| Process { id, keys: self.call.keys.clone() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the facts known before the start.
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
    /// Writes no note on a full disk: volumes must be unmounted there, too.
    fn prepare(&self, command: &mut Command) -> io::Result<()> {
        command.env(CALL, &self.call.name);
        let Ok(slot) = self.files.take(&self.call.name) else { return Ok(()) };
        // The empty line ends the note, whatever an earlier call has written after it.
        let _ = slot.file.write_all_at((self.first_line()? + "\n").as_bytes(), 0);
        self.state().slot = Some(slot);
        Ok(())
    }

    fn started(&self, driver: Pid, _: Instant) -> io::Result<()> {
        let id = Id::of(driver.as_raw_pid());
        let mut state = self.state();
        state.process = Some(id);
        // A half-written line is ignored: a kill can come during the write.
        if let Some(slot) = &state.slot {
            let line = serde_json::to_string(&id)? + "\n";
            let _ = slot.file.write_all_at(line.as_bytes(), self.first_line()?.len() as u64);
        }
        Ok(())
    }

    /// A thousand drivers that hang keep a thousand threads, each with its stack.
    fn running(&self, _: Duration) -> Option<Duration> {
        memory::release_unused_stack();
        None
    }

    fn ended(&self, exited: bool) -> io::Result<()> {
        if exited {
            self.state().process = None;
        }
        Ok(())
    }
}

/// Returns the processes of an earlier `flexvold` that still run. Removes the other notes.
///
/// Only a process with one thread may call this, because it may have to fork.
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

/// Returns the process of a note. A kill between two system calls leaves only the first line, and a
/// process that has the call's name in its environment.
fn find(text: &str) -> Result<Option<Process>> {
    let Some((call, id)) = read(text) else { return Ok(None) };
    let id = match id {
        Some(id) => Some(id),
        None => orphans::started_with(CALL, &call.name)?.map(Id::of),
    };
    Ok(id.map(|id| Process { id, keys: call.keys }))
}

/// Parses a note; `None` if its writer was killed before anything was started.
pub fn read(text: &str) -> Option<(Call, Option<Id>)> {
    let (call, rest) = text.split_once('\n')?;
    let id = rest.split_once('\n').and_then(|(id, _)| serde_json::from_str(id).ok());
    Some((serde_json::from_str(call).ok()?, id))
}
