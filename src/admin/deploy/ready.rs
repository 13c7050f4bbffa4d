//! Readiness of all drivers, as a file for a probe: it exists while every driver is in place.
//!
//! The file names the process that wrote it and the start time of that process. So a file that
//! outlived its writer, such as that of a killed pod, does not count.

use anyhow::Result;
use flexvol_linux::fs::files;
use flexvol_linux::proc::process;
use flexvol_protocol::failure::{Code, Failure};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Limit for the file, in bytes; it has a few dozen.
const SIZE_LIMIT: usize = 4096;

/// Content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    pid: u32,
    /// `None` if there is no /proc.
    started: Option<u64>,
}

/// Readiness file of this process. Drop removes it.
#[derive(Debug)]
pub struct Ready {
    path: PathBuf,
    written: bool,
}

impl Ready {
    /// Starts as not ready: removes the file of a predecessor.
    pub fn not_yet(path: PathBuf) -> Result<Self> {
        files::make_private(path.parent().unwrap_or(&path))?;
        let _ = files::forget(&path);
        Ok(Self { path, written: false })
    }

    /// Writes or removes the file; returns true if that changed anything.
    pub fn set(&mut self, ready: bool) -> Result<bool> {
        if ready == self.written {
            return Ok(false);
        }
        if ready {
            let pid = std::process::id();
            let content = Content { pid, started: process::started(pid.cast_signed()) };
            files::replace(&self.path, &serde_json::to_vec(&content)?)?;
        } else {
            files::forget(&self.path)?;
        }
        self.written = ready;
        Ok(true)
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        let _ = self.set(false);
    }
}

/// For a probe: fails with the reason if the process that writes the file is not ready, or is gone.
pub fn check(path: &Path) -> Result<()> {
    let not_ready = |why: &str| Failure::new(Code::NotFound, format!("{}: {why}", path.display()));
    let text = files::read_small(path, SIZE_LIMIT)?;
    let text = text.ok_or_else(|| not_ready("not there: the drivers are not all in place yet"))?;
    let content: Content =
        serde_json::from_str(&text).map_err(|_| not_ready("not written by flexvol deploy"))?;
    if content.started != process::started(content.pid.cast_signed()) {
        return Err(not_ready("left by a process that has ended").into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording;

    #[test]
    fn says_so_only_while_it_is_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/ready");
        let mut ready = Ready::not_yet(path.clone()).unwrap();
        assert!(check(&path).unwrap_err().to_string().contains(wording("drivers-not-in-place")));
        assert!(ready.set(true).unwrap() && !ready.set(true).unwrap());
        check(&path).unwrap();
        assert!(ready.set(false).unwrap() && check(&path).is_err());
        ready.set(true).unwrap();
        drop(ready);
        assert!(!path.exists());
    }

    #[test]
    fn what_somebody_left_is_not_believed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ready");
        let pid = std::process::id();
        let started = process::started(pid.cast_signed()).unwrap();
        for (text, word) in [
            (format!(r#"{{"pid":{pid},"started":{}}}"#, started - 1), "has ended"),
            (r#"{"pid":4194305,"started":1}"#.to_owned(), "has ended"),
            ("ready\n".to_owned(), "not written by"),
        ] {
            std::fs::File::create(&path).unwrap();
            files::replace(&path, text.as_bytes()).unwrap();
            let error = check(&path).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        drop(Ready::not_yet(path.clone()).unwrap());
        assert!(!path.exists());
    }
}
