//! How a mount is known again.

use super::{Named, Store};
use flexvol_protocol::Access;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// How a mount is recognised in the mount table.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// The file system type as the kernel prints it; `None` accepts any.
    pub file_system: Option<FileSystems>,
    /// Where its content comes from.
    pub source: Source,
    /// Whether it can be written through.
    pub access: Access,
}

/// Where a mount's content comes from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Source {
    /// A name only the file system understands, as the mount table prints it (`tmpfs`).
    Name(String),
    /// A share of any of these servers, as the mount table prints it.
    Share {
        /// The name is that of a server.
        source: Named,
        /// Their names.
        servers: Vec<String>,
    },
    /// This file or directory of the node.
    Node(PathBuf),
    /// The file system inside this file.
    Image(PathBuf),
    /// The file system on this device.
    Store(Store),
    /// A clone of this repository that was made for the target.
    Clone {
        /// Its address.
        repository: String,
        /// The directory of it that is shown, if not the whole.
        #[serde(skip_serializing_if = "Option::is_none")]
        directory: Option<PathBuf>,
    },
    /// A CSI driver's volume.
    Csi {
        /// The CSI driver's name.
        driver: String,
        /// What it knows the volume by.
        handle: String,
    },
    /// What the driver's own command mounts for a volume of this name, as the record of the mount
    /// has it.
    Identity(String),
    /// Whatever the driver's own command mounts.
    Any,
}

impl Source {
    /// What two volumes of one name are told apart by, once they are mounted: for the record.
    pub fn identity(&self) -> Option<String> {
        matches!(self, Self::Store(_) | Self::Identity(_) | Self::Csi { .. }).then(|| self.to_string())
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) | Self::Identity(name) => f.write_str(name),
            Self::Share { source, servers } => f.write_str(&source.with(&servers.join("|"))),
            Self::Node(path) | Self::Image(path) => write!(f, "{}", path.display()),
            Self::Store(store) => write!(f, "{store}"),
            Self::Csi { driver, handle } => write!(f, "csi:{driver}:{handle}"),
            Self::Clone { repository, .. } => f.write_str(repository),
            Self::Any => f.write_str("the driver's command"),
        }
    }
}

/// The types that a volume may have in the mount table: the kernel's own client's, or that of the
/// program in its place.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(untagged)]
pub enum FileSystems {
    /// This one.
    One(String),
    /// Either of them.
    Either([&'static str; 2]),
}

impl FileSystems {
    /// Whether a mount may have it.
    pub fn include(&self, name: &str) -> bool {
        match self {
            Self::One(one) => one == name,
            Self::Either(two) => two.contains(&name),
        }
    }
}

impl From<&str> for FileSystems {
    fn from(name: &str) -> Self {
        Self::One(name.to_owned())
    }
}

impl fmt::Display for FileSystems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(one) => f.write_str(one),
            Self::Either([one, other]) => write!(f, "{one} or {other}"),
        }
    }
}
