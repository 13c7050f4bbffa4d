//! Which package brings which program, for the message that one is missing.

/// What to install to get `tool`; nothing for one nobody here knows.
pub(super) fn package_of(tool: &str) -> Option<&'static str> {
    PACKAGES.iter().find(|(tools, _)| tools.contains(&tool)).map(|(_, package)| *package)
}

const PACKAGES: &[(&[&str], &str)] = &[
    (&["mkfs.ext4", "mke2fs", "e2fsck", "resize2fs", "tune2fs"], "e2fsprogs"),
    (&["mkfs.xfs", "xfs_repair"], "xfsprogs"),
    (&["xfs_growfs"], "xfsprogs (alpine: xfsprogs-extra)"),
    (&["mkfs.btrfs", "btrfs"], "btrfs-progs (suse: btrfsprogs)"),
    (
        &["mount.nfs", "mount.nfs4"],
        "nfs-common (debian, ubuntu), nfs-utils (alpine, fedora, rhel) or nfs-client (suse)",
    ),
    (&["mount.cifs"], "cifs-utils"),
    (&["mount.ceph", "ceph-fuse", "rbd"], "ceph-common (ceph-fuse: ceph-fuse)"),
    (&["mount.glusterfs", "glusterfs"], "glusterfs-client (debian, ubuntu) or glusterfs-fuse (fedora, rhel)"),
    (&["fusermount", "fusermount3", "mount.fuse", "mount.fuse3"], "fuse3"),
    (&["sshfs"], "sshfs (fedora, rhel: fuse-sshfs)"),
    (&["s3fs"], "s3fs (fedora, rhel: s3fs-fuse)"),
    (&["rclone"], "rclone"),
    (&["mount.davfs"], "davfs2"),
    (&["ssh"], "openssh-client (fedora, rhel: openssh-clients)"),
    (&["mfsmount"], "lizardfs-client"),
    (&["blobfuse2"], "blobfuse2 from packages.microsoft.com"),
    (&["bindfs"], "bindfs"),
    (&["gocryptfs"], "gocryptfs"),
    (&["squashfuse"], "squashfuse"),
    (&["qemu-storage-daemon"], "qemu-system-common (fedora: qemu-img)"),
    (&["qemu-img", "qemu-nbd"], "qemu-utils (fedora, rhel: qemu-img)"),
    (&["nbd-client"], "nbd-client (fedora: nbd)"),
    (&["cryptsetup"], "cryptsetup"),
    (&["lvm"], "lvm2"),
    (&["iscsiadm"], "open-iscsi (fedora, rhel: iscsi-initiator-utils)"),
    (&["multipath"], "multipath-tools (fedora, rhel: device-mapper-multipath)"),
    (&["git"], "git"),
    (&["mount", "umount", "losetup", "blkid"], "util-linux"),
    (&["systemd-run"], "systemd"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_the_tools_of_this_crate() {
        assert_eq!(package_of("mkfs.xfs"), Some("xfsprogs"));
        assert_eq!(package_of("e2fsck"), Some("e2fsprogs"));
        assert_eq!(package_of("frobnicate"), None);
    }
}
