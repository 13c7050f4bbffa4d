//! Evidence about nodes and pods at the time of a decision. Pure: it is collected elsewhere.

use super::record::Holder;
use std::collections::BTreeMap;
use std::time::Duration;

/// State of a holder's node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NodeState {
    /// The state could not be queried.
    #[default]
    Unknown,
    /// The node is ready, in the same boot.
    Alive,
    /// The node does not report, and it was not declared off.
    Suspect,
    /// The node runs again in another boot: the kernel that had the volume is gone.
    Rebooted,
    /// An administrator has declared the node off: `node.kubernetes.io/out-of-service`.
    OutOfService,
    /// The Node object has been missing for this time, or another machine has its name.
    Gone(Duration),
}

/// State of a holder's pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PodState {
    /// The state could not be queried.
    #[default]
    Unknown,
    /// The pod exists.
    Present,
    /// The pod is to be deleted.
    Terminating,
    /// The pod does not exist, or another pod has its name.
    Gone,
}

/// Use of a holder's volume, from the mount table and the kernel of *this* node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Usage {
    /// The use could not be queried.
    #[default]
    Unknown,
    /// The volume is mounted or attached, or a call that will do so is still under way.
    InUse,
    /// The volume is neither mounted nor attached.
    Unused,
}

/// Result of telling the storage to reject a node's writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fence {
    /// The storage was not told.
    #[default]
    NotTried,
    /// The storage rejects the writes.
    Fenced,
    /// The storage does not support fencing.
    Unsupported,
    /// The storage could not be told.
    Failed,
}

/// Evidence about one holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sight {
    /// State of the holder's node.
    pub node: NodeState,
    /// State of the holder's pod.
    pub pod: PodState,
    /// Use of the holder's volume; only queried on the holder's own node.
    pub usage: Usage,
    /// Fence of the holder's node.
    pub fence: Fence,
}

/// Deletion of a record that still has holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// The record is not deleted.
    #[default]
    No,
    /// The record is removed with its last holder, and accepts no new holder before.
    Deleted,
    /// The same, and its holders are to be detached by force.
    Forced,
}

/// Rules that an administrator sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Time for which a node must be missing before it counts as gone.
    pub gone_grace: Duration,
    /// True if the lock of a gone node is broken although the storage cannot fence the node.
    pub unfenced_break: bool,
    /// True if a pod of the same name may take the lock of a pod on a node that is not alive. This
    /// has destroyed file systems: such a node may still write.
    pub same_name_break: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { gone_grace: Duration::from_mins(5), unfenced_break: false, same_name_break: false }
    }
}

/// Input of a decision besides record and request.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Evidence about the holders, by their ids.
    pub sights: BTreeMap<String, Sight>,
    /// Rules that an administrator sets.
    pub rules: Rules,
    /// True if no new mount is accepted: the record is being deleted.
    pub draining: bool,
    /// True if the holders are to be detached by force.
    pub forced: bool,
}

impl Evidence {
    /// Adds the deletion state of the record.
    #[must_use]
    pub fn with(self, ending: Ending) -> Self {
        let (draining, forced) = (ending != Ending::No, ending == Ending::Forced);
        Self { draining: self.draining || draining, forced: self.forced || forced, ..self }
    }

    /// Returns the evidence about a holder. By default its state is unknown.
    pub fn of(&self, holder: &Holder) -> Sight {
        self.sights.get(&holder.id).copied().unwrap_or_default()
    }
}
