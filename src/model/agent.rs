//! The node's agent: its settings in a side file, and the requests to it.

use crate::json_object::mistake;
use crate::paths::AGENT_SOCKET;
use flexvol_protocol::failure::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Fence of a mounted volume's storage: the pods that cannot use it at the same time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fence {
    /// No fence.
    #[default]
    Off,
    /// Every other pod is kept out.
    Pod,
    /// The pods of every other node are kept out.
    Node,
}

impl Fence {
    fn parse(word: &str) -> Option<Self> {
        match word {
            "off" => Some(Self::Off),
            "pod" => Some(Self::Pod),
            "node" => Some(Self::Node),
            _ => None,
        }
    }
}

/// Settings of the agent in a side file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentSettings<'a> {
    /// Fence of a mounted volume's storage.
    pub fence: &'a str,
    /// Socket of the agent.
    pub socket: &'a str,
    /// True if the agent carries out the driver's calls, with the programs of its own image.
    pub runs: bool,
}

/// Parses the words under `agent`. `None` if there are none: the driver then uses no agent.
pub fn settings(words: &BTreeMap<String, String>) -> Result<Option<AgentSettings<'_>>> {
    let (mut fence, mut socket, mut run) = ("off", AGENT_SOCKET, "host");
    for (key, value) in words {
        match key.as_str() {
            "fence" if Fence::parse(value).is_some() => fence = value,
            "socket" if value.starts_with('/') => socket = value,
            "run" if value == "agent" || value == "host" => run = value,
            _ => {
                return Err(mistake(
                    "\"agent\" has \"fence\" (pod, node or off), \"run\" (agent or host) and \"socket\" (a path)",
                ));
            }
        }
    }
    let settings = AgentSettings { fence, socket, runs: run == "agent" };
    Ok(Some(settings).filter(|_| !words.is_empty()))
}

/// Only argument of a driver that the agent executes. The call itself, with its secrets, comes on
/// standard input, where no other process can read it. The driver carries it out itself instead of
/// passing it to the agent again.
///
/// Standard input has the time limit in milliseconds, then the verb and its arguments, separated by
/// zero bytes.
pub const FROM_INPUT: &str = "-";

/// Request to hold storage for a mount, in the form that is sent. It contains no secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// Name of the storage. All its volumes share it, on every node.
    pub handle: String,
    /// Fence that the mount asks for.
    pub fence: Fence,
    /// Directory of the mount.
    pub target: String,
    /// Access of the mount. Read-only mounts share the storage with each other.
    pub access: HoldAccess,
    /// Namespace of the pod, for people.
    pub pod_namespace: String,
    /// Name of the pod, for people.
    pub pod_name: String,
    /// Uid of the pod, which is unique.
    pub pod_uid: String,
}

/// Access of a mount to the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HoldAccess {
    /// Read only.
    #[serde(rename = "ro")]
    ReadOnly,
    /// Read and write.
    #[serde(rename = "rw")]
    ReadWrite,
}

/// Version of the protocol, for requests and answers.
pub const PROTOCOL: u32 = 1;

/// Limit for a request or an answer without its length prefix, in bytes. The kernel limits each
/// argument of a call to half of it.
pub const LONGEST_FRAME: usize = 256 * 1024;
