//! Volumes of Rook, to ceph-csi as Rook runs it: the driver's name begins with the namespace of
//! Rook's operator, here that of its manifests.
//!
//! Both are static volumes to ceph-csi, which deletes, grows and copies none of those. An image is
//! known by its name; a directory by whatever handle.

use crate::translate::form::Form;
use crate::translate::target::{Becomes, FsType, Handle, Login, PLAIN, Target};

/// Rook's names: the vendor is the API group, today's or an older one's, and the driver is `rook`
/// or a namespace.
const ROOK: &[&str] = &["ceph.rook.io/", "rook.io/"];

const CLUSTER: Becomes = Becomes::Part(Form::Id);
const FILE_SYSTEM: &str = "ceph";
const MONITORS: Becomes = Becomes::Nothing("ceph-csi knows the monitors of clusterID");

/// An image.
pub(super) const IMAGE: Target = Target {
    from: ROOK,
    to: "rook-ceph.rbd.csi.ceph.com",
    options: &[
        ("image", Becomes::Part(Form::Id)),
        ("pool", POOL),
        ("blockPool", POOL),
        ("clusterNamespace", CLUSTER_OR),
        ("clusterName", CLUSTER_NAME),
        ("dataBlockPool", Becomes::Nothing("the image knows in which pool its data is")),
        ("storageClass", Becomes::Nothing("the image is made already")),
        ("monitors", MONITORS),
    ],
    attributes: &[
        ("clusterID", "{clusterNamespace}"),
        ("imageFeatures", "layering"),
        ("staticVolume", "true"),
    ],
    needs: &["pool"],
    secret: Login::Own(
        "rook-csi-rbd-node",
        "clusterNamespace",
        "userID and userKey, unless Rook has made it",
    ),
    handle: Handle::Part("image"),
    fs_type: FsType::KeptBut(FILE_SYSTEM),
    differs: &["ceph-csi grows, copies and deletes no image that it has not made itself"],
    ..PLAIN
};

const POOL: Becomes = Becomes::Attribute("pool", Form::Id);
/// Rook's manifests call it so.
const CLUSTER_OR: Becomes = Becomes::PartOr(Form::Id, "rook-ceph");
const CLUSTER_NAME: Becomes =
    Becomes::Refused("older versions of Rook called the namespace so", "write it as clusterNamespace");

/// A directory of a file system.
pub(super) const DIRECTORY: Target = Target {
    from: ROOK,
    to: "rook-ceph.cephfs.csi.ceph.com",
    options: &[
        ("fsName", Becomes::Attribute("fsName", Form::Id)),
        ("path", Becomes::PartOr(Form::Path, "/")),
        ("clusterNamespace", CLUSTER),
        ("clusterName", CLUSTER_NAME),
        ("mountUser", Becomes::Nothing("the Secret says who logs in")),
        ("mountSecret", Becomes::Nothing("the Secret of the CSI volume takes its place")),
        ("monitors", MONITORS),
    ],
    attributes: &[("clusterID", "{clusterNamespace}"), ("rootPath", "{path}"), ("staticVolume", "true")],
    needs: &["fsName"],
    secret: Login::Own(
        "rook-csi-cephfs-static",
        "clusterNamespace",
        "userID and userKey: of mountUser and mountSecret, or of a user who may write to the directory",
    ),
    fs_type: FsType::Only(FILE_SYSTEM),
    differs: &["ceph-csi grows, copies and deletes no directory that it has not made itself"],
    ..PLAIN
};
