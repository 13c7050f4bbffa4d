//! The desired state, and the steps that reach it: data, nothing else.
//!
//! A driver turns options into a [`Plan`] without looking at the machine; the executor carries the
//! plan out. Because a plan is data, it can be printed (`flexvol plan`), checked by the node's
//! [`policy`](crate::policy) before anything happens, compared with a golden file, and rolled back
//! step by step.
//!
//! In serialised form, a plan shows everything but secrets, which read `***`.

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

/// A goal and the steps that reach it.
#[derive(Clone, Debug, Serialize)]
pub struct Plan {
    /// Desired state. It is checked before the first step (already reached: nothing is done) and
    /// after the last step (not reached: the steps are rolled back).
    pub goal: Goal,
    /// Steps in order. Each is safe to repeat after a crash.
    pub steps: Vec<Step>,
}

/// State of the node after a successful plan.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Goal {
    /// The target is a mount that shows `view`.
    Mounted {
        /// The pod's volume directory.
        target: TargetPath,
        /// Mount that must be there.
        view: View,
    },
    /// Nothing is mounted at the target, and it is empty or gone.
    Unmounted {
        /// The pod's volume directory.
        target: TargetPath,
    },
    /// Nothing is mounted at the target, it is empty or gone, and nothing is left of the program or
    /// the device that served the mount.
    Ended {
        /// The pod's volume directory.
        target: TargetPath,
    },
    /// The steps check themselves; nothing can be checked in advance.
    Performed,
}

/// One action of the executor.
///
/// The variants are all actions of the executor; [`Step::undo`] describes how each is rolled back.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Step {
    /// Make sure the target exists and may be mounted on.
    PrepareTarget {
        /// The pod's volume directory.
        target: TargetPath,
    },
    /// Make a directory of the node and its missing parents.
    MakeDirectory {
        /// Directory below a root that the policy allows.
        path: PathBuf,
        /// Mode and owner of the last component; missing parents are 0755 and root's.
        owner: Ownership,
    },
    /// Continue only if something is mounted here: otherwise the following steps would act on the
    /// directory beneath the mount point.
    ExpectMount {
        /// Directory above a file that a later step uses.
        path: PathBuf,
    },
    /// Make an image file, if the file is missing.
    CreateImage {
        /// File below a root that the policy allows.
        file: PathBuf,
        /// Size in bytes.
        size: u64,
        /// Allocation of its blocks: now, or on first write.
        allocation: Allocation,
    },
    /// Attach an image file to a loop device, or reuse the device if another pod uses the file.
    AttachLoop {
        /// File below a root that the policy allows.
        file: PathBuf,
        /// The part of the file that holds the file system.
        region: Region,
        /// True if the page cache of the backing file is bypassed where its file system supports
        /// this.
        direct_io: bool,
        /// True if the file is never written to, because its file system cannot be written.
        read_only: bool,
    },
    /// Action on the block device of a [`Store`].
    Store(StoreStep),
    /// Make a file system on the attached device, if the device is proven blank.
    Format {
        /// Type of the file system.
        file_system: FileSystem,
        /// Further arguments of mkfs.
        options: Vec<String>,
    },
    /// Repair the file system with its checker, unless it is in use.
    CheckFileSystem {
        /// Type of the file system; `None` means whatever the device holds.
        file_system: Option<FileSystem>,
    },
    /// Mount a file system.
    Mount {
        /// The pod's volume directory.
        target: TargetPath,
        /// Type as the kernel names it; `None` means whatever the device holds.
        file_system: Option<String>,
        /// Source of the mount.
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
    /// No other process sees the temporary mount for this.
    MakeDirectoryOnShare {
        /// Share that a later step mounts.
        share: Share,
        /// Directory to make if the mount fails because it is missing.
        missing: DirectoryOnShare,
    },
    /// Mount a share of the server that was reached.
    MountShare {
        /// The pod's volume directory.
        target: TargetPath,
        /// Share to mount.
        share: Share,
        /// Directory to make if the mount fails because it is missing; then the mount is repeated.
        #[serde(skip_serializing_if = "Option::is_none")]
        missing: Option<Box<DirectoryOnShare>>,
        /// Program that serves the share if the kernel has no such file system.
        #[serde(skip_serializing_if = "Option::is_none")]
        otherwise: Option<Box<Daemon>>,
    },
    /// Mount files in memory, all of them at once.
    MountFiles {
        /// The pod's volume directory.
        target: TargetPath,
        /// Source that the mount table shows.
        source: String,
        /// Options of the tmpfs.
        options: Vec<FsOption>,
        /// Per-mount flags, set after the files are written.
        flags: MountFlags,
        /// Files with their names.
        files: Vec<SecretFile>,
        /// Mode and owner of each file.
        owner: Ownership,
    },
    /// Mount directories of the node one above the other, with a writable layer on top.
    MountOverlay {
        /// The pod's volume directory.
        target: TargetPath,
        /// Directories to mount.
        overlay: Overlay,
    },
    /// Continue only if kubelet's mount for the node, if there is one, is this volume: kubelet
    /// knows a volume by a name that two volumes can have.
    ExpectStaged {
        /// Global directory, in which kubelet had the volume mounted.
        staged: TargetPath,
        /// Source that these options name.
        source: Source,
    },
    /// Show at the target the volume that kubelet had mounted once for the node.
    ShowStaged {
        /// The pod's volume directory.
        target: TargetPath,
        /// Global directory, in which kubelet had the volume mounted.
        staged: TargetPath,
        /// Per-mount flags.
        flags: MountFlags,
    },
    /// Show a file or directory of the node at the target.
    Bind {
        /// The pod's volume directory.
        target: TargetPath,
        /// Path below a root that the policy allows.
        source: PathBuf,
        /// True if the mounts below the source are included.
        recursive: bool,
        /// Per-mount flags.
        flags: MountFlags,
        /// Propagation of later mounts between the node and the pod.
        propagation: Propagation,
    },
    /// Run a command of the side file.
    Run(Run),
    /// Show a clone of a repository.
    Checkout(Checkout),
    /// Start a program that mounts, and then serves the mount as long as it exists.
    Serve(Daemon),
    /// Hold the volume's storage through the node's agent, before any part of it is attached.
    Hold {
        /// Socket of the agent.
        socket: PathBuf,
        /// Subject and holder of the hold: an [`agent::Hold`](crate::agent::Hold), in the form in
        /// which it is sent.
        hold: BTreeMap<String, String>,
    },
    /// Release the hold for the target's mount, now that nothing of it is attached.
    Release {
        /// Socket of the agent.
        socket: PathBuf,
        /// The pod's volume directory.
        target: TargetPath,
    },
    /// Publish a CSI driver's volume at the target through the node's agent.
    CsiPublish {
        /// Socket of the agent.
        socket: PathBuf,
        /// The pod's volume directory.
        target: TargetPath,
        /// Volume to publish.
        volume: Box<CsiVolume>,
        /// Secrets for the CSI driver, by its names for them.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        secrets: BTreeMap<String, Secret>,
    },
    /// Unpublish the volume at the target through the node's agent, and unstage it if this was its
    /// last target.
    CsiUnpublish {
        /// Socket of the agent.
        socket: PathBuf,
        /// The pod's volume directory.
        target: TargetPath,
    },
    /// Tell the CSI driver through the node's agent that the volume has grown.
    CsiExpand {
        /// Socket of the agent.
        socket: PathBuf,
        /// Volume, with the target that shows it.
        volume: Box<CsiVolume>,
        /// New size in bytes.
        size: u64,
    },
    /// Unmount everything at the target, and leave it empty.
    Unmount {
        /// The pod's volume directory.
        target: TargetPath,
    },
    /// Unmount everything at the target, wait for the program that served it, and remove its files.
    /// A program that no longer answers is killed first: nothing else could free the mount.
    EndDaemon {
        /// The pod's volume directory.
        target: TargetPath,
        /// Time to write back what pods have written, in seconds; then the program is killed.
        patience: u32,
        /// Further leftovers of the program on the node; see [`Daemon::traces`].
        #[serde(skip_serializing_if = "Vec::is_empty")]
        traces: Vec<PathBuf>,
    },
    /// Make the attached image and its device at least this large.
    GrowImage {
        /// Size in bytes.
        size: u64,
        /// Allocation of the new blocks: now, or on first write.
        allocation: Allocation,
    },
    /// Answer with a known value, without any check of the node.
    Answer {
        /// The device, which on the controller's host is only a name.
        device: String,
    },
    /// Grow the file system at the target until it fills the attached device.
    GrowFileSystem {
        /// Mount point of the file system.
        target: TargetPath,
    },
}

