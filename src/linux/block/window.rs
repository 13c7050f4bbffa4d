//! A stretch of a file or block device: the whole of it, or one partition.

use flexvol_protocol::failure::{Failure, Result};

/// Unit of loop devices and partitions, in bytes, whatever the disk's real block size is.
pub const SECTOR: u64 = 512;

/// A stretch of bytes. The default is everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// First byte.
    pub offset: u64,
    /// Length in bytes; `None` means up to the end of the file, also when the file grows later.
    pub size: Option<u64>,
}

impl Window {
    /// Returns first byte and length within a file or device of `total` bytes.
    ///
    /// Fails with `BadOptions` for a window that is empty or reaches past the end: the kernel would
    /// silently cut it short (loop(4) clamps `lo_sizelimit`), and a file system in it would be
    /// damaged later instead of now.
    pub fn within(&self, total: u64) -> Result<(u64, u64)> {
        let rest =
            total.checked_sub(self.offset).filter(|rest| *rest > 0).ok_or_else(|| self.outside(total))?;
        match self.size {
            None => Ok((self.offset, rest)),
            Some(size) if size > 0 && size <= rest => Ok((self.offset, size)),
            Some(_) => Err(self.outside(total)),
        }
    }

    /// Does the same as [`Window::within`], and fails with `BadOptions` unless both ends are on a
    /// sector: a loop device supports no other sizes.
    pub fn sectors_within(&self, total: u64) -> Result<(u64, u64)> {
        let (offset, size) = self.within(total)?;
        if !offset.is_multiple_of(SECTOR) || self.size.is_some_and(|size| !size.is_multiple_of(SECTOR)) {
            let text = format!("offset {offset} and size {size} are not multiples of {SECTOR} bytes");
            return Err(Failure::options(text));
        }
        if size < SECTOR {
            return Err(Failure::options(format!(
                "{size} bytes are too few for a device: at least {SECTOR}"
            )));
        }
        Ok((offset, size))
    }

    fn outside(&self, total: u64) -> Failure {
        let size = self.size.map_or("all".to_owned(), |size| size.to_string());
        let offset = self.offset;
        Failure::options(format!("no {size} bytes from offset {offset} on: there are {total} bytes in total"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(offset: u64, size: Option<u64>) -> Window {
        Window { offset, size }
    }

    #[test]
    fn lies_within() {
        assert_eq!(Window::default().within(10), Ok((0, 10)));
        assert_eq!(window(4, None).within(10), Ok((4, 6)));
        assert_eq!(window(4, Some(6)).within(10), Ok((4, 6)));
    }

    #[test]
    fn refuses_what_the_kernel_would_cut_short() {
        for bad in [window(10, None), window(11, None), window(4, Some(7)), window(0, Some(0))] {
            assert!(bad.within(10).is_err(), "{bad:?}");
        }
        assert!(window(u64::MAX, Some(u64::MAX)).within(u64::MAX).is_err());
        assert!(window(1, Some(u64::MAX)).within(u64::MAX).is_err());
    }

    #[test]
    fn device_windows_are_whole_sectors() {
        assert!(window(512, Some(1024)).sectors_within(4096).is_ok());
        assert!(window(100, None).sectors_within(4096).is_err());
        assert!(window(0, Some(1000)).sectors_within(4096).is_err());
        assert!(Window::default().sectors_within(511).is_err());
    }
}
