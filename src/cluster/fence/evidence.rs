//! What is known about nodes and pods when something is decided. Pure: who looks is elsewhere.

use super::record::Holder;
use std::collections::BTreeMap;
use std::time::Duration;

/// What is known about the node of a holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NodeState {
    /// No one could be asked.
    #[default]
    Unknown,
    /// The same boot of it is ready.
    Alive,
    /// It does not report, and no one says that it is off.
    Suspect,
    /// It runs again, in another boot: the kernel that had the volume is gone.
    Rebooted,
    /// An administrator has asserted that it is off: `node.kubernetes.io/out-of-service`.
    OutOfService,
    /// Its Node object has been missing for so long, or another machine has its name.
    Gone(Duration),
}

/// What is known about the pod of a holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PodState {
    /// No one could be asked.
    #[default]
    Unknown,
    /// It is there.
    Present,
    /// It is to be deleted.
    Terminating,
    /// It is not there, or another one has its name.
    Gone,
}

/// What the mount table and the kernel of *this* node say about a holder's volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Usage {
    /// No one could be asked.
    #[default]
    Unknown,
    /// It is mounted or attached, or a call that will is still under way.
    InUse,
    /// It is neither.
    Unused,
}

/// How the storage itself was told to take no more writes of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fence {
    /// It was not.
    #[default]
    NotTried,
    /// It takes none any more.
    Fenced,
    /// It has no way to.
    Unsupported,
    /// It could not be told.
    Failed,
}

/// What is known about one holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sight {
    /// Its node.
    pub node: NodeState,
    /// Its pod.
    pub pod: PodState,
    /// Its volume; only asked on the holder's own node.
    pub usage: Usage,
    /// Whether the storage keeps its node out.
    pub fence: Fence,
}

/// Whether someone has deleted a record that still has holders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// No.
    #[default]
    No,
    /// It goes when its last holder does, and nobody holds the storage anew before.
    Deleted,
    /// The same, and its holders are to be detached by force.
    Forced,
}

/// What an administrator allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How long a node has to be missing before it counts as gone.
    pub gone_grace: Duration,
    /// Whether the lock of a node that is gone is broken although the storage cannot keep it out.
    pub unfenced_break: bool,
    /// Whether a pod of the same name may take the lock of one on a node that is not alive. This
    /// has destroyed file systems: such a node may still write.
    pub same_name_break: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { gone_grace: Duration::from_mins(5), unfenced_break: false, same_name_break: false }
    }
}

/// Everything a decision is made of, besides record and request.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// By the holder's id.
    pub sights: BTreeMap<String, Sight>,
    /// What an administrator allows.
    pub rules: Rules,
    /// Whether nothing new may be mounted: the record is being deleted.
    pub draining: bool,
    /// Whether who holds it is to be detached by force.
    pub forced: bool,
}

impl Evidence {
    /// With what the record itself says of its end.
    #[must_use]
    pub fn with(self, ending: Ending) -> Self {
        let (draining, forced) = (ending != Ending::No, ending == Ending::Forced);
        Self { draining: self.draining || draining, forced: self.forced || forced, ..self }
    }

    /// What is known about a holder: by default nothing.
    pub fn of(&self, holder: &Holder) -> Sight {
        self.sights.get(&holder.id).copied().unwrap_or_default()
    }
}
