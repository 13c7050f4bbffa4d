//! Requests about one storage. Pure.

use super::record::Holder;
use super::sharing::Sharing;

/// Rest of a volume on this node, at the time of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Left {
    /// Nothing is left.
    Nothing,
    /// The volume is no longer in the pod's directory, but attached, or mounted once for the node.
    Attached,
    /// The volume is still mounted in the pod's directory.
    Mounted,
}

/// Request about one storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A pod requests the storage, before anything is attached.
    Mount {
        /// Requesting holder; its `epoch` and `phase` are decided.
        me: Box<Holder>,
        /// Requested sharing.
        sharing: Sharing,
    },
    /// A holder has attached the storage.
    Attached {
        /// Id of the holder.
        id: String,
        /// Epoch that the holder was given.
        epoch: u64,
        /// Attached device.
        device: String,
    },
    /// A holder is about to unmount.
    BeginUnmount {
        /// Id of the holder.
        id: String,
    },
    /// A holder has unmounted, and detached if no other pod of the node needs the device.
    EndUnmount {
        /// Id of the holder.
        id: String,
        /// Rest of the volume on this node.
        left: Left,
    },
    /// This node was asked to clean up after one of its own holders.
    CleanUp {
        /// Id of the holder.
        id: String,
        /// Epoch of the holder that is meant.
        epoch: u64,
        /// Rest of the volume on this node.
        left: Left,
    },
    /// The agent of a node starts, or reaches the store again, and finds a volume in its journal.
    Return {
        /// Id of the former holder.
        id: String,
        /// Epoch of the former holder.
        epoch: u64,
        /// New name of the agent, which no earlier record has.
        agent: String,
    },
    /// The evidence about the holders' nodes has changed, or may have. No caller waits.
    Review,
    /// The record is to be removed.
    Delete,
}
