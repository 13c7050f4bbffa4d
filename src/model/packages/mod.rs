//! Packages that contain a program, with their names on each distribution: for the message that a
//! program is missing.
//!
//! Pure: the caller has read the node's os-release(5). For an unknown distribution, all names are
//! listed.

pub mod distribution;

use distribution::{Distribution, Family};

/// Package that contains some programs.
struct Package {
    programs: &'static [&'static str],
    /// Names in the order of [`COLUMNS`]; empty if no name is known.
    names: [&'static str; 5],
}

/// Distributions of each column. Ubuntu has the names of Debian, RHEL those of Fedora.
const COLUMNS: [&str; 5] = ["debian, ubuntu", "fedora, rhel", "suse", "alpine", "arch"];

/// Packages that RHEL and its derivatives have only in EPEL.
const OF_EPEL: &[&str] =
    &["fuse-sshfs", "s3fs-fuse", "rclone", "davfs2", "bindfs", "nbd", "gocryptfs", "squashfuse"];

const fn package(programs: &'static [&'static str], names: [&'static str; 5]) -> Package {
    Package { programs, names }
}

/// Returns a package with the same name everywhere.
const fn same(programs: &'static [&'static str], name: &'static str) -> Package {
    package(programs, [name; 5])
}

const PACKAGES: &[Package] = &[
    same(&["mkfs.ext4", "mke2fs", "e2fsck"], "e2fsprogs"),
    package(
        &["resize2fs", "tune2fs"],
        ["e2fsprogs", "e2fsprogs", "e2fsprogs", "e2fsprogs-extra", "e2fsprogs"],
    ),
    same(&["mkfs.xfs", "xfs_repair"], "xfsprogs"),
    package(&["xfs_growfs"], ["xfsprogs", "xfsprogs", "xfsprogs", "xfsprogs-extra", "xfsprogs"]),
    package(
        &["mkfs.btrfs", "btrfs"],
        ["btrfs-progs", "btrfs-progs", "btrfsprogs", "btrfs-progs", "btrfs-progs"],
    ),
    package(
        &["mount.nfs", "mount.nfs4"],
        ["nfs-common", "nfs-utils", "nfs-client", "nfs-utils", "nfs-utils"],
    ),
    same(&["mount.cifs"], "cifs-utils"),
    package(&["mount.ceph", "rbd"], ["ceph-common", "ceph-common", "ceph-common", "", ""]),
    package(&["rbd-nbd"], ["rbd-nbd", "rbd-nbd", "rbd-nbd", "", ""]),
    package(&["ceph-fuse"], ["ceph-fuse", "ceph-fuse", "ceph-fuse", "", ""]),
    package(
        &["mount.glusterfs", "glusterfs"],
        ["glusterfs-client", "glusterfs-fuse", "glusterfs", "glusterfs", "glusterfs"],
    ),
    same(&["fusermount3", "mount.fuse3"], "fuse3"),
    package(&["fusermount", "mount.fuse"], ["fuse3", "fuse", "fuse", "fuse", "fuse2"]),
    package(&["sshfs"], ["sshfs", "fuse-sshfs", "sshfs", "sshfs", "sshfs"]),
    package(&["s3fs"], ["s3fs", "s3fs-fuse", "s3fs", "s3fs-fuse", "s3fs-fuse"]),
    same(&["rclone"], "rclone"),
    same(&["mount.davfs"], "davfs2"),
    package(
        &["ssh"],
        ["openssh-client", "openssh-clients", "openssh-clients", "openssh-client-default", "openssh"],
    ),
    package(&["mfsmount"], ["lizardfs-client (up to Debian 11 and Ubuntu 22.04)", "", "", "", ""]),
    same(&["blobfuse2"], "blobfuse2 from packages.microsoft.com"),
    same(&["bindfs"], "bindfs"),
    same(&["gocryptfs"], "gocryptfs"),
    same(&["squashfuse"], "squashfuse"),
    package(
        &["qemu-storage-daemon"],
        ["qemu-utils (up to Debian 12 qemu-system-common)", "qemu-img", "qemu-tools", "", ""],
    ),
    package(&["qemu-img", "qemu-nbd"], ["qemu-utils", "qemu-img", "qemu-tools", "qemu-img", "qemu-img"]),
    package(&["nbd-client"], ["nbd-client", "nbd", "nbd", "nbd-client", "nbd"]),
    same(&["cryptsetup"], "cryptsetup"),
    same(&["lvm"], "lvm2"),
    package(
        &["iscsiadm", "iscsid"],
        ["open-iscsi", "iscsi-initiator-utils", "open-iscsi", "open-iscsi", "open-iscsi"],
    ),
    package(
        &["multipath"],
        [
            "multipath-tools",
            "device-mapper-multipath",
            "multipath-tools",
            "multipath-tools",
            "multipath-tools",
        ],
    ),
    same(&["git"], "git"),
    same(&["jq"], "jq"),
    same(&["perl"], "perl"),
    package(&["python3"], ["python3", "python3", "python3", "python3", "python"]),
    package(
        &["mount", "umount", "losetup"],
        ["mount", "util-linux", "util-linux", "util-linux", "util-linux"],
    ),
    same(&["blkid"], "util-linux"),
    same(&["modprobe"], "kmod"),
    same(&["systemd-run"], "systemd"),
];

