//! What many programs say of many things, and when it tells a cause all the same.
//!
//! A known error is a cause only where its words are its own. `Connection refused` is said of every
//! server, `Device or resource busy` of every device: such words count where the text speaks of
//! what they are taken for, and of nothing else that says the same. Everywhere else they are a
//! hint.

use super::KnownError;

/// What volumes are served by, in small letters.
const STORAGE: &[&str] = &[
    "mount",
    "nfs",
    "cifs",
    "smb",
    "ceph",
    "rbd",
    "iscsi",
    "gluster",
    "fusermount",
    "-fuse",
    "fuse:",
    "s3fs",
    "sshfs",
    "rclone",
    "davfs",
    "nbd",
    "git clone",
    "git fetch",
    "git:",
    ".git",
    "fatal:",
    "volume",
    "export",
    "flexvol",
    "blob",
    "bucket",
];

/// Servers that a cluster has besides, and who is asked on the node itself, through a socket or a
/// bus.
const OTHER_SERVERS: &[&str] = &[
    "transient scope",
    "d-bus",
    "dbus",
    "system bus",
    "dial unix",
    "webhook",
    "registry",
    "/v2/",
    ":6443",
    ":10250",
    "apiserver",
    "pull image",
    "etcd",
    "169.254.169.254",
    "sandbox",
    "cni",
    "/healthz",
    "ingress",
];

/// Which words make an answer certain, and which make it doubtful.
struct Vague {
    ids: &'static [&'static str],
    /// Any of them has to be there.
    with: &'static [&'static str],
    /// None of them may.
    without: &'static [&'static str],
}

/// Modules that volumes need; others are missing for other reasons.
const MODULES: &[&str] = &[
    "nbd",
    "rbd",
    "ceph",
    "nfs",
    "cifs",
    "fuse",
    "iscsi",
    "iser",
    "dm_",
    "dm-",
    "crypt",
    "xfs",
    "btrfs",
    "ext4",
    "loop",
    "zfs",
    "mount",
    "transport",
    "gluster",
];

/// That somebody was waited for.
const TIMEOUT: &[&str] = &["timed out", "timeout"];

/// Who starts containers, and says the same of what is inside them.
const CONTAINERS: &[&str] = &["oci runtime", "runc", "container process", "container_linux", "shim"];

/// Where a driver is executed.
const OF_DRIVERS: &[&str] =
    &["flexvolume", "driver call", "kubelet-plugins", "volumeplugins", "~", "output for command"];

const OF_DRIVERS_OR_MOUNTS: &[&str] =
    &["flexvolume", "driver", "kubelet", "~", "output for command", "mount", "fork/exec", "wait"];

