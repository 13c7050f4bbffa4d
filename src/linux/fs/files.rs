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

/// What every kernel writes without looking for a signal in between.
const PAGE: usize = 4096;

/// The text of a file of at most `limit` bytes; `None` if there is no such file.
pub fn read_small(path: &Path, limit: usize) -> Result<Option<String>> {
    let what = || format!("read {}", path.display());
    let Some(file) = open_regular(path)? else { return Ok(None) };
    let mut text = String::new();
    file.take(limit as u64 + 1).read_to_string(&mut text).with_context(what)?;
    ensure!(text.len() <= limit, "{} is larger than {limit} bytes", path.display());
    Ok(Some(text))
}

/// Opens a regular file to be read; `None` if there is no such file.
pub fn open_regular(path: &Path) -> Result<Option<File>> {
    let what = || format!("read {}", path.display());
    // Not blocking: a fifo of that name must not hold anybody up.
    let file = match File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        file => file.with_context(what)?,
    };
    // What someone else writes to, or a device, has no end.
    ensure!(file.metadata().with_context(what)?.is_file(), "{} is no regular file", path.display());
    Ok(Some(file))
}

/// The first bytes of a regular file, at most so many; `None` if they cannot be read.
pub fn beginning(path: &Path, limit: u64) -> Option<Vec<u8>> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let mut bytes = Vec::new();
    let is_file = file.metadata().is_ok_and(|stat| stat.is_file());
    (is_file && file.take(limit).read_to_end(&mut bytes).is_ok()).then_some(bytes)
}

/// All of a file.
pub fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    std::fs::read(path)
}

/// All of a file, which is text.
pub fn read_text(path: &Path) -> std::io::Result<String> {
    std::fs::read_to_string(path)
}

/// Opens a file to be read, also at the end of a symlink.
pub fn open(path: &Path) -> std::io::Result<File> {
    File::open(path)
}

/// Opens what has this name itself, and does not wait for who writes to a fifo.
pub fn open_itself(path: &Path) -> std::io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)
}

/// Writes a file in its place, and returns once it is on the disk: half of it is there when this is
/// killed, so it is for what nothing depends on.
pub fn write_through(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// The last bytes of a file as text, at most so many, from the beginning of a line on.
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

/// Puts a file in place of the one of that name, whole or not at all, also when the power fails;
/// for its owner alone. Two who write the same one have to keep each other out. Of a writer that
/// was killed, [`draft_of`] it may stay.
pub fn replace(path: &Path, content: &[u8]) -> Result<()> {
    put(path, content, File::sync_data)
}

/// [`replace`] for what means nothing after the next boot: when the power fails, it may be lost or
/// damaged.
pub fn replace_unsynced(path: &Path, content: &[u8]) -> Result<()> {
    put(path, content, |_| Ok(()))
}

/// [`replace_unsynced`] for text in which blanks at the end mean nothing. What fits into a page is
/// written over what is there: that is one step for who is killed as well, and a rename over a file
/// makes ext4 write it out at once, for which whoever removes it has to wait.
pub fn rewrite_unsynced(path: &Path, text: &[u8]) -> Result<()> {
    if overwrite(path, text).is_ok_and(|whole| whole) { Ok(()) } else { replace_unsynced(path, text) }
}

/// Whether all of it was written, blanks over what the file had more.
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

/// What [`replace`] writes before it is put in place: a name that begins with a dot, in the same
/// directory.
pub fn draft_of(path: &Path) -> PathBuf {
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    path.with_file_name(name)
}

/// Removes a file and what a killed writer has left of it. One that is not there is removed.
pub fn forget(path: &Path) -> std::io::Result<()> {
    let remove = |path: &Path| match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    remove(&draft_of(path)).and(remove(path))
}

/// Removes what a killed writer of this file has left beside it.
pub fn forget_draft(path: &Path) {
    let _ = std::fs::remove_file(draft_of(path));
}

/// Makes a directory and every one above it that is missing, with these permissions, as far as the
/// umask allows.
pub fn make_directories(path: &Path, mode: u32) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(mode).create(path)
}

/// Removes a directory with nothing in it. One that is not there is removed.
pub fn remove_directory(path: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// Removes a directory and all that is in it, symlinks and not what they lead to.
pub fn remove_tree(path: &Path) -> std::io::Result<()> {
    std::fs::remove_dir_all(path)
}

/// A new directory in the one for temporary files, removed when dropped; its name begins so.
pub fn temporary(prefix: &str) -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix(prefix).tempdir()
}

/// Gives what has this name to a group, a symlink itself.
pub fn set_group(path: &Path, gid: u32) -> std::io::Result<()> {
    std::os::unix::fs::lchown(path, None, Some(gid))
}

/// Makes a file with nothing in it; fails if anything has the name.
pub fn make_empty(path: &Path) -> std::io::Result<()> {
    File::create_new(path).map(drop)
}

/// Sets the permissions of what a path leads to, whatever the umask is.
pub fn set_mode(path: &Path, mode: u32) -> std::io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
}

/// How long ago what has this name was last written to, by the clock of the wall; `None` if it is
/// not there or that lies ahead.
pub fn age(path: &Path) -> Option<Duration> {
    path.symlink_metadata().and_then(|stat| stat.modified()).ok()?.elapsed().ok()
}

/// What tells one state of a file from any other: no user can set the time of the change back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// In bytes.
    pub size: u64,
    /// `st_ctime`: seconds since 1970, and nanoseconds.
    pub changed: (i64, i64),
}

impl Stamp {
    /// Of what has this name, a symlink not followed.
    pub fn of(path: &Path) -> std::io::Result<Self> {
        let stat = path.symlink_metadata()?;
        let changed = (stat.ctime(), stat.ctime_nsec());
        Ok(Self { device: stat.dev(), inode: stat.ino(), size: stat.size(), changed })
    }
}

/// Makes a directory that only its owner may use, and every one above it that is missing. One
/// that is there and open to others is closed to them.
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

/// Whether a directory that we still reach, through a mount, has been removed.
pub fn is_removed(directory: &Path) -> bool {
    directory.metadata().is_ok_and(|stat| stat.nlink() == 0)
}

/// Whether a mount begins here. False on a kernel before 5.8, which cannot say.
pub fn is_mount_root(path: &Path) -> bool {
    let stat = fs::statx(fs::CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    stat.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// The same of what is open.
pub fn is_mount_root_at(place: BorrowedFd<'_>) -> bool {
    let stat = fs::statx(place, "", AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE);
    stat.is_ok_and(|stat| stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT))
}

/// Makes a file that is not there yet, and its directory; for everybody to read, as the umask
/// allows.
pub fn write_new(path: &Path, text: &str) -> Result<()> {
    let directory = path.parent().unwrap_or(path);
    std::fs::create_dir_all(directory).with_context(|| format!("make {}", directory.display()))?;
    let file = File::options().write(true).create_new(true).open(path);
    let write = |mut file: File| file.write_all(text.as_bytes());
    file.and_then(write).with_context(|| format!("write {}", path.display()))
}

/// Gives an open file or directory the owner, group and permissions of another. Where the owner
/// cannot be had, nothing that runs in the owner's name is made: it would run in ours.
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
