//! Drivers of logical volumes of LVM.

use super::words::{To, Word};
use super::{Device, Key, PLAIN, Profile, Quirk, key, other};
use crate::drivers::lvm::Lvm;

/// Words about write barriers: without barriers a power failure destroys the file system.
const WORDS: &[Word] = &[Word("nobarrier", To::Nothing), Word("barrier", To::Always)];

const BARRIERS: &str =
    "nobarrier has no effect: kernels no longer have it, and a power failure would destroy the file system";

const VOLUME: [Key; 2] =
    [key("volumeID", "volume", "the logical volume"), key("volumegroup", "volumeGroup", "its volume group")];

/// `kubernetes.io/lvm`: an existing logical volume.
pub(super) const LVM: Profile = Profile {
    name: "kubernetes.io/lvm",
    driver: &Lvm::DRIVER,
    summary: "a logical volume of the node",
    keys: &[VOLUME[0], VOLUME[1], other("size", "no effect: the volume must exist")],
    attach: Some(Device::Ours),
    quirks: &[Quirk::Dropped("size"), Quirk::Words(WORDS)],
    deviations: &[
        "attach needs neither LVM nor the node: a controller-manager only answers with a name",
        "the last unmount deactivates a volume that was not active before",
        "a volume in use by another node is refused: a tag on it names the node",
        "a device is formatted only if every byte of it is zero, not if blkid recognises nothing",
        "mountoptions are supported",
        BARRIERS,
    ],
    example: &[("volumeID", "vol1"), ("size", "1000m"), ("volumegroup", "kube_vg")],
    ..PLAIN
};

/// `sysoperator.pl/lvm`: a logical volume that is created if it is missing.
pub(super) const CREATED: Profile = Profile {
    name: "sysoperator.pl/lvm",
    summary: "a logical volume of the node, made if it is missing",
    keys: &[
        VOLUME[0],
        VOLUME[1],
        key(
            "size",
            "size",
            "size of a new volume, as for lvcreate: 10g and 10G are 10 GiB, 1000 is 1000 MiB",
        ),
        key("thinpool", "thinPool", "make it in this thin pool"),
        key("mountoptions", "mountOptions", "comma list of mount options"),
    ],
    quirks: &[Quirk::LvmSize("size"), Quirk::Words(WORDS)],
    deviations: &[
        "attach creates nothing: the first node that mounts the volume creates it",
        "the last unmount deactivates a volume that was not active before",
        "a volume in use by another node is refused: a tag on it names the node",
        "a device is formatted only if every byte of it is zero, not if blkid recognises nothing",
        BARRIERS,
    ],
    example: &[("volumeID", "data-thin"), ("size", "10g"), ("volumegroup", "storage"), ("thinpool", "pool0")],
    ..LVM
};

/// `angeloxx/lvm`: a logical volume that several nodes see.
pub(super) const SHARED: Profile = Profile {
    name: "angeloxx/lvm",
    summary: "a logical volume that several nodes can use, one at a time",
    deviations: &[
        "a tag on the volume names the node that uses it, as in the original, but without a time: no daemon has to \
         refresh it, and the admin must remove the tag of a lost node, by the command in the error message",
        "neither driver reads the other's tags: take over on all nodes while no volume is in use",
        "getvolumename is not supported: kubelet does not use its answer",
        "attach needs neither LVM nor the node: a controller-manager only answers with a name",
        "the last unmount deactivates a volume that was not active before",
        "a device is formatted only if every byte of it is zero, not if blkid recognises nothing",
        "mountoptions are supported",
        BARRIERS,
    ],
    example: &[("volumeID", "sharelv"), ("volumegroup", "sharevg")],
    ..LVM
};
