//! Drivers of NFS exports, to csi-driver-nfs.
//!
//! It takes `server` and `share`, no Secret, and by default no volume that stands in a pod.

use crate::drivers::nfs;
use crate::translate::{Becomes, Form, PLAIN, Split, Target, Words};
use flexvol_protocol::mount_options::{Rule, Value};

const NFS: Target = Target { to: "nfs.csi.k8s.io", needs: &["server", "share"], ..PLAIN };

const SERVER: Becomes = Becomes::Attribute("server", Form::Host);
const SHARE: Becomes = Becomes::Attribute("share", Form::Path);

/// `k8s/nfs`. Its tests of three options are the wrong way round: it always mounted the same.
pub(super) const K8S: Target = Target {
    from: &["k8s/nfs"],
    options: &[
        ("server", SERVER),
        ("share", SHARE),
        ("protocol", Becomes::Nothing("the script never read it: it always was tcp")),
        ("atime", Becomes::Nothing("the script never read it: it always was noatime")),
        ("readonly", Becomes::Nothing("the script never read it: set readOnly if you mean it")),
    ],
    mount_options: &["tcp", "soft", "timeo=10", "noatime"],
    differs: &[
        "The mount options are those that the script used, soft among them: a write may be lost while the \
         server is away. Write hard instead if you did not choose that.",
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
                "the claim decides of a PersistentVolume whether it may be written",
                "remove it, and set readOnly in the pod's claim",
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
        ("vers", Becomes::MountOption("vers", Form::OneOf(VERSIONS))),
        ("options", Becomes::MountOptions(&WORDS)),
        ("mode", Becomes::Nothing("what is there keeps its mode")),
    ],
    attributes: &[("server", "{server}"), ("share", "{path}")],
    differs: &["A path that is missing is no longer made: make it on the server before."],
    ..NFS
};

/// What those drivers take.
pub(super) const VERSIONS: &[&str] = &["3", "3.0", "4.0", "4.1"];

/// Options of mount.nfs that say nothing about which server or export is meant.
pub(super) const WORDS: Words = Words {
    split: Split::Comma,
    allowed: &[MORE, nfs::RULES],
    ignored: &[
        ("none", "it stands for no options"),
        ("intr", "no kernel has it any more"),
        ("nointr", "no kernel has it any more"),
        ("nofail", "it is one of /etc/fstab"),
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
