//! The node's agent: what a side file says of it, and what is said to it.

use crate::json_object::mistake;
use crate::paths::AGENT_SOCKET;
use flexvol_protocol::failure::Result;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Whom a mounted volume's storage is kept from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fence {
    /// No one.
    #[default]
    Off,
    /// Every other pod.
    Pod,
    /// The pods of every other node.
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

/// What a side file says of the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AgentSettings<'a> {
    /// Whom a mounted volume's storage is kept from.
    pub fence: &'a str,
    /// Where the agent listens.
    pub socket: &'a str,
    /// Whether it carries out the driver's calls, with the programs of its own image.
    pub runs: bool,
}

/// What the words under `agent` mean; `None` where there are none, and no agent has to do with the
/// driver.
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

/// The one argument of a driver that the agent executes: the call itself, with its secrets, comes
/// on standard input, where no one else can read it, and is carried out here and not handed on.
///
/// First how many milliseconds it may take, then the verb and its arguments, with a zero byte
/// between each two.
pub const FROM_INPUT: &str = "-";

/// Storage that is to be held for a mount, as it is sent: nothing of it is secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hold {
    /// The storage, by a name that all its volumes share, on every node.
    pub handle: String,
    /// Whom it is kept from.
    pub fence: Fence,
    /// The directory it is mounted on.
    pub target: String,
    /// Whether the mount only reads: then it is shared with others that only read.
    pub access: HoldAccess,
    /// The pod's namespace, for people.
    pub pod_namespace: String,
    /// The pod's name, for people.
    pub pod_name: String,
    /// No other pod has it.
    pub pod_uid: String,
}

/// What a mount may do with the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HoldAccess {
    /// Read.
    #[serde(rename = "ro")]
    ReadOnly,
    /// Read and write.
    #[serde(rename = "rw")]
    ReadWrite,
}

/// The version of the protocol: of requests and answers.
pub const PROTOCOL: u32 = 1;

/// The most bytes of a request or an answer without its length. The kernel lets no argument of a
/// call be longer than half of it.
pub const LONGEST_FRAME: usize = 256 * 1024;