/// Returns the fix for a program that a node of that distribution lacks: `install xfsprogs`. `None`
/// if the program is not known and the distribution has packages.
pub fn fix(program: &str, distribution: Distribution) -> Option<String> {
    let package = PACKAGES.iter().find(|package| package.programs.contains(&program));
    let named = |family| package.map(|package| package.on(family));
    match distribution {
        Distribution::Sealed(why) => Some(why.to_owned()),
        Distribution::Packages(family) => Some(format!("install {}", named(family)?)),
        Distribution::Images(family, how) => Some(how.replace("PACKAGE", &named(family)?)),
        Distribution::Unknown => Some(format!("install {}", package?.everywhere())),
    }
}

/// Returns the fix for a module that the kernel of such a node came without.
pub fn fix_kernel(module: &str, distribution: Distribution) -> String {
    let install = match distribution {
        Distribution::Packages(Family::Debian) => "linux-image-$(dpkg --print-architecture)",
        Distribution::Packages(Family::Ubuntu) => "linux-modules-extra-$(uname -r)",
        Distribution::Packages(Family::Fedora | Family::Enterprise) => "kernel-modules-$(uname -r)",
        Distribution::Packages(Family::Suse) => "kernel-default in place of kernel-default-base",
        Distribution::Packages(Family::Alpine) => "linux-lts in place of linux-virt",
        Distribution::Packages(Family::Arch) => "linux, restart the node",
        Distribution::Images(..) | Distribution::Sealed(_) => {
            return format!("use nodes of another system or of a release whose kernel has {module}");
        }
        Distribution::Unknown => "the kernel's modules (linux-modules-extra, kernel-modules)",
    };
    format!("install {install}, then modprobe {module}")
}

impl Package {
    /// Returns its name there, or all known names.
    fn on(&self, family: Family) -> String {
        let column = match family {
            Family::Debian | Family::Ubuntu => 0,
            Family::Fedora | Family::Enterprise => 1,
            Family::Suse => 2,
            Family::Alpine => 3,
            Family::Arch => 4,
        };
        match self.names[column] {
            "" => self.everywhere(),
            name if family == Family::Enterprise && OF_EPEL.contains(&name) => format!("{name} from EPEL"),
            name => name.to_owned(),
        }
    }

