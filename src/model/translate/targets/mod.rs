//! Table of the translations: the CSI driver for each FlexVolume driver, with each option's result.

mod ceph;
mod clouds;
mod nfs;
mod smb;

use super::target::Target;

/// All rows.
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
