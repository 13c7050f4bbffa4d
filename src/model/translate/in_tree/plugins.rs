//! Plugins, one row each.

use super::topology::{self, Topology};
use super::{Field, Login, Plugin, Source};
use crate::translate::Reason;

/// Every plugin that Kubernetes translates. rbd is absent, because Kubernetes no longer translates
/// it.
pub(in crate::translate) const PLUGINS: &[Plugin] =
    &[EBS, PERSISTENT_DISK, AZURE_DISK, AZURE_FILE, CINDER, VSPHERE, PORTWORX];

const EBS: Plugin = Plugin {
    source: "awsElasticBlockStore",
    to: "ebs.csi.aws.com",
    fields: &[
        ("volumeID", Field::Known),
        ("fsType", Field::FsType),
        ("partition", Field::Number("partition", "0")),
        ("readOnly", Field::ReadOnly),
    ],
    handle: ebs,
    topology: Some(Topology::by_zone("topology.ebs.csi.aws.com/zone")),
    one_writer: false,
    login: Login::Driver,
};

const PERSISTENT_DISK: Plugin = Plugin {
    source: "gcePersistentDisk",
    to: "pd.csi.storage.gke.io",
    fields: &[
        ("pdName", Field::Known),
        ("fsType", Field::FsType),
        ("partition", Field::Number("partition", "")),
        ("readOnly", Field::ReadOnly),
    ],
    handle: persistent_disk,
    topology: Some(Topology::by_zone("topology.gke.io/zone")),
    one_writer: true,
    login: Login::Driver,
};

const AZURE_DISK: Plugin = Plugin {
    source: "azureDisk",
    to: "disk.csi.azure.com",
    fields: &[
        ("diskName", Field::Known),
        ("diskURI", Field::Known),
        ("cachingMode", Field::Attribute("cachingmode")),
        ("fsType", Field::FsTypeAnd("fstype")),
        ("readOnly", Field::ReadOnly),
        ("kind", Field::Must("kind", "Managed")),
    ],
    handle: |source| source.needed("diskURI"),
    topology: None,
    one_writer: false,
    login: Login::Driver,
};

const AZURE_FILE: Plugin = Plugin {
    source: "azureFile",
    to: "file.csi.azure.com",
    fields: &[
        ("secretName", Field::Known),
        ("secretNamespace", Field::Known),
        ("shareName", Field::Attribute("sharename")),
        ("readOnly", Field::ReadOnly),
    ],
    handle: azure_file,
    topology: None,
    one_writer: false,
    login: Login::Named("secretName", "secretNamespace"),
};

const CINDER: Plugin = Plugin {
    source: "cinder",
    to: "cinder.csi.openstack.org",
    fields: &[
        ("volumeID", Field::Known),
        ("fsType", Field::FsType),
        ("readOnly", Field::ReadOnly),
        ("secretRef", Field::Nothing("the CSI driver has its own login")),
    ],
    handle: |source| source.needed("volumeID"),
    topology: Some(Topology::by_zone("topology.cinder.csi.openstack.org/zone")),
    one_writer: false,
    login: Login::Driver,
};

const VSPHERE: Plugin = Plugin {
    source: "vsphereVolume",
    to: "csi.vsphere.vmware.com",
    fields: &[
        ("volumePath", Field::Known),
        ("fsType", Field::FsType),
        ("storagePolicyName", Field::Attribute("storagepolicyname")),
        ("storagePolicyID", Field::Nothing("the policy goes by its name")),
    ],
    handle: |source| source.needed("volumePath"),
    topology: Some(Topology {
        zone: "topology.csi.vmware.com/zone",
        region: "topology.csi.vmware.com/region",
    }),
    one_writer: false,
    login: Login::Driver,
};

const PORTWORX: Plugin = Plugin {
    source: "portworxVolume",
    to: "pxd.portworx.com",
    fields: &[("volumeID", Field::Known), ("fsType", Field::FsType), ("readOnly", Field::ReadOnly)],
    handle: |source| source.needed("volumeID"),
    topology: None,
    one_writer: false,
    login: Login::Annotated("openstorage.io/auth-secret-name", "openstorage.io/auth-secret-namespace"),
};

/// Returns `vol-…` from the id, which may follow `aws://ZONE/`.
fn ebs(source: &Source<'_>) -> Result<String, Reason> {
    let id = source.needed("volumeID")?;
    let bare = id.strip_prefix("aws://").map_or(Some(&*id), |rest| rest.split_once('/').map(|(_, id)| id));
    let bare = bare.map(|id| id.trim_matches('/')).filter(|id| {
        id.strip_prefix("vol-").is_some_and(|digits| {
            !digits.is_empty()
                && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
        })
    });
    bare.map(str::to_owned).ok_or_else(|| source.must("volumeID", "vol-… or aws://ZONE/vol-…"))
}

/// Returns the path of the disk. The driver fills in the project, and the zone if it is unknown
/// here.
fn persistent_disk(source: &Source<'_>) -> Result<String, Reason> {
    let name = source.needed("pdName")?;
    if name.contains('/') {
        return Err(source.must("pdName", "a disk's name"));
    }
    let zones = topology::zones(source.object);
    let place = match &*zones {
        [] => "zones/UNSPECIFIED".to_owned(),
        [zone] => format!("zones/{zone}"),
        several => {
            let region = |zone: &String| zone.rsplit_once('-').map(|(region, _)| region.to_owned());
            let first = region(&several[0])
                .filter(|first| several.iter().all(|zone| region(zone).as_ref() == Some(first)));
            format!("regions/{}", first.ok_or(Reason::Zones)?)
        }
    };
    Ok(format!("projects/UNSPECIFIED/{place}/disks/{name}"))
}

/// Joins group, account, share, the volume's name and the namespace of its Secret.
fn azure_file(source: &Source<'_>) -> Result<String, Reason> {
    let secret = source.needed("secretName")?;
    let account = secret.strip_prefix("azure-storage-account-").and_then(|rest| rest.strip_suffix("-secret"));
    let parts = [
        source.annotation("kubernetes.io/azure-file-resource-group").unwrap_or_default().to_owned(),
        account.filter(|account| !account.is_empty()).unwrap_or(&secret).to_owned(),
        source.needed("shareName")?,
        source.object["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        source.namespace("secretNamespace")?,
    ];
    if parts.iter().any(|part| part.contains('#')) {
        return Err(source.must("shareName", "names without #, which parts them"));
    }
    Ok(parts.join("#"))
}
