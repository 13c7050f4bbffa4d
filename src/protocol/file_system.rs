//! The disk file systems an image can hold, and what their tenants may ask of them.

use crate::failure::{Failure, Result};
use crate::mount_options::{Rule, Value};
use serde::Serialize;

/// The option of ext4 that says what the kernel does after an error, and what it does unless the
/// volume says otherwise: the superblock, which is the tenant's, could ask it to panic.
pub const ERRORS: (&str, &str) = ("errors", "remount-ro");

/// A disk file system the kernel mounts from a block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// The default, and the one that grows and checks itself best.
    Ext4,
    /// For large volumes; at least 300 MiB.
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
    /// All of them, in the order `explain` lists them.
    pub const ALL: [Self; 6] =
        [Self::Ext4, Self::Xfs, Self::Btrfs, Self::Squashfs, Self::Erofs, Self::Iso9660];

    /// The kernel's name.
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

    /// The file system of that name.
    pub fn parse(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let known = Self::ALL.map(Self::name).join(", ");
            Failure::options(format!(
                "fsType {name:?} is not one of {known}: leave it empty to take what the image holds"
            ))
        })
    }

    /// Whether it can never be written.
    pub fn read_only(self) -> bool {
        matches!(self, Self::Squashfs | Self::Erofs | Self::Iso9660)
    }

    /// The programs that make, check and grow it. The kernel needs none to mount it.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Ext4 => &["mkfs.ext4", "e2fsck", "resize2fs"],
            Self::Xfs => &["mkfs.xfs", "xfs_growfs"],
            Self::Btrfs => &["mkfs.btrfs", "btrfs"],
            Self::Squashfs | Self::Erofs | Self::Iso9660 => &[],
        }
    }

    /// The option that a mount must have besides those of the volume, unless these have it.
    ///
    /// Of what is mounted, ext4 alone keeps in its superblock what the kernel does after an error.
    /// xfs shuts down, which sysfs tunes and only the admin can; btrfs panics with an option alone
    /// (`fatal_errors`), which is on no list.
    pub fn safeguard(self) -> Option<(&'static str, &'static str)> {
        (self == Self::Ext4).then_some(ERRORS)
    }

    /// The mount options a tenant may give it. What could harm the node (`errors=panic`), reach
    /// other devices (external journals, further devices) or read other paths is not among them.
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
