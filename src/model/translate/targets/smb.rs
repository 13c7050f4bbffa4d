//! Rows for drivers of SMB shares, for csi-driver-smb.
//!
//! Its attribute `source` is the share, optionally with a directory in it. It reads the Secret's
//! keys `username`, `password` and `domain`. It mounts once per node, where FlexVolume mounted for
//! each pod. It would delete a share whose handle is `server/share#…`, so handles here are not
//! paths.

use crate::drivers::cifs;
use crate::translate::form::{Form, Words};
use crate::translate::target::{Becomes, Inline, Login, PLAIN, Target};
use flexvol_protocol::mount_options::{Rule, Value};

const ONCE: &str =
    "the share is mounted once a node and bound into each pod, where FlexVolume mounted it for each";
const TRIMMED: &str = "csi-driver-smb cuts off the blanks around user name and password";
const GROUP: &str =
    "a pod's fsGroup becomes gid= unless there is one, and files get the modes of a group that may write";

const SMB: Target = Target {
    to: "smb.csi.k8s.io",
    needs: &["source"],
    secret: Login::Staged,
    inline: Inline::Attributes("secretName", "mountOptions"),
    differs: &[ONCE, GROUP, TRIMMED],
    ..PLAIN
};

const SOURCE_OPTION: Becomes = Becomes::Attribute("source", Form::Share);
const WORDS_OPTION: Becomes = Becomes::MountOptions(&WORDS);

/// `fstab/cifs`, `openshift.io/cifs`.
pub(super) const NETWORK_PATH: Target = Target {
    from: &["fstab/cifs", "openshift.io/cifs"],
    options: &[("networkPath", SOURCE_OPTION), ("source", SOURCE_OPTION), ("mountOptions", WORDS_OPTION)],
    ..SMB
};

/// `microsoft.com/smb` and its forks.
pub(super) const SOURCE: Target = Target {
    from: &["microsoft.com/smb", "bertera.it/smb", "hodique.info/cifs"],
    options: &[("source", SOURCE_OPTION), ("mountoptions", WORDS_OPTION), ("mountOptions", WORDS_OPTION)],
    ..SMB
};

/// `juliohm/cifs`.
pub(super) const JULIOHM: Target = Target {
    from: &["juliohm/cifs"],
    any_case: true,
    options: &[
        ("server", Becomes::Part(Form::Host)),
        ("share", Becomes::Part(Form::Path)),
        ("opts", WORDS_OPTION),
        ("passwdMethod", Becomes::Nothing("csi-driver-smb hands the password over in no argument")),
    ],
    attributes: &[("source", "//{server}{share}")],
    differs: &[
        "a pod's fsGroup was uid and gid of all files, and is gid alone: write uid= into mountOptions",
        ONCE,
        TRIMMED,
    ],
    ..SMB
};

/// Words that name a file of the node, or the user who logs in, are refused.
const WORDS: Words = Words {
    allowed: &[MORE, cifs::RULES],
    ignored: &[
        ("intr", "no kernel has it any more"),
        ("nointr", "no kernel has it any more"),
        ("nofail", "it is one of /etc/fstab"),
        ("_netdev", "it is one of /etc/fstab"),
        ("sec=ntlm", "no kernel has it any more, and the default works"),
        ("sec=ntlmv2", "no kernel has it any more, and the default works"),
    ],
};

const MORE: &[Rule] = &[
    Rule(
        "vers",
        Value::OneOf(&["1.0", "2.0", "2.1", "3", "3.0", "3.02", "3.0.2", "3.11", "3.1.1", "default"]),
    ),
    Rule("sec", Value::OneOf(&["ntlmssp", "ntlmsspi", "none"])),
    Rule("uid", Value::Number),
    Rule("gid", Value::Number),
    Rule("file_mode", Value::Number),
    Rule("dir_mode", Value::Number),
    Rule("port", Value::Number),
    Rule("iocharset", Value::OneOf(&["utf8"])),
    Rule("guest", Value::None),
];
