//! Rows for volumes of Rook, for ceph-csi as Rook runs it. The name of the CSI driver begins with
//! the namespace of Rook's operator; here it is the namespace in Rook's manifests.
//!
//! To ceph-csi both are static volumes, which it neither deletes nor grows nor copies. It finds an
//! image by its name; a directory may have any handle.

use crate::translate::form::Form;
use crate::translate::target::{Becomes, FsType, Handle, Login, PLAIN, Target};

/// Rook's driver names. The vendor is the current API group or an older one; the driver is `rook`
/// or a namespace.
const ROOK: &[&str] = &["ceph.rook.io/", "rook.io/"];

const CLUSTER: Becomes = Becomes::Part(Form::Id);
const FILE_SYSTEM: &str = "ceph";
const MONITORS: Becomes = Becomes::Nothing("ceph-csi knows the monitors of clusterID");

/// RBD image.
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
/// Default of Rook's manifests.
const CLUSTER_OR: Becomes = Becomes::PartOr(Form::Id, "rook-ceph");
const CLUSTER_NAME: Becomes =
    Becomes::Refused("older versions of Rook called the namespace so", "write it as clusterNamespace");

/// Directory of a CephFS file system.
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
