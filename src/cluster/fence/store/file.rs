//! Records as files in a directory, used by one node or shared by several.
//!
//! ```text
//! DIR/lock                                 flock(2): one writer at a time, on any node
//! DIR/records/<hash of the handle>.json    a record
//! DIR/tasks/<node>/<holder>-<epoch>.json   a cleanup task of a node
//! DIR/off/<hash of the node>.json          a node that an administrator has declared off
//! ```
//!
//! A file is written beside the one it replaces, synced and renamed, and the directory is synced.
//! So after a power cut the file is complete, and is not an older one. Each file has a serial
//! number that only grows, so that no state occurs twice. Only root may write here, and symlinks
//! are not followed: a process that can write a lock can take it.

use super::{Off, Read, RecordStore, Result, StoreError};
use crate::csi::name::hash;
use crate::fence::decide::{Cause, Task};
use crate::fence::progress::Progress;
use crate::fence::record::{Holder, Node, Record};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, flock, fstat, fsync, mkdirat, openat,
    renameat, unlinkat,
};
use rustix::io::Errno;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Limit for one file, in bytes: [`HOLDERS`](crate::fence::record::HOLDERS) pods with long names.
const LIMIT: u64 = 2 << 20;

/// Limit for the wait for another writer's lock.
const WAIT: Duration = Duration::from_secs(10);

/// Pause between two tries to get the lock.
const TURN: Duration = Duration::from_millis(1);

const LOCK: &str = "lock";
const RECORDS: &str = "records";
const TASKS: &str = "tasks";
const OFF: &str = "off";

/// Key of the serial number, which only grows.
const SERIAL: &str = "serial";

/// Store of records in a directory.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    records: OwnedFd,
    tasks: OwnedFd,
    root: OwnedFd,
}

/// Returns a function that converts an error of the kernel, with the path where it occurred.
fn failed(path: &Path) -> impl Fn(Errno) -> StoreError + '_ {
    move |errno| StoreError::Failed(format!("lock directory {}: {errno}", path.display()))
}

impl FileStore {
    /// Opens a directory that exists already; fails if it is missing.
    pub fn open_existing(path: &Path) -> Result<Self> {
        let missing = !path.join(RECORDS).is_dir();
        let text = || format!("there are no locks in {}: name the agents' --store", path.display());
        if missing { Err(StoreError::Failed(text())) } else { Self::open(path) }
    }

    /// Opens a directory, and creates it if it is missing. Its parent must exist.
    pub fn open(path: &Path) -> Result<Self> {
        let error = failed(path);
        make(CWD, path).map_err(&error)?;
        let root = open_directory(CWD, path).map_err(&error)?;
        check_owner(&root, path)?;
        let below = |name: &str| {
            make(&root, name).and_then(|()| open_directory(&root, name)).map_err(&error).and_then(|found| {
                check_owner(&found, &path.join(name))?;
                Ok(found)
            })
        };
        let (records, tasks) = (below(RECORDS)?, below(TASKS)?);
        Ok(Self { path: path.to_owned(), records, tasks, root })
    }

