//! Disk file systems that an image can hold, and their options for tenants.

use crate::failure::{Failure, Result};
use crate::mount_options::{Rule, Value};
use serde::Serialize;

/// Option of ext4 for the kernel's behaviour after an error, and its value if the volume does not
/// set it. Without it, the superblock decides, which belongs to the tenant and could ask for a
/// panic.
pub const ERRORS: (&str, &str) = ("errors", "remount-ro");

/// Disk file system that the kernel mounts from a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// The default; it is the best at growing and at checking itself.
    Ext4,
    /// For large volumes, of at least 300 MiB.
    Xfs,
    /// With checksums, compression and subvolumes.
    Btrfs,
    /// Read-only and compressed.
    Squashfs,
    /// Read-only, compressed, faster than squashfs.
    Erofs,
    /// Read-only: CD images.
    Iso9660,
}

impl FileSystem {
    /// All file systems, in the order in which `explain` lists them.
    pub const ALL: [Self; 6] =
        [Self::Ext4, Self::Xfs, Self::Btrfs, Self::Squashfs, Self::Erofs, Self::Iso9660];

    /// Returns the kernel's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
            Self::Squashfs => "squashfs",
            Self::Erofs => "erofs",
            Self::Iso9660 => "iso9660",
        }
    }

    /// Finds the file system of this name.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Failure::options(format!(
                "fsType {name:?} is not one of {known}: leave it empty to take what the image holds"
            ))
        })
    }

    /// Reports whether it can never be written.
    pub fn read_only(self) -> bool {
        matches!(self, Self::Squashfs | Self::Erofs | Self::Iso9660)
    }

    /// Returns the programs that make, check and grow it. The kernel needs no program to mount it.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &["mkfs.ext4", "e2fsck", "resize2fs"],
            Self::Xfs => &["mkfs.xfs", "xfs_growfs"],
            Self::Btrfs => &["mkfs.btrfs", "btrfs"],
            Self::Squashfs | Self::Erofs | Self::Iso9660 => &[],
        }
    }

    /// Returns the option that a mount must have unless the volume's options already contain it.
    ///
    /// Only ext4 stores in its superblock how the kernel reacts to an error. xfs shuts down; sysfs
    /// can change that, but only for the admin. btrfs panics only with an option (`fatal_errors`),
    /// which is not in any list here.
    pub fn safeguard(self) -> Option<(&'static str, &'static str)> {
        (self == Self::Ext4).then_some(ERRORS)
    }

    /// Returns the mount options that a tenant may give it. Options that could harm the node
    /// (`errors=panic`), reach other devices (external journals, further devices) or read other
    /// paths are absent.
    pub fn rules(self) -> &'static [Rule] {
        match self {
            Self::Ext4 => EXT4,
            Self::Xfs => XFS,
            Self::Btrfs => BTRFS,
            Self::Squashfs => &[],
            Self::Erofs => EROFS,
            Self::Iso9660 => ISO9660,
        }
    }
}

const EXT4: &[Rule] = &[
    Rule("discard", Value::None),
    Rule("nodiscard", Value::None),
    Rule("data", Value::OneOf(&["journal", "ordered", "writeback"])),
    Rule("commit", Value::Number),
    Rule("barrier", Value::OneOf(&["0", "1"])),
    Rule("delalloc", Value::None),
    Rule("nodelalloc", Value::None),
    Rule("auto_da_alloc", Value::None),
    Rule("noauto_da_alloc", Value::None),
    Rule("errors", Value::OneOf(&["continue", "remount-ro"])),
    Rule("stripe", Value::Number),
    Rule("acl", Value::None),
    Rule("noacl", Value::None),
    Rule("user_xattr", Value::None),
    Rule("prjquota", Value::None),
];

const XFS: &[Rule] = &[
    Rule("discard", Value::None),
    Rule("nodiscard", Value::None),
    Rule("allocsize", Value::Size),
    Rule("logbufs", Value::Number),
    Rule("logbsize", Value::Size),
    Rule("inode32", Value::None),
    Rule("inode64", Value::None),
    Rule("largeio", Value::None),
    Rule("nolargeio", Value::None),
    Rule("noalign", Value::None),
    Rule("nouuid", Value::None),
    Rule("pquota", Value::None),
    Rule("swalloc", Value::None),
];

const BTRFS: &[Rule] = &[
    Rule("discard", Value::OneOf(&["sync", "async"])),
    Rule("nodiscard", Value::None),
    Rule("compress", Value::Word),
    Rule("compress-force", Value::Word),
    Rule("commit", Value::Number),
    Rule("autodefrag", Value::None),
    Rule("noautodefrag", Value::None),
    Rule("ssd", Value::None),
    Rule("nossd", Value::None),
    Rule("subvol", Value::Word),
    Rule("subvolid", Value::Number),
    Rule("acl", Value::None),
    Rule("noacl", Value::None),
];

const EROFS: &[Rule] = &[
    Rule("user_xattr", Value::None),
    Rule("acl", Value::None),
    Rule("cache_strategy", Value::OneOf(&["disabled", "readahead", "readaround"])),
];

const ISO9660: &[Rule] = &[
    Rule("norock", Value::None),
    Rule("nojoliet", Value::None),
    Rule("map", Value::OneOf(&["off", "normal", "acorn"])),
    Rule("uid", Value::Number),
    Rule("gid", Value::Number),
    Rule("mode", Value::Number),
    Rule("dmode", Value::Number),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_list_the_known() {
        for kind in FileSystem::ALL {
            assert_eq!(FileSystem::parse(kind.name()), Ok(kind));
        }
        assert!(FileSystem::parse("ext5").unwrap_err().message().contains("ext4, xfs, btrfs"));
    }

    #[test]
    fn no_list_allows_a_panic() {
        for kind in FileSystem::ALL {
            for Rule(key, value) in kind.rules() {
                assert!(
                    !matches!(value, Value::OneOf(words) if words.contains(&"panic")),
                    "{key} on {}",
                    kind.name()
                );
                assert!(*key != "errors" || matches!(value, Value::OneOf(_)), "{}", kind.name());
            }
        }
        assert_eq!(FileSystem::Ext4.safeguard(), Some(("errors", "remount-ro")));
    }

    #[test]
    fn nothing_that_harms_the_node_is_allowed() {
        for kind in FileSystem::ALL {
            for forbidden in
                ["journal_path", "journal_dev", "logdev", "rtdev", "device", "fsid", "fatal_errors"]
            {
                assert!(
                    kind.rules().iter().all(|rule| rule.0 != forbidden),
                    "{forbidden} on {}",
                    kind.name()
                );
            }
        }
    }
}
