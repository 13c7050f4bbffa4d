//! Sharing of a volume: the pods that may use it at the same time. Pure.

use flexvol_protocol::failure::{Failure, Result};

/// Pods that may use a volume at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sharing {
    /// One pod.
    Exclusive,
    /// The pods of one node.
    ExclusivePerNode,
    /// Any number of pods, all of which only read.
    SharedReadOnly,
    /// Any number of pods. The storage itself coordinates the writers.
    SharedReadWrite,
}

/// Meaning of `ReadWriteOnce`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// One pod.
    #[default]
    Pod,
    /// One node, as in Kubernetes.
    Node,
}

/// Access mode of a PersistentVolume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessMode {
    /// `ReadWriteOncePod`.
    OncePod,
    /// `ReadWriteOnce`.
    Once,
    /// `ReadOnlyMany`.
    ReadMany,
    /// `ReadWriteMany`.
    WriteMany,
}

const ALL: [(Sharing, &str); 4] = [
    (Sharing::Exclusive, "exclusive"),
    (Sharing::ExclusivePerNode, "exclusive-per-node"),
    (Sharing::SharedReadOnly, "shared-ro"),
    (Sharing::SharedReadWrite, "shared-rw"),
];

impl Sharing {
    /// Parses the name in options and records.
    pub fn parse(name: &str) -> Option<Self> {
        ALL.into_iter().find(|(_, known)| *known == name).map(|(sharing, _)| sharing)
    }

    /// Returns the name in options and records.
    pub fn name(self) -> &'static str {
        ALL.into_iter().find(|(known, _)| *known == self).map_or("", |(_, name)| name)
    }

    /// Returns the sharing of the options; without it, that of the PersistentVolume's access modes;
    /// without these, that of the mount: a writer is alone, readers are not.
    pub fn choose(option: Option<Self>, modes: &[AccessMode], scope: Scope, read_only: bool) -> Self {
        let once = match scope {
            Scope::Pod => Self::Exclusive,
            Scope::Node => Self::ExclusivePerNode,
        };
        let of_mode = |mode: AccessMode| match mode {
            AccessMode::OncePod => Self::Exclusive,
            AccessMode::Once => once,
            AccessMode::ReadMany => Self::SharedReadOnly,
            AccessMode::WriteMany => Self::SharedReadWrite,
        };
        // The widest of several modes counts.
        let by_mode = || modes.iter().copied().map(of_mode).max();
        let by_need = if read_only { Self::SharedReadOnly } else { once };
        option.or_else(by_mode).unwrap_or(by_need)
    }

    /// Refuses sharing that would damage data: a writer among readers, and two writers on a file
    /// system that expects one (`cluster` is true if it does not).
    pub fn check(self, read_only: bool, cluster: bool) -> Result<()> {
        let reason = match self {
            Self::SharedReadOnly if !read_only => {
                "the volume is shared read-only: mount it read-only, or choose another sharing"
            }
            Self::SharedReadWrite if !cluster => {
                "shared writing damages this file system, which is made for one node: choose \
                 another sharing or access mode"
            }
            _ => return Ok(()),
        };
        Err(Failure::options(format!("sharing {:?} cannot be: {reason}", self.name())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Test 11.
    #[test]
    fn t11_read_write_once_is_one_pod_or_by_setting_one_node() {
        let choose = |scope| Sharing::choose(None, &[AccessMode::Once], scope, false);
        assert_eq!(choose(Scope::Pod), Sharing::Exclusive);
        assert_eq!(choose(Scope::Node), Sharing::ExclusivePerNode);
        // ReadWriteOncePod is one pod, whatever the setting.
        let choose = |scope| Sharing::choose(None, &[AccessMode::OncePod], scope, false);
        assert_eq!((choose(Scope::Pod), choose(Scope::Node)), (Sharing::Exclusive, Sharing::Exclusive));
    }

    #[test]
    fn options_are_asked_first_then_access_modes_then_the_mount() {
        for (option, modes, read_only, expected) in [
            (Some(Sharing::SharedReadWrite), &[AccessMode::Once][..], false, Sharing::SharedReadWrite),
            (None, &[AccessMode::Once, AccessMode::WriteMany], false, Sharing::SharedReadWrite),
            (None, &[AccessMode::ReadMany], true, Sharing::SharedReadOnly),
            (None, &[], true, Sharing::SharedReadOnly),
            (None, &[], false, Sharing::Exclusive),
        ] {
            assert_eq!(Sharing::choose(option, modes, Scope::Pod, read_only), expected);
        }
    }

    /// Test 10.
    #[test]
    fn t10_shared_writing_on_ext4_is_refused() {
        assert!(Sharing::SharedReadWrite.check(false, false).is_err());
        assert!(Sharing::SharedReadWrite.check(false, true).is_ok());
        assert!(Sharing::SharedReadOnly.check(false, true).is_err());
        assert!(Sharing::SharedReadOnly.check(true, false).is_ok());
        assert!(Sharing::Exclusive.check(false, false).is_ok());
    }

    #[test]
    fn names_are_read_back() {
        for (sharing, name) in ALL {
            assert_eq!((Sharing::parse(name), sharing.name()), (Some(sharing), name));
        }
        assert_eq!(Sharing::parse("Exclusive"), None);
    }
}
