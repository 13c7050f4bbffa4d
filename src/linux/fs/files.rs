//! Small files, read and written whole.

pub use std::fs::File;
pub use tempfile::TempDir;

use anyhow::{Context, Result, ensure};
use nix::libc;
use rustix::fs::{self, AtFlags, StatxAttributes, StatxFlags};
use std::fs::{DirBuilder, Permissions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Size that every kernel writes without checking for a signal in between, in bytes.
const PAGE: usize = 4096;

/// Returns the text of a file of at most `limit` bytes; `None` if there is no such file.
pub fn read_small(path: &Path, limit: usize) -> Result<Option<String>> {
    let what = || format!("read {}", path.display());
    let Some(file) = open_regular(path)? else { return Ok(None) };
    let mut text = String::new();
    file.take(limit as u64 + 1).read_to_string(&mut text).with_context(what)?;
    ensure!(text.len() <= limit, "{} is larger than {limit} bytes", path.display());
    Ok(Some(text))
}

/// Opens a regular file for reading; `None` if there is no such file.
pub fn open_regular(path: &Path) -> Result<Option<File>> {
    let what = || format!("read {}", path.display());
    // Non-blocking: a fifo of that name must not block this process.
    let file = match File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        file => file.with_context(what)?,
    };
    // A fifo that another process writes to, or a device, has no end.
    ensure!(file.metadata().with_context(what)?.is_file(), "{} is no regular file", path.display());
    Ok(Some(file))
}

/// Reads the first bytes of a regular file, at most `limit`; `None` if they cannot be read.
pub fn beginning(path: &Path, limit: u64) -> Option<Vec<u8>> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let mut bytes = Vec::new();
    let is_file = file.metadata().is_ok_and(|stat| stat.is_file());
    (is_file && file.take(limit).read_to_end(&mut bytes).is_ok()).then_some(bytes)
}

/// Reads a whole file.
pub fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    std::fs::read(path)
}

/// Reads a whole text file.
pub fn read_text(path: &Path) -> std::io::Result<String> {
    std::fs::read_to_string(path)
}

/// Opens a file for reading, following symlinks.
pub fn open(path: &Path) -> std::io::Result<File> {
    File::open(path)
}

/// Opens a file for reading, without following a symlink and without waiting for a fifo's writer.
pub fn open_itself(path: &Path) -> std::io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Writes a file in place, and returns once it is on the disk.
/// A killed writer leaves half of it, so this is only for files that nothing depends on.
pub fn write_through(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Returns the end of a file as text, at most `limit` bytes, from the beginning of a line on.
pub fn end(path: &Path, limit: u64) -> Result<String> {
    let read = || {
        let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
        let skipped = file.metadata()?.len().saturating_sub(limit);
        file.seek(SeekFrom::Start(skipped))?;
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes)?;
        let cut = if skipped == 0 {
            0
        } else {
            bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at + 1)
        };
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes[cut..]).into_owned())
    };
    read().with_context(|| format!("read {}", path.display()))
}

/// Replaces a file atomically, also on a power failure.
/// Only its owner has access. Two writers of the same file have to exclude each other. A killed
/// writer may leave the file [`draft_of`] it.
pub fn replace(path: &Path, content: &[u8]) -> Result<()> {
    put(path, content, File::sync_data)
}

/// Does the same as [`replace`], for content that is useless after the next boot.
/// On a power failure, the content may be lost or damaged.
pub fn replace_unsynced(path: &Path, content: &[u8]) -> Result<()> {
    put(path, content, |_| Ok(()))
}

/// Does the same as [`replace_unsynced`], for text in which trailing blanks mean nothing. Text that
/// fits into a page overwrites the file in place, which is atomic for a killed process too. A
/// rename over a file makes ext4 write it out at once, and a later removal has to wait for that.
pub fn rewrite_unsynced(path: &Path, text: &[u8]) -> Result<()> {
    if overwrite(path, text).is_ok_and(|whole| whole) { Ok(()) } else { replace_unsynced(path, text) }
}

