//! Journal of a run: each write is a line on disk before it is sent. The journal is beside the
//! plan's file, and no two runs on one machine have it at the same time.

use anyhow::{Context as _, Result};
use flexvol_linux::fs::lock::{Hold, wait};
use flexvol_linux::proc::clock;
use flexvol_linux::proc::deadline::Deadline;
use flexvol_linux::proc::host;
use serde_json::json;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Wait for another run of the same plan.
const LOCK_WAIT: Duration = Duration::from_secs(1);

/// Limit for a journal, in bytes.
const LONGEST: usize = 256 << 20;

/// Journal that this process has locked.
#[derive(Debug)]
pub struct Journal {
    file: Mutex<File>,
    /// Identity that no other process has while this exists.
    pub identity: String,
    begun: Mutex<BTreeSet<String>>,
}

impl Journal {
    /// Opens and locks the journal at this path.
    ///
    /// # Errors
    ///
    /// Fails if another run has it, or if it cannot be written.
    pub fn open(path: &Path) -> Result<Self> {
        let what = || format!("open {}", path.display());
        let mut options = File::options();
        let options = options.read(true).append(true).create(true).mode(0o600);
        let file = options.open(path).with_context(what)?;
        wait(file.as_fd(), Hold::Alone, &Deadline::after(LOCK_WAIT), "waiting for another run of this plan")?;
        let text = flexvol_linux::fs::files::end(path, LONGEST as u64)?;
        let begun = text.lines().filter_map(volume_of).collect();
        let place = file.metadata().with_context(what)?;
        // A dead process with this identity had the lock too, so its lease is ours at once.
        let boot = host::boot().unwrap_or_default();
        let identity = format!("{boot}-{}-{}", place.dev(), place.ino());
        Ok(Self { file: Mutex::new(file), identity, begun: Mutex::new(begun) })
    }

    /// Returns the path of a plan's journal.
    pub fn beside(plan: &Path) -> PathBuf {
        let mut name = OsString::from(plan);
        name.push(".journal");
        name.into()
    }

    /// Reports whether a write to this object has been announced before.
    pub fn has_begun(&self, object: &str) -> bool {
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).contains(object)
    }

    /// Announces a step, which is on disk when this returns.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be written: then the step must not be done.
    pub fn note(&self, object: &str, step: &str) -> Result<()> {
        let line = json!({"time": clock::now(), "object": object, "step": step}).to_string() + "\n";
        self.begun.lock().unwrap_or_else(PoisonError::into_inner).insert(object.to_owned());
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.write_all(line.as_bytes()).and_then(|()| file.sync_data());
        written.context("write the journal")
    }
}

/// Returns the object of a line. A truncated line is ignored: its step was not done.
fn volume_of(line: &str) -> Option<String> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    line["object"].as_str().map(str::to_owned)
}
