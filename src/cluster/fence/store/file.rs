//! Records as files of a directory, which one node has for itself or several share.
//!
//! ```text
//! DIR/lock                                 flock(2): one writer at a time, on whichever node
//! DIR/records/<hash of the handle>.json    a record
//! DIR/tasks/<node>/<holder>-<epoch>.json   what a node has to clean up
//! DIR/off/<hash of the node>.json          a node that an administrator has asserted to be off
//! ```
//!
//! A file is written beside the one it replaces, synced and renamed, and the directory is synced:
//! after a power cut it is whole, and not an older one. Each carries a serial number that only
//! grows, so that no state comes twice. Only root may write here, and no symlink is followed: who
//! can write a lock can take it.

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

/// The most bytes of one file: [`HOLDERS`](crate::fence::record::HOLDERS) pods with long names.
const LIMIT: u64 = 2 << 20;

/// How long another writer may hold the lock.
const WAIT: Duration = Duration::from_secs(10);

/// Between two tries to get it.
const TURN: Duration = Duration::from_millis(1);

const LOCK: &str = "lock";
const RECORDS: &str = "records";
const TASKS: &str = "tasks";
const OFF: &str = "off";

/// The key of the number that only grows.
const SERIAL: &str = "serial";

/// Records of a directory.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    records: OwnedFd,
    tasks: OwnedFd,
    root: OwnedFd,
}

/// What the kernel said, and where.
fn failed(path: &Path) -> impl Fn(Errno) -> StoreError + '_ {
    move |errno| StoreError::Failed(format!("lock directory {}: {errno}", path.display()))
}

impl FileStore {
    /// The same, unless it is missing.
    pub fn open_existing(path: &Path) -> Result<Self> {
        let missing = !path.join(RECORDS).is_dir();
        let text = || format!("there are no locks in {}: name the agents' --store", path.display());
        if missing { Err(StoreError::Failed(text())) } else { Self::open(path) }
    }

    /// Opens a directory, which is made if it is missing; the one above it is there.
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

    /// Until the file is closed, no one else writes here.
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

    /// The text of a record's file; empty if there is none.
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

    /// Says that a node is off, in every boot in which it holds anything now; those boots.
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

    /// Takes that back.
    pub fn set_on(&self, node: &str) -> Result<()> {
        match open_directory(&self.root, OFF) {
            Err(Errno::NOENT) => Ok(()),
            off => off.and_then(|off| take(&off, &name_of(node))).map_err(failed(&self.path)),
        }
    }

    /// The directory of a node's tasks.
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
        // It is written, or not, or not for good: who reads again learns it.
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
            // One that means nothing is left for people; it must not keep the others waiting.
            tasks.extend(text.and_then(|text| task_of(&text)));
        }
        Ok(tasks)
    }

    /// Beside what the task says.
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

    /// What means nothing says of no node that it is off.
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

/// One that no earlier state had: also not the one before the record was removed.
fn serial_after(text: &str) -> u64 {
    let before = serde_json::from_str(text).ok().and_then(|value: Value| value[SERIAL].as_u64());
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    before.map_or_else(|| now.map_or(1, |now| u64::try_from(now.as_micros()).unwrap_or(1)), |it| it + 1)
}

/// Makes a directory for root alone; one that is there is fine.
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

/// Who may write here can take every lock.
fn check_owner(directory: &OwnedFd, path: &Path) -> Result<()> {
    let stat = fstat(directory).map_err(failed(path))?;
    let own = [0, rustix::process::geteuid().as_raw()].contains(&stat.st_uid);
    if own && stat.st_mode & 0o022 == 0 {
        return Ok(());
    }
    let fix = format!("chown root {0} && chmod go-w {0}", path.display());
    Err(StoreError::Failed(format!("lock directory {} may be written by others: {fix}", path.display())))
}

/// A small regular file's text; `None` if there is none.
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
        // None of ours: it would count as free.
        (_, true) => Err("it is empty".to_owned()),
        _ => Ok(Some(text)),
    }
}

/// Whole or not at all, and on the disk. Two writers of one name are kept apart by the lock, or
/// write the same.
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

/// What has been put here; not what a killed writer has left.
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
