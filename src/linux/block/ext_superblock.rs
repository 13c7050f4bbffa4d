//! Requests in the superblock of an ext2, ext3 or ext4 that the kernel follows at a mount.
//!
//! The superblock comes from the tenant.
//! The kernel follows three requests in it besides the mount itself: the action after an error
//! (also `panic`, which the mount overrides, see [`flexvol_protocol::file_system::ERRORS`]),
//! further mount options, and a journal on another device of the node.

use crate::fs::bytes::read_at;
use anyhow::{Context, Result};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::file_system::FileSystem;
use flexvol_protocol::mount_options::{self, MountFlags};
use std::os::fd::BorrowedFd;

const SUPERBLOCK: u64 = 1024;
const HAS_JOURNAL: u8 = 4;

/// Fails with `Denied` if the superblock requests more than the options of a volume may.
///
/// The server of the device can show the kernel other bytes than us.
pub(super) fn refuse_wishes(device: BorrowedFd<'_>) -> Result<()> {
    let mut bytes = [0; 1024];
    let filled = read_at(device, SUPERBLOCK, &mut bytes).context("read the superblock")?;
    side_file_changes(&bytes[..filled]).map_err(|what| {
        Failure::new(Code::Denied, format!("the superblock asks for more than a volume may: {what}")).into()
    })
}

fn side_file_changes(superblock: &[u8]) -> Result<(), String> {
    let Some(options) = superblock.get(512..576) else { return Ok(()) };
    let options = options.split(|byte| *byte == 0).next().unwrap_or_default();
    let options = String::from_utf8_lossy(options);
    // The action after an error is skipped: the mount sets it again.
    let others: Vec<_> = options.split(',').filter(|word| !word.starts_with("errors=")).collect();
    mount_options::parse(&others.join(","), MountFlags::DEFAULT, FileSystem::Ext4.rules())
        .map_err(|failure| format!("{failure}: clear them (tune2fs -E mount_opts=)"))?;
    let (has_journal, inode) = (superblock[92] & HAS_JOURNAL != 0, &superblock[224..228]);
    if has_journal && inode == [0; 4] {
        return Err(
            "its journal is on another device: give it one of its own (tune2fs -O ^has_journal, tune2fs -j)"
                .into(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superblock(options: &[u8], features: u8, inode: u8) -> Vec<u8> {
        let mut bytes = vec![0; 1024];
        bytes[512..512 + options.len()].copy_from_slice(options);
        (bytes[92], bytes[224]) = (features, inode);
        bytes
    }

    #[test]
    fn it_may_ask_for_what_a_volume_may() {
        for options in ["", "commit=7", "noauto_da_alloc,errors=panic", "errors=panic"] {
            assert_eq!(side_file_changes(&superblock(options.as_bytes(), 0, 0)), Ok(()), "{options}");
        }
        for options in ["journal_dev=1794", "journal_path=/dev/sda", "commit=7,debug", "\u{202e}", "jqfmt=x"]
        {
            let what = side_file_changes(&superblock(options.as_bytes(), 0, 0)).unwrap_err();
            assert!(what.contains("not allowed"), "{options}: {what}");
        }
        assert!(side_file_changes(&superblock(&[0xff; 64], 0, 0)).is_err());
    }

    #[test]
    fn a_journal_is_its_own() {
        assert_eq!(side_file_changes(&superblock(b"", HAS_JOURNAL, 8)), Ok(()));
        assert!(side_file_changes(&superblock(b"", HAS_JOURNAL, 0)).unwrap_err().contains("another device"));
        assert_eq!(side_file_changes(&[0; 100]), Ok(()));
    }
}
