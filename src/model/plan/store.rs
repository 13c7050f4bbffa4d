//! Block devices that are attached to the node, and the layers between them and the file system.

mod lvm;

pub use lvm::LogicalVolume;

use super::RbdImage;
use core::net::IpAddr;
use flexvol_protocol::TargetPath;
use flexvol_protocol::secret::Secret;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Origin of a block device. It has all that names the device and nothing secret, because the node
/// records an attached device until it is detached.
///
/// Two stores are equal if they are the same device with the same method of attaching it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Store {
    /// Disk image in a file of the node, served by qemu-storage-daemon.
    Qcow2(DiskImage),
    /// Block device image of a Ceph cluster.
    Rbd(Box<RbdImage>),
    /// Logical volume of LVM.
    Lvm(LogicalVolume),
    /// Network block device of the kernel.
    Nbd(Nbd),
    /// Logical unit of an iSCSI target.
    Iscsi(Iscsi),
}

/// Disk image in a file of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskImage {
    /// File below a root that the policy allows.
    pub file: PathBuf,
    /// Size in bytes of the image to make if it is missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// Format of a disk image's file. It is never guessed: a tenant writes what a guess would look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ImageFormat {
    /// QEMU's own format.
    Qcow2,
    /// The disk's content, byte by byte.
    Raw,
}

impl ImageFormat {
    /// Returns QEMU's word for the format.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
        }
    }
}

/// Network block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nbd {
    /// Server of the device.
    pub from: NbdServer,
    /// Time until a request fails, in seconds.
    pub timeout: u32,
}

/// Server of a network block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum NbdServer {
    /// qemu-storage-daemon on the node, with an image in a file.
    Image {
        /// File with the image.
        image: DiskImage,
        /// Format of the image.
        format: ImageFormat,
    },
    /// Server in the network.
    Remote {
        /// Name or address; an IPv6 address has brackets.
        server: String,
        /// TCP port.
        port: u16,
        /// Name of the export on the server.
        export: String,
        /// Nameserver for the server's name; `None` means the node's resolver.
        #[serde(skip_serializing_if = "Option::is_none")]
        nameserver: Option<IpAddr>,
        /// Time for the server to accept a connection, in seconds.
        patience: u32,
    },
}

impl NbdServer {
    fn name(&self) -> String {
        match self {
            Self::Image { image, .. } => format!("nbd:{}", image.file.display()),
            Self::Remote { server, port, export, .. } => format!("nbd://{server}:{port}/{export}"),
        }
    }
}

/// Logical unit of an iSCSI target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Iscsi {
    /// Name of the target.
    pub target: String,
    /// Number of the unit.
    pub lun: u16,
    /// Portals of the target, one or several.
    pub portals: Vec<Portal>,
    /// True if the first portal is asked for further portals.
    pub discovery: bool,
    /// Initiator name, instead of the node's own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiator: Option<String>,
    /// Interface of the node's database whose settings are used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Time for a portal to accept a connection, in seconds.
    pub patience: u32,
    /// Time without the target until reads and writes fail, in seconds.
    pub timeout: u32,
}

/// Address at which an iSCSI target listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Portal {
    /// Name or address; an IPv6 address has brackets.
    pub server: String,
    /// TCP port.
    pub port: u16,
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.port)
    }
}

impl Store {
    /// Returns the name for people and for the controller-manager, which sees no device. Two
    /// methods of attaching the same device have the same name: the node uses it to keep calls on
    /// the device apart.
    pub fn name(&self) -> String {
        match self {
            Self::Qcow2(image) => format!("qcow2:{}", image.file.display()),
            Self::Rbd(image) => image.name(),
            Self::Lvm(volume) => format!("lvm:{}", volume.name()),
            Self::Nbd(nbd) => nbd.from.name(),
            Self::Iscsi(unit) => format!("iscsi:{}:{}", unit.target, unit.lun),
        }
    }

    /// Returns the servers that it talks to, for the policy.
    pub fn servers(&self) -> Vec<String> {
        match self {
            Self::Rbd(image) => image.cluster.hosts(),
            Self::Nbd(Nbd { from: NbdServer::Remote { server, .. }, .. }) => vec![server.clone()],
            Self::Iscsi(unit) => unit.portals.iter().map(|portal| portal.server.clone()).collect(),
            Self::Qcow2(_) | Self::Lvm(_) | Self::Nbd(_) => Vec::new(),
        }
    }
}

impl Store {
    /// Returns the nameserver for its servers' names, if it is not the node's resolver.
    pub fn nameserver(&self) -> Option<IpAddr> {
        match self {
            Self::Rbd(image) => image.cluster.nameserver,
            Self::Nbd(Nbd { from: NbdServer::Remote { nameserver, .. }, .. }) => *nameserver,
            Self::Qcow2(_) | Self::Lvm(_) | Self::Nbd(_) | Self::Iscsi(_) => None,
        }
    }
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

/// One action of the executor on a [`Store`].
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum StoreStep {
    /// Attach the device to the node, unless it is attached already, for a mount at the target. The
    /// device stays attached as long as one of its targets is mounted.
    Attach {
        /// Target of the later mount.
        target: TargetPath,
        /// Device to attach.
        attachment: Attachment,
    },
    /// Use the device that was attached for the target's mount.
    Find {
        /// Target of the mount.
        target: TargetPath,
        /// The device.
        store: Store,
    },
    /// Open the encryption of the attached device; later steps use the opened device.
    Decrypt(Encryption),
    /// Grow the store of the attached device to at least this size, if it can grow.
    Grow {
        /// Size in bytes.
        size: u64,
    },
    /// Detach the device that was attached for the target, unless other targets need it.
    Detach {
        /// Target of the former mount.
        target: TargetPath,
    },
    /// Unmount the global mount that was made while the driver still attached, and detach its
    /// device, unless a pod uses it: kubelet no longer asks for this.
    Unstage {
        /// Global directory, in which kubelet has the device mounted.
        staged: TargetPath,
    },
}

impl StoreStep {
    /// Returns how the step is rolled back; see [`Step::undo`](super::Step::undo).
    pub fn undo(&self) -> Option<&'static str> {
        match self {
            Self::Attach { .. } => Some("detach the device unless other mounts need it"),
            // The decrypted layer is removed together with the device below it.
            Self::Decrypt(_)
            | Self::Find { .. }
            | Self::Grow { .. }
            | Self::Detach { .. }
            | Self::Unstage { .. } => None,
        }
    }
}

/// Parameters for attaching a store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// Store to attach.
    pub store: Store,
    /// Secrets that it needs, by the names that its kind gives them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub credentials: BTreeMap<&'static str, Secret>,
    /// True if the device is never written to.
    pub read_only: bool,
}

/// Encryption between a device and its file system: LUKS, by dm-crypt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Encryption {
    /// Passphrase of any bytes.
    pub passphrase: Secret,
    /// True if a device that is proven blank gets encrypted first.
    pub format: bool,
}
