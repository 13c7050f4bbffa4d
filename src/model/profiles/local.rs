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
        "files lie below policy.imageRoots, by default /var/lib/flexvol/images: install with --set \
         'policy.imageRoots=[\"/DIRECTORY\"]' for a directory of existing files",
        "fsck: true, the default, checks before the first mount; the original checked only when it was false",
        "fsck fixes what is safe to fix, whatever fsckOptions say",
        "mmp and mmpUpdateInterval have no effect: the original set mmp only when it was false; a file must not be \
         used on two nodes at once",
        "mount_options are applied; the original ignored them",
        "allocate has no effect, as in the original: set allocation: full to reserve the blocks of a new file",
        "mount attaches the device and the last unmount detaches it: attach, waitforattach and mountdevice do nothing",
        "a file is formatted only if every byte of it is zero, not if blkid recognises nothing",
        "a loop device serves the file, also where the original used qemu-nbd: both treat it as raw",
    ],
    example: &[("file", "/srv/kube-volumes/test"), ("size", "1g")],
    ..PLAIN
};

const LOOP_KEYS: &[Key] = &[
    key("file", "file", "the image; with share, its path below that"),
    other("share", "a directory above the file, where something must be mounted"),
    key("size", "size", "size of a new file, as for truncate(1): 1g and 1G are 2^30 bytes"),
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
        "the admin must allow the directory: install with --set 'policy.bindRoots=[\"/srv/local\"]', and \
         \"/srv/file-sync\" if volumes set file-sync",
        "mode and owner apply to a new directory; an existing one keeps its own",
        "namespace, volume and pod must be plain names: the original took any with one plain character in it, .. \
         included",
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
    other("file-sync", "any value: below /srv/file-sync instead of /srv/local"),
    other("pod-local", "any value but false: a directory for each pod, below the volume's"),
];

/// `k8s/dummy`: memory, for tests.
pub(super) const DUMMY: Profile = Profile {
    name: "k8s/dummy",
    driver: &Tmpfs,
    summary: "memory of the node, for tests of a cluster",
    deviations: &[
        "the volume is empty: no index.html is written into it",
        "the options of tmpfs are supported, such as size; the original has none",
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
        "the content of the file comes from the Secret in secretRef, of type rancher/secrets: the original asked a \
         bridge of Rancher 1, which no longer exists",
    ],
    example: &[("name", "token")],
    example_secret: &["token"],
    ..PLAIN
};
