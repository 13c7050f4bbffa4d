//! Drivers of SMB shares, to csi-driver-smb.
//!
//! Its attribute `source` is the share, and may name a directory in it. It reads the Secret's keys
//! `username`, `password` and `domain` with the blanks around them cut off, and mounts once a node,
//! where FlexVolume mounted for each pod.

use crate::drivers::cifs;
use crate::translate::{Becomes, Form, Inline, PLAIN, Secret, Split, Target, Words};
use flexvol_protocol::mount_options::{Rule, Value};

const SMB: Target = Target {
    to: "smb.csi.k8s.io",
    needs: &["source"],
    secret: Secret::Stage(&[("username", "username"), ("password", "password"), ("domain", "domain")]),
    inline: Inline::Attributes("secretName", "mountOptions"),
    differs: &[
        "The share is mounted once a node and bound into each pod: FlexVolume mounted it for each pod.",
        "A pod's fsGroup becomes gid= unless there is one, and files get the modes of a group that may write.",
        "Blanks around user name and password are cut off.",
    ],
    ..PLAIN
};

/// `fstab/cifs`, `openshift.io/cifs`.
pub(super) const NETWORK_PATH: Target = Target {
    from: &["fstab/cifs", "openshift.io/cifs"],
    options: &[
        ("networkPath", Becomes::Attribute("source", Form::Share)),
        ("source", Becomes::Attribute("source", Form::Share)),
        ("mountOptions", Becomes::MountOptions(&WORDS)),
    ],
    ..SMB
};

/// `microsoft.com/smb` and its forks.
pub(super) const SOURCE: Target = Target {
    from: &["microsoft.com/smb", "bertera.it/smb", "hodique.info/cifs"],
    options: &[
        ("source", Becomes::Attribute("source", Form::Share)),
        ("mountoptions", Becomes::MountOptions(&WORDS)),
        ("mountOptions", Becomes::MountOptions(&WORDS)),
    ],
    ..SMB
};

/// `juliohm/cifs`, where the pod's fsGroup was owner and group.
pub(super) const JULIOHM: Target = Target {
    from: &["juliohm/cifs"],
    any_case: true,
    options: &[
        ("server", Becomes::Part(Form::Host)),
        ("share", Becomes::Part(Form::Path)),
        ("opts", Becomes::MountOptions(&WORDS)),
        ("passwdMethod", Becomes::Nothing("the password is in no argument")),
    ],
    attributes: &[("source", "//{server}{share}")],
    differs: &[
        "A pod's fsGroup was uid and gid of all files, and is gid alone: write uid= into mountOptions.",
        "The share is mounted once a node and bound into each pod: FlexVolume mounted it for each pod.",
        "Blanks around user name and password are cut off.",
    ],
    ..SMB
};

/// What names files of the node, or who logs in, is refused.
const WORDS: Words = Words {
    split: Split::Comma,
    allowed: &[MORE, cifs::RULES],
    ignored: &[
        ("intr", "no kernel has it any more"),
        ("nointr", "no kernel has it any more"),
        ("nofail", "it is one of /etc/fstab"),
        ("sec=ntlm", "no kernel has it any more, and the driver's default does"),
        ("sec=ntlmv2", "no kernel has it any more, and the driver's default does"),
        ("context", "with SELinux let containers use SMB shares: setsebool -P virt_use_samba on"),
    ],
};

const MORE: &[Rule] = &[
    Rule("vers", Value::Word),
    Rule("sec", Value::OneOf(&["ntlmssp", "ntlmsspi", "none"])),
    Rule("uid", Value::Number),
    Rule("gid", Value::Number),
    Rule("file_mode", Value::Number),
    Rule("dir_mode", Value::Number),
    Rule("port", Value::Number),
    Rule("domain", Value::Word),
    Rule("guest", Value::None),
];
