//! Logical units of iSCSI targets.

use super::{Device, PLAIN, Profile, Quirk, key, other};
use crate::drivers::iscsi::IscsiDriver;

/// Fields of Kubernetes' own `iscsi` volumes.
pub(super) const ISCSI: Profile = Profile {
    name: "kubernetes.io/iscsi",
    driver: &IscsiDriver::DRIVER,
    summary: "a logical unit of an iSCSI target, as in Kubernetes",
    keys: &[
        key("targetPortal", "targetPortal", "address of the target, and its port unless that is 3260"),
        key("portals", "portals", "further portals: a comma list, or an array in a string"),
        key("iqn", "iqn", "the target's name"),
        key("lun", "lun", "number of the logical unit"),
        key("iscsiInterface", "iscsiInterface", "the interface of the node's database"),
        key("initiatorName", "initiatorName", "name of the initiator"),
        key("chapAuthDiscovery", "chapAuthDiscovery", "log in for discovery"),
        key("chapAuthSession", "chapAuthSession", "log in to the target"),
        other("readOnly", "makes the volume read-only"),
    ],
    attach: Some(Device::Ours),
    quirks: &[Quirk::ReadOnlyIf("readOnly")],
    deviations: &[
        "the node's database of targets is not changed",
        "a Secret of type kubernetes.io/iscsi works as before; one in another namespace has to be copied",
        "a device is formatted only if every byte of it is zero",
    ],
    example: &[
        ("targetPortal", "10.0.2.15:3260"),
        ("iqn", "iqn.2001-04.com.example:storage.kube.sys1.xyz"),
        ("lun", "0"),
    ],
    ..PLAIN
};
