//! Bytes of a file or block device by offset, without moving a file position another call relies
//! on.

use rustix::fs::{FileType, SeekFrom, fstat, seek};
use rustix::io::{Errno, pread};
use std::io;
use std::os::fd::BorrowedFd;

/// Returns the size in bytes: the length of a regular file, the capacity of a block device.
///
/// Moves the file position of a device to its end: lseek(2) is the only call that works on both
/// kinds without an ioctl. No code in this crate reads by position.
pub fn size_of(fd: BorrowedFd<'_>) -> io::Result<u64> {
    let stat = fstat(fd)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => u64::try_from(stat.st_size).map_err(|_| io::ErrorKind::InvalidData.into()),
        FileType::BlockDevice => Ok(seek(fd, SeekFrom::End(0))?),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "neither a regular file nor a block device")),
    }
}

/// Fills `buffer` from `offset` on and returns the number of bytes read: less than its length only
/// at the end of the file.
pub fn read_at(fd: BorrowedFd<'_>, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match pread(fd, &mut buffer[filled..], offset.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    #[test]
    fn reads_up_to_the_end() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"0123456789").unwrap();
        let mut buffer = [0; 8];
        assert_eq!(size_of(file.as_fd()).unwrap(), 10);
        assert_eq!(read_at(file.as_fd(), 4, &mut buffer).unwrap(), 6);
        assert_eq!(&buffer[..6], b"456789");
        assert_eq!(read_at(file.as_fd(), 99, &mut buffer).unwrap(), 0);
    }

    #[test]
    fn a_directory_has_no_size() {
        let directory = std::fs::File::open("/").unwrap();
        assert!(size_of(directory.as_fd()).is_err());
    }
}
