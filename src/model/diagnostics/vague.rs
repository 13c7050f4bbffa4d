//! Words that many programs use for many things, and conditions under which they name a cause.
//!
//! A known error is a cause only if its words are its own. `Connection refused` is reported for any
//! server, `Device or resource busy` for any device. Such words count if the text mentions the
//! thing that they are taken for, and nothing else that reports the same. Otherwise they are a
//! hint.

use super::{KnownError, holds};

/// Words that indicate storage of volumes, in lower case. A word that may also end another one
/// begins with `…`: `umount`.
const STORAGE: &[&str] = &[
    "…mount",
    "…nfs",
    "cifs",
    "smb",
    "…ceph",
    "rbd",
    "iscsi",
    "gluster",
    "-fuse",
    "fuse:",
    "gcsfuse",
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
    "…volume",
    "export",
    "flexvol",
    "blob",
    "bucket",
];

/// Words that indicate other servers of a cluster, or services of the node itself that are reached
/// through a socket or a bus.
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
    "…sandbox",
    "cni",
    "/healthz",
    "ingress",
];

/// Rule with words that make an answer certain, and words that make it doubtful.
struct Vague {
    ids: &'static [&'static str],
    /// One of them must be there, unless the list is empty.
    with: &'static [&'static str],
    /// None of them may be there.
    without: &'static [&'static str],
}

/// Modules that volumes need. Other modules are missing for other reasons.
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
    "…mount",
    "transport",
    "gluster",
];

/// Words that indicate a timeout.
const TIMEOUT: &[&str] = &["timed out", "timeout"];

/// Programs that start containers, and that report the same about processes inside them.
const CONTAINERS: &[&str] = &["oci runtime", "runc", "container process", "container_linux", "shim"];

/// Words that indicate the execution of a driver.
const OF_DRIVERS: &[&str] =
    &["flexvolume", "driver call", "kubelet-plugins", "volumeplugins", "~", "output for command"];

const OF_DRIVERS_OR_MOUNTS: &[&str] =
    &["flexvolume", "driver", "kubelet", "~", "output for command", "…mount", "fork/exec", "wait"];

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
            "…fs (",
            "…fs error",
            "…fs:",
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
        with: &["/usr/libexec", "kubelet-plugins", "volumeplugins", "mkfs", "/dev/", "…mount:"],
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
        with: &["…mount", "flexvolume", "driver", "kubelet", "lvm", "…fuse"],
        without: &[],
    },
    Vague { ids: &["plugin-name"], with: &["volume plugin", "flexvolume"], without: &[] },
    Vague { ids: &["too-long", "no-children"], with: OF_DRIVERS_OR_MOUNTS, without: CONTAINERS },
    Vague { ids: &["program-missing"], with: &[], without: CONTAINERS },
    Vague { ids: &["not-attached"], with: &[], without: &["kubernetes.io/csi", "csi."] },
    Vague {
        ids: &["no-helper"],
        with: &["unknown filesystem type", "need a /sbin/mount.", "you might"],
        // For a device, the same words mean that its content is damaged or of another kind.
        without: &["superblock on /dev/"],
    },
    Vague {
        ids: &["not-that-fs"],
        with: &["resize2fs", "fsck.", "xfs", "btrfs", "luks", "qcow2", "ntfs", "vfs: "],
        without: &[],
    },
    Vague { ids: &["tool-variant"], with: &["busybox"], without: &[] },
    // The kernel gets options for a FUSE program only if mount(8) calls the kernel itself, mostly
    // because the helper is missing.
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
    // Consequence of a cleanup after another failure.
    Vague {
        ids: &["not-mounted"],
        with: &["teardown", "unmount command", "command: unmount", "[unmount", "unmountvolume"],
        without: &["volumedriver.mount", "mounting"],
    },
    Vague {
        ids: &["iscsi-refused"],
        with: &["…authoriz", "non-retryable", "_login_auth", "rejected"],
        without: TIMEOUT,
    },
    Vague { ids: &["device-late"], with: &[], without: &["iscsiadm: could not", "initiator reported error"] },
    // Numbers and words of the kernel with several causes, without a hint in the text at one of
    // them.
    Vague { ids: &["ceph-silent", "ceph-unserved", "ceph-option"], with: TIMEOUT, without: &[] },
    // The program that the kernel asks for a key has failed: for a ticket, or for the address of a
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
    Vague { ids: &["no-device"], with: &["/dev/", "…uuid=", "…label="], without: &["device //", ":/"] },
    Vague { ids: &["nbd-version"], with: &["oldstyle"], without: &[] },
    // Errors of libceph say more.
    Vague { ids: &["user-refused"], with: &[], without: &["libceph", "cephx"] },
    // Words about more than volumes.
    Vague { ids: &["module-missing"], with: MODULES, without: &[] },
    Vague {
        ids: &["group-full"],
        with: &["extents", "volume group", "vg", "logical volume", "lv"],
        without: &[],
    },
    Vague {
        ids: &["secret-missing"],
        with: &["…volume", "…mount", "couldn't get secret", "secrets \""],
        without: &["ingress", "certificate", "tls"],
    },
    Vague {
        ids: &["attached-elsewhere"], with: &["…volume", "…disk", "image", "rbd", "pvc"], without: &[]
    },
    Vague { ids: &["source-unclear"], with: STORAGE, without: OTHER_SERVERS },
    Vague {
        ids: &["holds-data"],
        with: &["mkfs", "mke2fs", "file system", "filesystem", "wipe", "…device"],
        without: &[],
    },
    Vague { ids: &["not-volumes"], with: &[], without: &["mountvolume.", "unmountvolume.", "attachvolume."] },
];

/// Reports whether these words, in lower case, may belong to another error, too.
pub(super) fn is_vague(known_error: &KnownError, text: &str) -> bool {
    let is_there = |words: &[&str]| words.iter().any(|word| holds(text, word));
    let rules = ALL.iter().filter(|rule| rule.ids.contains(&known_error.id));
    rules.into_iter().any(|rule| !rule.with.is_empty() && !is_there(rule.with) || is_there(rule.without))
}
