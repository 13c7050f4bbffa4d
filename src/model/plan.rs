//! What shall be true, and the steps that make it so: data, nothing else.
//!
//! A driver turns options into a [`Plan`] without looking at the machine; the executor makes it
//! true. Because a plan is data it can be printed (`flexvol plan`), checked by the node's
//! [`policy`](crate::policy) before anything happens, compared with a golden file, and undone step
//! by step.
//!
//! Serialised, a plan shows everything but secrets, which read `***`.

mod share;

pub use share::{Dialect, DirectoryOnShare, Named, Reach, Share, ShareOption, ShareValue};

mod ceph;
mod doing;

pub use ceph::{Cluster, Monitor, RbdImage, RbdMounter};

mod checkout;

pub use checkout::Checkout;

mod daemon;

pub use daemon::{Content, Daemon, Piece};

mod command;

pub use command::{Answer, Run, Word};

mod store;
mod view;

pub use store::{
    Attachment, DiskImage, Encryption, ImageFormat, Iscsi, LogicalVolume, Nbd, NbdServer, Portal, Store,
    StoreStep,
};
pub use view::{FileSystems, Source, View};

use crate::csi::volume::CsiVolume;
use flexvol_protocol::TargetPath;
use flexvol_protocol::file_system::FileSystem;
pub use flexvol_protocol::mount_options::Propagation;
use flexvol_protocol::mount_options::{FsOption, MountFlags};
pub use flexvol_protocol::ownership::Ownership;
use flexvol_protocol::secret::Secret;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A goal and the way there.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Looked at before the first step (already true: nothing is done) and after the last (still
    /// false: undone).
    pub goal: Goal,
    /// In order. Each is safe to repeat after a crash.
    pub steps: Vec<Step>,
}

/// What the world looks like when the plan has worked.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Goal {
    /// The target is a mount that shows `view`.
    Mounted {
        /// The pod's volume directory.
        target: TargetPath,
        /// What must be mounted there.
        view: View,
    },
    /// Nothing is mounted at the target, and it is empty or gone.
    Unmounted {
        /// The pod's volume directory.
        target: TargetPath,
    },
    /// The same, and nothing is left of the program or the device that served the mount.
    Ended {
        /// The pod's volume directory.
        target: TargetPath,
    },
    /// The steps check themselves; nothing can be told beforehand.
    Performed,
}