const ALL: &[Vague] = &[
    Vague {
        ids: &["refused", "silent", "no-route", "no-name", "certificate", "user-refused"],
        with: STORAGE,
        without: OTHER_SERVERS,
    },
    Vague {
        ids: &["busy"],
        with: &[
            "umount",
            "unmount",
            "teardown",
            "remov",
            "rmdir",
            "unlink",
            "deactivate",
            "clean",
            "rm:",
            "in use by",
            "still mounted by",
            "logical volume",
        ],
        without: &["reload ioctl"],
    },
    Vague { ids: &["not-empty"], with: &["teardown", "/volumes/", "mountpoint", "orphaned"], without: &[] },
    Vague { ids: &["dead-daemon"], with: &[], without: &["iscsi", "nbd", "socket:", "sendmsg"] },
    Vague {
        ids: &["io-error"],
        with: &[
            "buffer i/o",
            "medium error",
            "unrecovered read",
            "-fs",
            "fs (",
            "fs error",
            "fs:",
            "journal",
            "sector",
            "superblock",
            "block ",
            "/dev/",
        ],
        without: &["rbd: "],
    },
    Vague {
        ids: &["read-only"],
        with: &["/usr/libexec", "kubelet-plugins", "volumeplugins", "mkfs", "/dev/", "mount:"],
        without: &["secret", "configmap", "serviceaccount"],
    },
    Vague { ids: &["no-space"], with: &[], without: &["inotify", "cgroup", "secret", "configmap"] },
    Vague { ids: &["watches"], with: &["inotify", "watch", "kubelet"], without: &[] },
    Vague { ids: &["panic"], with: &["flexvolume", "flex volume", "capabilit"], without: &[] },
    Vague {
        ids: &["noise"],
        with: &["flexvolume", "driver call", "output for command", "mountvolume.", "unmountvolume."],
        without: &["rpc error", "csi"],
    },
    Vague {
        ids: &["exec-denied", "no-executable", "no-executable-at-all", "wrong-format", "busy-text"],
        with: OF_DRIVERS,
        without: &[],
    },
    Vague {
        ids: &["script-lacks"],
        with: &["mount", "flexvolume", "driver", "kubelet", "lvm", "fuse"],
        without: &[],
    },
    Vague { ids: &["plugin-name"], with: &["volume plugin", "flexvolume"], without: &[] },
    Vague { ids: &["too-long", "no-children"], with: OF_DRIVERS_OR_MOUNTS, without: CONTAINERS },
    Vague { ids: &["program-missing"], with: &[], without: CONTAINERS },
    Vague { ids: &["not-attached"], with: &[], without: &["kubernetes.io/csi", "csi."] },
    Vague {
        ids: &["no-helper"],
        with: &["unknown filesystem type", "need a /sbin/mount.", "you might"],
        // Of a device the same words say that what is on it is damaged, or of another kind.
        without: &["superblock on /dev/"],
    },
    Vague {
        ids: &["not-that-fs"],
        with: &["resize2fs", "fsck.", "xfs", "btrfs", "luks", "qcow2", "ntfs", "vfs: "],
        without: &[],
    },
    Vague { ids: &["tool-variant"], with: &["busybox"], without: &[] },
    // The kernel hears of options for a FUSE program only where mount(8) calls it itself, mostly
    // because the helper is not there.
    Vague { ids: &["option-refused"], with: STORAGE, without: &["fuse: unknown parameter"] },
    Vague {
        ids: &["ssh-closed"],
        with: &["ssh", "sftp"],
        without: &["connection refused", "timed out", "no route", "resolve"],
    },
    Vague {
        ids: &["store-denied", "store-request"],
        with: &["s3", "blob", "bucket", "azure", "storage", "gcs", "oss", "goofys", "rclone"],
        without: OTHER_SERVERS,
    },
    // What comes of trying to clean up after something else has failed.
    Vague {
        ids: &["not-mounted"],
        with: &["teardown", "unmount command", "command: unmount", "[unmount", "unmountvolume"],
        without: &["volumedriver.mount", "mounting"],
    },
    Vague {
        ids: &["iscsi-refused"],
        with: &["authoriz", "non-retryable", "_login_auth", "rejected"],
        without: TIMEOUT,
    },
    Vague { ids: &["device-late"], with: &[], without: &["iscsiadm: could not", "initiator reported error"] },
    // Numbers and words of the kernel that have several causes, and the text none of them.
    Vague { ids: &["ceph-silent", "ceph-unserved", "ceph-option"], with: TIMEOUT, without: &[] },
    // Whatever program the kernel asks for a key has failed: for a ticket, or for the address of a
    // name.
    Vague {
        ids: &["share-key", "no-key"],
        with: &["kerberos", "krb5", "spnego", "cifs.upcall", "gss", "keytab"],
        without: &[],
    },
    Vague { ids: &["fuse-missing"], with: &[], without: &["operation not permitted", "permission denied"] },
    Vague { ids: &["nfs-refused"], with: &["by server", "mnt3err", "refused mount request"], without: &[] },
    Vague {
        ids: &["chown-refused"],
        with: &["operation not permitted", "permission denied"],
        without: &["executable", "/docker", "/opt/"],
    },
    Vague { ids: &["no-device"], with: &["/dev/", "uuid=", "label="], without: &["device //", ":/"] },
    Vague { ids: &["nbd-version"], with: &["oldstyle"], without: &[] },
    // Its own errors say more.
    Vague { ids: &["user-refused"], with: &[], without: &["libceph", "cephx"] },
    // What is said of more than volumes.
    Vague { ids: &["module-missing"], with: MODULES, without: &[] },
    Vague {
        ids: &["group-full"],
        with: &["extents", "volume group", "vg", "logical volume", "lv"],
        without: &[],
    },
    Vague {
        ids: &["secret-missing"],
        with: &["volume", "mount", "couldn't get secret", "secrets \""],
        without: &["ingress", "certificate", "tls"],
    },
    Vague { ids: &["attached-elsewhere"], with: &["volume", "disk", "image", "rbd", "pvc"], without: &[] },
    Vague { ids: &["source-unclear"], with: STORAGE, without: OTHER_SERVERS },
    Vague {
        ids: &["holds-data"],
        with: &["mkfs", "mke2fs", "file system", "filesystem", "wipe", "device"],
        without: &[],
    },
    Vague { ids: &["not-volumes"], with: &[], without: &["mountvolume.", "unmountvolume.", "attachvolume."] },
];

/// Whether these words, in small letters, do not tell that it is this and nothing else.
pub(super) fn is_vague(known_error: &KnownError, text: &str) -> bool {
    let is_there = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let rules = ALL.iter().filter(|rule| rule.ids.contains(&known_error.id));
    rules.into_iter().any(|rule| !rule.with.is_empty() && !is_there(rule.with) || is_there(rule.without))
}