    /// Locks the directory against other writers, until the returned file is closed.
    fn lock(&self, deadline: Instant) -> Result<OwnedFd> {
        let error = failed(&self.path);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat(&self.root, LOCK, flags, Mode::from_raw_mode(0o600)).map_err(&error)?;
        let deadline = deadline.min(Instant::now() + WAIT);
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK | Errno::INTR) if Instant::now() < deadline => std::thread::sleep(TURN),
                Err(errno) => return Err(error(errno)),
            }
        }
    }

    /// Returns the text of a record's file; empty if it is missing.
    fn text(&self, name: &str) -> Result<String> {
        read(&self.records, name)
            .map_err(|reason| self.damaged(RECORDS, name, &reason))
            .map(Option::unwrap_or_default)
    }

    fn damaged(&self, below: &str, name: &str, reason: &str) -> StoreError {
        let path = self.path.join(below).join(name);
        StoreError::Failed(format!("lock record {}: {reason}", path.display()))
    }

    fn parse(&self, name: &str, text: &str) -> Result<Option<Record>> {
        if text.is_empty() {
            return Ok(None);
        }
        let value: Value = serde_json::from_str(text)
            .map_err(|error| self.damaged(RECORDS, name, &format!("not JSON: {error}")))?;
        let record =
            Record::from_json(&value).map_err(|error| self.damaged(RECORDS, name, &error.message()))?;
        if name_of(&record.handle) != name {
            return Err(self.damaged(RECORDS, name, "it is of another storage"));
        }
        Ok(Some(record))
    }

    /// Declares a node off, in every boot in which it holds storage now. Returns those boots.
    pub fn set_off(&self, node: &str) -> Result<Vec<String>> {
        let holders = self.list()?.into_iter().flat_map(|record| record.holders);
        let boots = holders.filter(|holder| holder.node.name == node).map(|holder| holder.node.boot);
        let boots: Vec<_> = boots.collect::<BTreeSet<_>>().into_iter().collect();
        if boots.is_empty() {
            return Ok(boots);
        }
        make(&self.root, OFF).map_err(failed(&self.path))?;
        let off = open_directory(&self.root, OFF).map_err(failed(&self.path))?;
        put(&off, &name_of(node), &json!({"node": node, "boots": boots})).map_err(failed(&self.path))?;
        Ok(boots)
    }

    /// Withdraws the declaration that a node is off.
    pub fn set_on(&self, node: &str) -> Result<()> {
        match open_directory(&self.root, OFF) {
            Err(Errno::NOENT) => Ok(()),
            off => off.and_then(|off| take(&off, &name_of(node))).map_err(failed(&self.path)),
        }
    }

    /// Opens the directory of a node's tasks. Creates it if `made`.
    fn tasks_of(&self, node: &Node, made: bool) -> Result<Option<OwnedFd>> {
        let name = &hash(format!("{}\0{}", node.name, node.uid).as_bytes())[..40];
        if made {
            make(&self.tasks, name).map_err(failed(&self.path))?;
        }
        match open_directory(&self.tasks, name) {
            Err(Errno::NOENT) => Ok(None),
            found => found.map(Some).map_err(failed(&self.path)),
        }
    }
}

impl RecordStore for FileStore {
    fn read(&self, handle: &str, _: Instant) -> Result<Read> {
        let name = name_of(handle);
        let text = self.text(&name)?;
        Ok(Read { record: self.parse(&name, &text)?, version: text, ..Read::default() })
    }

    fn write(&self, handle: &str, before: &Read, next: Option<&Record>, deadline: Instant) -> Result<()> {
        let name = name_of(handle);
        let _lock = self.lock(deadline)?;
        if self.text(&name)? != before.version {
            return Err(StoreError::Conflict);
        }
        match next {
            Some(next) => {
                let mut value = next.to_json();
                value[SERIAL] = json!(serial_after(&before.version));
                put(&self.records, &name, &value)
            }
            None => take(&self.records, &name),
        }
        // The record is written, or not, or not permanently: the next read finds out.
        .map_err(|errno| StoreError::Unsure(format!("write in {}: {errno}", self.path.display())))
    }

    fn list(&self) -> Result<Vec<Record>> {
        let mut records = Vec::new();
        for name in names(&self.records).map_err(failed(&self.path))? {
            let text = self.text(&name)?;
            records.extend(self.parse(&name, &text)?);
        }
        Ok(records)
    }

    fn note(&self, task: &Task, _: Instant) -> Result<()> {
        let node = self.tasks_of(&task.holder.node, true)?;
        let value = json!({"reason": task.reason.name(), "holder": task.holder.to_json()});
        node.map_or(Ok(()), |node| put(&node, &file_of(task), &value)).map_err(failed(&self.path))
    }

    fn tasks(&self, node: &Node, _: Instant) -> Result<Vec<Task>> {
        let Some(directory) = self.tasks_of(node, false)? else { return Ok(Vec::new()) };
        let mut tasks = Vec::new();
        for name in names(&directory).map_err(failed(&self.path))? {
            let text = read(&directory, &name).map_err(|reason| self.damaged(TASKS, &name, &reason))?;
            // An invalid task is left for people; it must not block the others.
            tasks.extend(text.and_then(|text| task_of(&text)));
        }
        Ok(tasks)
    }

    /// Stores the progress beside the content of the task.
    fn report(&self, task: &Task, progress: &Progress) -> Result<()> {
        let Some(directory) = self.tasks_of(&task.holder.node, false)? else { return Ok(()) };
        let name = file_of(task);
        let text = read(&directory, &name).map_err(|reason| self.damaged(TASKS, &name, &reason))?;
        let Some(Ok(mut value)) = text.map(|text| serde_json::from_str::<Value>(&text)) else {
            return Ok(());
        };
        value["status"] = progress.to_json();
        put(&directory, &name, &value).map_err(failed(&self.path))
    }

    fn finish(&self, task: &Task) -> Result<()> {
        let Some(directory) = self.tasks_of(&task.holder.node, false)? else { return Ok(()) };
        take(&directory, &file_of(task)).map_err(failed(&self.path))
    }

