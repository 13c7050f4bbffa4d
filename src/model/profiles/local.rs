//! Drivers of storage on the node.

use super::{Device, Key, PLAIN, Profile, Quirk, key, other};
use crate::drivers::{bind::Bind, image::Image, secretfiles::SecretFiles, tmpfs::Tmpfs};

/// `kvaps/loop`: an image file, perhaps on a share, through a loop device.
pub(super) const LOOP: Profile = Profile {
    name: "kvaps/loop",
    driver: &Image,
    summary: "an image file, perhaps on a mounted share, through a loop device",
    keys: LOOP_KEYS,
    defaults: &[("fsType", "ext4"), ("format", "ifBlank")],
    attach: Some(Device::Option("file")),
    quirks: &[Quirk::FileOnShare, Quirk::TruncateSize("size")],
    deviations: &[
        "files lie below policy.imageRoots, /var/lib/flexvol/images if the admin names none: install with \
         --set 'policy.imageRoots=[\"/DIRECTORY\"]' for the directory of the files there are",
        "fsck does what its name says: true checks before the first mount, the default; theirs checked only \
         when it was false",
        "fsck fixes what is safe to fix, whatever fsckOptions say",
        "mmp and mmpUpdateInterval have no effect: theirs set it only when it was false; a file must not be \
         used on two nodes at once",
        "mount_options are applied; theirs read them and forgot",
        "allocate has no effect, as with theirs: say allocation: full to reserve the blocks of a new file",
        "mount attaches the device and the last unmount lets it go: attach, waitforattach and mountdevice do nothing",
        "a file is formatted only if every byte of it is zero, not if blkid recognises nothing",
        "a loop device serves the file, also where theirs was a network block device of qemu-nbd: both take it as raw",
    ],
    example: &[("file", "/srv/kube-volumes/test"), ("size", "1g")],
    ..PLAIN
};

const LOOP_KEYS: &[Key] = &[
    key("file", "file", "the image; with share, its path below that"),
    other("share", "the directory the file lies below, where something must be mounted"),
    key("size", "size", "of a file that is made, as truncate(1) takes it: 1g and 1G are 2^30 bytes"),
    key("fsck", "fsck", "check the file system before it is mounted"),
    key("mount_options", "mountOptions", "comma list of mount options"),
    other("fsckOptions", "no effect"),
    other("mmp", "no effect"),
    other("mmpUpdateInterval", "no effect"),
    other("allocate", "no effect"),
];

/// `kvaps/qemu-nbd`: the same, but it tells qemu-nbd that the image is raw.
pub(super) const QEMU_NBD: Profile = Profile { name: "kvaps/qemu-nbd", ..LOOP };

/// `kvaps/nbd`: the same under another name.
pub(super) const NBD: Profile = Profile { name: "kvaps/nbd", ..LOOP };

/// `ramax.com/local-storage`: one directory for each namespace and volume.
pub(super) const LOCAL_STORAGE: Profile = Profile {
    name: "ramax.com/local-storage",
    driver: &Bind,
    summary: "a directory of the node for each namespace and volume",
    keys: LOCAL_STORAGE_KEYS,
    defaults: &[("create", "true")],
    quirks: &[Quirk::DirectoryOfVolume],
    deviations: &[
        "the admin allows the directory: install with --set 'policy.bindRoots=[\"/srv/local\"]', and \
         \"/srv/file-sync\" if volumes say file-sync",
        "mode and owner are given to a directory that is made; one that exists keeps its own",
        "namespace, volume and pod must be plain names: theirs took any with one plain character in it, .. included",
        "a volume may not name its source itself",
    ],
    example: &[("volume-uid", "33"), ("volume-gid", "33"), ("volume-mode", "0750")],
    ..PLAIN
};

const LOCAL_STORAGE_KEYS: &[Key] = &[
    key("volume-uid", "uid", "owner of the directory"),
    key("volume-gid", "gid", "group of the directory"),
    key("volume-mode", "mode", "mode of the directory"),
    other("pvc-name", "name of the directory instead of the volume's"),
    other("file-sync", "anything: below /srv/file-sync instead of /srv/local"),
    other("pod-local", "anything but false: a directory for each pod, below the volume's"),
];

/// `k8s/dummy`: memory, for tests.
pub(super) const DUMMY: Profile = Profile {
    name: "k8s/dummy",
    driver: &Tmpfs,
    summary: "memory of the node, for tests of a cluster",
    deviations: &[
        "the volume is empty: no index.html is written into it",
        "the options of tmpfs are understood, such as size; theirs has none",
    ],
    ..PLAIN
};

/// `rancher/secrets`: a secret as a file in memory.
pub(super) const RANCHER_SECRETS: Profile = Profile {
    name: "rancher/secrets",
    driver: &SecretFiles,
    summary: "a secret as a file in memory",
    keys: &[
        key("name", "keys", "the key of the Secret that becomes a file of that name"),
        key("mode", "mode", "mode of the file"),
        other("mountOpts", "no effect: the memory is as large as the files, and read-only"),
    ],
    deviations: &[
        "what the file holds comes from the Secret in secretRef, of type rancher/secrets: theirs asked a bridge of \
         Rancher 1, which is no more",
    ],
    example: &[("name", "token")],
    example_secret: &["token"],
    ..PLAIN
};
