//! One lock a target: flock(2) on a small file in /run.
//!
//! The kernel frees the lock when its holder dies, however it dies. The file is removed by whoever holds it
//! last, so that none stays behind; a holder therefore checks that the file it locked is still the one at
//! that path. In the file stands who holds it: one that is there without a holder is of a call that was killed, and
//! what that has left running (`stray`) is ended before the next one begins.

use super::deadline::Deadline;
use super::stray;
use anyhow::{Context, Result};
use rustix::fs::{self, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// No holder's name is longer.
const LONGEST_NAME: usize = 64;

/// Held until dropped.
#[derive(Debug)]
pub struct Lock {
    file: OwnedFd,
    path: PathBuf,
    had_strays: bool,
}

impl Lock {
    /// Waits for the lock as long as the deadline allows.
    pub fn acquire(path: PathBuf, deadline: &Deadline) -> Result<Self> {
        loop {
            let file = open(&path).with_context(|| format!("lock {}", path.display()))?;
            wait(file.as_fd(), Hold::Alone, deadline, "waiting for another call on the same volume")?;
            if is_still_at(&file, &path) {
                let had_strays =
                    end_strays(file.as_fd(), deadline).with_context(|| format!("lock {}", path.display()))?;
                // Where /run is full nobody knows whose strays to end; unmounting must work there, too.
                let _ = rustix::io::pwrite(&file, stray::own_name().as_bytes(), 0);
                return Ok(Self { file, path, had_strays });
            }
        }
    }

    /// Whether the holder before was killed and had left something running, which has been ended.
    pub fn had_strays(&self) -> bool {
        self.had_strays
    }
}

/// For a helper that may outlive us, and must keep the lock as long.
impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Still locked: nobody else can have put another file here.
        let _ = fs::unlink(&self.path);
    }
}

fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    fs::openat(CWD, path, flags, Mode::from_raw_mode(0o600))
}

/// Ends what the holder has left running that did not come to remove its file; whether there was anything.
fn end_strays(file: BorrowedFd<'_>, deadline: &Deadline) -> Result<bool> {
    let mut name = [0; LONGEST_NAME];
    let length = rustix::io::pread(file, &mut name[..], 0)?;
    if length == 0 {
        return Ok(false);
    }
    let had_some = stray::end(&String::from_utf8_lossy(&name[..length]), deadline)?;
    fs::ftruncate(file, 0)?;
    Ok(had_some)
}

/// Whether the open file is the one at that path.
pub(super) fn is_still_at(file: &OwnedFd, path: &Path) -> bool {
    let same = |a: fs::Stat, b: fs::Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
    matches!((fs::fstat(file), fs::lstat(path)), (Ok(a), Ok(b)) if same(a, b))
}

/// Who else may hold a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Nobody.
    Alone,
    /// Those who hold it together.
    Together,
}

/// Takes the flock of an open file. Short sleeps, not a blocking call: a deadline must end it without a
/// signal.
pub fn wait(file: BorrowedFd<'_>, hold: Hold, deadline: &Deadline, doing: &str) -> Result<()> {
    let operation = match hold {
        Hold::Alone => FlockOperation::NonBlockingLockExclusive,
        Hold::Together => FlockOperation::NonBlockingLockShared,
    };
    let mut pause = Duration::from_micros(200);
    loop {
        match fs::flock(file, operation) {
            Err(Errno::WOULDBLOCK | Errno::INTR) => deadline.check(doing)?,
            result => return result.context("flock"),
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "a process of nobody's call")]
mod tests {
    use super::*;
    use crate::failure::{Code, Failure};

    #[test]
    fn excludes_until_dropped_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let first = Lock::acquire(path.clone(), &Deadline::after(Duration::from_secs(5))).unwrap();
        let second = Lock::acquire(path.clone(), &Deadline::after(Duration::from_millis(30)));
        assert_eq!(Failure::from(second.unwrap_err()).code(), Code::Timeout);
        drop(first);
        drop(Lock::acquire(path.clone(), &Deadline::after(Duration::from_secs(5))).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn ends_what_a_killed_holder_left_running_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let started_by = |name: &str| {
            let mut command = std::process::Command::new("/bin/sleep");
            command.arg("60").env(stray::CALL, name).spawn().unwrap()
        };
        let (mut left, mut other) = (started_by("1-1"), started_by("1-10"));
        std::fs::write(&path, "1-1").unwrap();
        let lock = Lock::acquire(path.clone(), &Deadline::after(Duration::from_secs(5))).unwrap();
        assert!(lock.had_strays() && !left.wait().unwrap().success());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), stray::own_name());
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
        drop(lock);
    }
}
