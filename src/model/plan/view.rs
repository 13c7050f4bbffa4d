//! Descriptions by which mounts are recognised.

use super::{Named, Store};
use flexvol_protocol::Access;
use serde::Serialize;
use std::fmt;
use std::path::PathBuf;

/// Properties by which a mount is recognised in the mount table.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// File system type as the kernel prints it; `None` accepts any.
    pub file_system: Option<FileSystems>,
    /// Source of its content.
    pub source: Source,
    /// Access through the mount: read-only or read-write.
    pub access: Access,
}

/// Source of a mount's content.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Source {
    /// Name that only the file system understands, as the mount table prints it (`tmpfs`).
    Name(String),
    /// Share of any of these servers, as the mount table prints it.
    Share {
        /// Source as printed, except for the name of the server in it.
        source: Named,
        /// Names of the servers.
        servers: Vec<String>,
    },
    /// File or directory of the node.
    Node(PathBuf),
    /// File system inside this file.
    Image(PathBuf),
    /// File system on this device.
    Store(Store),
    /// Clone of this repository that was made for the target.
    Clone {
        /// Address of the repository.
        repository: String,
        /// Directory of the clone that is shown; `None` if the whole clone is shown.
        #[serde(skip_serializing_if = "Option::is_none")]
        directory: Option<PathBuf>,
    },
    /// Volume of a CSI driver.
    Csi {
        /// Name of the CSI driver.
        driver: String,
        /// Handle by which the driver knows the volume.
        handle: String,
    },
    /// Mount of the driver's own command for a volume of this name, according to the mount's
    /// record.
    Identity(String),
    /// Any mount of the driver's own command.
    Any,
}

impl Source {
    /// Returns the identity for the record, which distinguishes mounted volumes of the same name.
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

/// Types that a volume may have in the mount table: that of the kernel's own client, or that of the
/// program in its place.
#[derive(Clone, Debug, Serialize, PartialEq, Eq)]
#[serde(untagged)]
pub enum FileSystems {
    /// Exactly this type.
    One(String),
    /// Either of these types.
    Either([&'static str; 2]),
}

impl FileSystems {
    /// Reports whether a mount may have this type.
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