    /// Returns `nfs-common (debian, ubuntu), nfs-utils (fedora, rhel, alpine, arch) or nfs-client
    /// (suse)`, or the name alone if it is the same everywhere.
    fn everywhere(&self) -> String {
        let mut named: Vec<(&str, Vec<&str>)> = Vec::new();
        for (name, column) in self.names.into_iter().zip(COLUMNS).filter(|(name, _)| !name.is_empty()) {
            match named.iter_mut().find(|(known, _)| *known == name) {
                Some((_, columns)) => columns.push(column),
                None => named.push((name, vec![column])),
            }
        }
        if let [(name, columns)] = named.as_slice()
            && columns.len() == COLUMNS.len()
        {
            return (*name).to_owned();
        }
        let all: Vec<_> =
            named.iter().map(|(name, columns)| format!("{name} ({})", columns.join(", "))).collect();
        match all.split_last() {
            Some((last, first)) if !first.is_empty() => format!("{} or {last}", first.join(", ")),
            _ => all.concat(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wording::{wording, wording_of};
    use flexvol_protocol::file_system::FileSystem;

    #[test]
    fn the_programs_of_a_file_system_have_packages() {
        for program in FileSystem::ALL.iter().flat_map(|kind| kind.programs()) {
            assert!(fix(program, Distribution::Unknown).is_some(), "{program} names no package to install");
        }
    }

    fn on(id: &str, program: &str) -> String {
        fix(program, Distribution::of(&format!("ID={id}\n"))).unwrap_or_default()
    }

    #[test]
    fn a_package_has_the_name_of_this_distribution_and_no_other() {
        for (id, program, expected) in [
            ("debian", "mount.nfs", "install nfs-common"),
            ("ubuntu", "mount.nfs", "install nfs-common"),
            ("rhel", "mount.nfs", "install nfs-utils"),
            ("sles", "mount.nfs4", "install nfs-client"),
            ("alpine", "resize2fs", "install e2fsprogs-extra"),
            ("arch", "mount.nfs", "install nfs-utils"),
            ("amzn", "mount.nfs", "install nfs-utils"),
            ("fedora", "sshfs", "install fuse-sshfs"),
            ("rocky", "sshfs", "install fuse-sshfs from EPEL"),
            ("rhcos", "iscsiadm", wording_of("rpm-ostree", ["iscsi-initiator-utils"])),
            ("opensuse-microos", "mkfs.btrfs", wording_of("transactional-update", ["btrfsprogs"])),
            ("debian", "mfsmount", "install lizardfs-client (up to Debian 11 and Ubuntu 22.04)"),
            ("debian", "qemu-storage-daemon", "install qemu-utils (up to Debian 12 qemu-system-common)"),
            ("debian", "frobnicate", ""),
        ] {
            assert_eq!(on(id, program), expected, "{id} {program}");
        }
    }

    #[test]
    fn where_nothing_can_be_installed_no_package_is_named() {
        for id in ["flatcar", "bottlerocket", "talos", "cos"] {
            for program in ["mount.nfs", "frobnicate"] {
                let text = on(id, program);
                assert!(text.contains(wording("nothing-to-install")) && !text.contains("nfs"), "{text}");
            }
        }
    }

    #[test]
    fn all_names_are_told_where_the_distribution_is_not_known() {
        assert_eq!(on("", "mkfs.xfs"), "install xfsprogs");
        assert_eq!(
            on("frob", "mount.nfs"),
            "install nfs-common (debian, ubuntu), nfs-utils (fedora, rhel, alpine, arch) or nfs-client (suse)"
        );
        assert_eq!(on("", "frobnicate"), "");
    }

    #[test]
    fn a_kernel_s_modules_have_a_name_of_their_own_everywhere() {
        let ids = ["debian", "ubuntu", "rhel", "sles", "alpine", "arch", "bottlerocket", "frob"];
        let all: Vec<_> =
            ids.iter().map(|id| fix_kernel("nfs", Distribution::of(&format!("ID={id}")))).collect();
        assert!(all.iter().enumerate().all(|(at, text)| !all[..at].contains(text)), "{all:?}");
    }

    #[test]
    fn no_program_is_brought_by_two() {
        let mut all: Vec<_> = PACKAGES.iter().flat_map(|package| package.programs).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
