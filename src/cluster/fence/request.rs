//! What is asked about one storage. Pure.

use super::record::Holder;
use super::sharing::Sharing;

/// What is left of a volume on this node, as someone has just looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Left {
    /// Nothing.
    Nothing,
    /// It is no longer in the pod's directory, but attached, or mounted once for the node.
    Attached,
    /// It is still mounted in the pod's directory.
    Mounted,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A pod wants to hold the storage, before anything is attached.
    Mount {
        /// Who: `epoch` and `phase` are decided.
        me: Box<Holder>,
        /// Together with whom.
        sharing: Sharing,
    },
    /// A holder has attached.
    Attached {
        /// Which holder.
        id: String,
        /// The epoch it was told.
        epoch: u64,
        /// What it has attached.
        device: String,
    },
    /// A holder is about to unmount.
    BeginUnmount {
        /// Which holder.
        id: String,
    },
    /// A holder has unmounted, and detached if no other pod of the node needs the device.
    EndUnmount {
        /// Which holder.
        id: String,
        /// What is left.
        left: Left,
    },
    /// This node is asked to clean up after a holder of its own.
    CleanUp {
        /// Which holder.
        id: String,
        /// The epoch of the holder that is meant.
        epoch: u64,
        /// What is left.
        left: Left,
    },
    /// The agent of a node starts, or reaches the store again, and finds a volume in its journal.
    Return {
        /// Which holder it was.
        id: String,
        /// Its epoch.
        epoch: u64,
        /// What the agent calls itself from now on: no earlier record has it.
        agent: String,
    },
    /// No one waits: what is known about the holders' nodes has changed, or may have.
    Review,
    /// Someone wants the record removed.
    Delete,
}
