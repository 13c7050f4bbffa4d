//! File of lines that many processes append to, with a limited size.

use crate::fs::lock::is_still_at;
use anyhow::{Context, Result, ensure};
use rustix::fs::{self, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// Appends one line, including its line feed, in one write(2): lines of several writers do not mix.
///
/// Makes the file and its directory if they are missing, for their owner alone.
/// A file of `limit` bytes or more is renamed to [`previous`], replacing the last one there. Never
/// waits: if another process is busy with the rename, the line is simply written.
pub fn line(path: &Path, line: &str, limit: u64) -> Result<()> {
    let mut file = open(path)?;
    if size(&file)? >= limit && put_aside(&file, path) {
        file = open(path)?;
    }
    let written = rustix::io::write(&file, line.as_bytes())?;
    ensure!(written == line.len(), "wrote {written} of {} bytes", line.len());
    Ok(())
}

/// Returns the path to which [`line()`] renames a full file: its name with `.1` at the end.
pub fn previous(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".1");
    name.into()
}

fn open(path: &Path) -> Result<OwnedFd> {
    // Non-blocking: a fifo of that name must not block this process.
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let open = || fs::openat(CWD, path, flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::from_raw_mode(0o600));
    match open() {
        Err(Errno::NOENT) => {
            make_directory(path.parent().unwrap_or(path))?;
            open()
        }
        opened => opened,
    }
    .with_context(|| format!("open {}", path.display()))
}

/// Makes a directory and every missing one above it.
fn make_directory(path: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.with_context(|| format!("make {}", path.display()))
}

fn size(file: &OwnedFd) -> Result<u64> {
    let stat = fs::fstat(file)?;
    ensure!(FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile, "not a regular file");
    Ok(u64::try_from(stat.st_size).unwrap_or_default())
}

/// Reports whether the name is free for a new file now.
/// If several processes find the file full, one renames it: the lock is on the full file, and a
/// process that gets the lock late finds another file at the path.
fn put_aside(file: &OwnedFd, path: &Path) -> bool {
    let alone = fs::flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
    alone && (!is_still_at(file, path) || fs::rename(path, previous(path)).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording;
    use std::os::unix::fs::PermissionsExt;

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn lines_are_private_and_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log/sub/x.jsonl");
        line(&path, "a\n", 100).unwrap();
        line(&path, "b\n", 100).unwrap();
        assert_eq!(read(&path), "a\nb\n");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode(&path) & 0o177, 0);
        assert_eq!((mode(path.parent().unwrap()), mode(&dir.path().join("log"))), (0o700, 0o700));
    }

    #[test]
    fn a_full_file_is_kept_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        for number in 0..5 {
            line(&path, &format!("{number}\n"), 4).unwrap();
        }
        assert_eq!((read(&path).as_str(), read(&previous(&path)).as_str()), ("4\n", "2\n3\n"));
    }

    #[test]
    fn who_cannot_lock_writes_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        line(&path, "1\n", 2).unwrap();
        let holder = open(&path).unwrap();
        fs::flock(&holder, FlockOperation::LockExclusive).unwrap();
        line(&path, "2\n", 2).unwrap();
        assert_eq!(read(&path), "1\n2\n");
        drop(holder);
        line(&path, "3\n", 2).unwrap();
        assert_eq!((read(&path).as_str(), read(&previous(&path)).as_str()), ("3\n", "1\n2\n"));
    }

    #[test]
    fn what_is_no_file_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
        assert!(line(&link, "x\n", 9).is_err() && !dir.path().join("elsewhere").exists());
        let fifo = dir.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let _reader = fs::openat(CWD, &fifo, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).unwrap();
        assert!(line(&fifo, "x\n", 9).unwrap_err().to_string().contains(wording("no-regular-file")));
    }

    /// Concurrent writers lose no line and mix none.
    #[test]
    fn every_line_of_many_writers_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    for number in 0..200 {
                        line(path, &format!("{writer} {number} {}\n", "x".repeat(number)), 60_000).unwrap();
                    }
                });
            }
        });
        let all = read(&previous(&path)) + &read(&path);
        let mut lines: Vec<_> = all.lines().collect();
        assert!(
            lines.iter().all(|line| line.split(' ').nth(2).map(str::len)
                == line.split(' ').nth(1).map(|n| n.parse().unwrap()))
        );
        lines.sort_unstable();
        lines.dedup();
        assert_eq!(lines.len(), 800);
    }
}
