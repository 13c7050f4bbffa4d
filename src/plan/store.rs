//! Block devices that come to the node from elsewhere, and what lies between them and the file system.

mod lvm;

pub use lvm::LogicalVolume;

use super::RbdImage;
use crate::protocol::TargetPath;
use crate::secret::Secret;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Where a block device comes from: all that names it and nothing that is secret, because what is attached is
/// remembered on the node until it is detached.
///
/// Two are equal if they are the same device with the same manner of attaching it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Store {
    /// A disk image in a file of the node, served by qemu-storage-daemon.
    Qcow2(DiskImage),
    /// A block device image of a Ceph cluster, mapped by the kernel.
    Rbd(Box<RbdImage>),
    /// A logical volume of LVM.
    Lvm(LogicalVolume),
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

impl Store {
    /// Its name for people and for the controller-manager, which sees no device. Equal for two ways to attach the
    /// same device: by it the node keeps calls on it apart.
    pub fn name(&self) -> String {
        match self {
            Self::Qcow2(image) => format!("qcow2:{}", image.file.display()),
            Self::Rbd(image) => image.name(),
            Self::Lvm(volume) => format!("lvm:{}", volume.name()),
        }
    }

    /// Whom it talks to, for the policy.
    pub fn servers(&self) -> Vec<String> {
        match self {
            Self::Rbd(image) => image.cluster.hosts(),
            Self::Qcow2(_) | Self::Lvm(_) => Vec::new(),
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
    /// Bring the device to the node, unless it is there, for a mount at the target. It stays as long as one of the
    /// targets it was brought for is mounted.
    Attach {
        /// Where it will be mounted.
        target: TargetPath,
        /// The device.
        attachment: Attachment,
    },
    /// Take the device that was brought to the node for the target's mount.
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
    /// Take the device away that was brought to the node for the target, unless other targets need it.
    Detach {
        /// Where it was mounted.
        target: TargetPath,
    },
}

impl StoreStep {
    /// See [`Step::undo`](super::Step::undo).
    pub fn undo(&self) -> Option<&'static str> {
        match self {
            Self::Attach { .. } => Some("take the device away unless other mounts need it"),
            // The layer goes with the device below it.
            Self::Decrypt(_) | Self::Find { .. } | Self::Grow { .. } | Self::Detach { .. } => None,
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
