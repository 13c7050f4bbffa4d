//! Clusters of Ceph.

use core::net::IpAddr;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// How a cluster is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cluster {
    /// Asked in this order: the first that answers knows the others.
    pub monitors: Vec<Monitor>,
    /// Asked for the monitors' names instead of the node's resolver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nameserver: Option<IpAddr>,
    /// How long each monitor has to accept a connection, in seconds; 0 only looks up the name.
    pub patience: u32,
}

/// Who knows the state of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Monitor {
    /// Name or address, one of IPv6 in brackets.
    pub host: String,
    /// Its TCP port.
    pub port: u16,
}

/// A block device image of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RbdImage {
    /// Whose.
    pub cluster: Cluster,
    /// Which version of the protocol the kernel speaks; `None` is the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// Who logs in.
    pub user: String,
    /// The file of the node with that user's key, below a root the policy allows; `None` where a
    /// Secret has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keyring: Option<PathBuf>,
    /// The pool.
    pub pool: String,
    /// The namespace in the pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The image.
    pub image: String,
    /// A snapshot of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<String>,
    /// Whether it is claimed for this node when it is mapped for writing.
    pub exclusive: bool,
    /// Whose client maps it.
    #[serde(default, skip_serializing_if = "RbdMounter::is_usual")]
    pub mounter: RbdMounter,
    /// After how many seconds what is read or written fails if the cluster does not answer; 0 is
    /// never.
    pub patience: u32,
}

/// Who maps an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RbdMounter {
    /// The kernel.
    #[default]
    Kernel,
    /// Ceph's own daemon, which knows every feature of images.
    RbdNbd,
}

impl RbdMounter {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
    fn is_usual(&self) -> bool {
        *self == Self::default()
    }
}

impl Cluster {
    /// The names or addresses of the monitors.
    pub fn hosts(&self) -> Vec<String> {
        self.monitors.iter().map(|monitor| monitor.host.clone()).collect()
    }
}

impl RbdImage {
    /// As Ceph's own programs write it.
    pub fn spec(&self) -> String {
        let space = self.namespace.as_ref().map(|space| format!("{space}/")).unwrap_or_default();
        let snapshot = self.snapshot.as_ref().map(|snapshot| format!("@{snapshot}")).unwrap_or_default();
        format!("{}/{space}{}{snapshot}", self.pool, self.image)
    }

    /// The same with the cluster, whose monitors may be named in any order.
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
