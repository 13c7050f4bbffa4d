//! Content of a disk, detected by the magic numbers that every kind leaves at fixed places (listed
//! in libblkid's superblocks).
//!
//! Two users: the executor, which mounts an image as what it is and not as what a tenant claims,
//! and [`crate::block::blank`], whose refusal should name the data that would be destroyed.

use crate::block::window::Window;
use crate::fs::bytes;
use anyhow::{Context, Result};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;

/// A recognised kind of content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each is the thing it is named after; `name` says it for people")]
pub enum Signature {
    Ext2,
    Ext3,
    Ext4,
    ExtJournal,
    Xfs,
    Btrfs,
    Squashfs,
    Erofs,
    Iso9660,
    Udf,
    F2fs,
    Vfat,
    Exfat,
    Ntfs,
    Refs,
    Bitlocker,
    Reiserfs,
    Jfs,
    Nilfs2,
    Ocfs2,
    Gfs2,
    Bcachefs,
    Bcache,
    Bluestore,
    Zfs,
    Swap,
    Luks,
    Lvm2,
    MdRaid,
    Gpt,
    Mbr,
}

impl Signature {
    /// Returns the name in mount(8) and blkid(8); for file systems, the name for mount(2).
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext2 => "ext2",
            Self::Ext3 => "ext3",
            Self::Ext4 => "ext4",
            Self::ExtJournal => "jbd",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Squashfs => "squashfs",
            Self::Erofs => "erofs",
            Self::Iso9660 => "iso9660",
            Self::Udf => "udf",
            Self::F2fs => "f2fs",
            Self::Vfat => "vfat",
            Self::Exfat => "exfat",
            Self::Ntfs => "ntfs",
            Self::Refs => "refs",
            Self::Bitlocker => "bitlocker",
            Self::Reiserfs => "reiserfs",
            Self::Jfs => "jfs",
            Self::Nilfs2 => "nilfs2",
            Self::Ocfs2 => "ocfs2",
            Self::Gfs2 => "gfs2",
            Self::Bcachefs => "bcachefs",
            Self::Bcache => "bcache",
            Self::Bluestore => "bluestore",
            Self::Zfs => "zfs",
            Self::Swap => "swap",
            Self::Luks => "luks",
            Self::Lvm2 => "lvm2",
            Self::MdRaid => "mdraid",
            Self::Gpt => "gpt",
            Self::Mbr => "mbr",
        }
    }

    /// Returns a text with an article, for messages: `an xfs file system`, `a gpt partition table`.
    pub fn describe(self) -> &'static str {
        match self {
            Self::ExtJournal => "a journal of an ext file system",
            Self::Bcache => "a bcache device",
            Self::Bluestore => "a ceph bluestore device",
            Self::Bitlocker => "a bitlocker volume",
            Self::Zfs => "a member of a zfs pool",
            Self::Swap => "swap space",
            Self::Luks => "a luks volume",
            Self::Lvm2 => "an lvm physical volume",
            Self::MdRaid => "a member of a linux raid",
            Self::Gpt => "a gpt partition table",
            Self::Mbr => "an mbr partition table or boot sector",
            Self::Ext2 => "an ext2 file system",
            Self::Ext3 => "an ext3 file system",
            Self::Ext4 => "an ext4 file system",
            Self::Xfs => "an xfs file system",
            Self::Btrfs => "a btrfs file system",
            Self::Squashfs => "a squashfs file system",
            Self::Erofs => "an erofs file system",
            Self::Iso9660 => "an iso9660 file system",
            Self::Udf => "a udf file system",
            Self::F2fs => "an f2fs file system",
            Self::Vfat => "a vfat file system",
            Self::Exfat => "an exfat file system",
            Self::Ntfs => "an ntfs file system",
            Self::Refs => "a refs file system",
            Self::Reiserfs => "a reiserfs file system",
            Self::Jfs => "a jfs file system",
            Self::Nilfs2 => "a nilfs2 file system",
            Self::Ocfs2 => "an ocfs2 file system",
            Self::Gfs2 => "a gfs2 file system",
            Self::Bcachefs => "a bcachefs file system",
        }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

use Signature as S;

