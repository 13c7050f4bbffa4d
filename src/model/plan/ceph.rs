//! Clusters of Ceph.

use core::net::IpAddr;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// Addresses of a Ceph cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// Monitors in the order in which they are asked: the first that answers knows the others.
    pub monitors: Vec<Monitor>,
    /// Nameserver for the monitors' names; `None` means the node's resolver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nameserver: Option<IpAddr>,
    /// Time for each monitor to accept a connection, in seconds; 0 only looks up the name.
    pub patience: u32,
}

/// Monitor, which knows the state of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Monitor {
    /// Name or address; an IPv6 address has brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
}

/// Block device image of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RbdImage {
    /// Cluster that holds the image.
    pub cluster: Cluster,
    /// Protocol version that the kernel speaks; `None` is the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// User that logs in.
    pub user: String,
    /// File of the node with that user's key, below a root the policy allows; `None` if a Secret
    /// has the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keyring: Option<PathBuf>,
    /// The pool.
    pub pool: String,
    /// The namespace in the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// Snapshot of the image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// True if this node claims the image when it is mapped for writing.
    pub exclusive: bool,
    /// Client that maps the image.
    #[serde(default, skip_serializing_if = "RbdMounter::is_usual")]
    pub mounter: RbdMounter,
    /// Time until reads and writes fail if the cluster does not answer, in seconds; 0 means never.
    pub patience: u32,
}

/// Client that maps an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RbdMounter {
    /// The kernel.
    #[default]
    Kernel,
    /// Ceph's own daemon, which supports every feature of images.
    RbdNbd,
}

impl RbdMounter {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl Cluster {
    /// Returns the names or addresses of the monitors.
    pub fn hosts(&self) -> Vec<String> {
        self.monitors.iter().map(|monitor| monitor.host.clone()).collect()
    }
}

impl RbdImage {
    /// Returns the name of the image in the notation of Ceph's own programs.
    pub fn spec(&self) -> String {
        let space = self.namespace.as_ref().map(|space| format!("{space}/")).unwrap_or_default();
        let snapshot = self.snapshot.as_ref().map(|snapshot| format!("@{snapshot}")).unwrap_or_default();
        format!("{}/{space}{}{snapshot}", self.pool, self.image)
    }

    /// Returns the name of the image with its cluster; the order of the monitors does not matter.
    pub fn name(&self) -> String {
        let mut monitors = self.cluster.monitors.clone();
        monitors.sort();
        let monitors: Vec<_> = monitors.iter().map(ToString::to_string).collect();
        format!("rbd:{}/{}", monitors.join(","), self.spec())
    }
}

impl fmt::Display for Monitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}
