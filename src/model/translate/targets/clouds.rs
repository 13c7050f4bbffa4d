//! Drivers of single clouds and products.

use super::nfs::{VERSIONS, WORDS as NFS_WORDS};
use crate::translate::{Becomes, Class, Form, Handle, PLAIN, Secret, Split, Target, Words};
use flexvol_protocol::mount_options::{Rule, Value};

/// A handle by which the driver can delete the storage.
const OWN: &str = "The handle names the storage itself: keep the reclaim policy Retain.";

/// `alicloud/nas`.
pub(super) const ALICLOUD_NAS: Target = Target {
    from: &["alicloud/nas"],
    to: "nasplugin.csi.alibabacloud.com",
    any_case: true,
    options: &[
        ("server", Becomes::Attribute("server", Form::Host)),
        ("path", Becomes::PartOr(Form::Path, "/")),
        ("vers", Becomes::MountOption("vers", Form::OneOf(VERSIONS))),
        ("options", Becomes::MountOptions(&NFS_WORDS)),
        ("mode", Becomes::Nothing("what is there keeps its mode")),
    ],
    attributes: &[("path", "{path}")],
    needs: &["server"],
    ..PLAIN
};

/// `alicloud/oss`.
pub(super) const ALICLOUD_OSS: Target = Target {
    from: &["alicloud/oss"],
    to: "ossplugin.csi.alibabacloud.com",
    any_case: true,
    options: &[
        ("bucket", Becomes::Attribute("bucket", Form::Name)),
        ("url", Becomes::Attribute("url", Form::Url)),
        ("otherOpts", Becomes::MountOptions(&OSSFS)),
        // Only empty ones come as far as here.
        ("akId", Becomes::Nothing("it is empty")),
        ("akSecret", Becomes::Nothing("it is empty")),
    ],
    needs: &["bucket", "url"],
    secret: Secret::Publish(&[("akId", "akId"), ("akSecret", "akSecret")]),
    differs: &["No credentials of the node are used: a volume without a Secret needs one."],
    ..PLAIN
};

const OSSFS: Words = Words {
    split: Split::CommandLine,
    allowed: &[&[
        Rule("max_stat_cache_size", Value::Number),
        Rule("stat_cache_expire", Value::Number),
        Rule("multipart_size", Value::Number),
        Rule("parallel_count", Value::Number),
        Rule("multireq_max", Value::Number),
        Rule("connect_timeout", Value::Number),
        Rule("readwrite_timeout", Value::Number),
        Rule("retries", Value::Number),
        Rule("umask", Value::Number),
        Rule("mp_umask", Value::Number),
        Rule("uid", Value::Number),
        Rule("gid", Value::Number),
        Rule("allow_other", Value::None),
        Rule("noxattr", Value::None),
        Rule("kernel_cache", Value::None),
    ]],
    ignored: &[
        ("dbglevel", "logs are the driver's"),
        ("curldbg", "it would log what requests are signed with"),
    ],
};

/// `alicloud/disk`.
pub(super) const ALICLOUD_DISK: Target = Target {
    from: &["alicloud/disk"],
    to: "diskplugin.csi.alibabacloud.com",
    any_case: true,
    options: &[("volumeId", Becomes::Part(Form::Name))],
    fs_type: true,
    handle: Handle::Own("{volumeId}", "d-"),
    differs: &[OWN, "Nothing says in which zone the disk is: write nodeAffinity for clusters of several."],
    ..PLAIN
};

/// `alicloud/cpfs`.
pub(super) const ALICLOUD_CPFS: Target = Target {
    from: &["alicloud/cpfs"],
    to: "cpfsplugin.csi.alibabacloud.com",
    any_case: true,
    options: &[
        ("server", Becomes::Attribute("server", Form::Host)),
        ("fileSystem", Becomes::Attribute("fileSystem", Form::Name)),
        ("subPath", Becomes::Attribute("subPath", Form::Path)),
    ],
    needs: &["server", "fileSystem"],
    ..PLAIN
};

/// `azure/blobfuse`.
pub(super) const BLOBFUSE: Target = Target {
    from: &["azure/blobfuse"],
    to: "blob.csi.azure.com",
    options: &[
        ("container", Becomes::Attribute("containerName", Form::Name)),
        ("mountoptions", Becomes::MountOptions(&BLOBFUSE_WORDS)),
        ("tmppath", Becomes::Nothing("each volume has a cache of its own: two in one destroyed files")),
        ("driverpath", Becomes::Nothing("the driver brings its own blobfuse")),
    ],
    attributes: &[("protocol", "fuse2")],
    needs: &["containerName"],
    secret: Secret::Stage(&[
        ("accountname", "azurestorageaccountname"),
        ("accountkey", "azurestorageaccountkey"),
        ("accountsastoken", "azurestorageaccountsastoken"),
    ]),
    differs: &[
        "blobfuse2 serves the volume: words of mountoptions that it lacks are refused here.",
        "The key blobendpoint of the Secret is not copied: write the attribute server for another cloud than the \
         public one.",
    ],
    ..PLAIN
};

const BLOBFUSE_WORDS: Words = Words {
    split: Split::CommandLine,
    allowed: &[&[
        Rule("uid", Value::Number),
        Rule("gid", Value::Number),
        Rule("umask", Value::Number),
        Rule("allow_other", Value::None),
        Rule("default_permissions", Value::None),
        Rule("attr_timeout", Value::Number),
        Rule("entry_timeout", Value::Number),
        Rule("negative_timeout", Value::Number),
        Rule("--file-cache-timeout-in-seconds", Value::Number),
        Rule("--cache-size-mb", Value::Number),
        Rule("--use-attr-cache", Value::OneOf(&["true", "false"])),
        Rule("--use-https", Value::OneOf(&["true"])),
        Rule("--use-adls", Value::OneOf(&["true", "false"])),
    ]],
    ignored: &[
        ("--log-level", "logs are the driver's"),
        ("--tmp-path", "each volume has a cache of its own"),
    ],
};

/// `oracle/oci`: the PersistentVolume's name is the end of the volume's OCID, which has a region.
pub(super) const OCI: Target = Target {
    from: &["oracle/oci"],
    to: "blockvolume.csi.oraclecloud.com",
    options: &[],
    fs_type: true,
    handle: Handle::Own("{name}", "ocid1.volume."),
    class: Some(Class { provisioners: &["oracle.com/oci"], parameters: &[], set: &[] }),
    differs: &[OWN, "A PersistentVolume whose name is only the end of the OCID must first bear all of it."],
    ..PLAIN
};

/// `linbit/linstor-flexvolume`.
pub(super) const LINSTOR: Target = Target {
    from: &["linbit/linstor-flexvolume"],
    to: "linstor.csi.linbit.com",
    any_case: true,
    options: &[
        ("resource", Becomes::Part(Form::Name)),
        ("mountOpts", Becomes::MountOptions(&FILE_SYSTEM)),
        ("controllers", CONFIGURED),
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
    fs_type: true,
    handle: Handle::Own("{resource}", ""),
    differs: &[OWN],
    ..PLAIN
};

const MADE: Becomes = Becomes::Nothing("the resource is there, and was made with it");
const CONFIGURED: Becomes = Becomes::Nothing("the CSI driver is configured with its controllers");

const FILE_SYSTEM: Words = Words { split: Split::Comma, allowed: &[&[]], ignored: &[] };
