//! Locks: flock(2) on small files in /run, where only root can hold a lock.
//!
//! The kernel frees a lock when its holder dies, for any reason.
//! The last holder removes the file, so that no file stays behind. A new holder therefore checks
//! that the file it locked is still the one at that path.
//!
//! * [`Lock`] is the lock of one target, for one call at a time. The file contains the name of the
//!   holder. A file without a holder comes from a killed call: the next holder first ends the
//!   processes that this call left running (`orphans`).
//! * [`SharedLock`] is held by several processes together, or by one alone.

use crate::proc::deadline::Deadline;
use crate::proc::orphans;
use anyhow::{Context, Result};
use rustix::fs::{self, CWD, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Flags to open the file of a lock.
const FLAGS: OFlags = OFlags::RDWR.union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// Limit for the name of a holder, in bytes.
const LONGEST_NAME: usize = 64;

/// Exclusive lock, held until dropped.
#[derive(Debug)]
pub struct Lock {
    file: OwnedFd,
    path: PathBuf,
    /// Name of the previous holder, if it was killed.
    killed: Option<String>,
    /// True if the file names this call.
    /// Otherwise it still names the killed one, and is not removed on drop.
    owned: bool,
}

impl Lock {
    /// Waits for the lock as long as the deadline allows, then ends the processes that a killed
    /// holder left running.
    pub fn acquire(path: PathBuf, deadline: &Deadline) -> Result<Self> {
        let mut lock = Self::hold(path, deadline)?;
        if let Some(name) = &lock.killed {
            orphans::end(name, deadline).with_context(|| format!("lock {}", lock.path.display()))?;
        }
        lock.own();
        Ok(lock)
    }

    /// Takes the lock for a call that must not wait for orphans.
    /// They continue to run, and the next holder ends them.
    pub fn acquire_beside_strays(path: PathBuf, deadline: &Deadline) -> Result<Self> {
        let mut lock = Self::hold(path, deadline)?;
        if lock.killed.as_deref().is_none_or(|name| !orphans::has_left(name)) {
            lock.own();
        }
        Ok(lock)
    }

    fn hold(path: PathBuf, deadline: &Deadline) -> Result<Self> {
        let file = take(&path, Hold::Alone, deadline, "waiting for another call on the same volume")?;
        let killed = holder(file.as_fd()).with_context(|| format!("read {}", path.display()))?;
        Ok(Self { file, path, killed, owned: false })
    }

    /// Writes our name as the holder. Ignores errors: unmounting must work with a full /run, too,
    /// although our orphans cannot be found then.
    fn own(&mut self) {
        if self.killed.is_some() {
            let _ = fs::ftruncate(&self.file, 0);
        }
        let _ = rustix::io::pwrite(&self.file, orphans::own_name().as_bytes(), 0);
        self.owned = true;
    }

    /// Reports whether the previous holder was killed.
    pub fn is_after_a_killed_one(&self) -> bool {
        self.killed.is_some()
    }
}

/// Descriptor for a helper that may outlive this process and must keep the lock as long.
impl AsFd for Lock {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.owned {
            // The lock is still held: no other process can have put another file here.
            let _ = fs::unlink(&self.path);
        }
    }
}

/// Lock that is held until dropped, alone or together with others.
#[derive(Debug)]
pub struct SharedLock {
    file: OwnedFd,
    path: PathBuf,
}

impl SharedLock {
    /// Waits for the lock as long as the deadline allows. `doing` describes the wait in the error.
    pub fn acquire(path: PathBuf, hold: Hold, deadline: &Deadline, doing: &str) -> Result<Self> {
        Ok(Self { file: take(&path, hold, deadline, doing)?, path })
    }

    /// Removes the file if the lock is not held: its last holder was killed.
    pub fn sweep(path: PathBuf) {
        if let Ok(file) = fs::openat(CWD, &path, FLAGS, Mode::empty()) {
            drop(Self { file, path });
        }
    }
}

impl Drop for SharedLock {
    fn drop(&mut self) {
        // A holder that gets the lock alone is the last one. flock(2) frees the lock before it
        // takes the other kind, so another process may have been the last one in between.
        let alone = fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if alone && is_still_at(&self.file, &self.path) {
            let _ = fs::unlink(&self.path);
        }
    }
}

/// Locks the file at a path.
fn take(path: &Path, hold: Hold, deadline: &Deadline, doing: &str) -> Result<OwnedFd> {
    loop {
        let file = open(path).with_context(|| format!("lock {}", path.display()))?;
        wait(file.as_fd(), hold, deadline, doing)?;
        if is_still_at(&file, path) {
            return Ok(file);
        }
    }
}

fn open(path: &Path) -> rustix::io::Result<OwnedFd> {
    fs::openat(CWD, path, FLAGS | OFlags::CREATE, Mode::from_raw_mode(0o600))
}

/// Returns the name in the file: of a holder that did not remove the file.
fn holder(file: BorrowedFd<'_>) -> rustix::io::Result<Option<String>> {
    let mut name = [0; LONGEST_NAME];
    let length = rustix::io::pread(file, &mut name[..], 0)?;
    Ok((length > 0).then(|| String::from_utf8_lossy(&name[..length]).into_owned()))
}

