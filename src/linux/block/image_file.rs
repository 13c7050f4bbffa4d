//! Operations on an image file as a file: its size, its blocks, and the note that a file system is
//! being made in it.

use crate::block::window::Window;
use crate::fs::bytes::size_of;
use crate::proc::clock;
use anyhow::{Context, Result, bail};
use flexvol_protocol::failure::Failure;
use rustix::fs::{
    FallocateFlags, XattrFlags, fallocate, fgetxattr, fremovexattr, fsetxattr, fstat, ftruncate,
};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Attribute of the file while mkfs runs. Its value is the start time in seconds since 1970. Only
/// root can set a trusted attribute.
const FORMATTING: &str = "trusted.flexvol.formatting";

/// State of the note on an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formatting {
    /// There is no note.
    Never,
    /// A file system was begun and never finished, and the file was not changed otherwise: its
    /// content is ours.
    Interrupted,
    /// The same, but the file was changed long after that: its content belongs to a user.
    Overwritten,
}

/// Reserves blocks up to `size` without changing the file's size.
pub fn reserve(file: BorrowedFd<'_>, size: u64) -> Result<()> {
    match fallocate(file, FallocateFlags::KEEP_SIZE, 0, size) {
        Err(Errno::OPNOTSUPP) => {
            bail!(Failure::options(
                "this node's file system cannot reserve blocks: set option allocation to sparse"
            ))
        }
        result => result.context("reserve its blocks: is the disk full?"),
    }
}

/// Sets the file's size.
pub fn resize(file: BorrowedFd<'_>, size: u64) -> Result<()> {
    ftruncate(file, size).context("set its size")
}

/// Notes that a file system is being made in a window of a file that was just proven blank.
/// Returns false if the file system has no attributes: there, a killed mkfs leaves an image that is
/// refused.
pub fn note_formatting(file: BorrowedFd<'_>, window: &Window) -> bool {
    let note = format!("{}{}", clock::seconds(), stamp(window));
    fsetxattr(file, FORMATTING, note.as_bytes(), XattrFlags::empty()).is_ok()
}

/// Returns the text after the time in a note: empty for the whole file, as in notes of older
/// versions.
fn stamp(window: &Window) -> String {
    match window {
        Window { offset: 0, size: None } => String::new(),
        Window { offset, size } => format!(" {offset} {}", size.unwrap_or(0)),
    }
}

/// Returns the state of the note for a window; a note about another window is ignored.
/// `allowed` is the longest time that an mkfs may have continued after the note was set. A change
/// after that (the inode's, which no user can set back) was not made by mkfs.
pub fn formatting(file: BorrowedFd<'_>, window: &Window, allowed: Duration) -> Result<Formatting> {
    let mut buffer = [0; 64];
    let length = match fgetxattr(file, FORMATTING, &mut buffer[..]) {
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(Formatting::Never),
        length => length.context("read the image's attributes")?,
    };
    let note = std::str::from_utf8(&buffer[..length]).unwrap_or_default();
    let (began, of) = note.split_at(note.find(' ').unwrap_or(note.len()));
    if of != stamp(window) && !of.is_empty() {
        return Ok(Formatting::Never);
    }
    let began = began.parse::<i64>().ok().filter(|_| of == stamp(window));
    let allowed = i64::try_from(allowed.as_secs()).unwrap_or(i64::MAX);
    let changed = fstat(file).context("look at the image")?.st_ctime;
    let ours = began.is_some_and(|began| changed <= began.saturating_add(allowed));
    Ok(if ours { Formatting::Interrupted } else { Formatting::Overwritten })
}

/// Removes the note: the file system is complete, or nothing is left of it.
pub fn forget_formatting(file: BorrowedFd<'_>) -> Result<()> {
    match fremovexattr(file, FORMATTING) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(errno).context("take the formatting note off the image"),
    }
}

/// Zeroes a window of a file, as it was before a file system was made in it.
pub fn blank_again(file: BorrowedFd<'_>, window: &Window) -> Result<()> {
    let (start, size) = window.within(size_of(file)?)?;
    let zero = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(file, zero, start, size)
        .or_else(|_| fallocate(file, punch, start, size))
        .context("zero the image again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    const ALLOWED: Duration = Duration::from_mins(1);

    #[test]
    fn a_note_is_valid_as_long_as_nobody_else_changed_the_file() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(formatting(file.as_fd(), &Window::default(), ALLOWED).unwrap(), Formatting::Never);
        if !note_formatting(file.as_fd(), &Window::default()) {
            return println!(
                "SKIP formatting note: trusted attributes need root and a file system that has them"
            );
        }
        assert_eq!(formatting(file.as_fd(), &Window::default(), ALLOWED).unwrap(), Formatting::Interrupted);
        let part = Window { offset: 512, size: Some(1024) };
        // A note without a window comes from an older version, and may be about any window.
        assert_eq!(formatting(file.as_fd(), &part, ALLOWED).unwrap(), Formatting::Overwritten);
        assert!(note_formatting(file.as_fd(), &part));
        assert_eq!(formatting(file.as_fd(), &part, ALLOWED).unwrap(), Formatting::Interrupted);
        for other in [Window::default(), Window { offset: 512, size: None }] {
            assert_eq!(formatting(file.as_fd(), &other, ALLOWED).unwrap(), Formatting::Never);
        }
        for other in ["1000", "", "soon"] {
            fsetxattr(&file, FORMATTING, other.as_bytes(), XattrFlags::empty()).unwrap();
            assert_eq!(
                formatting(file.as_fd(), &Window::default(), ALLOWED).unwrap(),
                Formatting::Overwritten,
                "{other}"
            );
        }
        forget_formatting(file.as_fd()).unwrap();
        forget_formatting(file.as_fd()).unwrap();
        assert_eq!(formatting(file.as_fd(), &Window::default(), ALLOWED).unwrap(), Formatting::Never);
    }

    #[test]
    fn blank_again_touches_the_window_alone() {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(&[7; 8192], 0).unwrap();
        blank_again(file.as_fd(), &Window { offset: 4096, size: Some(2048) }).unwrap();
        let mut bytes = [0; 8192];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[..4096].iter().chain(&bytes[6144..]).all(|byte| *byte == 7));
        assert!(bytes[4096..6144].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn reserved_blocks_change_no_size() {
        let file = tempfile::tempfile().unwrap();
        reserve(file.as_fd(), 1 << 20).unwrap();
        let stat = fstat(&file).unwrap();
        assert!(stat.st_size == 0 && stat.st_blocks >= 2048, "{} blocks", stat.st_blocks);
        resize(file.as_fd(), 1 << 20).unwrap();
        assert_eq!(size_of(file.as_fd()).unwrap(), 1 << 20);
    }
}
