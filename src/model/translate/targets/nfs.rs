//! Rows for drivers of NFS exports, for csi-driver-nfs.
//!
//! It takes `server` and `share`, no Secret, and by default no inline volume of a pod. It would
//! delete a directory whose handle is `server#share#directory`, so handles here are not paths.

use crate::drivers::nfs;
use crate::translate::form::{Form, Words};
use crate::translate::target::{Becomes, PLAIN, Target};
use flexvol_protocol::mount_options::{Rule, Value};

const NFS: Target = Target { to: "nfs.csi.k8s.io", needs: &["server", "share"], ..PLAIN };

const SERVER: Becomes = Becomes::Attribute("server", Form::Host);
const SHARE: Becomes = Becomes::Attribute("share", Form::Path);
const MODE: Becomes = Becomes::Nothing("what is there keeps its mode");

/// `k8s/nfs`. Its conditions for three options are inverted, so it always mounted with the same
/// ones.
pub(super) const K8S: Target = Target {
    from: &["k8s/nfs"],
    options: &[
        ("server", SERVER),
        ("share", SHARE),
        ("protocol", Becomes::Nothing("the driver never read it: it was always tcp")),
        ("atime", Becomes::Nothing("the driver never read it: it was always noatime")),
        (
            "readonly",
            Becomes::Nothing("the driver never read it: write readOnly in the pod's claim if you mean it"),
        ),
    ],
    mount_options: &["tcp", "soft", "timeo=10", "noatime"],
    differs: &[
        "mountOptions are those that the driver used, soft among them: a write may be lost while the server is \
                away. Write hard unless you chose that",
    ],
    ..NFS
};

/// `bestgopher/nfs`.
pub(super) const BESTGOPHER: Target = Target {
    from: &["bestgopher/nfs"],
    options: &[
        ("server", SERVER),
        ("path", SHARE),
        ("protocol", Becomes::MountOption("proto", Form::OneOf(&["tcp", "udp"]))),
        ("atime", Becomes::Nothing("the volume is mounted noatime, as it is without the option")),
        (
            "readonly",
            Becomes::Refused(
                "a PersistentVolume of CSI is read-only by the pod's claim alone",
                "remove it, and write readOnly in the pod's persistentVolumeClaim",
            ),
        ),
    ],
    mount_options: &["noatime"],
    ..NFS
};

/// `cds/nas`.
pub(super) const NAS: Target = Target {
    from: &["cds/nas"],
    any_case: true,
    options: &[
        ("server", Becomes::Part(Form::Host)),
        ("path", Becomes::PartOr(Form::Path, "/nfsshare")),
        ("vers", Becomes::MountOption("vers", Form::OneOf(&["3", "3.0", "4.0", "4.1"]))),
        ("options", Becomes::MountOptions(&WORDS)),
        ("mode", MODE),
    ],
    attributes: &[("server", "{server}"), ("share", "{path}")],
    differs: &["a path that is missing is no longer made: make it on the server first"],
    ..NFS
};

/// Options of mount.nfs that do not select the server or the export.
pub(super) const WORDS: Words = Words {
    allowed: &[MORE, nfs::RULES],
    ignored: &[
        ("none", "it stands for no options"),
        ("intr", "no kernel has it any more"),
        ("nointr", "no kernel has it any more"),
        ("nofail", "it is one of /etc/fstab"),
        ("_netdev", "it is one of /etc/fstab"),
        ("bg", "kubelet tries again itself"),
        ("fg", "kubelet tries again itself"),
    ],
};

const MORE: &[Rule] = &[
    Rule("vers", Value::OneOf(&["3", "4", "4.0", "4.1", "4.2"])),
    Rule("nfsvers", Value::OneOf(&["3", "4", "4.0", "4.1", "4.2"])),
    Rule("proto", Value::OneOf(&["tcp", "udp", "tcp6"])),
    Rule("tcp", Value::None),
    Rule("udp", Value::None),
    Rule("port", Value::Number),
    Rule("mountport", Value::Number),
    Rule("sec", Value::OneOf(&["sys", "krb5", "krb5i", "krb5p"])),
];
