//! Check for writers of a file, also in other containers: the kernel grants a lease for reading
//! only if no process has the file open for writing.

use crate::raw;
use nix::libc;
use std::os::fd::BorrowedFd;

/// Command of fcntl(2) that sets the signal about a lease (linux/fcntl.h).
const F_SETSIG: i32 = 10;

/// Reports whether any process has a regular file, opened for reading here, open for writing.
/// Returns false if this cannot be determined: on file systems without leases, and for another
/// user's file without the right to lease it.
pub fn is_being_written(file: BorrowedFd<'_>) -> bool {
    // If a process opens the file for writing while we hold the lease, the kernel lets it wait and
    // sends us a signal. This signal has no effect.
    let told = raw::fcntl(file, F_SETSIG, libc::SIGURG);
    let leased = told.and_then(|_| raw::fcntl(file, libc::F_SETLEASE, libc::F_RDLCK));
    if leased.is_ok() {
        let _ = raw::fcntl(file, libc::F_SETLEASE, libc::F_UNLCK);
    }
    leased == Err(nix::errno::Errno::EAGAIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd as _;

    #[test]
    fn a_file_is_written_until_it_is_closed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let writer = File::create(&path).unwrap();
        let is_written = || is_being_written(File::open(&path).unwrap().as_fd());
        assert!(is_written());
        drop(writer);
        let _reader = File::open(&path).unwrap();
        assert!(!is_written() && !is_written());
        drop(File::options().append(true).open(&path).unwrap());
        assert!(!is_written());
    }
}
