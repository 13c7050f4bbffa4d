//! The twelve verbs: kubelet's arguments for each, and its use of the answer.

use std::ffi::OsStr;
use std::fmt;

/// Operation that kubelet or the controller-manager asks a driver for: the first argument of a
/// call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// Report what the driver can do.
    Init,
    /// Name the volume; kubelet does not use the name.
    GetVolumeName,
    /// Attach the volume to a node.
    Attach,
    /// Detach the volume from the node.
    Detach,
    /// Wait for the device on the node.
    WaitForAttach,
    /// Report whether the volume is attached to a node.
    IsAttached,
    /// Mount the device once for the node.
    MountDevice,
    /// Unmount the device from the node.
    UnmountDevice,
    /// Mount the volume for a pod.
    Mount,
    /// Unmount the volume from the pod.
    Unmount,
    /// Grow the backing store; never called.
    ExpandVolume,
    /// Grow the file system.
    ExpandFs,
}

/// One positional argument of a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// Options, one JSON object of strings.
    Options,
    /// Name of the Node object, which may differ from the host name.
    Node,
    /// Name of the PV, or of the pod's volume for an inline volume. It is never a device, although
    /// the official text says so.
    Volume,
    /// Device that `attach` or `waitforattach` answered; may be empty.
    Device,
    /// Directory: the pod's mount directory or the device's global one.
    Target,
    /// Requested size, in bytes.
    NewBytes,
    /// Previous size, in bytes.
    OldBytes,
}

impl Argument {
    /// Returns the word for it in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Options => "options",
            Self::Node => "node",
            Self::Volume => "volume",
            Self::Device => "device",
            Self::Target => "target",
            Self::NewBytes => "new size",
            Self::OldBytes => "old size",
        }
    }
}

/// Process that executes the driver for a verb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caller {
    /// The node's kubelet.
    Kubelet,
    /// The attach-detach controller; kubelet itself where `enableControllerAttachDetach` is off.
    Controller,
    /// Kubelet and the controller, each for itself.
    Both,
    /// No release of Kubernetes: the expand controller is built without FlexVolume and reports
    /// success instead.
    Nobody,
}

/// One row of [`VERBS`].
#[derive(Debug)]
pub struct VerbSpec {
    /// Verb of the row.
    pub verb: Verb,
    /// Verb as it is written in argv.
    pub name: &'static str,
    /// Arguments after the verb, in order.
    pub arguments: &'static [Argument],
    /// Process that calls it.
    pub caller: Caller,
    /// Fields of a `Success` that the caller uses, besides the status.
    pub reply_fields: &'static [&'static str],
    /// Purpose.
    pub doc: &'static str,
    /// Behaviour of the caller after `Not supported`, from then on and for every volume.
    pub not_supported: &'static str,
}

/// All verbs, in the order of [`Verb::ALL`]. Usage texts, `explain` and the conformance check read
/// this table.
pub static VERBS: [VerbSpec; 12] = {
    use Argument::{Device, NewBytes, Node, OldBytes, Options, Target, Volume};
    [
        VerbSpec {
            verb: Verb::Init,
            name: "init",
            arguments: &[],
            caller: Caller::Both,
            reply_fields: &["capabilities"],
            doc: "say what the driver can do; runs after every change in the driver's directory",
            not_supported: "the driver is not loaded",
        },
        VerbSpec {
            verb: Verb::GetVolumeName,
            name: "getvolumename",
            arguments: &[Options],
            caller: Caller::Both,
            reply_fields: &[],
            doc: "name the volume; the answer is dropped, but a failure stops the operation",
            not_supported: "the name of the PV or pod volume serves, as it does after a success",
        },
        VerbSpec {
            verb: Verb::Attach,
            name: "attach",
            arguments: &[Options, Node],
            caller: Caller::Controller,
            reply_fields: &["device"],
            doc: "attach the volume to a node and name its device",
            not_supported: "the volume counts as attached, without a device",
        },
        VerbSpec {
            verb: Verb::Detach,
            name: "detach",
            arguments: &[Volume, Node],
            caller: Caller::Controller,
            reply_fields: &[],
            doc: "detach the volume from a node",
            not_supported: "the volume counts as detached",
        },
        VerbSpec {
            verb: Verb::WaitForAttach,
            name: "waitforattach",
            arguments: &[Device, Options],
            caller: Caller::Kubelet,
            reply_fields: &["device"],
            doc: "wait until the device is there and name it again; ends after ten minutes",
            not_supported: "the device of attach is used at once",
        },
        VerbSpec {
            verb: Verb::IsAttached,
            name: "isattached",
            arguments: &[Options, Node],
            caller: Caller::Controller,
            reply_fields: &["attached"],
            doc: "say whether the volume is attached to a node; asked every minute",
            not_supported: "the volume's state stays as it is",
        },
        VerbSpec {
            verb: Verb::MountDevice,
            name: "mountdevice",
            arguments: &[Target, Device, Options],
            caller: Caller::Kubelet,
            reply_fields: &[],
            doc: "mount the device on the node's global directory",
            not_supported: "kubelet formats the device if it is blank and mounts it",
        },
        VerbSpec {
            verb: Verb::UnmountDevice,
            name: "unmountdevice",
            arguments: &[Target],
            caller: Caller::Kubelet,
            reply_fields: &[],
            doc: "unmount the node's global directory",
            not_supported: "kubelet unmounts the directory",
        },
        VerbSpec {
            verb: Verb::Mount,
            name: "mount",
            arguments: &[Target, Options],
            caller: Caller::Kubelet,
            reply_fields: &[],
            doc: "mount the volume on the pod's directory; the only call with secrets",
            not_supported: "kubelet binds the global directory, which only drivers that attach have",
        },
        VerbSpec {
            verb: Verb::Unmount,
            name: "unmount",
            arguments: &[Target],
            caller: Caller::Kubelet,
            reply_fields: &[],
            doc: "unmount the pod's directory; comes without options",
            not_supported: "kubelet unmounts the directory",
        },
        VerbSpec {
            verb: Verb::ExpandVolume,
            name: "expandvolume",
            arguments: &[Options, Target, NewBytes, OldBytes],
            caller: Caller::Nobody,
            reply_fields: &[],
            doc: "grow the backing store",
            not_supported: "the store counts as grown",
        },
        VerbSpec {
            verb: Verb::ExpandFs,
            name: "expandfs",
            arguments: &[Options, Device, Target, NewBytes, OldBytes],
            caller: Caller::Kubelet,
            reply_fields: &[],
            doc: "grow the file system, and the backing store too, as no expandvolume came before",
            not_supported: "kubelet runs resize2fs or xfs_growfs on the device",
        },
    ]
};

