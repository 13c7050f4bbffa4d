//! The table: which FlexVolume driver goes to which CSI driver, and what becomes of each option.

mod ceph;
mod clouds;
mod nfs;
mod smb;

use super::target::Target;

/// Every row.
pub const TARGETS: &[&Target] = &[
    &smb::NETWORK_PATH,
    &smb::SOURCE,
    &smb::JULIOHM,
    &nfs::K8S,
    &nfs::BESTGOPHER,
    &nfs::NAS,
    &clouds::BLOBFUSE,
    &ceph::IMAGE,
    &ceph::DIRECTORY,
    &clouds::OCI,
    &clouds::ALICLOUD_DISK,
    &clouds::ALICLOUD_NAS,
    &clouds::ALICLOUD_OSS,
    &clouds::LINSTOR,
];
