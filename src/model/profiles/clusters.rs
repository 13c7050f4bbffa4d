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
        other("mfspassword", "the password of the export, which belongs into the Secret"),
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
        "of the options that begin with mfs those listed here have an effect: others could name files of the node",
        "no empty password is sent: a master without passwords would refuse it",
        "mount and unmount of what is there already succeed: theirs answered nothing that kubelet could read",
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
        key("cluster", "servers", "the servers, with colons between them; the first is asked first"),
        key("volume", "volume", "the volume"),
        key("dir", "subDir", "the directory, such as 00/01"),
    ],
    quirks: &[Quirk::ColonList("servers")],
    deviations: &[
        "each volume is a mount of its own: theirs kept one for all inside the plugin directory, which kubelet reads",
        "dir may be any directory: theirs took two names of two digits",
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
        key("user", "user", "who logs in"),
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
        "the server must be who it says it is: install with --set 'hostKey=ssh-ed25519 AAAA…', or with \
         --set hostKeyCheck=off on a network that is trusted, as theirs did",
        "encrypt is refused: without it names and contents would be garbage",
        "the pod's fsGroup is the group of all files, as it was with a kubelet before 1.15",
        "a key in the Secret, ssh-privatekey, does instead of a password",
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
pub(super) const MONITORS_ARE_NAMED: &str = "the monitors are the admin's to name, Rook's agent asked the cluster: \
     install with --set monitors=10.0.0.1:6789,10.0.0.2:6789";
/// Deviation: the admin has to give the key as well.
pub(super) const KEY_IS_NAMED: &str = "so is the key, for volumes without a Secret: install with --settings, where \
     options have it as key, and name the monitors in policy.servers too, so that no volume takes it elsewhere";

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
        "mountSecret has no effect: kubelet gives a driver no Secret but that in secretRef, of type ceph.rook.io/rook",
        "block volumes, which Rook's agent served under the same name, are refused",
        "names of later versions end in Rook's namespace: install ceph.rook.io/rook-ceph=cephfs",
    ],
    example: &[("fsName", "myfs"), ("path", "/jupyter"), ("monitors", "10.0.0.1:6789,10.0.0.2:6789")],
    example_secret: &["key"],
    ..PLAIN
};

const ROOK_KEYS: &[Key] = &[
    key("fsName", "fsName", "the file system"),
    key("path", "path", "the directory; the default is the root"),
    key("mountUser", "user", "who logs in"),
    other("key", "the key of that user, in the side file"),
    other("mountSecret", "no effect: the key is in the Secret of secretRef"),
    other("clusterNamespace", "no effect: monitors say which cluster it is"),
    other("clusterName", "no effect: monitors say which cluster it is"),
    other("image", "refused: it is a block volume"),
];

const READ_ONLY: Key = other("readOnly", "whether nothing may be written");

/// Fields of Kubernetes' own `cephfs` volumes, which were removed in 1.31.
pub(super) const CEPHFS: Profile = Profile {
    name: "kubernetes.io/cephfs",
    driver: &Cephfs,
    summary: "a directory of a Ceph file system, as Kubernetes itself had it up to 1.30",
    keys: &[
        key("monitors", "monitors", "a comma list, or an array in a string"),
        key("path", "path", "the directory; the default is the root"),
        key("user", "user", "who logs in"),
        other("secretFile", "no effect: the key is in the Secret of secretRef"),
        READ_ONLY,
    ],
    secrets: &[key("key", "key", "the user's key")],
    quirks: &[Quirk::ReadOnlyIf("readOnly")],
    deviations: &[
        "no file of the node is read for a volume: put what secretFile holds into a Secret, as key, of type \
         kubernetes.io/cephfs",
    ],
    example: &[("monitors", "10.16.154.78:6789,10.16.154.82:6789"), ("path", "/web"), ("user", "admin")],
    example_secret: &["key"],
    ..PLAIN
};

/// Fields of Kubernetes' own `glusterfs` volumes, which were removed in 1.26.
pub(super) const GLUSTERFS: Profile = Profile {
    name: "kubernetes.io/glusterfs",
    driver: &Glusterfs,
    summary: "a Gluster volume, as Kubernetes itself had it up to 1.25",
    keys: &[
        other("endpoints", "no effect: name the servers instead"),
        other("endpointsNamespace", "no effect: name the servers instead"),
        key("path", "volume", "the volume, and the directory in it if not all of it is meant"),
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
        "endpoints have no effect: servers names their addresses, in the volume or by install --set \
         servers=10.0.0.1,10.0.0.2",
    ],
    example: &[("servers", "10.0.0.1,10.0.0.2"), ("path", "web")],
    ..PLAIN
};
