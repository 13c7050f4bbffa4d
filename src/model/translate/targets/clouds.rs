//! Rows for volumes of clouds, each for the CSI driver of the same vendor.

use super::nfs;
use crate::translate::form::{Form, Words};
use crate::translate::target::{Becomes, FsType, Handle, Login, PLAIN, Target};
use flexvol_protocol::mount_options::{Rule, Value};

/// `azure/blobfuse`, for blob-csi-driver, the sibling of azurefile's. Its handles may hold an
/// account and a container between `#`, which it would delete, so handles here have no `#`.
pub(super) const BLOBFUSE: Target = Target {
    from: &["azure/blobfuse"],
    to: "blob.csi.azure.com",
    options: &[
        ("container", Becomes::Attribute("containerName", Form::Id)),
        ("tmppath", Becomes::Nothing("blob-csi-driver gives each volume a cache of its own")),
        ("driverpath", Becomes::Nothing("blob-csi-driver has its own blobfuse")),
        ("mountoptions", Becomes::Flags(&BLOBFUSE_WORDS)),
    ],
    attributes: &[("protocol", "fuse")],
    needs: &["containerName"],
    secret: Login::Renamed(&[
        ("accountname", "azurestorageaccountname"),
        ("accountkey", "azurestorageaccountkey"),
        ("accountsastoken", "azurestorageaccountsastoken"),
    ]),
    differs: &[
        "a blobendpoint in the Secret has no effect: write its host's part behind the account as attribute \
         storageEndpointSuffix",
    ],
    ..PLAIN
};

const BLOBFUSE_WORDS: Words = Words {
    allowed: &[&[
        Rule("allow_other", Value::None),
        Rule("attr_timeout", Value::Number),
        Rule("entry_timeout", Value::Number),
        Rule("negative_timeout", Value::Number),
        Rule("umask", Value::Number),
        Rule("uid", Value::Number),
        Rule("gid", Value::Number),
        Rule("file-cache-timeout-in-seconds", Value::Number),
        Rule("cache-size-mb", Value::Number),
        Rule("use-attr-cache", Value::OneOf(&["true", "false"])),
        Rule("use-https", Value::OneOf(&["true", "false"])),
        Rule("use-adls", Value::OneOf(&["true", "false"])),
        Rule("log-level", Value::OneOf(LEVELS)),
    ]],
    ignored: &[("tmp-path", "blob-csi-driver gives each volume a cache of its own")],
};

const LEVELS: &[&str] = &["LOG_OFF", "LOG_CRIT", "LOG_ERR", "LOG_WARNING", "LOG_INFO", "LOG_DEBUG"];

/// `oracle/oci`. The name of a volume is the end of Oracle's identifier. The provisioner wrote the
/// whole identifier into an annotation.
pub(super) const OCI: Target = Target {
    from: &["oracle/oci"],
    to: "blockvolume.csi.oraclecloud.com",
    handle: Handle::Annotation("ociVolumeID", Form::Id),
    fs_type: FsType::Kept,
    ..PLAIN
};

/// `alicloud/disk`.
pub(super) const ALICLOUD_DISK: Target = Target {
    from: &["alicloud/disk"],
    to: "diskplugin.csi.alibabacloud.com",
    any_case: true,
    options: &[("volumeId", Becomes::Part(Form::Id))],
    handle: Handle::Part("volumeId"),
    fs_type: FsType::Kept,
    ..PLAIN
};

/// `alicloud/nas`. The driver looks the volume up by its handle, which is its name.
pub(super) const ALICLOUD_NAS: Target = Target {
    from: &["alicloud/nas"],
    to: "nasplugin.csi.alibabacloud.com",
    any_case: true,
    options: &[
        ("server", Becomes::Attribute("server", Form::Host)),
        ("path", Becomes::PartOr(Form::Path, "/")),
        ("vers", Becomes::Attribute("vers", Form::OneOf(&["3", "3.0", "4.0", "4.1"]))),
        ("mode", Becomes::Nothing("what is there keeps its mode")),
        ("options", Becomes::MountOptions(&nfs::WORDS)),
    ],
    attributes: &[("path", "{path}")],
    needs: &["server"],
    handle: Handle::Name,
    ..PLAIN
};

/// `alicloud/oss`, with the same Secret.
pub(super) const ALICLOUD_OSS: Target = Target {
    from: &["alicloud/oss"],
    to: "ossplugin.csi.alibabacloud.com",
    any_case: true,
    options: &[
        ("bucket", Becomes::Attribute("bucket", Form::Id)),
        ("url", Becomes::Attribute("url", Form::Endpoint)),
        ("otherOpts", Becomes::FlagsAttribute("otherOpts", &OSSFS_WORDS)),
        // Values other than empty ones are refused before, as credentials.
        ("akId", Becomes::Nothing("it is empty")),
        ("akSecret", Becomes::Nothing("it is empty")),
    ],
    needs: &["bucket", "url"],
    secret: Login::Published,
    handle: Handle::Name,
    ..PLAIN
};

const OSSFS_WORDS: Words = Words {
    allowed: &[&[
        Rule("allow_other", Value::None),
        Rule("max_stat_cache_size", Value::Number),
        Rule("umask", Value::Number),
        Rule("mp_umask", Value::Number),
        Rule("uid", Value::Number),
        Rule("gid", Value::Number),
        Rule("connect_timeout", Value::Number),
        Rule("readwrite_timeout", Value::Number),
        Rule("retries", Value::Number),
        Rule("parallel_count", Value::Number),
        Rule("multipart_size", Value::Number),
        Rule("multireq_max", Value::Number),
        Rule("noxattr", Value::None),
    ]],
    ignored: &[],
};

const MADE: Becomes = Becomes::Nothing("it said how to make the resource, which is there");

const DISK_WORDS: Words = Words {
    allowed: &[&[
        Rule("defaults", Value::None),
        Rule("sync", Value::None),
        Rule("noatime", Value::None),
        Rule("nodiratime", Value::None),
        Rule("relatime", Value::None),
        Rule("discard", Value::None),
        Rule("ro", Value::None),
    ]],
    ignored: &[],
};

/// `linbit/linstor-flexvolume`. The handle is LINSTOR's name of the resource.
pub(super) const LINSTOR: Target = Target {
    from: &["linbit/linstor-flexvolume"],
    to: "linstor.csi.linbit.com",
    any_case: true,
    options: &[
        ("resource", Becomes::Option(Form::Id)),
        ("mountOpts", Becomes::MountOptions(&DISK_WORDS)),
        ("controllers", Becomes::Nothing("linstor-csi knows its controller")),
        ("storagePool", MADE),
        ("disklessStoragePool", MADE),
        ("autoPlace", MADE),
        ("nodeList", MADE),
        ("doNotPlaceWithRegex", MADE),
        ("encryptVolumes", MADE),
        ("blockSize", MADE),
        ("force", MADE),
        ("fsOpts", MADE),
        ("xfsDiscardBlocks", MADE),
        ("xfsDataSu", MADE),
        ("xfsDataSw", MADE),
        ("xfsLogDev", MADE),
    ],
    handle: Handle::PartOrName("resource"),
    fs_type: FsType::Kept,
    ..PLAIN
};