impl Verb {
    /// All verbs, in the order of a volume's life.
    pub const ALL: [Self; 12] = [
        Self::Init,
        Self::GetVolumeName,
        Self::Attach,
        Self::Detach,
        Self::WaitForAttach,
        Self::IsAttached,
        Self::MountDevice,
        Self::UnmountDevice,
        Self::Mount,
        Self::Unmount,
        Self::ExpandVolume,
        Self::ExpandFs,
    ];

    /// Parses the verb that kubelet wrote. `None` must be answered with `Not supported`: newer
    /// kubelets may ask for more.
    pub fn parse(name: &OsStr) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| *name == *verb.name())
    }

    /// Returns the verb as it is written in argv.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Returns the row of the verb.
    pub fn spec(self) -> &'static VerbSpec {
        &VERBS[self as usize]
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Set of the verbs that a driver implements. It is made at compile time, so that `Not supported`
/// cannot vary with time: kubelet never asks again.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct VerbSet(u16);

impl VerbSet {
    /// Verbs of a driver that does everything in `mount`.
    pub const MOUNTING: Self = Self::of(&[Verb::Init, Verb::Mount, Verb::Unmount]);

    /// Verbs that kubelet calls only for a driver that attaches. `getvolumename` is not among them:
    /// its answer is dropped, and a failure of it stops the volume.
    pub const ATTACHING: Self = Self::of(&[
        Verb::Attach,
        Verb::Detach,
        Verb::WaitForAttach,
        Verb::IsAttached,
        Verb::MountDevice,
        Verb::UnmountDevice,
    ]);

    /// Makes a set of exactly these verbs.
    pub const fn of(verbs: &[Verb]) -> Self {
        let (mut bits, mut i) = (0, 0);
        while i < verbs.len() {
            bits |= 1 << verbs[i] as u16;
            i += 1;
        }
        Self(bits)
    }

    /// Reports whether the driver implements this verb.
    pub const fn contains(self, verb: Verb) -> bool {
        self.0 & (1 << verb as u16) != 0
    }

    /// Returns the verbs of both sets.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the verbs of the set, in the order of [`Verb::ALL`].
    pub fn iter(self) -> impl Iterator<Item = Verb> {
        Verb::ALL.into_iter().filter(move |verb| self.contains(*verb))
    }
}

impl fmt::Debug for VerbSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_and_enum_agree() {
        for (index, verb) in Verb::ALL.into_iter().enumerate() {
            assert_eq!((verb as usize, verb.spec().verb), (index, verb));
            assert_eq!(Verb::parse(verb.name().as_ref()), Some(verb));
        }
    }

    #[test]
    fn only_the_exact_word_is_a_verb() {
        for word in ["", "MOUNT", "mount ", "waitfordetach", "getdevicemountpath"] {
            assert_eq!(Verb::parse(word.as_ref()), None, "{word:?}");
        }
    }

    #[test]
    fn sets_hold_what_they_were_made_of() {
        const MOUNTS: VerbSet = VerbSet::of(&[Verb::Unmount, Verb::Mount]);
        assert!(MOUNTS.contains(Verb::Mount) && !MOUNTS.contains(Verb::MountDevice));
        let all = MOUNTS.union(VerbSet::of(&[Verb::Init, Verb::ExpandFs]));
        assert_eq!(format!("{all:?}"), "{Init, Mount, Unmount, ExpandFs}");
        assert_eq!(VerbSet::of(&Verb::ALL).iter().count(), 12);
    }
}
