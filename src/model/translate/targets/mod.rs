//! The table: which FlexVolume driver goes to which CSI driver, and what becomes of each option.

pub mod ceph;
pub mod clouds;
pub mod nfs;
pub mod smb;

use super::{Becomes, Target};

/// Every row; of several for one driver the first is the one to name first.
pub const TARGETS: &[&Target] = &[
    &smb::NETWORK_PATH,
    &smb::SOURCE,
    &smb::JULIOHM,
    &nfs::K8S,
    &nfs::BESTGOPHER,
    &nfs::NAS,
    &clouds::ALICLOUD_NAS,
    &clouds::ALICLOUD_OSS,
    &clouds::ALICLOUD_DISK,
    &clouds::ALICLOUD_CPFS,
    &clouds::BLOBFUSE,
    &clouds::OCI,
    &clouds::LINSTOR,
    &ceph::BLOCK,
    &ceph::FILES,
];

/// An option that is an attribute, a line of text.
const fn attribute(name: &'static str) -> Becomes {
    Becomes::Attribute(name, super::Form::Text)
}