/// Overwrites a file, with blanks at the end. Returns true if all of it was written.
fn overwrite(path: &Path, text: &[u8]) -> std::io::Result<bool> {
    let file = File::options().write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let stat = file.metadata()?;
    let length = text.len().max(usize::try_from(stat.len()).unwrap_or(usize::MAX));
    if !stat.is_file() || length > PAGE {
        return Ok(false);
    }
    let mut padded = text.to_vec();
    padded.resize(length, b' ');
    Ok(file.write_at(&padded, 0)? == length)
}

fn put(path: &Path, content: &[u8], sync: impl FnOnce(&File) -> std::io::Result<()>) -> Result<()> {
    let draft = draft_of(path);
    let write = || {
        let mut file = File::options()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&draft)?;
        file.write_all(content)?;
        sync(&file)?;
        std::fs::rename(&draft, path)
    };
    write().with_context(|| format!("write {}", path.display())).inspect_err(|_| {
        let _ = std::fs::remove_file(&draft);
    })
}

/// Returns the draft that [`replace`] renames at the end: in the same directory, with a name that
/// begins with a dot.
pub fn draft_of(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    path.with_file_name(name)
}

/// Removes a file and the draft of a killed writer. Succeeds if they do not exist.
pub fn forget(path: &Path) -> std::io::Result<()> {
    let remove = |path: &Path| match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    remove(&draft_of(path)).and(remove(path))
}

/// Removes the draft that a killed writer of this file left beside it.
pub fn forget_draft(path: &Path) {
    let _ = std::fs::remove_file(draft_of(path));
}

/// Makes a directory and every missing one above it, with these permissions, as far as the umask
/// allows.
pub fn make_directories(path: &Path, mode: u32) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// Removes an empty directory. Succeeds if it does not exist.
pub fn remove_directory(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes a directory and all its content; symlinks are removed, not followed.
pub fn remove_tree(path: &Path) -> std::io::Result<()> {
    std::fs::remove_dir_all(path)
}

/// Makes a temporary directory whose name begins with `prefix`; it is removed when dropped.
pub fn temporary(prefix: &str) -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix(prefix).tempdir()
}

/// Sets the group of a file, without following a symlink.
pub fn set_group(path: &Path, gid: u32) -> std::io::Result<()> {
    std::os::unix::fs::lchown(path, None, Some(gid))
}

/// Makes an empty file; fails if the name exists.
pub fn make_empty(path: &Path) -> std::io::Result<()> {
    File::create_new(path).map(drop)
}

/// Sets the permissions of a file, following symlinks, whatever the umask is.
pub fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

/// Returns the time since the last write to a file, by the wall clock, without following a symlink.
/// Returns `None` if the file does not exist or the time is in the future.
pub fn age(path: &Path) -> Option<Duration> {
    path.symlink_metadata().and_then(|stat| stat.modified()).ok()?.elapsed().ok()
}

/// Identity of one state of a file: no user can set the time of the change back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// `st_ctime`: seconds since 1970, and nanoseconds.
    pub changed: (i64, i64),
}

impl Stamp {
    /// Returns the stamp of a file, without following a symlink.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let stat = path.symlink_metadata()?;
        let changed = (stat.ctime(), stat.ctime_nsec());
        Ok(Self { device: stat.dev(), inode: stat.ino(), size: stat.size(), changed })
    }
}

/// Makes a directory that only its owner may use, and every missing one above it.
/// An existing directory that is open to others is closed to them.
pub fn make_private(path: &Path) -> Result<()> {
    let make = || {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let directory =
            File::options().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)?;
        if directory.metadata()?.permissions().mode() & 0o077 != 0 {
            directory.set_permissions(Permissions::from_mode(0o700))?;
        }
        Ok::<_, std::io::Error>(())
    };
    make().with_context(|| format!("make {} and close it to others", path.display()))
}

/// Reports whether a directory that is still reached, through a mount, has been removed.
pub fn is_removed(directory: &Path) -> bool {
    directory.metadata().is_ok_and(|stat| stat.nlink() == 0)
}