    /// Returns the declared nodes. An invalid file declares no node off.
    fn off(&self) -> Result<Vec<Off>> {
        let directory = match open_directory(&self.root, OFF) {
            Err(Errno::NOENT) => return Ok(Vec::new()),
            found => found.map_err(failed(&self.path))?,
        };
        check_owner(&directory, &self.path.join(OFF))?;
        let texts = names(&directory).map_err(failed(&self.path))?.into_iter();
        let texts = texts.filter_map(|name| read(&directory, &name).ok().flatten());
        Ok(texts.filter_map(|text| off_of(&text)).collect())
    }
}

fn name_of(handle: &str) -> String {
    format!("{}.json", &hash(handle.as_bytes())[..40])
}

fn file_of(task: &Task) -> String {
    format!("{}.json", task.name())
}

fn task_of(text: &str) -> Option<Task> {
    let value: Value = serde_json::from_str(text).ok()?;
    let reason = Cause::parse(value["reason"].as_str()?)?;
    Some(Task { holder: Holder::from_json(&value["holder"]).ok()?, reason })
}

fn off_of(text: &str) -> Option<Off> {
    let value: Value = serde_json::from_str(text).ok()?;
    let boots = value["boots"].as_array()?.iter().map(|boot| boot.as_str().map(str::to_owned));
    Some(Off { node: value["node"].as_str()?.to_owned(), boots: boots.collect::<Option<_>>()? })
}

/// Returns a number that no earlier state had, not even one before the record was removed.
fn serial_after(text: &str) -> u64 {
    let before = serde_json::from_str(text).ok().and_then(|value: Value| value[SERIAL].as_u64());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    before.map_or_else(|| now.map_or(1, |now| u64::try_from(now.as_micros()).unwrap_or(1)), |it| it + 1)
}

/// Creates a directory for root only. It may exist already.
fn make(at: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<()> {
    match mkdirat(at, name, Mode::from_raw_mode(0o700)) {
        Err(Errno::EXIST) => Ok(()),
        made => made,
    }
}

fn open_directory(at: impl std::os::fd::AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, name, flags, Mode::empty())
}

/// Fails if others may write in the directory: they could take every lock.
fn check_owner(directory: &OwnedFd, path: &Path) -> Result<()> {
    let stat = fstat(directory).map_err(failed(path))?;
    let own = [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid);
    if own && stat.st_mode & 0o022 == 0 {
        return Ok(());
    }
    let fix = format!("chown root {0} && chmod go-w {0}", path.display());
    Err(StoreError::Failed(format!("lock directory {} may be written by others: {fix}", path.display())))
}

/// Reads a small regular file; `None` if it is missing.
fn read(at: &OwnedFd, name: &str) -> std::result::Result<Option<String>, String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match openat(at, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(errno.to_string()),
        Ok(file) => File::from(file),
    };
    if !file.metadata().is_ok_and(|stat| stat.is_file()) {
        return Err("it is no regular file".to_owned());
    }
    let mut text = String::new();
    file.take(LIMIT + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    match (text.len() as u64 > LIMIT, text.is_empty()) {
        (true, _) => Err(format!("it is larger than {LIMIT} bytes")),
        // Not written by this program: an empty file would count as free.
        (_, true) => Err("it is empty".to_owned()),
        _ => Ok(Some(text)),
    }
}

/// Writes a file completely or not at all, and to the disk. The lock keeps two writers of one name
/// apart, or both write the same.
fn put(at: &OwnedFd, name: &str, value: &Value) -> rustix::io::Result<()> {
    let draft = format!(".{name}");
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(at, &draft, flags, Mode::from_raw_mode(0o600))?;
    let errno = |error: &std::io::Error| Errno::from_io_error(error).unwrap_or(Errno::IO);
    let mut file = File::from(file);
    file.write_all(format!("{value}\n").as_bytes()).map_err(|error| errno(&error))?;
    file.sync_data().map_err(|error| errno(&error))?;
    renameat(at, &draft, at, name)?;
    fsync(at)
}

fn take(at: &OwnedFd, name: &str) -> rustix::io::Result<()> {
    match unlinkat(at, name, AtFlags::empty()) {
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
        Ok(()) => fsync(at),
    }
}

/// Returns the names of the written files, without the drafts of killed writers.
fn names(at: &OwnedFd) -> rustix::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(at)? {
        let entry = entry?;
        let Ok(name) = entry.file_name().to_str() else { continue };
        let is_file = !matches!(entry.file_type(), FileType::Directory);
        if is_file && !name.starts_with('.') && name.strip_suffix(".json").is_some() {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable();
    Ok(names)
}