impl Step {
    /// Returns how the step is rolled back when a later step fails; `None` if there is nothing to
    /// roll back.
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
            // Others may use the directory already.
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

/// Source of a new file system mount.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum MountFrom {
    /// A name; the file system needs no device.
    Name(String),
    /// The device that an earlier step attached.
    AttachedDevice,
}

/// File with secret content.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretFile {
    /// Plain name, no path.
    pub name: String,
    /// Complete content.
    pub content: Secret,
}

/// Directories mounted one above the other.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overlay {
    /// Lower directories, the topmost first; each below a root the policy allows.
    pub lower: Vec<PathBuf>,
    /// Layer that is written to.
    pub upper: Upper,
    /// Mode and owner of its root, if the root is created.
    pub owner: Ownership,
    /// Per-mount flags.
    pub flags: MountFlags,
}

/// Writable layer of an overlay.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Upper {
    /// In memory, at most this many bytes.
    Memory(Option<u64>),
    /// In this directory, below a root the policy allows.
    Directory(PathBuf),
}

/// Time at which an image's blocks are reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Allocation {
    /// On first write: the file is small, but the node's disk can fill up under the pod.
    Sparse,
    /// At creation: the file takes its full size, and never runs out of space.
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
    /// Returns the plan of a plain unmount. kubelet passes a path and nothing else, so the plan
    /// needs nothing else.
    pub fn unmount(target: &TargetPath) -> Self {
        Self {
            goal: Goal::Unmounted { target: target.clone() },
            steps: vec![Step::Unmount { target: target.clone() }],
        }
    }

    /// Returns the plan to unmount what a [`Daemon`] serves.
    pub fn end_daemon(target: &TargetPath, patience: u32) -> Self {
        Self {
            goal: Goal::Ended { target: target.clone() },
            steps: vec![Step::EndDaemon { target: target.clone(), patience, traces: Vec::new() }],
        }
    }

    /// Returns the plan to unmount what is on a [`Store`].
    pub fn detach_store(target: &TargetPath) -> Self {
        Self {
            goal: Goal::Ended { target: target.clone() },
            steps: vec![
                Step::Unmount { target: target.clone() },
                Step::Store(StoreStep::Detach { target: target.clone() }),
            ],
        }
    }

    /// Returns the plan of a verb that succeeds without doing anything.
    pub fn nothing() -> Self {
        Self { goal: Goal::Performed, steps: Vec::new() }
    }
}
