//! Drivers of SMB shares.

use super::words::{To, Word};
use super::{FsGroupUse, Key, Layer, PLAIN, Profile, Quirk, key, other};
use crate::drivers::cifs::Cifs;

/// Words of mount.cifs that are options of flexvol, or that have no meaning any more. In mount.cifs
/// the later word wins, so the volume's own list wins over words from elsewhere.
const WORDS: &[Word] = &[
    Word("username", To::Secret(&["username", "user"])),
    Word("user", To::Secret(&["username", "user"])),
    Word("password", To::Secret(&["password", "pass", "passwd"])),
    Word("pass", To::Secret(&["password", "pass", "passwd"])),
    Word("domain", To::OptionNotSecret("domain", &["domain", "workgroup"])),
    Word("dom", To::OptionNotSecret("domain", &["domain", "workgroup"])),
    Word("workgroup", To::OptionNotSecret("domain", &["domain", "workgroup"])),
    Word("guest", To::Set("guest", "true")),
    Word("vers", To::Option("version")),
    Word("sec", To::Option("sec")),
    Word("uid", To::Option("uid")),
    Word("gid", To::Option("gid")),
    Word("cruid", To::Option("cruid")),
    Word("file_mode", To::Option("fileMode")),
    Word("dir_mode", To::Option("dirMode")),
    Word("port", To::Option("port")),
    Word("strictcache", To::Instead("cache=strict")),
    Word("directio", To::Instead("cache=none")),
    Word("forcedirectio", To::Instead("cache=none")),
    Word("intr", To::Nothing),
    Word("nointr", To::Nothing),
    Word("nofail", To::Nothing),
    Word("context", To::Nothing),
    Word("credentials", To::Nothing),
    Word("cred", To::Nothing),
];

/// Common parts of all SMB profiles.
const SMB: Profile = Profile {
    driver: &Cifs,
    fs_group: FsGroupUse::Ignored,
    order: &[Layer::Access, Layer::Secrets, Layer::Options],
    quirks: &[Quirk::Words(WORDS), Quirk::Login { anonymous: true }],
    example_secret: &["username", "password"],
    ..PLAIN
};

const LABELS: &str = "context= has no effect: with SELinux, allow containers to use SMB shares: setsebool -P virt_use_samba on";
const CREDENTIALS: &str = "credentials= has no effect: no file of the node is read for a volume";
const NTLM: &str = "sec=ntlm and sec=ntlmv2, which kernels no longer have, mean ntlmssp";
const MODERN: &str = "without vers the newest version that the server speaks is used, from 2.1 on";

/// `fstab/cifs`.
pub(super) const FSTAB: Profile = Profile {
    name: "fstab/cifs",
    summary: "a share of an SMB server",
    keys: NETWORK_PATH,
    chown: Some(true),
    order: &[Layer::Secrets, Layer::Options],
    quirks: &[Quirk::Words(WORDS), Quirk::Login { anonymous: false }],
    deviations: &[
        "mountOptions may be left out; source is an alias of networkPath",
        "the Secret may be left out with guest, sec=none or Kerberos",
        LABELS,
        CREDENTIALS,
        NTLM,
        MODERN,
    ],
    example: &[("networkPath", "//server/share"), ("mountOptions", "dir_mode=0755,file_mode=0644,noperm")],
    ..SMB
};

/// `juliohm/cifs`.
pub(super) const JULIOHM: Profile = Profile {
    name: "juliohm/cifs",
    summary: "a share of an SMB server, owned by the pod's fsGroup",
    keys: &[
        key("server", "server", "name or address of the server"),
        key("share", "share", "the share, optionally with a directory in it"),
        key("opts", "mountOptions", "comma list of options of mount.cifs"),
        other("passwdMethod", "no effect: the password is never among arguments or in an environment"),
    ],
    any_case: true,
    fs_group: FsGroupUse::Owner,
    order: &[Layer::FsGroup, Layer::Access, Layer::Secrets, Layer::Options],
    quirks: &[Quirk::TrimSecrets, Quirk::Words(WORDS), Quirk::Login { anonymous: true }],
    deviations: &[
        "a failed mount is never reported as Success",
        "without a user name it logs in as guest",
        "set-user-id bits, devices and options of mount.cifs that are not on our driver's list are refused",
        LABELS,
        CREDENTIALS,
        NTLM,
        MODERN,
    ],
    example: &[("server", "my-cifs-host"), ("share", "/MySharedDirectory"), ("opts", "uid=1000")],
    ..SMB
};

/// `microsoft.com/smb`.
pub(super) const MICROSOFT: Profile = Profile {
    name: "microsoft.com/smb",
    summary: "a share of an SMB server, such as Azure Files",
    keys: SOURCE,
    order: &[Layer::Secrets, Layer::Access, Layer::Options],
    deviations: &["without a user name it logs in as guest", LABELS, CREDENTIALS, NTLM, MODERN],
    example: &[
        ("source", "//account.file.core.windows.net/share"),
        ("mountoptions", "vers=3.0,dir_mode=0777,file_mode=0777"),
    ],
    ..SMB
};

/// `bertera.it/smb`.
pub(super) const BERTERA: Profile = Profile {
    name: "bertera.it/smb",
    deviations: &[
        "the key debug of the Secret has no effect: it wrote all secrets into a log",
        "without a user name it logs in as guest",
        LABELS,
        CREDENTIALS,
        NTLM,
        MODERN,
    ],
    ..MICROSOFT
};

/// `openshift.io/cifs`.
pub(super) const OPENSHIFT: Profile = Profile {
    name: "openshift.io/cifs",
    summary: "a share of an SMB server, for OpenShift",
    keys: NETWORK_PATH,
    deviations: &[
        "without a user name it logs in as guest",
        "kubelet does not chown the volume, which fails on SMB: give uid and gid",
        "there is no default context=, and a given one has no effect: allow containers to use SMB shares: setsebool -P \
         virt_use_samba on",
        CREDENTIALS,
        NTLM,
        MODERN,
    ],
    example: &[("networkPath", "//server/share"), ("mountOptions", "file_mode=0770,dir_mode=0770")],
    ..SMB
};

/// `hodique.info/cifs`.
pub(super) const HODIQUE: Profile = Profile {
    name: "hodique.info/cifs",
    summary: "a share of an SMB server, from the days of Kubernetes 1.5",
    keys: SOURCE,
    order: &[Layer::Secrets, Layer::Options, Layer::Access],
    quirks: &[Quirk::Words(WORDS), Quirk::Login { anonymous: false }],
    deviations: &[
        "attach is false: the original answers init without capabilities, which later kubelets take for true, but has \
         no attach verb",
        LABELS,
        CREDENTIALS,
        NTLM,
        MODERN,
    ],
    example: &[("source", "//server/share"), ("mountOptions", "dir_mode=0700,file_mode=0600")],
    ..SMB
};

const OPTIONS: &str = "comma list of options of mount.cifs";

const NETWORK_PATH: &[Key] = &[
    key("networkPath", "source", "the share, optionally with a directory in it: //server/share/directory"),
    key("mountOptions", "mountOptions", OPTIONS),
];

const SOURCE: &[Key] = &[
    key("source", "source", "the share, optionally with a directory in it: //server/share/directory"),
    key("mountoptions", "mountOptions", OPTIONS),
];
