//! Drivers of file systems that several machines serve, and of files over SSH.

use super::{FsGroupUse, Key, PLAIN, Profile, Quirk, key, other};
use crate::drivers::{cephfs::Cephfs, glusterfs::Glusterfs, lizardfs::Lizardfs, sshfs::Sshfs};

/// `fq/lizardfs`.
pub(super) const LIZARDFS: Profile = Profile {
    name: "fq/lizardfs",
    driver: &Lizardfs,
    summary: "a directory of LizardFS",
    keys: &[
        key("host", "server", "the master"),
        key("port", "port", "its port"),
        key("mfssubfolder", "path", "the directory; the default is one with the volume's name"),
        other("mfspassword", "the password of the export, which belongs in the Secret"),
        other("mfswritecachesize", "as for mfsmount"),
        other("mfsattrcacheto", "as for mfsmount"),
        other("mfsentrycacheto", "as for mfsmount"),
        other("mfsdirentrycacheto", "as for mfsmount"),
        other("mfsioretries", "as for mfsmount"),
        other("mfschunkserverreadto", "as for mfsmount"),
        other("mfschunkserverwriteto", "as for mfsmount"),
    ],
    secrets: &[key("mfspassword", "mfspassword", "the password of the export")],
    // Files of LizardFS have owners, and pods may rely on kubelet's chown.
    chown: Some(true),
    quirks: &[
        Quirk::NameOfVolume("path"),
        Quirk::KeyAsSecret("mfspassword", "mfspassword"),
        Quirk::KeysAsWords(MFS),
        Quirk::WordsBefore("noatime"),
    ],
    deviations: &[
        "options that begin with mfs have an effect only if they are listed here: others could name files of the node",
        "no empty password is sent: a master without passwords would refuse it",
        "mount and unmount succeed if there is nothing to do: the original gave no answer that kubelet could read",
    ],
    example: &[("host", "mfsmaster"), ("port", "9421"), ("mfssubfolder", "/base/subfolder")],
    example_secret: &["mfspassword"],
    ..PLAIN
};

const MFS: &[(&str, &str)] = &[
    ("mfswritecachesize", "mfswritecachesize"),
    ("mfsattrcacheto", "mfsattrcacheto"),
    ("mfsentrycacheto", "mfsentrycacheto"),
    ("mfsdirentrycacheto", "mfsdirentrycacheto"),
    ("mfsioretries", "mfsioretries"),
    ("mfschunkserverreadto", "mfschunkserverreadto"),
    ("mfschunkserverwriteto", "mfschunkserverwriteto"),
];

/// `rht/glfs-subvol`.
pub(super) const GLFS_SUBVOL: Profile = Profile {
    name: "rht/glfs-subvol",
    driver: &Glusterfs,
    summary: "a directory of a Gluster volume",
    keys: &[
        key("cluster", "servers", "the servers, separated by colons; the first is tried first"),
        key("volume", "volume", "the volume"),
        key("dir", "subDir", "the directory, such as 00/01"),
    ],
    quirks: &[Quirk::ColonList("servers")],
    deviations: &[
        "each volume is its own mount: the original kept one for all inside the plugin directory, which kubelet reads",
        "dir may be any directory: the original took two names of two digits",
    ],
    example: &[("cluster", "192.168.173.15:192.168.173.16"), ("volume", "testvol"), ("dir", "00/01")],
    ..PLAIN
};

