//! Open files: by their own path, or by their name in an open directory.
//!
//! Paths that a tenant names are opened by [`openat_beneath`](super::openat_beneath), not here.

pub use rustix::fs::{FileType, OFlags};

use rustix::fs::{self, Access, AtFlags, CWD, MemfdFlags, Mode, StatVfsMountFlags, StatxFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

/// Opens a path, following symlinks. Programs that are started do not inherit the descriptor.
pub fn open(path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    open_in(CWD, path, flags)
}

/// Opens a name in a directory.
pub fn open_in(directory: BorrowedFd<'_>, name: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    fs::openat(directory, name, flags | OFlags::CLOEXEC, Mode::empty())
}

/// Makes a new file, for its owner alone.
/// Fails with `EEXIST` if the name exists, even as a symlink.
pub fn create_in(directory: BorrowedFd<'_>, name: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(directory, name, flags, Mode::from_raw_mode(0o600))
}

/// Removes the file of this name in a directory.
pub fn remove_in(directory: BorrowedFd<'_>, name: &Path) -> Result<(), Errno> {
    fs::unlinkat(directory, name, AtFlags::empty())
}

/// Makes a file in memory that only root and the processes that inherit it can read.
/// Its position is at the beginning.
pub fn in_memory(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(fs::memfd_create(name, MemfdFlags::CLOEXEC)?);
    fs::fchmod(&file, Mode::from_raw_mode(0o400))?;
    file.write_all(content)?;
    file.rewind()?;
    Ok(file.into())
}

/// Returns the type of the file.
pub fn kind_of(fd: BorrowedFd<'_>) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(fs::fstat(fd)?.st_mode))
}

/// Reads at most `limit` bytes from the current position.
pub fn read(fd: OwnedFd, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::from(fd).take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the current length, from the server or daemon behind the file.
/// Without `STATX_FORCE_SYNC`, the kernel may return a length that it remembers.
pub fn length_now(fd: BorrowedFd<'_>) -> Result<u64, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    Ok(fs::statx(fd, "", flags, StatxFlags::SIZE)?.stx_size)
}

/// Sets the length; added bytes read as zero.
pub fn set_length(fd: BorrowedFd<'_>, length: u64) -> Result<(), Errno> {
    fs::ftruncate(fd, length)
}

/// Waits until all of the file is on the disk.
pub fn sync(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    fs::fsync(fd)
}

/// Reports whether the file system of the file is mounted read-only.
pub fn is_on_read_only_mount(fd: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(fs::fstatvfs(fd)?.f_flag.contains(StatVfsMountFlags::RDONLY))
}

/// Reports whether a block device is mounted in any namespace, or used by another device.
/// Uses open(2) with `O_EXCL`. An error is the reason why this cannot be determined.
pub fn is_claimed(device: &Path) -> Result<bool, Errno> {
    match open(device, OFlags::RDONLY | OFlags::EXCL | OFlags::NONBLOCK) {
        Ok(_) => Ok(false),
        Err(Errno::BUSY) => Ok(true),
        Err(errno) => Err(errno),
    }
}

/// Returns the number of the type of the file system that a path is on (statfs(2)).
pub fn file_system_number(path: &Path) -> Result<u32, Errno> {
    // The field has 64 bits on some architectures; no number is that large.
    fs::statfs(path).map(|stat| u32::try_from(stat.f_type).unwrap_or_default())
}

/// Reports whether this process may write to a path: not if it is read-only or immutable.
pub fn is_writable(path: &Path) -> bool {
    fs::access(path, Access::WRITE_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;

    #[test]
    fn what_is_made_is_new_and_its_owner_s() {
        let home = tempfile::tempdir().unwrap();
        let directory = open(home.path(), OFlags::PATH | OFlags::DIRECTORY).unwrap();
        let file = create_in(directory.as_fd(), Path::new("a")).unwrap();
        assert_eq!(kind_of(file.as_fd()), Ok(FileType::RegularFile));
        assert_eq!(fs::fstat(&file).unwrap().st_mode & 0o7777, 0o600);
        set_length(file.as_fd(), 7).unwrap();
        sync(file.as_fd()).unwrap();
        assert_eq!((length_now(file.as_fd()), read(file, 5).unwrap()), (Ok(7), vec![0; 5]));
        assert_eq!(create_in(directory.as_fd(), Path::new("a")).unwrap_err(), Errno::EXIST);
        remove_in(directory.as_fd(), Path::new("a")).unwrap();
        assert_eq!(open(&home.path().join("a"), OFlags::RDONLY).unwrap_err(), Errno::NOENT);
    }

    #[test]
    fn a_file_in_memory_is_read_from_its_beginning() {
        let file = in_memory("x", b"secret").unwrap();
        assert_eq!(fs::fstat(&file).unwrap().st_mode & 0o777, 0o400);
        assert_eq!(read(file, 99).unwrap(), b"secret");
    }
}
