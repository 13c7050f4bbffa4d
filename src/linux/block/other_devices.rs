//! File systems that need more than their own device.
//!
//! A superblock comes from the tenant, and three kinds refer to further parts elsewhere: an ext4 by
//! its journal's device (`ext_superblock`), an erofs by paths, which Linux
//! before 6.3 opens unless the mount names others, and a btrfs by a number, for all devices with
//! its UUID. Their content does not belong to this volume. A caller that mounts or checks a device
//! of a tenant asks here first, also for reading only: a journal is replayed then, too.

use super::ext_superblock::refuse_wishes;
use crate::fs::bytes::read_at;
use anyhow::{Context, Result};
use flexvol_protocol::failure::{Code, Failure};
use flexvol_protocol::file_system::FileSystem;
use std::os::fd::BorrowedFd;

/// Length of a superblock that is read, in bytes.
const LENGTH: usize = 256;

/// Offsets of erofs: the superblock, its features and the one for a table of devices, and the
/// number of devices in the table (`fs/erofs/erofs_fs.h` of Linux).
const EROFS: u64 = 1024;
const FEATURES: usize = 80;
const DEVICE_TABLE: u8 = 8;
const EXTRA_DEVICES: std::ops::Range<usize> = 86..88;

/// Offsets of btrfs: the superblock, and the number of its devices.
const BTRFS: u64 = 0x1_0000;
const DEVICES: std::ops::Range<usize> = 0x88..0x90;

/// Fails with `Denied` if a part of the file system is on another device, or if its superblock has
/// mount options that a volume may not have.
///
/// The server of the device can show the kernel other bytes than us.
pub fn refuse(kind: FileSystem, device: BorrowedFd<'_>) -> Result<()> {
    let (place, has_others, fix): (_, fn(&[u8]) -> bool, _) = match kind {
        FileSystem::Ext4 => return refuse_wishes(device),
        FileSystem::Erofs => (EROFS, of_erofs, "make it without (mkfs.erofs without --blobdev)"),
        FileSystem::Btrfs => (BTRFS, of_btrfs, "take them out of it (btrfs device remove)"),
        _ => return Ok(()),
    };
    let mut bytes = [0; LENGTH];
    let filled = read_at(device, place, &mut bytes).context("read the superblock")?;
    if !has_others(&bytes[..filled]) {
        return Ok(());
    }
    let text =
        format!("the superblock asks for more than a volume may: parts of it are on other devices: {fix}");
    Err(Failure::new(Code::Denied, text).into())
}

fn of_erofs(superblock: &[u8]) -> bool {
    let has_table = superblock.get(FEATURES).is_some_and(|features| features & DEVICE_TABLE != 0);
    has_table && superblock.get(EXTRA_DEVICES).is_some_and(|count| count != [0, 0])
}

fn of_btrfs(superblock: &[u8]) -> bool {
    superblock.get(DEVICES).is_some_and(|count| count != 1_u64.to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_of_one_device() {
        let mut bytes = [0; LENGTH];
        assert!(!of_erofs(&bytes) && !of_erofs(&bytes[..87]));
        // Without a device, the same bit is about compression.
        bytes[FEATURES] = DEVICE_TABLE | 1;
        assert!(!of_erofs(&bytes));
        bytes[EXTRA_DEVICES.end - 1] = 1;
        assert!(of_erofs(&bytes));
        bytes[FEATURES] = 1;
        assert!(!of_erofs(&bytes));
        for (count, has_others) in [(0_u64, true), (1, false), (2, true), (1 << 32 | 1, true)] {
            bytes[DEVICES].copy_from_slice(&count.to_le_bytes());
            assert_eq!(of_btrfs(&bytes), has_others, "{count}");
        }
    }
}
