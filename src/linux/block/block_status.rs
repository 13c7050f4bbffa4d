//! Block status of a device, as the storage reports it: where no data was written and zero is read.
//!
//! A proof that a device is blank can skip these parts ([`crate::block::blank`]), so a terabyte
//! that was never used is proven in a moment. The proof reads all parts that the storage does not
//! know, does not report in time, or has in too many pieces.

use crate::proc::deadline::Deadline;
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// Limit for the pieces that are kept: a device with so many contains data.
const PIECES: usize = 1 << 16;

/// Ranges that are known to read as zero: in order, and no two of them touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zeros(Vec<Range<u64>>);

impl Zeros {
    /// Adds a range behind all ranges that were added before.
    /// Ignores any other range. Returns `false` once there are too many.
    pub fn add(&mut self, range: Range<u64>) -> bool {
        let is_full = self.0.len() >= PIECES;
        match self.0.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if last.end == range.start => last.end = range.end,
            Some(last) if last.end > range.start => {}
            _ if is_full => return false,
            _ => self.0.push(range),
        }
        true
    }

    /// Returns the end of the last range; 0 without any.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.0.last().map_or(0, |last| last.end)
    }

    /// Returns the first part of a range that has to be read: all of it is outside of the known
    /// ranges. It is empty if no part has to be read.
    #[must_use]
    pub fn first_unknown(&self, Range { start, end }: Range<u64>) -> Range<u64> {
        let next = self.0.partition_point(|zeros| zeros.end <= start);
        let Some(zeros) = self.0.get(next) else { return start..end };
        if start < zeros.start {
            return start..end.min(zeros.start);
        }
        let after = self.0.get(next + 1).map_or(u64::MAX, |zeros| zeros.start);
        zeros.end.min(end)..after.min(end)
    }
}

/// Returns the holes of a file (lseek(2), `SEEK_DATA`), as far as its file system reports them and
/// time allows.
#[must_use]
pub fn holes(fd: BorrowedFd<'_>, size: u64, deadline: &Deadline) -> Zeros {
    let (mut zeros, mut at) = (Zeros::default(), 0);
    while at < size && !deadline.expired() {
        let Ok(data) = seek(fd, SeekFrom::Data(at)).or_else(|errno| match errno {
            Errno::NXIO => Ok(size),
            errno => Err(errno),
        }) else {
            break;
        };
        if data < at || !zeros.add(at..data.min(size)) {
            break;
        }
        at = match seek(fd, SeekFrom::Hole(data)) {
            Ok(hole) if hole > data => hole,
            _ => break,
        };
    }
    zeros
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::time::Duration;

    fn zeros(ranges: &[(u64, u64)]) -> Zeros {
        let mut zeros = Zeros::default();
        assert!(ranges.iter().all(|(start, end)| zeros.add(*start..*end)));
        zeros
    }

    #[test]
    fn what_is_unknown_is_read() {
        let known = zeros(&[(10, 20), (30, 40)]);
        for (from, unknown) in
            [(0, 0..10), (9, 9..10), (10, 20..30), (19, 20..30), (20, 20..30), (29, 29..30)]
        {
            assert_eq!(known.first_unknown(from..50), unknown, "{from}");
        }
        assert_eq!(known.first_unknown(30..50), 40..50);
        assert_eq!(known.first_unknown(45..50), 45..50);
        assert_eq!(known.first_unknown(0..5), 0..5);
        for nothing in [10..15, 10..20, 35..40] {
            assert!(known.first_unknown(nothing.clone()).is_empty(), "{nothing:?}");
        }
        assert_eq!(Zeros::default().first_unknown(0..50), 0..50);
        assert_eq!((known.end(), Zeros::default().end()), (40, 0));
    }

    #[test]
    fn what_is_not_in_order_is_not_believed() {
        assert_eq!(zeros(&[(10, 20), (20, 30)]), zeros(&[(10, 30)]));
        assert_eq!(zeros(&[(10, 20), (5, 8), (15, 25), (3, 3)]), zeros(&[(10, 20)]));
        let mut many = Zeros::default();
        let most = PIECES as u64;
        assert!((0..most).all(|at| many.add(at * 2..at * 2 + 1)));
        assert!(!many.add(most * 2..most * 2 + 1) && many.end() == 2 * most - 1);
    }

    #[test]
    fn holes_are_where_nothing_was_written() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        file.write_all_at(&[1; 4096], 16 << 20).unwrap();
        let minute = Deadline::after(Duration::from_mins(1));
        let found = holes(file.as_fd(), 64 << 20, &minute);
        let data = found.first_unknown(0..64 << 20);
        assert!(data.contains(&(16 << 20)) && data.end - data.start <= 2 << 20, "{found:?}");
        assert!(found.first_unknown(data.end..64 << 20).is_empty(), "{found:?}");
        assert_eq!(holes(file.as_fd(), 64 << 20, &Deadline::after(Duration::ZERO)), Zeros::default());
        assert_eq!(holes(File::open("/dev/zero").unwrap().as_fd(), 4096, &minute), Zeros::default());
    }
}