/// `nect.com/sshflex`.
pub(super) const SSHFLEX: Profile = Profile {
    name: "nect.com/sshflex",
    driver: &Sshfs,
    summary: "a directory of a machine with an SSH server",
    keys: &[
        key("host", "server", "name or address of the server"),
        key("port", "port", "its port"),
        key("path", "path", "the directory"),
        key("user", "user", "user name"),
        other("encrypt", "must be false or left out"),
    ],
    secrets: &[
        key("password", "password", "the user's password"),
        other("encryptionPassphrase", "no effect: nothing is decrypted"),
    ],
    any_case: true,
    defaults: &[("permissions", "server")],
    fs_group: FsGroupUse::Group,
    chown: Some(true),
    quirks: &[Quirk::RefusedIf(
        "encrypt",
        "option \"encrypt\": an encrypted directory would be read and written as it lies there: keep the other driver \
         for this volume, or decrypt the directory and leave the option out",
    )],
    deviations: &[
        "the host key of the server is checked: install with --set 'hostKey=ssh-ed25519 AAAA…', or with --set \
         hostKeyCheck=off on a trusted network, as in the original",
        "encrypt is refused: nothing is decrypted, so names and contents would be garbage",
        "the pod's fsGroup is the group of all files, as with kubelet before 1.15",
        "the Secret may have a key, ssh-privatekey, instead of a password",
    ],
    example: &[
        ("host", "files.example.com"),
        ("path", "./some/remote/path/"),
        ("user", "web"),
        ("hostKey", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPlaceholderPlaceholderPlaceholderPlacehold"),
    ],
    example_secret: &["password"],
    ..PLAIN
};

/// Refusal for volumes without monitors: Rook's agent asked the cluster for them, which a driver
/// cannot do.
pub(super) const ROOK_S_MONITORS: Quirk = Quirk::RefusedWithout(
    "monitors",
    "option \"monitors\" is missing: Rook's agent asked the cluster for them, which a driver does not: \
     install with --set monitors=ADDRESS,ADDRESS",
);

/// Deviation: the admin has to give the monitors, which Rook's agent found itself.
pub(super) const MONITORS_ARE_NAMED: &str = "the admin must name the monitors, for which Rook's agent asked the \
     cluster: install with --set monitors=10.0.0.1:6789,10.0.0.2:6789";
/// Deviation: the admin has to give the key as well.
pub(super) const KEY_IS_NAMED: &str = "for volumes without a Secret, the admin must name the key as well: install with \
     --settings, with the key in options.key, and name the monitors in policy.servers too, so that no volume sends it \
     elsewhere";

/// `ceph.rook.io/rook`, for file systems.
pub(super) const ROOK: Profile = Profile {
    name: "ceph.rook.io/rook",
    driver: &Cephfs,
    summary: "a directory of a Ceph file system that Rook runs",
    keys: ROOK_KEYS,
    secrets: &[key("key", "key", "the user's key, as ceph auth get-key prints it")],
    chown: Some(true),
    quirks: &[
        Quirk::RefusedIf(
            "image",
            "option \"image\" is of a block volume, and this is the driver of file systems: give it \
             --profile ceph.rook.io/block",
        ),
        Quirk::KeyAsSecret("key", "key"),
        ROOK_S_MONITORS,
    ],
    deviations: &[
        MONITORS_ARE_NAMED,
        KEY_IS_NAMED,
        "mountSecret has no effect: kubelet gives a driver only the Secret in secretRef, of type ceph.rook.io/rook",
        "block volumes, which Rook's agent served under the same name, are refused",
        "driver names of later versions end in Rook's namespace: install ceph.rook.io/rook-ceph=cephfs",
    ],
    example: &[("fsName", "myfs"), ("path", "/jupyter"), ("monitors", "10.0.0.1:6789,10.0.0.2:6789")],
    example_secret: &["key"],
    ..PLAIN
};

const ROOK_KEYS: &[Key] = &[
    key("fsName", "fsName", "the file system"),
    key("path", "path", "the directory; the default is the root"),
    key("mountUser", "user", "user name"),
    other("key", "the key of that user, in the side file"),
    other("mountSecret", "no effect: the key is in the Secret of secretRef"),
    other("clusterNamespace", "no effect: monitors determine the cluster"),
    other("clusterName", "no effect: monitors determine the cluster"),
    other("image", "refused: it is a block volume"),
];

const READ_ONLY: Key = other("readOnly", "makes the volume read-only");

/// Fields of Kubernetes' own `cephfs` volumes, which were removed in 1.31.
pub(super) const CEPHFS: Profile = Profile {
    name: "kubernetes.io/cephfs",
    driver: &Cephfs,
    summary: "a directory of a Ceph file system, as in Kubernetes up to 1.30",
    keys: &[
        key("monitors", "monitors", "a comma list, or an array in a string"),
        key("path", "path", "the directory; the default is the root"),
        key("user", "user", "user name"),
        other("secretFile", "no effect: the key is in the Secret of secretRef"),
        READ_ONLY,
    ],
    secrets: &[key("key", "key", "the user's key")],
    quirks: &[Quirk::ReadOnlyIf("readOnly")],
    deviations: &[
        "no file of the node is read for a volume: put the content of secretFile into a Secret of type \
         kubernetes.io/cephfs, as key",
    ],
    example: &[("monitors", "10.16.154.78:6789,10.16.154.82:6789"), ("path", "/web"), ("user", "admin")],
    example_secret: &["key"],
    ..PLAIN
};

/// Fields of Kubernetes' own `glusterfs` volumes, which were removed in 1.26.
pub(super) const GLUSTERFS: Profile = Profile {
    name: "kubernetes.io/glusterfs",
    driver: &Glusterfs,
    summary: "a Gluster volume, as in Kubernetes up to 1.25",
    keys: &[
        other("endpoints", "no effect: name the servers instead"),
        other("endpointsNamespace", "no effect: name the servers instead"),
        key("path", "volume", "the volume, optionally with a directory in it"),
        READ_ONLY,
    ],
    quirks: &[
        Quirk::RefusedWithout(
            "servers",
            "option \"servers\" is missing: endpoints are objects of the cluster, which a driver does not ask: \
             name their addresses in servers, or install with --set servers=ADDRESS,ADDRESS",
        ),
        Quirk::RestOfPath("volume", "subDir"),
        Quirk::ReadOnlyIf("readOnly"),
    ],
    deviations: &[
        "endpoints have no effect: put their addresses into servers, in the volume or by install --set \
         servers=10.0.0.1,10.0.0.2",
    ],
    example: &[("servers", "10.0.0.1,10.0.0.2"), ("path", "web")],
    ..PLAIN
};
