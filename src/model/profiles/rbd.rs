//! Images of Ceph clusters.

use super::clusters::{KEY_IS_NAMED, MONITORS_ARE_NAMED, ROOK_S_MONITORS};
use super::{Device, Key, PLAIN, Profile, Quirk, key, other};
use crate::drivers::rbd::Rbd;

/// Fields of Kubernetes' own `rbd` volumes, which were removed in 1.31.
pub(super) const RBD: Profile = Profile {
    name: "kubernetes.io/rbd",
    driver: &Rbd::DRIVER,
    summary: "an image of a Ceph cluster, as in Kubernetes up to 1.30",
    keys: &[
        key("monitors", "monitors", "a comma list, or an array in a string"),
        key("pool", "pool", "the pool"),
        key("image", "image", "the image"),
        key("user", "user", "user name"),
        key("keyring", "keyring", "a file of the node with the key, instead of a Secret"),
        other("readOnly", "makes the volume read-only"),
    ],
    secrets: &[key("key", "key", "the user's key")],
    attach: Some(Device::Ours),
    quirks: &[Quirk::ReadOnlyIf("readOnly")],
    deviations: &[
        "without a Secret, keyring must be given, such as /etc/ceph/keyring: kubelet passes a Secret only to mount, so \
         the other verbs cannot tell whether there is one",
        "a Secret of type kubernetes.io/rbd works as before; one in another namespace has to be copied",
        "a device is formatted only if every byte of it is zero",
        "an image that another node has mapped for writing is refused",
    ],
    example: &[("monitors", "10.16.154.78:6789,10.16.154.82:6789"), ("pool", "kube"), ("image", "foo")],
    example_secret: &["key"],
    ..PLAIN
};

/// Block volumes of Rook, which served them and its file systems under one name.
pub(super) const ROOK: Profile = Profile {
    name: "ceph.rook.io/block",
    driver: &Rbd::DRIVER,
    summary: "an image of a Ceph cluster that Rook runs",
    keys: ROOK_KEYS,
    secrets: &[key("key", "key", "the user's key, as ceph auth get-key prints it")],
    quirks: &[Quirk::KeyAsSecret("key", "key"), ROOK_S_MONITORS],
    deviations: &[
        "Rook's driver is called ceph.rook.io/NAMESPACE, before that rook.io/NAMESPACE, and served block volumes and \
         file systems under that one name: install ceph.rook.io/rook-ceph=rbd for block volumes, =cephfs for file \
         systems; ceph.rook.io/rook alone means cephfs",
        MONITORS_ARE_NAMED,
        KEY_IS_NAMED,
        "a device is formatted only if every byte of it is zero",
    ],
    example: &[
        ("image", "pvc-5a2d1b"),
        ("blockPool", "replicapool"),
        ("monitors", "10.0.0.1:6789,10.0.0.2:6789"),
    ],
    example_secret: &["key"],
    ..PLAIN
};

const ROOK_KEYS: &[Key] = &[
    key("image", "image", "the image"),
    key("blockPool", "pool", "the pool"),
    key("pool", "pool", "older name of blockPool"),
    key("mountUser", "user", "user name"),
    other("key", "the key of that user, in the side file"),
    other("clusterNamespace", "no effect: monitors determine the cluster"),
    other("clusterName", "no effect: monitors determine the cluster"),
    other("storageClass", "no effect: the image already exists"),
    other("dataBlockPool", "no effect: the image itself names its data pool"),
];