/// One thing the executor does.
///
/// The variants are the executor's whole vocabulary; [`Step::undo`] says how each is undone.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Step {
    /// Make sure the target exists and may be mounted on.
    PrepareTarget {
        /// The pod's volume directory.
        target: TargetPath,
    },
    /// Make a directory of the node and the missing ones above it.
    MakeDirectory {
        /// Below a root the policy allows.
        path: PathBuf,
        /// Mode and owner of the last component; the missing ones above are 0755 and root's.
        owner: Ownership,
    },
    /// Go on only if something is mounted here: else what follows would be done to the directory
    /// beneath.
    ExpectMount {
        /// Above a file that a later step uses.
        path: PathBuf,
    },
    /// Make an image file, if there is none.
    CreateImage {
        /// Below a root the policy allows.
        file: PathBuf,
        /// In bytes.
        size: u64,
        /// Whether its blocks are reserved now.
        allocation: Allocation,
    },
    /// Put an image file behind a loop device, the one it has already if another pod uses it.
    AttachLoop {
        /// Below a root the policy allows.
        file: PathBuf,
        /// The part of the file that holds the file system.
        region: Region,
        /// Bypass the page cache of the backing file where its file system can.
        direct_io: bool,
        /// Never write to the file, because its file system cannot be written.
        read_only: bool,
    },
    /// Something about a block device from elsewhere.
    Store(StoreStep),
    /// Make a file system on the attached device, if the device is proven blank.
    Format {
        /// Which one.
        file_system: FileSystem,
        /// Further words for mkfs.
        options: Vec<String>,
    },
    /// Let the file system's checker fix it, unless it is in use.
    CheckFileSystem {
        /// Which one; `None` is whatever the device holds.
        file_system: Option<FileSystem>,
    },
    /// Mount a file system.
    Mount {
        /// The pod's volume directory.
        target: TargetPath,
        /// The type as the kernel names it; `None` is whatever the device holds.
        file_system: Option<String>,
        /// From where.
        from: MountFrom,
        /// Per-mount flags.
        flags: MountFlags,
        /// The file system's own options, one by one: no comma can add another.
        options: Vec<FsOption>,
    },
    /// Find a server that answers.
    Reach(Reach),
    /// Find a monitor that answers.
    ReachCluster(Cluster),
    /// Make a directory on the server that was reached, unless the share can be mounted as it is.
    /// Whatever is mounted for that, no one else sees.
    MakeDirectoryOnShare {
        /// Which share a later step mounts.
        share: Share,
        /// What is made if that fails because it is missing.
        missing: DirectoryOnShare,
    },
    /// Mount a share of the server that was reached.
    MountShare {
        /// The pod's volume directory.
        target: TargetPath,
        /// Which one.
        share: Share,
        /// What is made if that fails because it is missing; then it is mounted again.
        #[serde(skip_serializing_if = "Option::is_none")]
        missing: Option<Box<DirectoryOnShare>>,
        /// Who serves it where the kernel has no such file system.
        #[serde(skip_serializing_if = "Option::is_none")]
        otherwise: Option<Box<Daemon>>,
    },
    /// Mount files in memory, all of them at once.
    MountFiles {
        /// The pod's volume directory.
        target: TargetPath,
        /// What the mount table shows as its source.
        source: String,
        /// Those of the tmpfs.
        options: Vec<FsOption>,
        /// Per-mount flags, once the files are there.
        flags: MountFlags,
        /// By name.
        files: Vec<SecretFile>,
        /// Of each file.
        owner: Ownership,
    },
    /// Mount directories of the node one above the other, and one to write on above them.
    MountOverlay {
        /// The pod's volume directory.
        target: TargetPath,
        /// Which ones.
        overlay: Overlay,
    },
    /// Go on only if what kubelet has had mounted once for the node, if anything, is this: it knows
    /// a volume by a name that two can have.
    ExpectStaged {
        /// Where kubelet had it mounted.
        staged: TargetPath,
        /// What these options name.
        source: Source,
    },
    /// Show at the target what kubelet has had mounted once for the node.
    ShowStaged {
        /// The pod's volume directory.
        target: TargetPath,
        /// Where kubelet had it mounted.
        staged: TargetPath,
        /// Per-mount flags.
        flags: MountFlags,
    },
    /// Show a file or directory of the node at the target.
    Bind {
        /// The pod's volume directory.
        target: TargetPath,
        /// Below a root the policy allows.
        source: PathBuf,
        /// With the mounts below it.
        recursive: bool,
        /// Per-mount flags.
        flags: MountFlags,
        /// Whether later mounts travel between the node and the pod.
        propagation: Propagation,
    },
    /// Run a command of the side file.
    Run(Run),
    /// Show a clone of a repository.
    Checkout(Checkout),
    /// Start a program that mounts and serves the mount for as long as it is there.
    Serve(Daemon),
    /// Hold the volume's storage by the node's agent, before anything of it is attached.
    Hold {
        /// Where the agent listens.
        socket: PathBuf,
        /// What is held, for whom: an [`agent::Hold`](crate::agent::Hold), as it is sent.
        hold: BTreeMap<String, String>,
    },
    /// Release what was held for the target's mount, now that nothing of it is attached.
    Release {
        /// Where the agent listens.
        socket: PathBuf,
        /// The pod's volume directory.
        target: TargetPath,
    },
    /// Have the node's agent publish a CSI driver's volume at the target.
    CsiPublish {
        /// Where the agent listens.
        socket: PathBuf,
        /// The pod's volume directory.
        target: TargetPath,
        /// Which one.
        volume: Box<CsiVolume>,
        /// Those of the CSI driver, by their names.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        secrets: BTreeMap<String, Secret>,
    },
    /// Have the node's agent take it away there, and unstage it where it was the last.
    CsiUnpublish {
        /// Where the agent listens.
        socket: PathBuf,
        /// The pod's volume directory.
        target: TargetPath,
    },
    /// Have the node's agent tell the CSI driver that it has grown.
    CsiExpand {
        /// Where the agent listens.
        socket: PathBuf,
        /// Which one, and where it is shown.
        volume: Box<CsiVolume>,
        /// In bytes.
        size: u64,
    },
    /// Unmount everything at the target, and leave it empty.
    Unmount {
        /// The pod's volume directory.
        target: TargetPath,
    },
    /// Unmount everything at the target, let the program that served it finish, and remove its
    /// files. One that does not answer any more is ended first: nothing else could free the mount.
    EndDaemon {
        /// The pod's volume directory.
        target: TargetPath,
        /// How many seconds it has to write back what pods have written; then it is killed.
        patience: u32,
        /// What else a killed one leaves on the node, below /run.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        traces: Vec<PathBuf>,
    },
    /// Make the attached image and its device at least this large.
    GrowImage {
        /// In bytes.
        size: u64,
        /// Whether the new blocks are reserved now.
        allocation: Allocation,
    },
    /// Say what is known without looking at anything.
    Answer {
        /// The device, which on the controller's host is only a name.
        device: String,
    },
    /// Let the file system mounted at the target fill the attached device.
    GrowFileSystem {
        /// Where it is mounted.
        target: TargetPath,
    },
}

