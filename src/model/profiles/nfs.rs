//! Drivers of NFS exports.

use super::words::{To, Word};
use super::{FsGroupUse, Key, PLAIN, Profile, Quirk, key, other};
use crate::drivers::nfs::Nfs;

/// Words of mount.nfs that are options of flexvol, or that have no meaning any more.
const WORDS: &[Word] = &[
    Word("vers", To::Option("version")),
    Word("nfsvers", To::Option("version")),
    Word("proto", To::Option("protocol")),
    Word("tcp", To::Set("protocol", "tcp")),
    Word("udp", To::Set("protocol", "udp")),
    Word("port", To::Option("port")),
    Word("mountport", To::Option("mountPort")),
    Word("sec", To::Option("sec")),
    Word("intr", To::Nothing),
    Word("nointr", To::Nothing),
    Word("nofail", To::Nothing),
    Word("bg", To::Nothing),
    Word("fg", To::Nothing),
];

/// Common parts of all NFS profiles.
const NFS: Profile = Profile {
    driver: &Nfs,
    fs_group: FsGroupUse::Ignored,
    // Pods may rely on kubelet's chown where root is not squashed.
    chown: Some(true),
    quirks: &[Quirk::Words(WORDS)],
    ..PLAIN
};

const LOCKS: &str = "with version 3, locks are local to the node, unless mountOptions has lock";

/// `k8s/nfs`.
pub(super) const K8S: Profile = Profile {
    name: "k8s/nfs",
    summary: "an export of an NFS server, mounted soft",
    keys: &[
        key("server", "server", "name or address of the server"),
        key("share", "path", "the exported directory, with or without a slash before it"),
        key("protocol", "protocol", "tcp or udp"),
        other("atime", "write access times"),
        other("readonly", "makes the volume read-only"),
    ],
    quirks: &[
        Quirk::LeadingSlash("path"),
        Quirk::WordsBefore("soft,timeo=10"),
        Quirk::WordUnless("noatime", "atime"),
        Quirk::ReadOnlyIf("readonly"),
        Quirk::Words(WORDS),
    ],
    deviations: &[
        "protocol, atime and readonly take effect; the original ignored them",
        "read-only is honoured; the original always mounted read-write",
        "mountOptions is supported, and hard in it overrides soft",
        LOCKS,
    ],
    example: &[("server", "nfs.example.com"), ("share", "exports/web")],
    ..NFS
};

/// `bestgopher/nfs`.
pub(super) const BESTGOPHER: Profile = Profile {
    name: "bestgopher/nfs",
    summary: "an export of an NFS server",
    keys: &[
        key("server", "server", "name or address of the server"),
        key("path", "path", "the exported directory"),
        key("protocol", "protocol", "tcp or udp"),
        other("atime", "0, the default, writes no access times"),
        other("readonly", "makes the volume read-only"),
    ],
    quirks: &[
        Quirk::LeadingSlash("path"),
        Quirk::WordUnless("noatime", "atime"),
        Quirk::ReadOnlyIf("readonly"),
        Quirk::Words(WORDS),
    ],
    deviations: &[
        "atime and readonly may be text, as kubelet sends them; the original accepted only numbers",
        "unmount works; the original expected a verb that kubelet does not have",
        LOCKS,
    ],
    example: &[("server", "172.16.58.5"), ("path", "/data")],
    ..NFS
};

/// `alicloud/nas`.
pub(super) const ALICLOUD: Profile = Profile {
    name: "alicloud/nas",
    summary: "a directory of Alibaba Cloud's NAS, made if it is missing",
    keys: NAS,
    any_case: true,
    defaults: &[("path", "/"), ("version", "3"), ("mode", "0755")],
    quirks: &[Quirk::NasOptions, Quirk::Words(WORDS), Quirk::MadeBelow(&["/share", "/"])],
    deviations: &[
        "a missing path is made through / (through /share for one below that), which the server must export for this",
        "mode applies to a new directory: an existing one keeps its own",
        "nothing on the node is changed: no sysctl, no package",
        "the server is probed on its own port; option port sets another, connectTimeout: 0 turns the probe off",
        "unmount never force-unmounts a volume in use because its server does not answer",
    ],
    example: &[("server", "id.cn-hangzhou.nas.aliyuncs.com"), ("path", "/k8s"), ("vers", "4.0")],
    ..NFS
};

/// `cds/nas`.
pub(super) const CDS: Profile = Profile {
    name: "cds/nas",
    summary: "a directory of Capital Online's NAS, made if it is missing",
    defaults: &[("path", "/nfsshare"), ("version", "3"), ("mode", "0755")],
    quirks: &[Quirk::NasOptions, Quirk::Words(WORDS), Quirk::MadeBelow(&["/nfsshare", "/"])],
    deviations: &[
        "a missing path is made through /nfsshare if it is below that, else through /, which the server must export \
         for this",
        "mode applies to a new directory: an existing one keeps its own",
        "nothing on the node is changed: no sysctl, no package",
        "unmount never force-unmounts a volume in use because its server does not answer",
    ],
    example: &[("server", "10.0.0.5"), ("path", "/nfsshare/web")],
    ..ALICLOUD
};

const NAS: &[Key] = &[
    key("server", "server", "name of the mount target"),
    key("path", "path", "the directory to mount"),
    key("vers", "version", "3, 4.0 or 4.1"),
    key("mode", "mode", "three octal digits: the mode of a new directory"),
    key(
        "options",
        "mountOptions",
        "comma list of options of mount.nfs, or none; the default is what the version needs",
    ),
];