/// Reports whether the open file is the one at that path.
pub(crate) fn is_still_at(file: &OwnedFd, path: &Path) -> bool {
    let same = |a: fs::Stat, b: fs::Stat| (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino);
    matches!((fs::fstat(file), fs::lstat(path)), (Ok(a), Ok(b)) if same(a, b))
}

/// Kind of a hold on a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// Exclusive: no other holder.
    Alone,
    /// Shared with other holders of this kind.
    Together,
}

/// Releases the flock of an open file before its last descriptor is closed.
pub fn release(file: BorrowedFd<'_>) -> Result<()> {
    fs::flock(file, FlockOperation::Unlock).context("unlock")
}

/// Takes the flock of an open file.
/// Sleeps for short times instead of blocking: a deadline must end the wait without a signal.
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
    use crate::errno::to_failure;
    use crate::pace::{deadline, slow_seconds};
    use flexvol_protocol::failure::Code;

    #[test]
    fn excludes_until_dropped_and_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let first = Lock::acquire(path.clone(), &Deadline::after(deadline(20))).unwrap();
        let second = Lock::acquire(path.clone(), &Deadline::after(Duration::from_millis(30)));
        assert_eq!(to_failure(second.unwrap_err()).code(), Code::Timeout);
        drop(first);
        drop(Lock::acquire(path.clone(), &Deadline::after(deadline(20))).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn many_or_one_hold_a_shared_one_and_the_last_removes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let hold = |hold, millis| {
            SharedLock::acquire(
                path.clone(),
                hold,
                &Deadline::after(Duration::from_millis(millis)),
                "waiting",
            )
        };
        let minute = 1000 * slow_seconds(60);
        let (first, second) = (hold(Hold::Together, minute).unwrap(), hold(Hold::Together, minute).unwrap());
        drop(first);
        assert!(path.exists() && hold(Hold::Alone, 30).is_err());
        drop(second);
        assert!(!path.exists());
        let alone = hold(Hold::Alone, minute).unwrap();
        assert!(hold(Hold::Together, 30).is_err() && hold(Hold::Alone, 30).is_err());
        SharedLock::sweep(path.clone());
        assert!(path.exists());
        drop(alone);
        assert!(!path.exists());
        SharedLock::sweep(path.clone());
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        SharedLock::sweep(path.clone());
        assert!(!path.exists());
    }

    /// The file exists at first, as if a holder was killed.
    /// An exclusive holder adds 100 to the counter, a shared one adds 1.
    #[test]
    fn a_storm_on_a_shared_one_leaves_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let (path, inside) = (dir.path().join("a"), std::sync::atomic::AtomicI32::new(0));
        std::fs::write(&path, "").unwrap();
        let turn = |alone: bool| {
            let (hold, weight) = if alone { (Hold::Alone, 100) } else { (Hold::Together, 1) };
            let deadline = Deadline::after(Duration::from_mins(1));
            let lock = SharedLock::acquire(path.clone(), hold, &deadline, "waiting").unwrap();
            let others = inside.fetch_add(weight, std::sync::atomic::Ordering::SeqCst);
            assert!(if alone { others == 0 } else { others < 100 }, "{others}");
            std::thread::yield_now();
            inside.fetch_sub(weight, std::sync::atomic::Ordering::SeqCst);
            drop(lock);
        };
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let turn = &turn;
                scope.spawn(move || (0..200).for_each(|round| turn((thread + round) % 4 == 0)));
            }
        });
        assert!(!path.exists());
    }

    #[test]
    fn ends_what_a_killed_holder_left_running_and_nobody_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        // A service of the node, whichever process started it first.
        let service = dir.path().join("rpc.statd");
        std::os::unix::fs::symlink("/bin/sleep", &service).unwrap();
        let started_by = |name: &str, program: &Path| {
            std::process::Command::new(program).arg("60").env(orphans::CALL, name).spawn().unwrap()
        };
        let sleep = Path::new("/bin/sleep");
        let (mut left, others) =
            (started_by("1-1", sleep), [started_by("1-10", sleep), started_by("1-1", &service)]);
        std::fs::write(&path, "1-1").unwrap();
        let lock = Lock::acquire(path.clone(), &Deadline::after(deadline(20))).unwrap();
        assert!(lock.is_after_a_killed_one() && !left.wait().unwrap().success());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), orphans::own_name());
        for mut other in others {
            assert!(other.try_wait().unwrap().is_none());
            other.kill().unwrap();
            other.wait().unwrap();
        }
        drop(lock);
    }

    #[test]
    fn who_must_not_wait_leaves_it_to_the_next_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let beside = || Lock::acquire_beside_strays(path.clone(), &Deadline::after(deadline(20)));
        let mut left =
            std::process::Command::new("/bin/sleep").arg("60").env(orphans::CALL, "2-2").spawn().unwrap();
        std::fs::write(&path, "2-2").unwrap();
        drop(beside().unwrap());
        assert!(left.try_wait().unwrap().is_none());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "2-2");
        left.kill().unwrap();
        left.wait().unwrap();
        drop(beside().unwrap());
        assert!(!path.exists());
    }
}
