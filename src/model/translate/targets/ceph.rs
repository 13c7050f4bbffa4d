//! Rook's volumes, which its agent served, to Ceph CSI.
//!
//! They become static volumes: mounted and unmounted, but neither grown, copied nor deleted. The
//! keys are in the Secrets that Rook makes for its CSI drivers, in the cluster's namespace.

use super::attribute;
use crate::translate::{Becomes, Class, Form, Handle, PLAIN, Secret, Target};

const NAMES: &[&str] = &[
    "ceph.rook.io/rook",
    "ceph.rook.io/rook-ceph",
    "ceph.rook.io/rook-ceph-system",
    "rook.io/rook",
    "ceph.rook.io/block",
];

/// The cluster: since 0.8 `clusterNamespace`, `clusterName` before.
const CLUSTER: Becomes = Becomes::PartOr(Form::Name, "rook-ceph");
const GONE: Becomes = Becomes::Nothing("the image is there");
const OF_FILES: Becomes = Becomes::Refused(
    "it is of a file system, not of a block volume",
    "write --to rook-ceph.cephfs.csi.ceph.com",
);
const OF_BLOCKS: Becomes = Becomes::Refused(
    "it is of a block volume, not of a file system",
    "write --to rook-ceph.rbd.csi.ceph.com",
);
const AGENT_S: Becomes = Becomes::Nothing("the Secret of Rook's CSI driver logs in");

/// Block volumes.
pub(super) const BLOCK: Target = Target {
    from: NAMES,
    to: "rbd.csi.ceph.com",
    options: &[
        ("image", Becomes::Part(Form::Name)),
        ("blockPool", Becomes::Attribute("pool", Form::Name)),
        ("pool", Becomes::Attribute("pool", Form::Name)),
        ("clusterNamespace", CLUSTER),
        ("clusterName", Becomes::Nothing("clusterNamespace says which cluster it is")),
        ("storageClass", GONE),
        ("dataBlockPool", GONE),
        ("fsName", OF_FILES),
        ("path", OF_FILES),
        ("mountUser", AGENT_S),
        ("mountSecret", AGENT_S),
    ],
    attributes: &[
        ("clusterID", "{clusterNamespace}"),
        ("staticVolume", "true"),
        ("imageFeatures", "layering"),
    ],
    needs: &["pool"],
    fs_type: true,
    handle: Handle::Own("{image}", ""),
    secret: Secret::Deployed("rook-csi-rbd-node", "{clusterNamespace}"),
    class: Some(Class {
        provisioners: &["ceph.rook.io/block", "rook.io/block"],
        parameters: &[
            ("blockPool", Becomes::Attribute("pool", Form::Name)),
            ("pool", Becomes::Attribute("pool", Form::Name)),
            ("clusterNamespace", CLUSTER),
            ("clusterName", Becomes::Nothing("clusterNamespace says which cluster it is")),
            ("fstype", attribute("csi.storage.k8s.io/fstype")),
            ("dataBlockPool", Becomes::Attribute("dataPool", Form::Name)),
        ],
        set: CEPH_CLASS,
    }),
    differs: &[
        "The handle is the image: keep the reclaim policy Retain for ever.",
        "A static volume cannot be grown, copied or snapshot.",
    ],
    ..PLAIN
};

const CEPH_CLASS: &[(&str, &str)] = &[
    ("clusterID", "{clusterNamespace}"),
    ("imageFeatures", "layering"),
    ("csi.storage.k8s.io/provisioner-secret-name", "rook-csi-rbd-provisioner"),
    ("csi.storage.k8s.io/provisioner-secret-namespace", "{clusterNamespace}"),
    ("csi.storage.k8s.io/node-stage-secret-name", "rook-csi-rbd-node"),
    ("csi.storage.k8s.io/node-stage-secret-namespace", "{clusterNamespace}"),
];

/// File systems.
pub(super) const FILES: Target = Target {
    from: NAMES,
    to: "cephfs.csi.ceph.com",
    options: &[
        ("fsName", Becomes::Attribute("fsName", Form::Name)),
        ("path", Becomes::PartOr(Form::Path, "/")),
        ("clusterNamespace", CLUSTER),
        ("clusterName", Becomes::Nothing("clusterNamespace says which cluster it is")),
        ("mountUser", AGENT_S),
        ("mountSecret", AGENT_S),
        ("image", OF_BLOCKS),
        ("blockPool", OF_BLOCKS),
        ("pool", OF_BLOCKS),
    ],
    attributes: &[("clusterID", "{clusterNamespace}"), ("staticVolume", "true"), ("rootPath", "{path}")],
    needs: &["fsName"],
    secret: Secret::Deployed("rook-csi-cephfs-node", "{clusterNamespace}"),
    differs: &[
        "The driver needs a Secret with userID and userKey for static volumes: Rook's has adminID and adminKey; \
         add the two keys, or name another Secret.",
        "A static volume cannot be grown, copied or snapshot.",
    ],
    ..PLAIN
};
