//! Whether a file is being written, by whomever, also in another container: a lease for reading is
//! had only where no one has it open for writing.

use crate::raw;
use nix::libc;
use std::os::fd::BorrowedFd;

/// Which signal tells of a lease (linux/fcntl.h).
const F_SETSIG: i32 = 10;

/// Whether someone has a regular file, opened for reading here, open for writing. False where
/// that cannot be told: on file systems without leases, and for a file of someone else's without
/// the right to lease it.
pub fn is_being_written(file: BorrowedFd<'_>) -> bool {
    // Who opens it for writing while we have the lease is waited for by the kernel, and we are told
    // by a signal: by one that does nothing.
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
