//! Block devices that come to the node from elsewhere, and what lies between them and the file
//! system.

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

/// Where a block device comes from: all that names it and nothing that is secret, because what is
/// attached is remembered on the node until it is detached.
///
/// Two are equal if they are the same device with the same manner of attaching it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Store {
    /// A disk image in a file of the node, served by qemu-storage-daemon.
    Qcow2(DiskImage),
    /// A block device image of a Ceph cluster.
    Rbd(Box<RbdImage>),
    /// A logical volume of LVM.
    Lvm(LogicalVolume),
    /// A network block device of the kernel's.
    Nbd(Nbd),
    /// A logical unit of an iSCSI target.
    Iscsi(Iscsi),
}

/// A disk image in a file of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiskImage {
    /// Below a root the policy allows.
    pub file: PathBuf,
    /// Make it with so many bytes if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// What is in the file of a disk image. Never guessed: a tenant writes what would be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ImageFormat {
    /// QEMU's own.
    Qcow2,
    /// The disk's content, byte by byte.
    Raw,
}

impl ImageFormat {
    /// QEMU's word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Raw => "raw",
        }
    }
}

/// A network block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Nbd {
    /// Who serves it.
    pub from: NbdServer,
    /// How many seconds a request may take before it is an error.
    pub timeout: u32,
}

/// Who serves a network block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum NbdServer {
    /// A qemu-storage-daemon of the node, from an image in a file.
    Image {
        /// The file.
        image: DiskImage,
        /// What is in it.
        format: ImageFormat,
    },
    /// A server in the network.
    Remote {
        /// Name or address, one of IPv6 in brackets.
        server: String,
        /// Its TCP port.
        port: u16,
        /// What it serves under this name.
        export: String,
        /// Asked for the name instead of the node's resolver.
        #[serde(skip_serializing_if = "Option::is_none")]
        nameserver: Option<IpAddr>,
        /// How many seconds the server has to accept a connection.
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

/// A logical unit of an iSCSI target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Iscsi {
    /// The target's name.
    pub target: String,
    /// The unit's number.
    pub lun: u16,
    /// Where the target is, in one place or several.
    pub portals: Vec<Portal>,
    /// Whether the first of them is asked for more.
    pub discovery: bool,
    /// What the node calls itself instead of its own name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initiator: Option<String>,
    /// The interface of the node's database whose settings are used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// How many seconds a portal has to accept a connection.
    pub patience: u32,
    /// How many seconds without the target are an error for who reads and writes.
    pub timeout: u32,
}

/// Where an iSCSI target listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Portal {
    /// Name or address, one of IPv6 in brackets.
    pub server: String,
    /// Its TCP port.
    pub port: u16,
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.server, self.port)
    }
}

impl Store {
    /// Its name for people and for the controller-manager, which sees no device. Equal for two ways
    /// to attach the same device: by it the node keeps calls on it apart.
    pub fn name(&self) -> String {
        match self {
            Self::Qcow2(image) => format!("qcow2:{}", image.file.display()),
            Self::Rbd(image) => image.name(),
            Self::Lvm(volume) => format!("lvm:{}", volume.name()),
            Self::Nbd(nbd) => nbd.from.name(),
            Self::Iscsi(unit) => format!("iscsi:{}:{}", unit.target, unit.lun),
        }
    }

    /// Whom it talks to, for the policy.
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
    /// Who is asked for the addresses of its servers, if not the node's resolver.
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

/// One thing the executor does about a [`Store`].
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum StoreStep {
    /// Attach the device to the node, unless it is there, for a mount at the target. It stays as
    /// long as one of the targets it was attached for is mounted.
    Attach {
        /// Where it will be mounted.
        target: TargetPath,
        /// The device.
        attachment: Attachment,
    },
    /// Use the device that was attached for the target's mount.
    Find {
        /// Where it is mounted.
        target: TargetPath,
        /// The device.
        store: Store,
    },
    /// Put encryption between the attached device and what follows.
    Decrypt(Encryption),
    /// Make the store of the attached device at least this large, where it can be.
    Grow {
        /// In bytes.
        size: u64,
    },
    /// Detach the device that was attached for the target, unless other targets need it.
    Detach {
        /// Where it was mounted.
        target: TargetPath,
    },
    /// Unmount what was mounted once for the node while the driver still attached, and detach its
    /// device, unless a pod uses it: kubelet asks for that no more.
    Unstage {
        /// Where kubelet has the device mounted.
        staged: TargetPath,
    },
}

impl StoreStep {
    /// See [`Step::undo`](super::Step::undo).
    pub fn undo(&self) -> Option<&'static str> {
        match self {
            Self::Attach { .. } => Some("detach the device unless other mounts need it"),
            // The layer goes with the device below it.
            Self::Decrypt(_)
            | Self::Find { .. }
            | Self::Grow { .. }
            | Self::Detach { .. }
            | Self::Unstage { .. } => None,
        }
    }
}

/// How a store is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Attachment {
    /// What.
    pub store: Store,
    /// What it wants to know that is secret, by the names that its kind gives them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub credentials: BTreeMap<&'static str, Secret>,
    /// Whether the device is never written to.
    pub read_only: bool,
}

/// Encryption between a device and its file system: LUKS, by dm-crypt.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Encryption {
    /// Any bytes.
    pub passphrase: Secret,
    /// Whether a device that is proven blank is made one.
    pub format: bool,
}