/// Kinds with one magic number at one place, in the order of the search.
/// Tables and containers come before the kinds that their content may imitate. A boot sector alone
/// comes last, because file systems for booting have one, too.
const MAGICS: &[(u64, &[u8], Signature)] = &[
    (0, b"LUKS\xba\xbe", S::Luks),
    (0, b"XFSB", S::Xfs),
    (0x1_0040, b"_BHRfS_M", S::Btrfs),
    (0, b"hsqs", S::Squashfs),
    (0, b"sqsh", S::Squashfs),
    (1024, &0xE0F5_E1E2_u32.to_le_bytes(), S::Erofs),
    (1024, &0xF2F5_2010_u32.to_le_bytes(), S::F2fs),
    (0x8001, b"CD001", S::Iso9660),
    (0x8001, b"BEA01", S::Udf),
    (3, b"NTFS    ", S::Ntfs),
    (3, b"EXFAT   ", S::Exfat),
    (3, b"-FVE-FS-", S::Bitlocker),
    (3, b"ReFS\0\0\0\0", S::Refs),
    (0x1_0034, b"ReIsEr", S::Reiserfs),
    (0x2034, b"ReIsEr", S::Reiserfs),
    (0x8000, b"JFS1", S::Jfs),
    (1030, &0x3434_u16.to_le_bytes(), S::Nilfs2),
    (8192, b"OCFSV2", S::Ocfs2),
    (4096, b"OCFSV2", S::Ocfs2),
    (0x1_0000, &0x0116_1970_u32.to_be_bytes(), S::Gfs2),
    (4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef", S::Bcachefs),
    (4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81", S::Bcache),
    (0, b"bluestore block device", S::Bluestore),
    (24, b"LABELONE", S::Lvm2),
    (536, b"LABELONE", S::Lvm2),
    (1048, b"LABELONE", S::Lvm2),
    (1560, b"LABELONE", S::Lvm2),
    (0, &MD_MAGIC, S::MdRaid),
    (4096, &MD_MAGIC, S::MdRaid),
    (4086, b"SWAPSPACE2", S::Swap),
    (8182, b"SWAPSPACE2", S::Swap),
    (16_374, b"SWAPSPACE2", S::Swap),
    (65_526, b"SWAPSPACE2", S::Swap),
    (4086, b"SWAP-SPACE", S::Swap),
    (82, b"FAT32   ", S::Vfat),
    (54, b"FAT16   ", S::Vfat),
    (54, b"FAT12   ", S::Vfat),
    (512, b"EFI PART", S::Gpt),
    (4096, b"EFI PART", S::Gpt),
];

const MD_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();

const ZFS_MAGIC: u64 = 0x00ba_b10c;

/// Detects the content of a window of a file or device; `None` does not prove that it is blank.
pub fn identify(fd: BorrowedFd<'_>, window: &Window) -> Result<Option<Signature>> {
    let total = bytes::size_of(fd).context("learn the size")?;
    let (offset, size) = window.within(total)?;
    let read = |at: u64, buffer: &mut [u8]| {
        let room = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX).min(buffer.len());
        bytes::read_at(fd, offset.saturating_add(at), &mut buffer[..room])
    };
    identify_in(size, read).context("look for a file system")
}

/// Detects the content (the pure core). `read_at` fills the buffer from an offset on and returns
/// the number of bytes, less only at the end.
pub fn identify_in(
    size: u64,
    mut read_at: impl FnMut(u64, &mut [u8]) -> io::Result<usize>,
) -> io::Result<Option<Signature>> {
    // All magic numbers except those of zfs and those at the end lie in here. A shorter file is
    // filled up with zeros.
    let mut head = vec![0; 0x2_0000];
    let filled = read_at(0, &mut head)?;
    head[filled..].fill(0);
    if let Some(found) = in_head(&head) {
        return Ok(Some(found));
    }
    let mut labels = vec![0; 0x2_0000];
    let filled = read_at(0x2_0000, &mut labels)?;
    if labels[..filled].chunks_exact(1024).any(is_zfs) {
        return Ok(Some(S::Zfs));
    }
    if let Some(found) = at_end(size, &mut read_at)? {
        return Ok(Some(found));
    }
    Ok((head[510..512] == [0x55, 0xaa]).then_some(S::Mbr))
}

fn in_head(head: &[u8]) -> Option<Signature> {
    let at = |(offset, magic, _): &&(u64, &[u8], Signature)| {
        usize::try_from(*offset).is_ok_and(|offset| head[offset..].starts_with(magic))
    };
    ext(head).or_else(|| MAGICS.iter().find(at).map(|(_, _, found)| *found))
}

/// Distinguishes the kinds of ext by their features (linux fs/ext4/ext4.h; libblkid decides the
/// same way).
fn ext(head: &[u8]) -> Option<Signature> {
    const HAS_JOURNAL: u32 = 0x4;
    const JOURNAL_DEVICE: u32 = 0x8;
    // filetype, needs_recovery, meta_bg; sparse_super, large_file, btree_dir: all other features
    // are ext4's.
    const INCOMPATIBLE_OF_EXT3: u32 = 0x2 | 0x4 | 0x10;
    const READ_ONLY_OF_EXT3: u32 = 0x1 | 0x2 | 0x4;
    let word = |at: usize| head.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    if head[1080..1082] != [0x53, 0xef] {
        return None;
    }
    let (compatible, incompatible, read_only) = (word(0x45c)?, word(0x460)?, word(0x464)?);
    Some(match () {
        () if incompatible & JOURNAL_DEVICE != 0 => S::ExtJournal,
        () if incompatible & !INCOMPATIBLE_OF_EXT3 != 0 || read_only & !READ_ONLY_OF_EXT3 != 0 => S::Ext4,
        () if compatible & HAS_JOURNAL != 0 => S::Ext3,
        () => S::Ext2,
    })
}

fn is_zfs(uberblock: &[u8]) -> bool {
    uberblock.starts_with(&ZFS_MAGIC.to_le_bytes()) || uberblock.starts_with(&ZFS_MAGIC.to_be_bytes())
}

/// Detects Linux raid 0.90 and 1.0, and the copy of a GPT.
fn at_end(
    size: u64,
    read_at: &mut impl FnMut(u64, &mut [u8]) -> io::Result<usize>,
) -> io::Result<Option<Signature>> {
    let places: [(Option<u64>, &[u8], Signature); 4] = [
        ((size & !0xffff).checked_sub(0x1_0000), &MD_MAGIC, S::MdRaid),
        (size.checked_sub(0x2000).map(|at| at & !0xfff), &MD_MAGIC, S::MdRaid),
        (size.checked_sub(512), b"EFI PART", S::Gpt),
        (size.checked_sub(4096), b"EFI PART", S::Gpt),
    ];
    for (place, magic, found) in places {
        let mut buffer = [0; 8];
        if let Some(at) = place
            && read_at(at, &mut buffer)? >= magic.len()
            && buffer.starts_with(magic)
        {
            return Ok(Some(found));
        }
    }
    Ok(None)
}

/// Places of the unique identifier of each kind that can be written: begin and length.
const IDENTIFIERS: [(&[Signature], u64, usize); 5] = [
    (&[Signature::Ext2, Signature::Ext3, Signature::Ext4], 1024 + 0x68, 16),
    (&[Signature::Xfs], 32, 16),
    (&[Signature::Btrfs], 0x1_0000 + 32, 16),
    (&[Signature::F2fs], 1024 + 0x6c, 16),
    (&[Signature::Luks], 168, 40),
];

/// Returns the content of a disk and its identifier (UUID): equal for two devices that show the
/// same file system, and for a copy.
pub fn identifier(fd: BorrowedFd<'_>) -> Result<Option<(Signature, Vec<u8>)>> {
    let Some(found) = identify(fd, &Window::default())? else { return Ok(None) };
    let place = IDENTIFIERS.iter().find(|(kinds, ..)| kinds.contains(&found));
    let Some((_, at, length)) = place else { return Ok(None) };
    let mut bytes = vec![0; *length];
    let filled = bytes::read_at(fd, *at, &mut bytes).context("read its identifier")?;
    Ok((filled == bytes.len() && bytes.iter().any(|byte| *byte != 0)).then_some((found, bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::deadline::Deadline;
    use crate::proc::helper::{HostRunner, Invocation, Runner as _};
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt as _;
    use std::path::Path;
    use std::time::Duration;

    fn in_bytes(content: &[u8]) -> Option<Signature> {
        let read = |at: u64, buffer: &mut [u8]| {
            let rest = content.get(usize::try_from(at).unwrap()..).unwrap_or_default();
            let length = rest.len().min(buffer.len());
            buffer[..length].copy_from_slice(&rest[..length]);
            Ok(length)
        };
        identify_in(content.len() as u64, read).unwrap()
    }

    /// Makes an image of `size` bytes with a program, `{}` standing for its path, and detects its
    /// content.
    fn made_by(tool: &str, args: &[&str], size: u64) -> Option<Signature> {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        File::create(&image).unwrap().set_len(size).unwrap();
        HostRunner.find(tool).map_err(|error| println!("SKIP {tool}: {error}")).ok()?;
        let helper = Invocation::of(tool);
        let args = args.iter().map(|arg| arg.replace("{}", image.to_str().unwrap()));
        helper.args(args).run_to_success(&Deadline::after(Duration::from_mins(1))).unwrap();
        identify(File::open(&image).unwrap().as_fd(), &Window::default()).unwrap()
    }

    fn assert_made(expected: Signature, tool: &str, args: &[&str], size: u64) {
        if Path::new("/usr/sbin").join(tool).exists() || Path::new("/usr/bin").join(tool).exists() {
            assert_eq!(made_by(tool, args, size), Some(expected), "{tool} {args:?}");
        } else {
            println!("SKIP {tool}: not installed");
        }
    }

    #[test]
    fn file_systems_as_their_tools_make_them() {
        const MEBIBYTE: u64 = 1 << 20;
        assert_made(S::Ext4, "mke2fs", &["-q", "-F", "-t", "ext4", "{}"], 16 * MEBIBYTE);
        assert_made(S::Ext3, "mke2fs", &["-q", "-F", "-t", "ext3", "{}"], 16 * MEBIBYTE);
        assert_made(S::Ext2, "mke2fs", &["-q", "-F", "-t", "ext2", "{}"], 16 * MEBIBYTE);
        assert_made(S::ExtJournal, "mke2fs", &["-q", "-F", "-O", "journal_dev", "{}"], 16 * MEBIBYTE);
        assert_made(S::Xfs, "mkfs.xfs", &["-q", "{}"], 400 * MEBIBYTE);
        assert_made(S::Btrfs, "mkfs.btrfs", &["-q", "{}"], 200 * MEBIBYTE);
        assert_made(S::Swap, "mkswap", &["{}"], 16 * MEBIBYTE);
        assert_made(S::Vfat, "mkfs.vfat", &["{}"], 16 * MEBIBYTE);
        assert_made(S::F2fs, "mkfs.f2fs", &["{}"], 100 * MEBIBYTE);
        assert_made(S::Squashfs, "mksquashfs", &["/etc/passwd", "{}", "-noappend", "-quiet"], 0);
        assert_made(S::Erofs, "mkfs.erofs", &["{}", "/usr/share/doc/tar"], 0);
        assert_made(S::Iso9660, "genisoimage", &["-quiet", "-o", "{}", "/etc/passwd"], 0);
    }

    #[test]
    fn partition_tables_as_sfdisk_makes_them() {
        let helper = |label: &str| {
            let script = format!("echo 'size=1M' | sfdisk -q --label {label} {{}} >/dev/null");
            made_by("sh", &["-c", &script], 8 << 20)
        };
        if HostRunner.find("sfdisk").is_err() {
            println!("SKIP partition tables: no sfdisk");
            return;
        }
        assert_eq!((helper("gpt"), helper("dos")), (Some(S::Gpt), Some(S::Mbr)));
    }

    #[test]
    fn every_magic_is_found_at_its_place() {
        for (offset, magic, found) in MAGICS {
            let mut content = vec![0; 1 << 18];
            let start = usize::try_from(*offset).unwrap();
            content[start..start + magic.len()].copy_from_slice(magic);
            assert_eq!(in_bytes(&content), Some(*found), "at {offset}");
        }
    }

    #[test]
    fn what_is_behind_the_head_is_found() {
        let mut content = vec![0; 1 << 20];
        content[0x2_0400..0x2_0408].copy_from_slice(&ZFS_MAGIC.to_le_bytes());
        assert_eq!(in_bytes(&content), Some(S::Zfs));
        for (end, magic) in [(0x1_0000, &MD_MAGIC[..]), (0x2000, &MD_MAGIC), (512, b"EFI PART")] {
            let mut content = vec![0; 1 << 20];
            let start = content.len() - end;
            content[start..start + magic.len()].copy_from_slice(magic);
            assert!(matches!(in_bytes(&content), Some(S::MdRaid | S::Gpt)), "{end} before the end");
        }
    }

    #[test]
    fn nothing_is_in_nothing() {
        for size in [0, 1, 511, 512, 4095, 4096, 1 << 20] {
            assert_eq!(in_bytes(&vec![0; size]), None, "{size}");
        }
        assert_eq!(in_bytes(b"XFS"), None);
    }

    #[test]
    fn a_window_is_looked_at_alone() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"XFSB", 1 << 20).unwrap();
        let found = |offset, size| identify(file.as_fd(), &Window { offset, size }).unwrap();
        assert_eq!((found(1 << 20, None), found(0, None)), (Some(S::Xfs), None));
        assert_eq!(found(1 << 20, Some(3)), None);
    }

    #[test]
    fn a_copy_has_the_same_identifier() {
        let disk = |magic: &[(u64, &[u8])]| {
            let file = tempfile::tempfile().unwrap();
            file.set_len(1 << 20).unwrap();
            for (at, bytes) in magic {
                file.write_all_at(bytes, *at).unwrap();
            }
            identifier(file.as_fd()).unwrap()
        };
        let xfs: (u64, &[u8]) = (0, b"XFSB");
        let one = disk(&[xfs, (32, &[1; 16])]);
        assert_eq!(one, Some((Signature::Xfs, vec![1; 16])));
        assert_eq!(one, disk(&[xfs, (32, &[1; 16]), (8192, &[7; 100])]));
        assert_ne!(one, disk(&[xfs, (32, &[2; 16])]));
        assert_eq!(disk(&[xfs]), None, "none is like none");
        assert_eq!((disk(&[]), disk(&[(0, b"hsqs")])), (None, None));
    }
}