impl Step {
    /// How the step is undone when a later one fails; `None` where there is nothing to
    /// undo.
    pub fn undo(&self) -> Option<&'static str> {
        match self {
            Self::PrepareTarget { .. } => Some("remove the directory if it was made"),
            Self::MakeDirectory { .. } => Some("remove the directories that were made"),
            Self::CreateImage { .. } => Some("remove the file if it was made"),
            Self::AttachLoop { .. } => {
                Some("close the device; the kernel detaches it when nobody else uses it")
            }
            Self::Store(step) => step.undo(),
            Self::Hold { .. } => Some("release it"),
            Self::CsiPublish { .. } => Some("have the agent take it away"),
            Self::Mount { .. }
            | Self::ShowStaged { .. }
            | Self::MountShare { .. }
            | Self::MountFiles { .. }
            | Self::MountOverlay { .. }
            | Self::Bind { .. } => Some("unmount"),
            Self::Run(run) => run.mounts.as_ref().map(|_| "unmount"),
            Self::Checkout(_) => Some("unmount and remove the clone"),
            Self::Serve(_) => Some("unmount, end the program and remove its files"),
            // Others may use the directory by then.
            Self::MakeDirectoryOnShare { .. }
            | Self::Reach(_)
            | Self::ReachCluster(_)
            | Self::Answer { .. }
            | Self::Format { .. }
            | Self::ExpectMount { .. }
            | Self::ExpectStaged { .. }
            | Self::CheckFileSystem { .. }
            | Self::Unmount { .. }
            | Self::Release { .. }
            | Self::CsiUnpublish { .. }
            | Self::CsiExpand { .. }
            | Self::EndDaemon { .. }
            | Self::GrowImage { .. }
            | Self::GrowFileSystem { .. } => None,
        }
    }
}

/// What a new file system is mounted from.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum MountFrom {
    /// A name; the file system needs no device.
    Name(String),
    /// The device an earlier step attached.
    AttachedDevice,
}

/// A file with what only its reader may see.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretFile {
    /// Plain: no path.
    pub name: String,
    /// All of it.
    pub content: Secret,
}

/// Directories one above the other.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overlay {
    /// Those below, the topmost first; each below a root the policy allows.
    pub lower: Vec<PathBuf>,
    /// The one that is written to.
    pub upper: Upper,
    /// Mode and owner of its root, if that is made.
    pub owner: Ownership,
    /// Per-mount flags.
    pub flags: MountFlags,
}

/// The layer of an overlay that is written to.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Upper {
    /// In memory, at most so many bytes.
    Memory(Option<u64>),
    /// In this directory, below a root the policy allows.
    Directory(PathBuf),
}

/// Whether an image's blocks are reserved when it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Allocation {
    /// On first write: small, but the node's disk can fill up under the pod.
    Sparse,
    /// At once: as large as it says, and never out of space.
    Full,
}

/// The part of a file that holds the file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Region {
    /// All of it.
    Whole,
    /// From this byte to the end.
    Offset(u64),
    /// This partition, counted from 1.
    Partition(u32),
}

impl Plan {
    /// The plan of every plain unmount: kubelet hands over a path and nothing else, so it needs
    /// nothing else.
    pub fn unmount(target: &TargetPath) -> Self {
        Self {
            goal: Goal::Unmounted { target: target.clone() },
            steps: vec![Step::Unmount { target: target.clone() }],
        }
    }

    /// The plan of unmounting what a [`Daemon`] serves.
    pub fn end_daemon(target: &TargetPath, patience: u32) -> Self {
        Self {
            goal: Goal::Ended { target: target.clone() },
            steps: vec![Step::EndDaemon { target: target.clone(), patience, traces: Vec::new() }],
        }
    }

    /// The plan of unmounting what is on a [`Store`].
    pub fn detach_store(target: &TargetPath) -> Self {
        Self {
            goal: Goal::Ended { target: target.clone() },
            steps: vec![
                Step::Unmount { target: target.clone() },
                Step::Store(StoreStep::Detach { target: target.clone() }),
            ],
        }
    }

    /// The plan of a verb that has nothing to do but to succeed.
    pub fn nothing() -> Self {
        Self { goal: Goal::Performed, steps: Vec::new() }
    }
}