/// Reports whether a path is the root of a mount.
/// False on a kernel before 5.8, which does not tell.
pub fn is_mount_root(path: &Path) -> bool {
    let stat = fs::statx(fs::CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    stat.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Does the same as [`is_mount_root`] for an open file.
pub fn is_mount_root_at(place: BorrowedFd<'_>) -> bool {
    let stat = fs::statx(place, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    stat.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Makes a new file and its directory, readable by everybody as far as the umask allows.
pub fn write_new(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().unwrap_or(path);
    std::fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    let file = File::options().write(true).create_new(true).open(path);
    let write = |mut file: File| file.write_all(text.as_bytes());
    file.and_then(write).with_context(|| format!("write {}", path.display()))
}

/// Gives an open file or directory the owner, group and permissions of another. If the owner cannot
/// be set, the set-id bits are left out: the file would run as the current user.
pub fn give_owner(fd: BorrowedFd<'_>, (owner, group): (u32, u32), mode: u32) -> Result<()> {
    let (owner, group) = (fs::Uid::from_raw(owner), fs::Gid::from_raw(group));
    let mode = match fs::fchown(fd, Some(owner), Some(group)) {
        Ok(()) => mode,
        Err(rustix::io::Errno::PERM | rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => {
            mode & 0o1777
        }
        Err(errno) => return Err(errno).context("set the owner"),
    };
    fs::fchmod(fd, fs::Mode::from_raw_mode(mode)).context("set the permissions")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        assert_eq!(read_small(&path, 3).unwrap(), None);
        File::create(&path).unwrap().set_len(3).unwrap();
        assert_eq!(read_small(&path, 3).unwrap().unwrap().len(), 3);
        assert!(read_small(&path, 2).is_err());
    }

    #[test]
    fn a_replaced_file_is_private_and_leaves_nothing_beside_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        replace(&path, b"first").unwrap();
        replace(&path, b"second").unwrap();
        assert_eq!(read_small(&path, 9).unwrap().unwrap(), "second");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
        assert_eq!(dir.path().read_dir().unwrap().count(), 1);
        assert!(replace(&dir.path().join("none/a"), b"").is_err());
    }

    #[test]
    fn what_fits_into_a_page_stays_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let inode = || path.metadata().unwrap().ino();
        let rewritten = |text: &str| {
            rewrite_unsynced(&path, text.as_bytes()).unwrap();
            assert_eq!(read_small(&path, 1 << 14).unwrap().unwrap().trim_end(), text);
        };
        rewritten("first");
        let first = inode();
        for text in ["1st", "the first", "", "x"] {
            rewritten(text);
            assert_eq!(inode(), first, "{text}");
        }
        for text in ["y".repeat(PAGE + 1), "z".to_owned()] {
            let before = inode();
            rewritten(&text);
            assert_ne!(inode(), before);
        }
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o600);
    }

    #[test]
    fn a_link_is_replaced_and_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["a", "other"].map(|name| dir.path().join(name));
        File::create(&other).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        rewrite_unsynced(&path, b"text").unwrap();
        assert!(!path.is_symlink() && other.metadata().unwrap().len() == 0);
    }

    #[test]
    fn a_link_where_the_draft_goes_is_not_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let [path, other] = ["a", "other"].map(|name| dir.path().join(name));
        File::create(&other).unwrap();
        std::os::unix::fs::symlink(&other, draft_of(&path)).unwrap();
        let _ = replace(&path, b"text");
        assert_eq!(other.metadata().unwrap().len(), 0);
        forget(&path).unwrap();
        assert!(!draft_of(&path).is_symlink());
        forget(&path).unwrap();
    }

    #[test]
    fn a_directory_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o7777;
        make_private(&path).unwrap();
        assert_eq!((mode(&path), mode(&dir.path().join("a"))), (0o700, 0o700));
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        make_private(&path).unwrap();
        assert_eq!(mode(&path), 0o700);
        std::os::unix::fs::symlink(&path, dir.path().join("link")).unwrap();
        assert!(make_private(&dir.path().join("link")).is_err());
    }

    #[test]
    fn what_is_there_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b");
        write_new(&path, "first").unwrap();
        assert!(write_new(&path, "second").is_err());
        assert_eq!(read_small(&path, 9).unwrap().unwrap(), "first");
    }
}
