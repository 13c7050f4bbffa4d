//! Header of a disk image (docs/interop/qcow2.txt of QEMU).

use crate::fs::bytes::read_at;
use anyhow::{Context, Result};
use flexvol_protocol::failure::{Code, Failure};
use std::os::fd::BorrowedFd;

/// `QFI\xfb`.
const MAGIC: &[u8] = b"QFI\xfb";

/// Length of the header that is read, in bytes.
const HEADER: usize = 80;

/// Length of the header of version 2, in bytes.
const SMALLEST: usize = 72;

/// Incompatible feature: the data is in another file.
const EXTERNAL_DATA: u64 = 1 << 2;

/// Reports whether `fd` is a qcow2 image that was begun and never finished, as a killed qemu-img
/// leaves it. The size is written last: a disk without a size cannot have data, and a disk with a
/// snapshot had a size once.
pub fn is_unmade(fd: BorrowedFd<'_>) -> Result<bool> {
    let header = header_of(fd)?;
    Ok(header.len() >= SMALLEST
        && header.starts_with(MAGIC)
        && [24..32, 60..64].iter().all(|number| header[number.clone()].iter().all(|byte| *byte == 0)))
}

fn header_of(fd: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let mut header = vec![0; HEADER];
    let length = read_at(fd, 0, &mut header).context("read the image's header")?;
    header.truncate(length);
    Ok(header)
}

/// Fails unless `fd` is a complete qcow2 image: without a backing file and without a data file,
/// which could be any file of the node.
pub fn refuse_foreign_parts(fd: BorrowedFd<'_>) -> Result<()> {
    refuse_foreign_header(&header_of(fd)?)
}

/// Does the same for the first bytes of an image (the pure core).
pub fn refuse_foreign_header(header: &[u8]) -> Result<()> {
    let number = |at: usize| {
        header.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |number| u64::from_be_bytes(*number))
    };
    let version = number(0) & u64::from(u32::MAX);
    let refused = |code, text: &str| Err(Failure::new(code, text).into());
    match version {
        _ if header.len() < SMALLEST || !header.starts_with(MAGIC) => refused(
            Code::Conflict,
            "it is no qcow2 image: use driver image, or imageFormat: raw of driver nbd, for a raw one",
        ),
        2 | 3 if number(8) != 0 => refused(
            Code::Denied,
            "it has a backing file, which may be any file of the node: make it whole (qemu-img convert -O qcow2)",
        ),
        3 if number(72) & EXTERNAL_DATA != 0 => refused(
            Code::Denied,
            "its data is in another file, which may be any of the node: make it whole (qemu-img convert -O qcow2)",
        ),
        2 | 3 => Ok(()),
        _ => refused(Code::Conflict, "it is a qcow2 image of an unknown version"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::wording;
    use std::io::Write;
    use std::os::fd::AsFd;

    fn verdict(version: u32, backing: u64, features: u64) -> Result<(), String> {
        let mut file = tempfile::tempfile().unwrap();
        let mut header = [0; 104];
        header[..4].copy_from_slice(MAGIC);
        header[4..8].copy_from_slice(&version.to_be_bytes());
        header[8..16].copy_from_slice(&backing.to_be_bytes());
        header[72..80].copy_from_slice(&features.to_be_bytes());
        file.write_all(&header).unwrap();
        refuse_foreign_parts(file.as_fd()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_image_must_be_whole() {
        assert_eq!(verdict(3, 0, 0), Ok(()));
        assert_eq!(verdict(3, 0, 1), Ok(()), "dirty is not foreign");
        // In version 2, these bytes are other data.
        assert_eq!(verdict(2, 0, EXTERNAL_DATA), Ok(()));
        assert!(verdict(3, 112, 0).unwrap_err().starts_with(wording("backing-file")));
        assert!(verdict(2, 112, 0).unwrap_err().starts_with(wording("backing-file")));
        assert!(verdict(3, 0, 1 | EXTERNAL_DATA).unwrap_err().starts_with(wording("data-in-another-file")));
        assert!(verdict(4, 0, 0).unwrap_err().contains("unknown version"));
        let empty = tempfile::tempfile().unwrap();
        assert!(refuse_foreign_parts(empty.as_fd()).unwrap_err().to_string().contains("no qcow2 image"));
    }

    #[test]
    fn what_has_a_size_or_a_snapshot_was_finished() {
        let unmade = |size: u8, snapshots: u8, length| {
            let (mut file, mut header) = (tempfile::tempfile().unwrap(), [0; 104]);
            header[..4].copy_from_slice(MAGIC);
            (header[31], header[63]) = (size, snapshots);
            file.write_all(&header[..length]).unwrap();
            is_unmade(file.as_fd()).unwrap()
        };
        assert!(unmade(0, 0, 104));
        assert!(!unmade(1, 0, 104) && !unmade(0, 1, 104) && !unmade(0, 0, 71));
        // Zeros and other first bytes are not an unfinished image.
        let zeros = tempfile::tempfile().unwrap();
        zeros.set_len(1 << 20).unwrap();
        assert!(!is_unmade(zeros.as_fd()).unwrap());
    }
}
